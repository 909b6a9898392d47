//! Rules of other programs that take packets to Services before the proxy: those that translate the destination, such as
//! of host ports, that exclude packets from connection tracking, so that nothing translates them, of transparent proxies, and
//! those that accept packets in table `nat`, so that no later rule translates them.
//!
//! Rules of iptables are searched on their own (`iptables_walk`). If there are other tables of nf_tables with chains before the translation, a packet of a pod or from outside
//! and one of the host itself are also walked through all rules in the kernel, whose order depends on priorities and on when
//! the chains were registered.

use std::{fmt, net::IpAddr};

use ferroute_core::{IpFamily, ModeTraits};
use ferroute_iptables::{ChainName, RuleSet, TableName, Target, plan::is_proxy_chain};
use ferroute_modes::{REGISTRY, kernel_rules::KernelRules};
use ferroute_nftables::{
    TableOwner,
    kernel::{TableFamily, TableSnapshot},
    model::Hook,
};
use ferroute_trace::{Effect, Event, Hook as TraceHook, Host, IPVS_TABLE, Leaf, Ruleset, Verdict};

use super::{
    destinations::{Destination, destinations, packets},
    firewalls::local_pods,
    iptables_walk::{MAX_DESTINATIONS, TABLES, by_iptables},
    masquerading,
};
use crate::{
    desired::Desired,
    doctor::{EarlierEffect, EarlierRule, Reading},
    trace::kernel_host,
};

/// Returns the rules of other programs that may take packets to Services before the proxy, each with one Service.
pub(super) fn earlier(desired: &Desired, rules: &KernelRules) -> Reading<Vec<EarlierRule>> {
    let traits = REGISTRY.active(desired.resolved.mode).traits();
    let destinations = destinations(desired, rules, traits);
    // In nftables mode, the proxy's chains come before those of table nat of iptables.
    let tables = if traits.accepts_in_firewalls { &TABLES[..] } else { &TABLES[..TABLES.len() - 1] };
    let first = &destinations[..destinations.len().min(MAX_DESTINATIONS)];
    let mut found = by_iptables(first, rules, tables, traits);
    let accepts =
        traits.accepts_in_firewalls && rules.iptables.iter().any(|backend| accepts_in_nat(&backend.saved.rules));
    let has_tables =
        |sees: fn(&TableSnapshot) -> bool| rules.nftables.iter().filter(|table| is_foreign(table)).any(sees);
    let may_take = accepts || has_tables(may_take_packets);
    let may_masquerade =
        has_tables(|_| true) || rules.iptables.iter().any(|backend| masquerading::may_decide(&backend.saved.rules));
    if !may_take && !may_masquerade {
        return Ok(found);
    }
    let host = kernel_host().map_err(|error| format!("{error:#}"))?;
    let walks = Walks {
        ruleset: &Ruleset::from_rules(rules),
        host: &host,
        family: rules.family,
        pod: local_pods(desired, rules.family).into_iter().next(),
        traits: may_take.then_some(traits),
        // If no proxy has rules, no translations precede them.
        has_proxy: !REGISTRY.active_proxies(rules).is_empty(),
        mark: may_masquerade.then(|| desired.resolved.settings.masquerade_mark()),
    };
    found.extend(walks.walk(&destinations, &found, MAX_RULES));
    Ok(found)
}

/// Walks of packets to Services through all rules.
struct Walks<'a> {
    ruleset: &'a Ruleset<'a>,
    host: &'a Host,
    family: IpFamily,
    /// A pod on this node.
    pod: Option<IpAddr>,
    /// Properties of the mode, if rules that take packets are searched.
    traits: Option<&'a ModeTraits>,
    has_proxy: bool,
    /// The proxy's mark, if rules that decide on masquerading are searched.
    mark: Option<u32>,
}

impl Walks<'_> {
    /// Walks packets to the destinations until this many rules have been evaluated. Returns the rules that are not `known`.
    fn walk(&self, destinations: &[Destination], known: &[EarlierRule], max_rules: usize) -> Vec<EarlierRule> {
        let (mut taking, mut masquerading, mut rules) = (Vec::new(), Vec::new(), 0);
        for destination in destinations {
            if rules >= max_rules {
                break;
            }
            for (packet, is_own) in packets(destination, self.host, self.pod, self.mark.is_some()) {
                let mut leaves = self.ruleset.matching_leaves(self.host, &packet);
                for leaf in leaves.by_ref().take(MAX_LEAVES) {
                    // What becomes of a pod's packets to itself, becomes of those of other pods.
                    let taken = self.traits.filter(|_| !is_own);
                    if let Some((effect, rule)) = taken.and_then(|traits| self.taking(&leaf, destination, traits)) {
                        // Rules of iptables have been searched before.
                        let is_new = |other: &EarlierRule| other.rule != rule && other.service != destination.service;
                        if known.iter().chain(&taking).all(is_new) {
                            taking.push(EarlierRule { effect, rule, service: destination.service.clone() });
                        }
                    }
                    let mark = self.mark.filter(|_| destination.has_endpoints);
                    let decides = |mark| masquerading::deciding_rule(&leaf, &packet, mark, self.family);
                    if let Some((effect, rule)) = mark.and_then(decides) {
                        let rule = rule.to_string();
                        if masquerading.iter().all(|other: &EarlierRule| other.rule != rule) {
                            masquerading.push(EarlierRule { effect, rule, service: destination.service.clone() });
                        }
                    }
                }
                rules += leaves.rules();
            }
        }
        taking.append(&mut masquerading);
        taking
    }

    /// Returns the rule that takes a packet before the proxy, and its effect.
    fn taking(&self, leaf: &Leaf, destination: &Destination, traits: &ModeTraits) -> Option<(EarlierEffect, String)> {
        let accepted = || accepting_rule(leaf, self.family).filter(|_| destination.has_endpoints);
        let effect = first_effect(&leaf.events, self.family);
        let (effect, rule) = effect.or_else(|| Some((EarlierEffect::Accepted, accepted()?)))?;
        let effect = destination.suffers(effect, traits)?;
        let follows_proxy = matches!(effect, EarlierEffect::Translated | EarlierEffect::Accepted);
        (self.has_proxy || !follows_proxy).then(|| (effect, rule.to_string()))
    }
}

/// A rule with an effect on a packet.
pub(super) struct EffectiveRule<'a> {
    pub(super) table: &'a str,
    pub(super) path: &'a [String],
    pub(super) chain: &'a str,
    pub(super) text: &'a str,
}

impl fmt::Display for EffectiveRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in chain {} of table {}", self.text, self.chain, self.table)
    }
}

impl EffectiveRule<'_> {
    /// Reports whether the rule belongs to a service proxy.
    pub(super) fn is_ours(&self, family: IpFamily) -> bool {
        let is_proxy_table = |owner: TableOwner| {
            let name = owner.table(family).name;
            self.table == format!("{} {name}", TableFamily::Ip(family)) || self.table == name.as_str()
        };
        let is_proxy_chain =
            |name: &String| ChainName::new(name).is_ok_and(|chain| is_proxy_chain(TableName::Nat, chain));
        // The kernel's tables have an IP family in their names.
        let is_virtual_server = self.table == IPVS_TABLE;
        is_virtual_server || OWNERS.into_iter().any(is_proxy_table) || self.path.iter().any(is_proxy_chain)
    }
}

/// Returns the first rule that takes a packet before the proxy's rules translate it.
fn first_effect(events: &[Event], family: IpFamily) -> Option<(EarlierEffect, EffectiveRule<'_>)> {
    let (mut table, mut last, mut taken) = ("", None, None);
    for event in events {
        match event {
            Event::Hook { table: entered, .. } => table = entered.as_ref(),
            Event::Rule { chain, text, mismatch: None, .. } => {
                last = Some((chain, text));
                let rule = EffectiveRule { table, path: std::slice::from_ref(chain), chain, text };
                if taken.is_none() && !rule.is_ours(family) {
                    taken = effect_of(text).map(|effect| (effect, rule));
                }
            }
            Event::Effect { effect: Effect::Dnat { .. } | Effect::Connect { .. }, table, path, .. } => {
                // Where rules translate a packet in spite of this, it has a connection.
                let taken = taken.filter(|(effect, _)| *effect == EarlierEffect::TransparentProxy);
                let (chain, text) = last?;
                let rule = EffectiveRule { table, path, chain, text };
                return taken.or_else(|| (!rule.is_ours(family)).then_some((EarlierEffect::Translated, rule)));
            }
            _ => {}
        }
    }
    taken
}

/// Returns the rule of `iptables` that accepts a packet in table `nat`, if nothing translates it.
fn accepting_rule(leaf: &Leaf, family: IpFamily) -> Option<EffectiveRule<'_>> {
    if !matches!(leaf.verdict, Verdict::Delivered { translated: false, .. }) || !leaf.assumptions.is_empty() {
        return None;
    }
    let nat = TableName::Nat.as_str();
    let (mut last, mut found) = (None, None);
    for event in &leaf.events {
        match event {
            Event::Rule { chain, text, mismatch: None, .. } => last = Some((chain, text)),
            Event::Effect { effect: Effect::Accept, hook, table, path }
                if table == nat && matches!(hook, TraceHook::Prerouting | TraceHook::Output) =>
            {
                let (chain, text) = last?;
                found = Some(EffectiveRule { table: nat, path, chain, text });
            }
            _ => {}
        }
    }
    found.filter(|rule| !rule.is_ours(family))
}

/// Reports whether rules of other programs accept packets in table `nat` before their source is translated.
fn accepts_in_nat(rules: &RuleSet) -> bool {
    let Some(table) = rules.tables.get(&TableName::Nat) else { return false };
    let others = table.chains.iter().filter(|(name, _)| {
        **name != ChainName::POSTROUTING && **name != ChainName::INPUT && !is_proxy_chain(TableName::Nat, **name)
    });
    others.flat_map(|(_, chain)| &chain.rules).any(|rule| matches!(rule.target, Some(Target::Accept)))
}

/// Returns the effect on packets of a rule that excludes them from connection tracking, or assigns them to a transparent
/// proxy, in the syntax of `iptables-save` or `nft`.
pub(super) fn effect_of(text: &str) -> Option<EarlierEffect> {
    // Without names and comments in quotes.
    let text = text.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    let mut before = "";
    text.split_whitespace().find_map(|word| {
        let before = std::mem::replace(&mut before, word);
        match (before, word) {
            ("-j", "NOTRACK") | (_, "--notrack") => Some(EarlierEffect::Untracked),
            ("-j", "TPROXY") => Some(EarlierEffect::TransparentProxy),
            ("-j" | "-g" | "jump" | "goto", _) => None,
            (_, "notrack") => Some(EarlierEffect::Untracked),
            (_, "tproxy") => Some(EarlierEffect::TransparentProxy),
            _ => None,
        }
    })
}

/// Reports whether a table is that of no service proxy.
pub(super) fn is_foreign(snapshot: &TableSnapshot) -> bool {
    let is_of = |owner: TableOwner| match snapshot.family {
        TableFamily::Ip(family) => snapshot.name == owner.table(family).name,
        TableFamily::Inet => false,
    };
    !OWNERS.into_iter().any(is_of)
}

/// Reports whether rules of a table see packets before they are translated.
fn may_take_packets(snapshot: &TableSnapshot) -> bool {
    let hooks = [Hook::Prerouting, Hook::Output];
    snapshot.table.chains().any(|chain| chain.chain.base.is_some_and(|base| hooks.contains(&base.hook)))
}

/// Proxies with separate tables.
const OWNERS: [TableOwner; 2] = [TableOwner::Ferroute, TableOwner::KubeProxy];
/// The maximum number of rules that packets are walked through: half a second of work.
const MAX_RULES: usize = 1 << 22;
/// The maximum number of branches of a walk that are examined.
pub(super) const MAX_LEAVES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_servers_are_not_another_programs_translation() {
        let socket = |text: &str| text.parse().unwrap();
        let effect = |table: &'static str, chain: &str| Event::Effect {
            hook: ferroute_trace::Hook::Input,
            table: table.into(),
            path: vec![chain.to_owned()],
            effect: Effect::Dnat { before: socket("10.96.0.1:80"), after: socket("10.244.0.2:8080") },
        };
        let rule = |chain: &str, text: &str| Event::Rule {
            chain: chain.to_owned(),
            number: 1,
            text: text.to_owned(),
            depth: 0,
            mismatch: None,
            chance: None,
        };
        let is_ours = |events: &[Event]| super::first_effect(events, IpFamily::V4).is_none();
        let server = [rule("KUBE-SERVICES", "-j ACCEPT"), effect(IPVS_TABLE, "10.96.0.1:80/tcp")];
        assert!(is_ours(&server));
        let other = [rule("early", "dnat to 10.244.0.2:8080"), effect("ip ipvs", "early")];
        assert!(!is_ours(&other));
        assert!(!is_ours(&[&other[..], &server[..]].concat()));
    }

    #[test]
    fn names_and_comments_are_not_effects() {
        for (text, expected) in [
            ("ip daddr 10.96.0.10 udp dport 53 notrack", Some(EarlierEffect::Untracked)),
            ("meta l4proto tcp tproxy ip to 127.0.0.1:15006 accept", Some(EarlierEffect::TransparentProxy)),
            ("ip daddr @notrack accept", None),
            ("jump notrack", None),
            ("tcp dport 80 accept comment \"no notrack here\"", None),
            ("-m comment --comment \"use -j NOTRACK \" -j ACCEPT", None),
            ("-p tcp -j notrack", None),
        ] {
            assert_eq!(effect_of(text), expected, "{text}");
        }
    }
}
