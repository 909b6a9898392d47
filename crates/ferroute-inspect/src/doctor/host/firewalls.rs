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

use ferroute_core::{Client, IpFamily, Protocol};
use ferroute_iptables::{ChainName, TableName, exec::BackendSnapshot, plan::is_proxy_chain};
use ferroute_modes::{REGISTRY, kernel_rules::KernelRules};
use ferroute_nftables::{
    kernel::{TableFamily, TableSnapshot},
    model::ChainType,
};
use ferroute_trace::{Effect, Event, Hook, Host, Leaf, Packet, Ruleset, Verdict};

use super::{
    destinations::{CLIENT_PORT, Destination, destinations, local_packet, node_port_address, outside_address},
    translations::{MAX_LEAVES, is_foreign},
};
use crate::{
    desired::{AddressOwner, Desired},
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
    let mut pods = local_pods(desired, rules.family);
    // A pod that is the only endpoint connects to itself only, which is masqueraded.
    let has_one_pod = pods.len() == 1;
    if has_one_pod {
        pods.extend(bridged_neighbour(&host, pods[0]));
    }
    let is_pod = |address: IpAddr| is_pod(desired, address);
    let walk_from = |sources: Vec<IpAddr>, protocol: Protocol, to: SocketAddr| -> Vec<Walked> {
        let packets = sources.into_iter().filter_map(|source| {
            let (interface, _) = host.path_to(source, Some((protocol, to.port(), CLIENT_PORT)))?;
            Some(Packet::arriving(protocol, SocketAddr::new(source, CLIENT_PORT), to, &interface))
        });
        let walk =
            |packet: Packet| walked(of_others.matching_leaves(&host, &packet), packet.source.ip(), &names, is_pod);
        let mut walks = Vec::new();
        for walked in packets.filter_map(walk) {
            let is_served = walked.is_served();
            walks.push(walked);
            // No rule refuses all clients.
            if is_served {
                break;
            }
        }
        walks
    };
    let mut walks = Walks::default();
    let (mut pod_refusals, mut pods_are_served) = (Vec::new(), false);
    let has_endpoints = |destination: &&Destination| destination.has_endpoints;
    let all = destinations(desired, rules, mode.traits());
    for destination in all.iter().filter(has_endpoints).take(MAX_WALKS) {
        if let Some(packet) = local_packet(destination, &host)
            && let Some(Walked { refusal: Some(refusal), .. }) =
                walked(of_node.matching_leaves(&host, &packet), packet.source.ip(), &names_for_node, is_pod)
        {
            walks.add(refusal.rule, destination.service.clone(), Client::Node);
        }
        let (client, sources) = match destination.is_external {
            true => (Client::Outside, outside_clients(rules.family, &host, destination.address)),
            false => (Client::Pod, pods.clone()),
        };
        let walks_of_sources = walk_from(sources, destination.protocol, destination.socket());
        if walks_of_sources.is_empty() {
            continue;
        }
        // A firewall may permit some clients only.
        let is_served = walks_of_sources.iter().any(Walked::is_served);
        pods_are_served |= client == Client::Pod && is_served;
        let Some(refusal) = refusal_of_all(walks_of_sources) else {
            // Only what a rule accepts passes a policy that drops.
            if client == Client::Outside && is_served && !shares_iptables && !iptables.is_empty() {
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
    for (service, to) in health_checks(desired, rules.family) {
        let walked = walk_from(outside_clients(rules.family, &host, to.ip()), Protocol::Tcp, to);
        if !walked.is_empty()
            && let Some(refusal) = refusal_of_all(walked)
        {
            walks.add(refusal.rule, service, Client::Outside);
        }
    }
    // A network policy refuses pods at some endpoints, which is its purpose. The end of a chain refuses all that no rule accepts.
    pod_refusals.retain(|(refusal, _)| {
        let may_be_policy = pods_are_served || has_one_pod && !refusal.in_base_chain;
        !(may_be_policy && refusal.at_endpoint && !refusal.is_end)
    });
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

/// Returns the addresses at which load balancers check the health of Services, each with its Service.
fn health_checks(desired: &Desired, family: IpFamily) -> BTreeSet<(String, SocketAddr)> {
    let Some(address) = node_port_address(desired, family) else { return BTreeSet::new() };
    let checks = desired.table(family).entries.iter().filter_map(|(name, entry)| {
        let port = entry.service.health_check_node_port?.get();
        Some((format!("{} (healthCheckNodePort {port})", name.service), SocketAddr::new(address, port)))
    });
    checks.take(MAX_WALKS).collect()
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

/// Reports whether an endpoint with this address is a pod with an address of its own, and not a process of a node.
pub(super) fn is_pod(desired: &Desired, address: IpAddr) -> bool {
    let is_node = matches!(desired.names.owner(address), Some(AddressOwner::Node(_)));
    !is_node && !desired.host.addresses.contains(&address)
}

/// Returns addresses of endpoints elsewhere.
pub(super) fn other_endpoints(desired: &Desired, family: IpFamily) -> BTreeSet<SocketAddr> {
    let endpoints = desired.table(family).entries.values().flat_map(|entry| entry.endpoints.iter());
    let others = endpoints.filter(|endpoint| !endpoint.local && !desired.host.addresses.contains(&endpoint.address));
    others.take(MAX_WALKS).map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port)).collect()
}

/// Returns addresses of pods on this node.
pub(super) fn local_pods(desired: &Desired, family: IpFamily) -> Vec<IpAddr> {
    let table = desired.table(family);
    let endpoints = table.entries.values().flat_map(|entry| entry.endpoints.iter());
    let pods = endpoints.filter(|endpoint| endpoint.local).map(|endpoint| endpoint.address);
    let pods = pods.filter(|address| is_pod(desired, *address));
    let pods: BTreeSet<IpAddr> = pods.take(MAX_WALKS).collect();
    pods.into_iter().take(MAX_PODS).collect()
}

/// Returns addresses of other hosts: a distant one, and one in the node's network, or in the network of `address` if
/// the node has none.
fn outside_clients(family: IpFamily, host: &Host, address: IpAddr) -> Vec<IpAddr> {
    let far = outside_address(family);
    let own = host.path_to(far, None).and_then(|(_, source)| source).unwrap_or(address);
    [far, neighbour(own, 3)].into_iter().filter(|client| host.path_to(*client, None).is_some()).collect()
}

/// Returns another address of the same network, even a small one, which differs in these bits.
fn neighbour(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4((u32::from(address) ^ u32::from(bits)).into()),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) ^ u128::from(bits)).into()),
    }
}

/// Returns the address of another pod in the network of this one, if they are behind one bridge.
fn bridged_neighbour(host: &Host, pod: IpAddr) -> Option<IpAddr> {
    let interface = |address| Some(host.path_to(address, None)?.0);
    let bridge = interface(pod)?;
    if interface(outside_address(IpFamily::of(pod))).as_ref() == Some(&bridge) {
        return None;
    }
    // The first address is often the bridge's.
    let mut others = [3, 4].map(|bits| neighbour(pod, bits)).into_iter();
    others.find(|other| interface(*other).as_ref() == Some(&bridge) && !host.addresses.contains(other))
}

/// The end of a packet at a rule of another program.
#[derive(PartialEq, Eq)]
struct Refusal {
    /// The rule in the words of its program, or the policy of a chain.
    rule: String,
    /// It is the policy of a chain of hook forward or output, or rules without conditions at its end.
    is_end: bool,
    /// It is the policy of the chain `FORWARD` of iptables.
    is_forward_policy: bool,
    /// It is in a chain of a hook, and not in one that other rules jump to.
    in_base_chain: bool,
    /// The packet had the address of an endpoint.
    at_endpoint: bool,
}

/// The results of packets of one client to a Service.
struct Walked {
    /// A rule that refuses connections: all of them or, if it is the end of a chain, those to some endpoints.
    refusal: Option<Refusal>,
    /// Some connections reach a pod.
    reaches_pod: bool,
}

impl Walked {
    /// Reports whether all connections are accepted, and some of them reach a pod. Others show nothing about forwarded packets:
    /// those to processes of the node, and those to other nodes.
    fn is_served(&self) -> bool {
        self.refusal.is_none() && self.reaches_pod
    }
}

/// Returns a rule, or a policy, of one of these tables that refuses connections, whatever the random choices and assumptions: all
/// of them or, at the end of a chain, those to some endpoints; [`None`] if the connection reaches only its own client. Packets
/// that return to their client are masqueraded, which firewalls treat differently.
fn walked(
    leaves: impl Iterator<Item = Leaf>,
    client: IpAddr,
    tables: &[&str],
    is_pod: impl Fn(IpAddr) -> bool,
) -> Option<Walked> {
    let (mut reaches_pod, mut refuses_all, mut is_empty) = (false, true, true);
    let (mut first, mut end) = (None, None);
    for leaf in leaves.take(MAX_LEAVES) {
        let refusal = match leaf.verdict {
            Verdict::Delivered { to, .. } if to.ip() == client => continue,
            Verdict::Dropped | Verdict::Rejected { .. } => last_rule(&leaf.events, tables),
            Verdict::Delivered { to, .. } => {
                reaches_pod |= is_pod(to.ip());
                None
            }
            Verdict::NoRoute | Verdict::Unknown { .. } => None,
        };
        is_empty = false;
        refuses_all &= refusal.is_some();
        match refusal {
            // Without assumptions, the choice of the endpoint decides.
            Some(refusal) if refusal.is_end && leaf.assumptions.is_empty() => end = end.or(Some(refusal)),
            Some(refusal) => first = first.or(Some(refusal)),
            None => {}
        }
    }
    let refusal = end.or(first.filter(|_| refuses_all));
    (!is_empty).then_some(Walked { refusal, reaches_pod })
}

/// Returns a refusal if there is one for each client.
fn refusal_of_all(walks: Vec<Walked>) -> Option<Refusal> {
    let refusals: Option<Vec<Refusal>> = walks.into_iter().map(|walked| walked.refusal).collect();
    refusals?.into_iter().next()
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
    let last =
        events.iter().rposition(|event| matches!(event, Event::Policy { .. } | Event::Rule { mismatch: None, .. }))?;
    // The kernel drops a packet after all rules of the hook.
    if events[last..].iter().any(|event| matches!(event, Event::Discarded { .. })) {
        return None;
    }
    let (chain, rule, is_policy) = match &events[last] {
        Event::Rule { chain, text, .. } => (chain, format!("{text} in chain {chain} of table {table}"), false),
        Event::Policy { chain, .. } => (chain, format!("the policy of chain {chain} of table {table}"), true),
        _ => return None,
    };
    let is_forward = (table, chain.as_str()) == (TableName::Filter.as_str(), ChainName::FORWARD.as_str());
    let at_endpoint = events.iter().any(|event| matches!(event, Event::Effect { effect: Effect::Dnat { .. }, .. }));
    let is_other = tables.contains(&table) && !is_proxy_chain(chain);
    is_other.then_some(Refusal {
        rule,
        is_end: matches!(hook, Hook::Forward | Hook::Output) && (is_policy || has_no_condition(&events[..=last])),
        is_forward_policy: is_policy && is_forward,
        in_base_chain: is_policy || matches!(events[last], Event::Rule { depth: 0, .. }),
        at_endpoint,
    })
}

/// Reports whether the last of these events is a rule for all packets that reach the base chain's rules of its depth.
fn has_no_condition(events: &[Event]) -> bool {
    let mut next_depth = None;
    for event in events.iter().rev() {
        match event {
            Event::Rule { text, depth, mismatch: None, .. } if next_depth.is_none_or(|next| *depth < next) => {
                if !is_unconditional(text) {
                    return false;
                }
                next_depth = Some(*depth);
            }
            Event::Hook { .. } => break,
            _ => {}
        }
    }
    next_depth == Some(0)
}

/// Reports whether a rule with a verdict has no condition, in the syntax of `iptables-save` or `nft`.
fn is_unconditional(text: &str) -> bool {
    // Without comments in quotes.
    let text = text.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    let is_part_of_comment_or_counter = |(before, word): (&str, &str)| {
        ["-m", "comment", "--comment", "counter", "packets", "bytes"].contains(&word)
            || ["--comment", "packets", "bytes"].contains(&before)
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let before = std::iter::once("").chain(words.iter().copied());
    let first = before.zip(words.iter().copied()).find(|pair| !is_part_of_comment_or_counter(*pair));
    first.is_some_and(|(_, word)| VERDICTS.contains(&word))
}

/// First words of verdicts that refuse packets or continue in another chain.
const VERDICTS: [&str; 6] = ["-j", "-g", "drop", "reject", "jump", "goto"];
/// Maximum number of destinations to which packets are walked.
const MAX_WALKS: usize = 200;
/// Maximum number of pods whose packets are walked.
const MAX_PODS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_that_refuse_packets_are_not_firewalls() {
        let hook = Event::Hook { hook: Hook::Output, table: "filter".into(), chain: "OUTPUT".to_owned() };
        let policy = Event::Policy { chain: "OUTPUT".to_owned(), policy: "ACCEPT".into() };
        let discarded = Event::Discarded { reason: "blackhole route".into() };
        assert!(last_rule(&[hook, policy, discarded], &["filter"]).is_none());
    }

    #[test]
    fn ends_of_chains_are_not_network_policies() {
        let refusal = |hook: Hook, last: Vec<Event>| {
            let (table, chain) = (TableName::Filter.as_str().into(), hook.as_str().to_owned());
            last_rule(&[vec![Event::Hook { hook, table, chain }], last].concat(), &["filter"]).unwrap()
        };
        let rule = |chain: &str, depth: usize, text: &str| {
            let (chain, text) = (chain.to_owned(), text.to_owned());
            Event::Rule { chain, number: 1, text, depth, mismatch: None, chance: None }
        };
        let policy = |chain: &str| Event::Policy { chain: chain.to_owned(), policy: "DROP".into() };
        let output = |text: &str| refusal(Hook::Output, vec![rule("OUTPUT", 0, text)]).is_end;
        assert!(refusal(Hook::Output, vec![policy("OUTPUT")]).is_end);
        assert!(output("-j REJECT --reject-with icmp-port-unreachable") && output("counter packets 5 bytes 300 drop"));
        assert!(output("-m comment --comment \"the -d end\" -j DROP") && output("-m comment --comment end -j DROP"));
        assert!(!output("-d 10.244.0.0/16 -j DROP") && !output("ct state new drop comment \"drop\""));
        let forward = |first: &str, last: &str| {
            refusal(Hook::Forward, vec![rule("FORWARD", 0, first), rule("end", 1, "-j RETURN"), rule("end", 1, last)])
        };
        assert!(forward("-j end", "-j REJECT").is_end && forward("jump end", "counter drop").is_end);
        assert!(!forward("-o cni0 -j end", "-j DROP").is_end && !forward("-j end", "-d 10.244.1.5/32 -j DROP").is_end);
        assert!(!refusal(Hook::Output, vec![rule("KUBE-POD-FW-A", 2, "-j REJECT")]).is_end);
        assert!(refusal(Hook::Forward, vec![policy("FORWARD")]).is_forward_policy);
        assert!(!refusal(Hook::Prerouting, vec![policy("PREROUTING")]).is_end);
    }
}
