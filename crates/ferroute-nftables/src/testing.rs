//! The body of a fuzz target, and the encoding that its seeds are made of.

use std::collections::BTreeMap;

use ferroute_core::IpFamily;
use ferroute_netlink::{
    Message, Messages,
    nf_tables::*,
    nfnetlink,
    testing::{Bytes, Content, Field},
};

use crate::{
    kernel::ListedRule,
    model::{Name, Set, TableId, Transaction},
    wire::{
        self, AnyElements, EncodedRule, parse_any_set, parse_chain, parse_elements, parse_flowtable, parse_rule,
        parse_set, parse_table,
    },
};

/// Returns the netlink messages of a transaction, which have the same attributes as the kernel's listings.
pub fn encode(transaction: &Transaction) -> Vec<u8> {
    wire::encode(transaction).batch.as_bytes().map(<[u8]>::to_vec).unwrap_or_default()
}

/// Parses the messages of a datagram as listings of tables, chains, sets, rules and elements, and decodes them.
///
/// # Panics
///
/// More elements were decoded than the datagram can contain, the text of an object has several lines, or the decoders for
/// this program's sets and for those of other programs disagree.
pub fn decode_listing(datagram: &[u8]) {
    let messages: Vec<Message<'_>> = Messages::new(datagram).map_while(Result::ok).collect();
    let mut sets = BTreeMap::new();
    for message in &messages {
        let _ = parse_table(message);
        let _ = parse_chain(message, &Name::fixed("ferroute"));
        let own = parse_set(message).ok().flatten().and_then(|listed| listed.set);
        if let Ok((name, set)) = parse_any_set(message) {
            if let (Some(own), Some(any)) = (&own, &set) {
                assert_eq!((&own.key, &own.data), (&any.key, &any.data));
            }
            sets.extend(own.or(set).map(|set| (name, set)));
        }
    }
    for message in &messages {
        if let Ok((_, ListedRule::Encoded(rule))) = parse_rule(message) {
            IpFamily::BOTH.into_iter().for_each(|family| decode_rule(&rule, family, &sets));
        }
    }
    for set in sets.values() {
        decode_elements(&messages, set, datagram.len());
    }
}

/// Reads messages for tables, chains, rules, sets, elements and flowtables of other programs, whose names and contents
/// consist of these bytes.
///
/// # Panics
///
/// A message results in an error, which would make a sync fail, or in an object of the proxy.
pub fn read_foreign_objects(bytes: &mut Bytes<'_>) {
    const NUMBER: Content = Content::Number(4);
    const EXPRESSION: Field =
        (NFTA_LIST_ELEM, Content::Nest(&[(NFTA_EXPR_NAME, Content::Bytes), (NFTA_EXPR_DATA, Content::Attributes)]));
    const HOOK: Content = Content::Nest(&[(NFTA_HOOK_HOOKNUM, NUMBER), (NFTA_HOOK_PRIORITY, NUMBER)]);
    const DEVICE: Field = (NFTA_DEVICE_NAME, Content::Bytes);
    const DEVICES: Field = (NFTA_FLOWTABLE_HOOK_DEVS, Content::List(&DEVICE));
    const DATA: Content = Content::Nest(&[(NFTA_DATA_VALUE, Content::Bytes)]);
    const ELEMENT: Field = (
        NFTA_LIST_ELEM,
        Content::Nest(&[
            (NFTA_SET_ELEM_KEY, DATA),
            (NFTA_SET_ELEM_KEY_END, DATA),
            (NFTA_SET_ELEM_DATA, DATA),
            (NFTA_SET_ELEM_FLAGS, NUMBER),
            (NFTA_SET_ELEM_USERDATA, Content::Bytes),
            EXPRESSION,
        ]),
    );
    let mut next = |required: &[Field], others: &[Field]| bytes.message(0, nfnetlink::HEADER_LENGTH, required, others);
    let name = |kind| [(kind, Content::Bytes)];
    let messages = [
        next(&name(NFTA_TABLE_NAME), &[(NFTA_TABLE_FLAGS, NUMBER), (NFTA_TABLE_OWNER, NUMBER)]),
        next(
            &name(NFTA_CHAIN_NAME),
            &[
                (NFTA_CHAIN_TABLE, Content::Bytes),
                (NFTA_CHAIN_HOOK, HOOK),
                (NFTA_CHAIN_TYPE, Content::Bytes),
                (NFTA_CHAIN_POLICY, NUMBER),
                (NFTA_CHAIN_USERDATA, Content::Bytes),
            ],
        ),
        next(
            &name(NFTA_RULE_CHAIN),
            &[(NFTA_RULE_EXPRESSIONS, Content::List(&EXPRESSION)), (NFTA_RULE_USERDATA, Content::Bytes)],
        ),
        next(
            &name(NFTA_SET_NAME),
            &[
                (NFTA_SET_FLAGS, NUMBER),
                (NFTA_SET_KEY_TYPE, NUMBER),
                (NFTA_SET_KEY_LEN, NUMBER),
                (NFTA_SET_DATA_TYPE, NUMBER),
                (NFTA_SET_DATA_LEN, NUMBER),
                (NFTA_SET_TIMEOUT, Content::Number(8)),
                (NFTA_SET_GC_INTERVAL, NUMBER),
                (NFTA_SET_USERDATA, Content::Bytes),
                (
                    NFTA_SET_EXPR,
                    Content::Nest(&[(NFTA_EXPR_NAME, Content::Bytes), (NFTA_EXPR_DATA, Content::Attributes)]),
                ),
            ],
        ),
        next(&name(NFTA_SET_ELEM_LIST_SET), &[(NFTA_SET_ELEM_LIST_ELEMENTS, Content::List(&ELEMENT))]),
        next(
            &name(NFTA_FLOWTABLE_NAME),
            &[
                (
                    NFTA_FLOWTABLE_HOOK,
                    Content::Nest(&[
                        (NFTA_FLOWTABLE_HOOK_NUM, NUMBER),
                        (NFTA_FLOWTABLE_HOOK_PRIORITY, NUMBER),
                        DEVICES,
                    ]),
                ),
                (NFTA_FLOWTABLE_FLAGS, NUMBER),
            ],
        ),
    ];
    let datagram = messages.concat();
    let messages: Vec<Message<'_>> = Messages::new(&datagram).map(|message| message.expect("valid")).collect();
    let [table, chain, rule, set, elements, flowtable] = messages.try_into().expect("six messages");
    assert!(parse_table(&table).is_ok(), "{table:?}");
    assert!(parse_chain(&chain, &Name::fixed("ferroute")).is_ok(), "{chain:?}");
    assert!(parse_rule(&rule).is_ok(), "{rule:?}");
    assert!(parse_set(&set).is_ok(), "{set:?}");
    assert!(parse_flowtable(&flowtable).is_ok(), "{flowtable:?}");
    let (_, declaration) = parse_any_set(&set).expect("sets of any kind");
    if let Some(declaration) = declaration {
        assert!(AnyElements::new(&declaration).decode(&elements).is_ok(), "{elements:?} of {declaration:?}");
        assert!(parse_elements(&elements, &declaration, &mut |_, _| ()).is_ok(), "{elements:?} of {declaration:?}");
    }
}

fn decode_rule(rule: &EncodedRule, family: IpFamily, sets: &BTreeMap<Name, Set>) {
    let decoded = rule.decode(family, &|name| sets.get(name));
    assert!(!decoded.text(family).to_string().contains('\n'));
    rule.matches(&decoded, family);
}

fn decode_elements(messages: &[Message<'_>], set: &Set, bytes: usize) {
    let table = TableId { family: IpFamily::V4, name: Name::fixed("ferroute") };
    let _ = crate::model::Change::AddSet(set.clone()).text(&table);
    let (mut any, mut own) = (AnyElements::new(set), 0);
    for message in messages {
        let _ = any.decode(message);
        let _ = parse_elements(message, set, &mut |element, _| own += usize::from(element.is_some()));
    }
    let decoded = any.finish();
    // An element has at least 4 bytes, and a range is split into at most 256 keys.
    let limit = bytes / 4 * 256;
    assert!(own <= bytes / 4 && decoded.elements.len() + decoded.read.undecoded <= limit);
    for element in decoded.elements {
        let text = crate::model::Change::AddElement(set.name.clone(), element).text(&table);
        assert!(!text.contains('\n'), "{text:?}");
    }
}
