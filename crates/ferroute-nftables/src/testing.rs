//! The body of a fuzz target, and the encoding that its seeds are made of.

use std::collections::BTreeMap;

use ferroute_core::IpFamily;
use ferroute_netlink::{Message, Messages};

use crate::{
    kernel::ListedRule,
    model::{Name, Set, TableId, Transaction},
    wire::{
        self, AnyElements, EncodedRule, parse_any_set, parse_chain, parse_elements, parse_rule, parse_set, parse_table,
    },
};

/// Returns the netlink messages of a transaction, whose attributes are those of the kernel's listings.
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
        let own = parse_set(message).ok().and_then(|listed| listed.set);
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
    assert!(own <= bytes / 4 && decoded.elements.len() + decoded.undecoded <= limit);
    for element in decoded.elements {
        let text = crate::model::Change::AddElement(set.name.clone(), element).text(&table);
        assert!(!text.contains('\n'), "{text:?}");
    }
}
