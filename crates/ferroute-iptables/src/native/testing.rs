//! The body of a fuzz target, and the encoding that its seeds are made of.

use ferroute_core::IpFamily;
use ferroute_netlink::{
    Batch, Message, Messages,
    nf_tables::*,
    nfnetlink,
    testing::{Bytes, Content, Field},
};

use super::{
    decode, encode, read,
    sets::{self, SetNumbers},
};
use crate::{ChainName, Rule, RuleSet, TableName};

/// Returns the messages of rules in nf_tables, except for rules that only the iptables programs can write.
pub fn encode_rules(rules: &RuleSet) -> Vec<u8> {
    let mut messages = Vec::new();
    for (table, contents) in &rules.tables {
        for (chain, contents) in &contents.chains {
            let encoded = contents.rules.iter().filter_map(|rule| encode_rule(rules.family, *table, *chain, rule));
            encoded.for_each(|message| messages.extend(message));
        }
    }
    messages
}

/// Returns the message of one rule; `None` if it cannot be encoded.
pub(crate) fn encode_rule(family: IpFamily, table: TableName, chain: ChainName, rule: &Rule) -> Option<Vec<u8>> {
    let mut batch = Batch::new();
    let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWRULE);
    let mut message = batch.message(kind, 0, &nfnetlink::header(super::tables::nfproto(family), 0, 0));
    message.put_str(NFTA_RULE_TABLE, table.as_str());
    message.put_str(NFTA_RULE_CHAIN, chain.as_str());
    let put = encode::put_rule(&mut message, family, rule, &numbers(rule));
    drop(message);
    put.ok()?;
    batch.as_bytes().ok().map(<[u8]>::to_vec)
}

/// Parses the messages of a datagram as listed rules.
///
/// # Panics
///
/// If an encoded rule decodes to another rule.
pub fn decode_messages(datagram: &[u8]) {
    for message in Messages::new(datagram).map_while(Result::ok) {
        for family in IpFamily::BOTH {
            check(family, &message);
        }
    }
}

fn check(family: IpFamily, message: &Message<'_>) {
    let Some(rule) = decoded(family, message) else { return };
    let _ = rule.to_string();
    let Some(encoded) = encode_rule(family, TableName::Nat, ChainName::PREROUTING, &rule) else { return };
    assert_eq!(decode_rule(family, &encoded), Some(rule));
}

/// Reads messages for tables, chains and rules of other programs, whose names and expressions consist of these bytes.
///
/// # Panics
///
/// If a message is an error, which would make a sync fail.
pub fn read_foreign_objects(bytes: &mut Bytes<'_>) {
    const NUMBER: Content = Content::Number(4);
    const DATA: Field = (NFTA_EXPR_DATA, Content::Attributes);
    const EXPRESSION: Field = (NFTA_LIST_ELEM, Content::Nest(&[(NFTA_EXPR_NAME, Content::Bytes), DATA]));
    const HOOK: Field = (NFTA_CHAIN_HOOK, Content::Nest(&[(NFTA_HOOK_HOOKNUM, NUMBER), (NFTA_HOOK_PRIORITY, NUMBER)]));
    let table = [(NFTA_TABLE_NAME, Content::Bytes), (NFTA_TABLE_FLAGS, NUMBER), (NFTA_TABLE_USE, NUMBER)];
    let chain = [
        (NFTA_CHAIN_TABLE, Content::Bytes),
        (NFTA_CHAIN_NAME, Content::Bytes),
        HOOK,
        (NFTA_CHAIN_USE, NUMBER),
        (NFTA_CHAIN_POLICY, NUMBER),
    ];
    let rule = [
        (NFTA_RULE_TABLE, Content::Bytes),
        (NFTA_RULE_CHAIN, Content::Bytes),
        (NFTA_RULE_HANDLE, Content::Number(8)),
        (NFTA_RULE_EXPRESSIONS, Content::List(&EXPRESSION)),
        (NFTA_RULE_USERDATA, Content::Bytes),
    ];
    let next = |fields: &[Field]| bytes.message(0, nfnetlink::HEADER_LENGTH, &[], fields);
    let [table, chain, rule] = [&table[..], &chain, &rule].map(next);
    let read = |message: &[u8], parse: &dyn Fn(&Message<'_>) -> bool| {
        let message = Messages::new(message).next().and_then(Result::ok).expect("one message");
        assert!(parse(&message), "{message:?}");
    };
    read(&table, &|message| read::table(message, &TableName::PROXY).is_ok());
    read(&chain, &|message| read::chain(message).is_ok());
    read(&rule, &|message| {
        let Ok((_, attributes)) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>() else { return false };
        IpFamily::BOTH.into_iter().all(|family| decode::rule(family, attributes.clone()).is_ok())
    });
}

/// Decodes the message of one rule.
pub(crate) fn decode_rule(family: IpFamily, message: &[u8]) -> Option<Rule> {
    decoded(family, &Messages::new(message).next()?.ok()?)
}

/// Decodes a rule; `None` if it is malformed or does not belong to iptables.
fn decoded(family: IpFamily, message: &Message<'_>) -> Option<Rule> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>().ok()?;
    let mut decoded = decode::rule(family, attributes).ok()?;
    // Without a kernel that has sets, their numbers are their names.
    decode::name_sets(&mut decoded.rule, &decoded.sets, |number| Some(number.to_string()));
    (!decoded.is_foreign).then_some(decoded.rule)
}

/// Returns the numbers of sets whose names are numbers; arbitrary numbers for other names.
fn numbers(rule: &Rule) -> SetNumbers {
    let mut numbers = SetNumbers::default();
    sets::names_in(rule).for_each(|name| numbers.insert(name, name.parse().unwrap_or_default()));
    numbers
}
