//! Rules of other programs that change which packets to Services are masqueraded: those that accept packets in POSTROUTING
//! before the proxy's rule, and those that clear or set its mark.

use ferroute_core::IpFamily;
use ferroute_iptables::{
    Rule, RuleSet, Table, TableName, Target,
    plan::{chains, is_proxy_chain},
};
use ferroute_trace::{Effect, Event, Hook, Leaf, Packet, Verdict};

use super::translations::EffectiveRule;
use crate::doctor::EarlierEffect;

/// Reports whether rules of other programs in the tables of iptables change marks, or end a chain of table nat. On most nodes
/// there are none, and walks take time.
pub(super) fn may_decide(rules: &RuleSet) -> bool {
    let of_table = |(table, chains): (&TableName, &Table)| {
        let mut others = chains.chains.iter().filter(|(name, _)| !is_proxy_chain(*table, **name));
        others.any(|(_, chain)| chain.rules.iter().any(|rule| decides(*table, rule)))
    };
    rules.tables.iter().any(of_table)
}

fn decides(table: TableName, rule: &Rule) -> bool {
    match &rule.target {
        Some(Target::Accept | Target::Return) => table == TableName::Nat,
        Some(Target::Mark { .. }) => true,
        Some(Target::Other(text)) => ["MARK", "--map-mark"].iter().any(|word| text.contains(word)),
        _ => false,
    }
}

/// Returns the rule of another program that decides whether a packet to an endpoint is masqueraded, and its effect.
/// `mark` is the proxy's mark.
pub(super) fn deciding_rule<'l>(
    leaf: &'l Leaf,
    packet: &Packet,
    mark: u32,
    family: IpFamily,
) -> Option<(EarlierEffect, EffectiveRule<'l>)> {
    let Verdict::Delivered { translated: true, from, interface: Some(_), .. } = &leaf.verdict else { return None };
    if !leaf.assumptions.is_empty() {
        return None;
    }
    let (mut place, mut last, mut accepted) = ((Hook::Prerouting, ""), None, None);
    let (mut is_wanted, mut is_masqueraded, mut cleared, mut set) = (false, false, None, None);
    for event in &leaf.events {
        match event {
            Event::Hook { hook, table, .. } => place = (*hook, table.as_ref()),
            Event::Rule { chain, text, mismatch: None, .. } => {
                last = Some((chain, text));
                let rule = EffectiveRule { table: place.1, path: std::slice::from_ref(chain), chain, text };
                if place == (Hook::Postrouting, "nat") {
                    let is_entry = text.ends_with(chains::POSTROUTING.as_str());
                    accepted = Some(rule).filter(|rule| !is_entry && !rule.is_ours(family));
                }
            }
            Event::Effect { effect: Effect::Mark { before, after }, table, path, .. } => {
                let (chain, text) = last?;
                let rule = EffectiveRule { table, path, chain, text };
                let is_set = after & mark != 0;
                if rule.is_ours(family) {
                    is_wanted |= is_set;
                } else if (before ^ after) & mark != 0 {
                    *(if is_set { &mut set } else { &mut cleared }) = Some(rule);
                }
            }
            Event::Effect { effect: Effect::Masquerade { .. }, table, path, .. } => {
                let (chain, text) = last?;
                is_masqueraded = true;
                // Another program may masquerade these packets as well.
                set = set.filter(|_| EffectiveRule { table, path, chain, text }.is_ours(family));
            }
            _ => {}
        }
    }
    match (is_wanted, is_masqueraded) {
        (true, false) => Some((EarlierEffect::Unmasqueraded, cleared.or(accepted)?)),
        (false, true) if *from != packet.source.ip() => Some((EarlierEffect::Masqueraded, set?)),
        _ => None,
    }
}
