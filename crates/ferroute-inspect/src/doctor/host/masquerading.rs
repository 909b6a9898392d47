//! Rules of other programs that change which packets to Services are masqueraded: those that accept packets in POSTROUTING
//! before the proxy's rule, and those that clear or set its mark.

use std::net::IpAddr;

use ferroute_core::IpFamily;
use ferroute_iptables::{
    Rule, RuleSet, Table, TableName, Target,
    plan::{chains, is_proxy_chain},
};
use ferroute_trace::{Effect, Event, Hook, Host, Leaf, Packet, Ruleset, Verdict};

use super::translations::{Destination, EffectiveRule, MAX_LEAVES, packet_from, packets};
use crate::doctor::{EarlierEffect, EarlierRule};

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

/// Walks packets that the proxy masquerades, and some that it does not, through all rules in the kernel. `mark` is the proxy's
/// mark.
pub(super) fn by_walks(
    destinations: &[Destination],
    (ruleset, family): (&Ruleset<'_>, IpFamily),
    host: &Host,
    pod: Option<IpAddr>,
    mark: u32,
) -> Vec<EarlierRule> {
    let mut found: Vec<EarlierRule> = Vec::new();
    for destination in destinations.iter().filter(|destination| destination.has_endpoints).take(MAX_WALKS) {
        // A pod that connects to itself.
        let own = destination.own_pod.and_then(|pod| packet_from(pod, destination, host));
        for packet in packets(destination, host, pod).into_iter().chain(own) {
            for leaf in ruleset.leaves(host, &packet).take(MAX_LEAVES) {
                let Some((effect, rule)) = changed(&leaf, &packet, mark, family) else { continue };
                let rule = rule.to_string();
                if found.iter().all(|other| other.rule != rule) {
                    found.push(EarlierRule { effect, rule, service: destination.service.clone() });
                }
            }
        }
    }
    found
}

/// Returns the rule of another program that decides whether a packet to an endpoint is masqueraded, and its effect.
fn changed<'l>(
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

/// The maximum number of Services to which packets are walked.
const MAX_WALKS: usize = 20;
