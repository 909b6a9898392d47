//! Rules of other programs, such as firewalld's, that refuse packets to Services. Rules of the proxy cannot accept
//! packets that another table drops.
//!
//! Packets of pods on this node, of other hosts and of the node itself are walked through the planned rules together with these
//! tables, so that the result does not depend on a running proxy. In modes whose rules are in the tables of iptables, their order
//! among the rules of others decides, so packets are walked through the kernel's rules, if the mode's are there. No mode
//! accepts packets in OUTPUT, so those of the node itself are always walked through the chains of iptables as well.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::{Client, IpFamily};
use ferroute_iptables::{ChainName, TableName, exec::BackendSnapshot, plan::is_proxy_chain};
use ferroute_modes::{REGISTRY, kernel_rules::KernelRules};
use ferroute_nftables::{
    kernel::{TableFamily, TableSnapshot},
    model::ChainType,
};
use ferroute_trace::{Effect, Event, Hook, Host, Leaf, Packet, Ruleset, Verdict};

use super::translations::{
    CLIENT_PORT, Destination, MAX_LEAVES, destinations, is_foreign, local_packet, outside_address,
};
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
pub(super) fn walk<'r>(desired: &Desired, rules: &'r KernelRules) -> Reading<Walks> {
    let mode = REGISTRY.active(desired.resolved.mode);
    let shares_iptables = mode.traits().accepts_in_firewalls;
    let is_in_kernel = shares_iptables && !mode.active_proxies(rules).is_empty();
    let iptables = if shares_iptables && !is_in_kernel { &[][..] } else { &rules.iptables[..] };
    let firewalls: Vec<(String, &TableSnapshot)> = rules
        .nftables
        .iter()
        .filter(|snapshot| is_firewall(snapshot))
        .map(|snapshot| (format!("{} {}", snapshot.family, snapshot.name), snapshot))
        .collect();
    if firewalls.is_empty() && rules.iptables.is_empty() {
        return Ok(Walks::default());
    }
    let failed = |error: anyhow::Error| format!("{error:#}");
    let host = kernel_host().map_err(failed)?;
    let table = desired.table(rules.family);
    let plan = || mode.plan(&desired.resolved, table, &desired.host.addresses).map_err(failed);
    let planned = (!is_in_kernel).then(plan).transpose()?;
    let ruleset = |iptables: &'r [BackendSnapshot]| match &planned {
        None => Ruleset::from_rules(rules),
        Some(planned) => {
            let mut ruleset = Ruleset::from_rules(&**planned);
            ruleset.add_ipsets(&rules.ipsets);
            iptables.iter().for_each(|backend| ruleset.add_iptables(&backend.saved.rules));
            for (name, snapshot) in &firewalls {
                ruleset.add_nftables_table(name.clone(), &snapshot.table);
            }
            ruleset
        }
    };
    let names = |iptables: &[BackendSnapshot]| -> Vec<&str> {
        let of_iptables = TableName::ALL.iter().map(|table| table.as_str()).filter(|_| !iptables.is_empty());
        firewalls.iter().map(|(name, _)| name.as_str()).chain(of_iptables).collect()
    };
    let (of_others, of_node) = (ruleset(iptables), ruleset(&rules.iptables));
    let (names, names_for_node) = (names(iptables), names(&rules.iptables));
    let pods = local_pods(desired, rules.family);
    let mut walks = Walks::default();
    let (mut pod_refusals, mut pods_are_served) = (Vec::new(), false);
    let is_served = |destination: &&Destination| destination.has_endpoints;
    let all = destinations(desired, rules.family, mode.traits());
    for destination in all.iter().filter(is_served).take(MAX_WALKS) {
        if let Some(packet) = local_packet(destination, &host)
            && let Some(Some(refusal)) = result(of_node.leaves(&host, &packet), packet.source.ip(), &names_for_node)
        {
            walks.add(refusal.rule, destination.service.clone(), Client::Node);
        }
        let (client, sources) = match destination.is_external {
            true => (Client::Outside, outside_clients(rules.family, &host, destination.address)),
            false => (Client::Pod, pods.clone()),
        };
        let packets = sources.into_iter().filter_map(|source| {
            let (from, to) = (SocketAddr::new(source, CLIENT_PORT), destination.socket());
            let (interface, _) = host.path_to(source, Some((destination.protocol, to.port(), CLIENT_PORT)))?;
            Some(Packet::arriving(destination.protocol, from, to, &interface))
        });
        let results: Vec<Option<Refusal>> =
            packets.filter_map(|packet| result(of_others.leaves(&host, &packet), packet.source.ip(), &names)).collect();
        // A firewall may permit some clients only.
        pods_are_served |= client == Client::Pod && results.contains(&None);
        if results.is_empty() {
            continue;
        }
        let refusals: Option<Vec<Refusal>> = results.into_iter().collect();
        let Some(refusal) = refusals.and_then(|refusals| refusals.into_iter().next()) else {
            if client == Client::Outside && !shares_iptables && !iptables.is_empty() {
                walks.forward_policy_drops.get_or_insert(false);
            }
            continue;
        };
        if refusal.is_forward_policy && !shares_iptables {
            walks.forward_policy_drops = Some(true);
            continue;
        }
        let service = destination.service.clone();
        match client {
            Client::Pod => pod_refusals.push((refusal, service)),
            _ => walks.add(refusal.rule, service, client),
        }
    }
    // A network policy refuses pods at some endpoints, which is its purpose. In ipvs mode, connections of pods also pass OUTPUT,
    // whose policy is for the node.
    pod_refusals.retain(|(refusal, _)| !(pods_are_served && refusal.at_endpoint && !refusal.is_end_of_output));
    pod_refusals.into_iter().for_each(|(refusal, service)| walks.add(refusal.rule, service, Client::Pod));
    Ok(walks)
}

impl Walks {
    /// Adds a rule that refuses packets of clients to a Service, unless it refuses those to another one.
    fn add(&mut self, rule: String, service: String, client: Client) {
        if self.refusals.iter().all(|other| (other.client, &other.rule) != (client, &rule)) {
            self.refusals.push(FirewallRefusal { rule, service, client });
        }
    }
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

/// Returns addresses of pods on this node.
pub(super) fn local_pods(desired: &Desired, family: IpFamily) -> Vec<IpAddr> {
    let table = desired.table(family);
    let endpoints = table.entries.values().flat_map(|entry| entry.endpoints.iter());
    let is_pod = |address: &IpAddr| !desired.host.addresses.contains(address);
    let pods = endpoints.filter(|endpoint| endpoint.local).map(|endpoint| endpoint.address).filter(is_pod);
    let pods: BTreeSet<IpAddr> = pods.take(MAX_WALKS).collect();
    pods.into_iter().take(MAX_PODS).collect()
}

/// Returns addresses of other hosts: a distant one, and one in the node's network, or in the network of `address` if
/// the node has none.
fn outside_clients(family: IpFamily, host: &Host, address: IpAddr) -> Vec<IpAddr> {
    let far = outside_address(family);
    let own = host.path_to(far, None).and_then(|(_, source)| source).unwrap_or(address);
    [far, neighbour(own)].into_iter().filter(|client| host.path_to(*client, None).is_some()).collect()
}

/// Returns another address of the same network, even a small one.
fn neighbour(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4((u32::from(address) ^ 3).into()),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) ^ 3).into()),
    }
}

/// The end of a packet at a rule of another program.
#[derive(PartialEq, Eq)]
struct Refusal {
    /// The rule in the words of its program, or the policy of a chain.
    rule: String,
    /// It is the policy of a chain of hook output, or a rule of this chain for all packets.
    is_end_of_output: bool,
    /// It is the policy of the chain `FORWARD` of iptables.
    is_forward_policy: bool,
    /// The packet had the address of an endpoint.
    at_endpoint: bool,
}

/// Returns the rule, or the policy, of one of these tables that refuses all packets of a connection, whatever the random choices
/// and assumptions; the inner `None` if there is none, the outer one if the connection reaches only its own client. Packets that
/// return to their client are masqueraded, which firewalls treat differently.
fn result(leaves: impl Iterator<Item = Leaf>, client: IpAddr, tables: &[&str]) -> Option<Option<Refusal>> {
    let mut refused = None;
    for leaf in leaves.take(MAX_LEAVES) {
        let refusal = match leaf.verdict {
            Verdict::Delivered { to, .. } if to.ip() == client => continue,
            Verdict::Dropped | Verdict::Rejected { .. } => last_rule(&leaf.events, tables),
            Verdict::Delivered { .. } | Verdict::NoRoute | Verdict::Unknown { .. } => None,
        };
        let Some(refusal) = refusal else { return Some(None) };
        refused.get_or_insert(refusal);
    }
    refused.map(Some)
}

/// Returns the last rule or policy of the events, if it is of one of these tables and not in a chain of a proxy.
fn last_rule(events: &[Event], tables: &[&str]) -> Option<Refusal> {
    let (hook, table) = events.iter().rev().find_map(|event| match event {
        Event::Hook { hook, table, .. } => Some((*hook, table.as_ref())),
        _ => None,
    })?;
    let is_proxy_chain = |chain: &str| {
        let table = TableName::from_word(table).zip(ChainName::new(chain).ok());
        table.is_some_and(|(table, chain)| is_proxy_chain(table, chain))
    };
    let (chain, rule, is_policy, is_for_all) = events.iter().rev().find_map(|event| match event {
        Event::Policy { chain, .. } => {
            Some((chain, format!("the policy of chain {chain} of table {table}"), true, true))
        }
        Event::Rule { chain, text, depth, mismatch: None, .. } => {
            let is_for_all = *depth == 0 && is_unconditional(text);
            Some((chain, format!("{text} in chain {chain} of table {table}"), false, is_for_all))
        }
        _ => None,
    })?;
    let is_forward = (table, chain.as_str()) == (TableName::Filter.as_str(), ChainName::FORWARD.as_str());
    let at_endpoint = events.iter().any(|event| matches!(event, Event::Effect { effect: Effect::Dnat { .. }, .. }));
    let is_other = tables.contains(&table) && !is_proxy_chain(chain);
    is_other.then_some(Refusal {
        rule,
        is_end_of_output: hook == Hook::Output && is_for_all,
        is_forward_policy: is_policy && is_forward,
        at_endpoint,
    })
}

/// Reports whether a rule that refuses packets has no condition, in the syntax of `iptables-save` or `nft`.
fn is_unconditional(text: &str) -> bool {
    let is_counter = |word: &&str| ["counter", "packets", "bytes"].contains(word) || word.parse::<u64>().is_ok();
    let first = text.split_whitespace().find(|word| !is_counter(word));
    first.is_some_and(|word| ["-j", "drop", "reject"].contains(&word))
}

/// Maximum number of destinations to which packets are walked.
const MAX_WALKS: usize = 200;
/// Maximum number of pods whose packets are walked.
const MAX_PODS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_output_is_not_a_network_policy() {
        let refusal = |hook: Hook, last: Event| {
            let (table, chain) = (TableName::Filter.as_str().into(), hook.as_str().to_owned());
            last_rule(&[Event::Hook { hook, table, chain }, last], &["filter"]).unwrap()
        };
        let rule = |chain: &str, depth: usize, text: &str| {
            let (chain, text) = (chain.to_owned(), text.to_owned());
            Event::Rule { chain, number: 1, text, depth, mismatch: None, chance: None }
        };
        let policy = |chain: &str| Event::Policy { chain: chain.to_owned(), policy: "DROP".into() };
        assert!(refusal(Hook::Output, policy("OUTPUT")).is_end_of_output);
        assert!(
            refusal(Hook::Output, rule("OUTPUT", 0, "-j REJECT --reject-with icmp-port-unreachable")).is_end_of_output
        );
        assert!(refusal(Hook::Output, rule("OUTPUT", 0, "counter packets 5 bytes 300 drop")).is_end_of_output);
        assert!(!refusal(Hook::Output, rule("OUTPUT", 0, "-d 10.244.0.0/16 -j DROP")).is_end_of_output);
        assert!(!refusal(Hook::Output, rule("KUBE-POD-FW-A", 2, "-j REJECT")).is_end_of_output);
        assert!(!refusal(Hook::Forward, policy("FORWARD")).is_end_of_output);
        assert!(refusal(Hook::Forward, policy("FORWARD")).is_forward_policy);
    }
}
