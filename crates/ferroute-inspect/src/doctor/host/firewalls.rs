//! Rules of other programs, such as firewalld's, that refuse packets to Services. Rules of the proxy cannot accept
//! packets that another table drops.
//!
//! Packets of a pod on this node and of other hosts are walked through the planned rules together with these tables, so
//! that the result does not depend on a running proxy. In modes whose rules are in the tables of iptables, separate
//! checks cover firewalls in these tables.

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{Client, IpFamily};
use ferroute_iptables::{ChainName, TableName};
use ferroute_modes::{REGISTRY, kernel_rules::KernelRules};
use ferroute_nftables::{
    kernel::{TableFamily, TableSnapshot},
    model::ChainType,
};
use ferroute_trace::{Event, Host, Leaf, Packet, Ruleset, Verdict};

use super::translations::{CLIENT_PORT, Destination, MAX_LEAVES, destinations, is_foreign, outside_address};
use crate::{
    desired::Desired,
    doctor::{FirewallRefusal, Reading},
    trace::kernel_host,
};

/// Results of walking packets to Services through the rules.
#[derive(Default)]
pub(super) struct Walks {
    /// Rules that refuse some of the packets, each with one Service.
    pub(super) refusals: Vec<FirewallRefusal>,
    /// Whether the policy of the chain `FORWARD` of iptables drops some; [`None`] if no packets of other hosts were
    /// walked through it.
    pub(super) forward_policy_drops: Option<bool>,
}

/// Walks packets to Services through the rules of other programs.
pub(super) fn walk(desired: &Desired, rules: &KernelRules) -> Reading<Walks> {
    let mode = REGISTRY.active(desired.resolved.mode);
    let iptables = if mode.traits().accepts_in_firewalls { &[][..] } else { &rules.iptables[..] };
    let firewalls: Vec<(String, &TableSnapshot)> = rules
        .nftables
        .iter()
        .filter(|snapshot| is_firewall(snapshot))
        .map(|snapshot| (format!("{} {}", snapshot.family, snapshot.name), snapshot))
        .collect();
    if firewalls.is_empty() && iptables.is_empty() {
        return Ok(Walks::default());
    }
    let failed = |error: anyhow::Error| format!("{error:#}");
    let host = kernel_host().map_err(failed)?;
    let table = desired.table(rules.family);
    let planned = mode.plan(&desired.resolved, table, &desired.host.addresses).map_err(failed)?;
    let mut ruleset = Ruleset::from_rules(&*planned);
    ruleset.add_ipsets(&rules.ipsets);
    iptables.iter().for_each(|backend| ruleset.add_iptables(&backend.saved.rules));
    for (name, snapshot) in &firewalls {
        ruleset.add_nftables_table(name.clone(), &snapshot.table);
    }
    let of_iptables = TableName::ALL.iter().map(|table| table.as_str()).filter(|_| !iptables.is_empty());
    let names: Vec<&str> = firewalls.iter().map(|(name, _)| name.as_str()).chain(of_iptables).collect();
    let pod = local_pod(desired, rules.family);
    let mut walks = Walks::default();
    let is_served = |destination: &&Destination| destination.has_endpoints;
    let all = destinations(desired, rules.family, mode.traits());
    for destination in all.iter().filter(is_served).take(MAX_WALKS) {
        let (client, sources) = match destination.is_external {
            true => (Client::Outside, outside_clients(rules.family, &host, destination.address)),
            false => (Client::Pod, pod.into_iter().collect()),
        };
        let packets = sources.into_iter().filter_map(|source| {
            let (interface, _) = host.path_to(source)?;
            let (from, to) = (SocketAddr::new(source, CLIENT_PORT), destination.socket());
            Some(Packet::arriving(destination.protocol, from, to, &interface))
        });
        // A firewall may permit some clients only.
        let refusals: Option<Vec<Refusal>> =
            packets.map(|packet| refusal(ruleset.leaves(&host, &packet), &names)).collect();
        let refusal = refusals.and_then(|refusals| refusals.into_iter().next());
        let is_forward_policy = refusal == Some(Refusal::ForwardPolicy);
        if !iptables.is_empty() && (client == Client::Outside || is_forward_policy) {
            *walks.forward_policy_drops.get_or_insert(false) |= is_forward_policy;
        }
        let Some(Refusal::Rule(rule)) = refusal else { continue };
        if walks.refusals.iter().all(|other| (other.client, &other.rule) != (client, &rule)) {
            walks.refusals.push(FirewallRefusal { rule, service: destination.service.clone(), client });
        }
    }
    Ok(walks)
}

/// Reports whether rules of another program filter packets in a table that is not one of iptables.
fn is_firewall(snapshot: &TableSnapshot) -> bool {
    let is_iptables =
        matches!(snapshot.family, TableFamily::Ip(_)) && TableName::from_word(snapshot.name.as_str()).is_some();
    let filters = |kind: ChainType| kind == ChainType::Filter;
    is_foreign(snapshot)
        && !is_iptables
        && snapshot.table.chains().any(|chain| chain.chain.base.is_some_and(|base| filters(base.kind)))
}

/// Returns the address of a pod on this node.
fn local_pod(desired: &Desired, family: IpFamily) -> Option<IpAddr> {
    let table = desired.table(family);
    let endpoints = table.entries.values().flat_map(|entry| entry.endpoints.iter());
    let is_pod = |address: &IpAddr| !desired.host.addresses.contains(address);
    endpoints.filter(|endpoint| endpoint.local).map(|endpoint| endpoint.address).find(is_pod)
}

/// Returns addresses of other hosts: a distant one, and one in the node's network, or in the network of `address` if
/// the node has none.
fn outside_clients(family: IpFamily, host: &Host, address: IpAddr) -> Vec<IpAddr> {
    let far = outside_address(family);
    let own = host.path_to(far).and_then(|(_, source)| source).unwrap_or(address);
    [far, neighbour(own)].into_iter().filter(|client| host.path_to(*client).is_some()).collect()
}

/// Returns another address of the same network, even a small one.
fn neighbour(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4((u32::from(address) ^ 3).into()),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) ^ 3).into()),
    }
}

/// Rule or policy that refuses a packet.
#[derive(PartialEq, Eq)]
enum Refusal {
    /// A rule in the words of its program, or the policy of a chain.
    Rule(String),
    /// The policy of the chain `FORWARD` of iptables.
    ForwardPolicy,
}

/// Returns the rule or policy of one of these tables that refuses a packet under all assumptions.
fn refusal(leaves: impl Iterator<Item = Leaf>, tables: &[&str]) -> Option<Refusal> {
    let mut refused = None;
    for leaf in leaves.take(MAX_LEAVES) {
        let rule = match leaf.verdict {
            Verdict::Dropped | Verdict::Rejected { .. } => last_rule(&leaf.events, tables)?,
            Verdict::Delivered { .. } | Verdict::NoRoute | Verdict::Unknown { .. } => return None,
        };
        if leaf.assumptions.is_empty() {
            return Some(rule);
        }
        refused.get_or_insert(rule);
    }
    refused
}

/// Returns the last rule or policy of the events, if it belongs to one of these tables.
fn last_rule(events: &[Event], tables: &[&str]) -> Option<Refusal> {
    let table = events.iter().rev().find_map(|event| match event {
        Event::Hook { table, .. } => Some(table.as_ref()),
        _ => None,
    })?;
    let last = events.iter().rev().find_map(|event| match event {
        Event::Policy { chain, .. }
            if (table, chain.as_str()) == (TableName::Filter.as_str(), ChainName::FORWARD.as_str()) =>
        {
            Some(Refusal::ForwardPolicy)
        }
        Event::Policy { chain, .. } => Some(Refusal::Rule(format!("the policy of chain {chain} of table {table}"))),
        Event::Rule { chain, text, mismatch: None, .. } => {
            Some(Refusal::Rule(format!("{text} in chain {chain} of table {table}")))
        }
        _ => None,
    });
    last.filter(|_| tables.contains(&table))
}

/// The maximum number of destinations to which packets are walked.
const MAX_WALKS: usize = 200;
