//! Which of the rules and elements in the kernel come from a service port.

use std::collections::BTreeSet;

use ferroute_core::{ServicePortEntry, IpFamily, ServicePortName};
use ferroute_iptables::{ChainName, Match, ProtocolMatch, Rule, SavedRules, Sense, TableName, plan::is_service_chain};
use ferroute_nftables::{
    Value,
    kernel::Counter,
    model::{Element, Name},
    plan::{SetId, frontend_key},
};

use super::OwnRule;

/// The `iptables` rules that come from a service port, in the order of tables and chains: those that shared chains have
/// for it, and all rules of the chains that these lead to.
///
/// They are found by their comments, which kube-proxy writes in the same way.
pub fn own_iptables_rules(saved: &SavedRules, port: &ServicePortName) -> Vec<OwnRule> {
    let name = port.to_string();
    let is_named = |rule: &Rule| {
        let rest = rule.first_comment().and_then(|comment| comment.strip_prefix(&*name));
        let of_protocol = match &rule.protocol {
            Some(Sense::Is(ProtocolMatch::Transport(protocol))) => *protocol == port.protocol,
            _ => true,
        };
        of_protocol && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let mut own = Vec::new();
    let mut waiting = Vec::new();
    for (table, chain, position, rule) in all_rules(saved) {
        if !is_service_chain(chain) && is_named(rule) {
            own.push(own_rule(saved, table, chain, position, rule));
            waiting.extend(rule.next_chain().filter(|next| is_service_chain(*next)));
        }
    }
    let mut seen = BTreeSet::new();
    // The chain that was named first is told first.
    waiting.reverse();
    while let Some(chain) = waiting.pop() {
        if !seen.insert(chain) {
            continue;
        }
        let rules = saved.rules.rules(TableName::Nat, chain);
        own.extend(rules.iter().enumerate().map(|(i, rule)| own_rule(saved, TableName::Nat, chain, i, rule)));
        waiting.extend(rules.iter().rev().filter_map(Rule::next_chain).filter(|next| is_service_chain(*next)));
    }
    own
}

fn all_rules(saved: &SavedRules) -> impl Iterator<Item = (TableName, ChainName, usize, &Rule)> {
    saved.rules.tables.iter().flat_map(|(table, of_table)| {
        let chains = of_table.chains.iter();
        chains.flat_map(|(name, chain)| chain.rules.iter().enumerate().map(|(i, rule)| (*table, *name, i, rule)))
    })
}

fn own_rule(saved: &SavedRules, table: TableName, chain: ChainName, position: usize, rule: &Rule) -> OwnRule {
    let counters = saved.counters.get(table, chain, position);
    // The service port's name is known to who reads this, and makes lines long.
    let mut short = rule.clone();
    short.matches.retain(|module| !matches!(module, Match::Comment(_)));
    OwnRule {
        place: format!("{table} {chain}"),
        text: short.to_string(),
        packets: counters.map(|counters| counters.packets),
        bytes: counters.map(|counters| counters.bytes),
    }
}

/// The elements of Ferroute's nftables table that come from a service port, of all that are given with their sets'
/// names, in their order.
pub fn own_nftables_elements<'a>(
    elements: impl IntoIterator<Item = &'a (Name, Element, Option<Counter>)>,
    family: IpFamily,
    port: &ServicePortName,
    entry: &ServicePortEntry,
) -> Vec<OwnRule> {
    let frontends: Vec<[Value; 3]> =
        entry.service.frontends(port.protocol).map(|(_, frontend)| frontend_key(frontend, family)).collect();
    let is_own = |set: SetId, key: &[Value]| match set {
        SetId::ClusterIps => key == [entry.service.cluster_ip.into()],
        SetId::Hairpin => entry.endpoints.iter().any(|endpoint| {
            let address = endpoint.address.into();
            key == [address, address, Value::protocol(port.protocol), Value::Port(endpoint.port)]
        }),
        SetId::Dispatch | SetId::LocalDispatch | SetId::NodePortAddresses => false,
        _ => frontends.iter().any(|frontend| key.starts_with(frontend)),
    };
    let own = elements
        .into_iter()
        .filter(|(set, element, _)| SetId::from_name(set).is_some_and(|set| is_own(set, &element.key)));
    own.map(|(set, element, counter)| OwnRule {
        place: format!("@{set}"),
        text: element.to_string(),
        packets: counter.map(|counter| counter.packets),
        bytes: counter.map(|counter| counter.bytes),
    })
    .collect()
}

#[cfg(test)]
mod tests;
