//! The tables, chains and rules of an IP family as the kernel lists them by netlink, in text.
//!
//! Attributes without a name in this module are printed with their number, so that none is left out unnoticed.

use std::fmt::Write;

use data_encoding::HEXLOWER;
use ferroute_core::IpFamily;
use ferroute_netlink::{
    Attribute, Attributes, Consistency, Error, Message, Protocol, Request, Socket, nf_tables::*, nfnetlink,
};
use ferroute_testing::NetNs;

/// A table, a chain, or a rule with its expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// `chain filter FORWARD`, with all attributes besides expressions.
    pub(crate) head: String,
    /// `cmp sreg=1 op=0 data={value=06}`
    pub(crate) expressions: Vec<String>,
}

/// Lists tables, then chains, then rules in the order of each chain.
pub(crate) fn dump(netns: &NetNs, family: IpFamily) -> Vec<Object> {
    netns.run(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let mut objects = list(&mut socket, family, NFT_MSG_GETTABLE, "table", TABLE);
        objects.extend(list(&mut socket, family, NFT_MSG_GETCHAIN, "chain", CHAIN));
        objects.extend(list(&mut socket, family, NFT_MSG_GETRULE, "rule", RULE));
        objects
    })
}

fn list(socket: &mut Socket, family: IpFamily, command: u8, kind: &str, schema: Schema) -> Vec<Object> {
    let family = match family {
        IpFamily::V4 => libc::NFPROTO_IPV4,
        IpFamily::V6 => libc::NFPROTO_IPV6,
    } as u8;
    let kind_of = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, command);
    let mut request = Request::new(kind_of, 0, &nfnetlink::header(family, 0, 0));
    let mut objects = Vec::new();
    let listed = socket.dump::<Error>(&mut request, |message| {
        objects.push(object(kind, schema, &message));
        Ok(())
    });
    assert_eq!(listed.unwrap(), Consistency::Consistent, "nothing else writes in this network namespace");
    objects
}

fn object(kind: &str, schema: Schema, message: &Message<'_>) -> Object {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>().unwrap();
    let expressions = attributes.clone().map(Result::unwrap).filter(|attribute| is_expressions(kind, attribute));
    let expressions = expressions.flat_map(|list| list.nested().map(|entry| expression(entry.unwrap()))).collect();
    let mut head = kind.to_owned();
    let others = attributes.map(Result::unwrap).filter(|attribute| !is_expressions(kind, attribute));
    write_fields(&mut head, others, schema);
    Object { head, expressions }
}

fn is_expressions(kind: &str, attribute: &Attribute<'_>) -> bool {
    kind == "rule" && attribute.kind == NFTA_RULE_EXPRESSIONS
}

fn expression(entry: Attribute<'_>) -> String {
    let part = |kind| entry.nested().first(kind).unwrap();
    let mut text = part(NFTA_EXPR_NAME).unwrap().text().unwrap().to_owned();
    let (_, schema) = EXPRESSIONS.iter().find(|(name, _)| *name == text).unwrap_or(&("", &[]));
    if let Some(data) = part(NFTA_EXPR_DATA) {
        write_fields(&mut text, data.nested().map(Result::unwrap), schema);
    }
    text
}

fn write_fields<'a>(text: &mut String, attributes: impl Iterator<Item = Attribute<'a>>, schema: Schema) {
    for attribute in attributes {
        let unnamed = (attribute.kind, "", Form::Bytes);
        let (kind, name, form) = schema.iter().find(|(kind, ..)| *kind == attribute.kind).unwrap_or(&unnamed);
        let name = if name.is_empty() { format!("attribute-{kind}") } else { (*name).to_owned() };
        match form {
            Form::LeftOut => continue,
            Form::Number => write!(text, " {name}={}", attribute.u32_be().unwrap().cast_signed()),
            Form::Text => write!(text, " {name}={}", attribute.text().unwrap()),
            Form::Bytes => write!(text, " {name}={}", HEXLOWER.encode(attribute.payload)),
            Form::Nest(schema) => {
                let mut nested = String::new();
                write_fields(&mut nested, attribute.nested().map(Result::unwrap), schema);
                write!(text, " {name}={{{}}}", nested.trim_start())
            }
        }
        .unwrap();
    }
}

/// The attributes of an object, a nest or an expression.
type Schema = &'static [(u16, &'static str, Form)];

enum Form {
    Number,
    Text,
    Bytes,
    Nest(Schema),
    /// Left out, because it differs between any two objects, or with the packets.
    LeftOut,
}

const TABLE: Schema = &[
    (NFTA_TABLE_NAME, "name", Form::Text),
    (NFTA_TABLE_FLAGS, "flags", Form::Number),
    (3, "chains", Form::Number),
    (NFTA_TABLE_HANDLE, "handle", Form::LeftOut),
];

const CHAIN: Schema = &[
    (NFTA_CHAIN_TABLE, "table", Form::Text),
    (2, "handle", Form::LeftOut),
    (NFTA_CHAIN_NAME, "name", Form::Text),
    (
        NFTA_CHAIN_HOOK,
        "hook",
        Form::Nest(&[(NFTA_HOOK_HOOKNUM, "number", Form::Number), (NFTA_HOOK_PRIORITY, "priority", Form::Number)]),
    ),
    (NFTA_CHAIN_POLICY, "policy", Form::Number),
    (6, "references", Form::Number),
    (NFTA_CHAIN_TYPE, "type", Form::Text),
    (NFTA_CHAIN_COUNTERS, "counters", Form::LeftOut),
    (10, "flags", Form::Number),
];

const RULE: Schema = &[
    (NFTA_RULE_TABLE, "table", Form::Text),
    (NFTA_RULE_CHAIN, "chain", Form::Text),
    (NFTA_RULE_HANDLE, "handle", Form::LeftOut),
    (6, "position", Form::LeftOut),
];

const DATA: Schema = &[
    (NFTA_DATA_VALUE, "value", Form::Bytes),
    (
        NFTA_DATA_VERDICT,
        "verdict",
        Form::Nest(&[(NFTA_VERDICT_CODE, "code", Form::Number), (NFTA_VERDICT_CHAIN, "chain", Form::Text)]),
    ),
];

const EXPRESSIONS: &[(&str, Schema)] = &[
    (
        "bitwise",
        &[
            (NFTA_BITWISE_SREG, "from", Form::Number),
            (NFTA_BITWISE_DREG, "to", Form::Number),
            (NFTA_BITWISE_LEN, "length", Form::Number),
            (NFTA_BITWISE_MASK, "mask", Form::Nest(DATA)),
            (NFTA_BITWISE_XOR, "xor", Form::Nest(DATA)),
            (NFTA_BITWISE_OP, "operation", Form::Number),
        ],
    ),
    (
        "cmp",
        &[
            (NFTA_CMP_SREG, "from", Form::Number),
            (NFTA_CMP_OP, "operation", Form::Number),
            (NFTA_CMP_DATA, "data", Form::Nest(DATA)),
        ],
    ),
    ("counter", &[(NFTA_COUNTER_BYTES, "bytes", Form::LeftOut), (NFTA_COUNTER_PACKETS, "packets", Form::LeftOut)]),
    ("immediate", &[(NFTA_IMMEDIATE_DREG, "to", Form::Number), (NFTA_IMMEDIATE_DATA, "data", Form::Nest(DATA))]),
    (
        "match",
        &[
            (NFTA_MATCH_NAME, "name", Form::Text),
            (NFTA_MATCH_REV, "revision", Form::Number),
            (NFTA_MATCH_INFO, "info", Form::Bytes),
        ],
    ),
    ("meta", &[(NFTA_META_KEY, "key", Form::Number), (NFTA_META_DREG, "to", Form::Number)]),
    (
        "payload",
        &[
            (NFTA_PAYLOAD_DREG, "to", Form::Number),
            (NFTA_PAYLOAD_BASE, "base", Form::Number),
            (NFTA_PAYLOAD_OFFSET, "offset", Form::Number),
            (NFTA_PAYLOAD_LEN, "length", Form::Number),
        ],
    ),
    (
        "target",
        &[
            (NFTA_TARGET_NAME, "name", Form::Text),
            (NFTA_TARGET_REV, "revision", Form::Number),
            (NFTA_TARGET_INFO, "info", Form::Bytes),
        ],
    ),
];
