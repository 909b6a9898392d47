//! The state of a Service in the kernel of this network namespace: its rules or elements with their counters, and its
//! connections.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ferroute_core::{Frontend, IpFamily, NamespacedName, Protocol, ServicePortEntry, ServicePortName, error_chain};
use ferroute_host::conntrack;
use ferroute_iptables::{
    ChainName, HostExec, Match, ProtocolMatch, Rule, SavedRules, Sense, TableName, exec::search_path,
    plan::is_service_chain,
};
use ferroute_modes::kernel_rules::{self, KernelRules};
use ferroute_nftables::{
    CountedElement, TableOwner, Value,
    kernel::{NetlinkError, NetlinkKernel},
    model::{Comment, Key, Name},
    plan::{KeyOwner, ListNumber, SetId, frontend_key, list_number},
    service_port_elements,
};

use super::{ConnectionCount, ExplainedPort, Explanation, Handling, KernelState, ServiceRule};
use crate::{desired::Desired, doctor::unrouted};

/// Adds the state of each port to an explanation. If a part of it cannot be read, the explanation contains the error.
pub(super) fn add_state(explanation: &mut Explanation, desired: &Desired, name: &NamespacedName, addresses: &[IpAddr]) {
    let Handling::Served { ports, .. } = &mut explanation.handling else { return };
    let mut errors = Vec::new();
    for family in IpFamily::BOTH {
        let entries: Vec<(&ServicePortName, &ServicePortEntry)> = desired.table(family).ports_of(name).collect();
        if entries.is_empty() {
            continue;
        }
        if desired.is_this_host {
            let cluster_ip = entries.iter().find_map(|(_, entry)| entry.service.cluster_ip);
            explanation.unrouted.extend(
                or_error(unrouted(cluster_ip).map_err(anyhow::Error::msg), &mut errors)
                    .flatten()
                    .map(|unrouted| unrouted.address),
            );
        }
        let mut rules = or_error(FamilyRules::read(family), &mut errors);
        errors.extend(rules.iter().flat_map(|rules| rules.kernel.unread.iter().cloned()));
        let mut tracked: BTreeMap<Protocol, Option<Vec<conntrack::Entry>>> = BTreeMap::new();
        for (name, entry) in entries {
            let tracked = tracked
                .entry(name.protocol)
                .or_insert_with(|| or_error(read_conntrack(family, name.protocol), &mut errors));
            let is_same = |port: &&mut ExplainedPort| {
                port.family == family && port.protocol == name.protocol && *port.name == *name.port
            };
            let Some(port) = ports.iter_mut().find(is_same) else { continue };
            let rules = rules.as_mut().and_then(|rules| or_error(rules.service_port(name, entry), &mut errors));
            let connections = tracked.as_ref().map(|tracked| count(tracked, port, entry, addresses));
            if rules.is_some() || connections.is_some() {
                port.kernel = Some(KernelState { rules, connections });
            }
        }
    }
    errors.dedup();
    explanation.kernel_error = (!errors.is_empty()).then(|| errors.join("; "));
}

/// The rules of an IP family, and access to the elements of Ferroute's nftables table if there are nf_tables.
struct FamilyRules {
    kernel: KernelRules,
    nf_tables: Option<NetlinkKernel>,
}

impl FamilyRules {
    fn read(family: IpFamily) -> anyhow::Result<Self> {
        let nf_tables = match NetlinkKernel::open() {
            Ok(kernel) => Some(kernel),
            Err(NetlinkError::NotSupported) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { kernel: kernel_rules::read_without_nftables(family, &HostExec, &search_path())?, nf_tables })
    }

    fn service_port(&mut self, name: &ServicePortName, entry: &ServicePortEntry) -> anyhow::Result<Vec<ServiceRule>> {
        let table = TableOwner::Ferroute.table(self.kernel.family);
        let elements = match &mut self.nf_tables {
            Some(kernel) => service_port_elements(kernel, &table, name, entry)?,
            None => Vec::new(),
        };
        let iptables = self.kernel.iptables.iter().flat_map(|snapshot| iptables_rules(&snapshot.saved, name));
        let frontends: Vec<Frontend> = entry.service.frontends(name.protocol).map(|(_, frontend)| frontend).collect();
        let ipvs = self.kernel.ipvs.iter().flat_map(|objects| objects.objects_of(&frontends));
        let ipvs = ipvs.map(|(location, text)| ServiceRule { location, text, packets: None, bytes: None });
        Ok(iptables.chain(nftables_elements(&elements, name, entry)).chain(ipvs).collect())
    }
}

fn read_conntrack(family: IpFamily, protocol: Protocol) -> anyhow::Result<Vec<conntrack::Entry>> {
    let mut entries = Vec::new();
    conntrack::list(family, protocol, |entry| {
        // Connections without DNAT are not for a Service.
        if entry.reply_source != entry.original_destination {
            entries.push(*entry);
        }
    })?;
    Ok(entries)
}

/// Counts the connections to the port's frontends, by endpoint.
fn count(
    tracked: &[conntrack::Entry],
    port: &ExplainedPort,
    entry: &ServicePortEntry,
    addresses: &[IpAddr],
) -> Vec<ConnectionCount> {
    let service = &entry.service;
    let is_local = |address: IpAddr| address.is_loopback() || addresses.contains(&address);
    let is_frontend =
        |to: SocketAddr| service.frontends(port.protocol).any(|(_, frontend)| frontend.matches(to, is_local));
    let mut counts: BTreeMap<SocketAddr, (usize, usize)> = BTreeMap::new();
    for tracked in tracked.iter().filter(|tracked| is_frontend(tracked.original_destination)) {
        let (all, open) = counts.entry(tracked.reply_source).or_default();
        (*all, *open) = (*all + 1, *open + usize::from(tracked.is_open));
    }
    let is_current = |address: SocketAddr| {
        let usages = port.endpoints.iter().filter(|endpoint| endpoint.address == address);
        usages.flat_map(|endpoint| [endpoint.cluster, endpoint.local_only]).flatten().any(|usage| usage.is_used())
    };
    let is_terminating =
        |address| entry.endpoints.iter().any(|endpoint| endpoint.terminating && endpoint.socket() == address);
    let count = |(endpoint, (connections, open))| ConnectionCount {
        endpoint,
        connections,
        open,
        current: is_current(endpoint),
        terminating: is_terminating(endpoint),
    };
    counts.into_iter().map(count).collect()
}

/// Returns the value, or adds the error to `errors`.
fn or_error<T>(result: anyhow::Result<T>, errors: &mut Vec<String>) -> Option<T> {
    result.map_err(|error| errors.push(error_chain(error.as_ref()))).ok()
}

/// Returns the `iptables` rules of a service port, in the order of tables and chains: its rules in shared chains, and all
/// rules of the chains that these jump to.
///
/// They are identified by their comments, which are the same as kube-proxy's.
fn iptables_rules(saved: &SavedRules, port: &ServicePortName) -> Vec<ServiceRule> {
    let name = port.to_string();
    let is_named = |rule: &Rule| {
        let rest = rule.first_comment().and_then(|comment| comment.strip_prefix(&*name));
        let has_protocol = match &rule.protocol {
            Some(Sense::Is(ProtocolMatch::Transport(protocol))) => *protocol == port.protocol,
            _ => true,
        };
        has_protocol && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let mut rules = Vec::new();
    let mut pending = Vec::new();
    for (table, chain, position, rule) in all_rules(saved) {
        if !is_service_chain(chain) && is_named(rule) {
            rules.push(service_rule(saved, table, chain, position, rule));
            pending.extend(rule.next_chain().filter(|next| is_service_chain(*next)));
        }
    }
    let mut visited = BTreeSet::new();
    // `pending` is a stack, so the first chain has to be on top.
    pending.reverse();
    while let Some(chain) = pending.pop() {
        if !visited.insert(chain) {
            continue;
        }
        let in_chain = saved.rules.rules(TableName::Nat, chain);
        rules.extend(in_chain.iter().enumerate().map(|(i, rule)| service_rule(saved, TableName::Nat, chain, i, rule)));
        pending.extend(in_chain.iter().rev().filter_map(Rule::next_chain).filter(|next| is_service_chain(*next)));
    }
    rules
}

fn all_rules(saved: &SavedRules) -> impl Iterator<Item = (TableName, ChainName, usize, &Rule)> {
    saved.rules.tables.iter().flat_map(|(table, chains)| {
        let chains = chains.chains.iter();
        chains.flat_map(|(name, chain)| chain.rules.iter().enumerate().map(|(i, rule)| (*table, *name, i, rule)))
    })
}

fn service_rule(saved: &SavedRules, table: TableName, chain: ChainName, position: usize, rule: &Rule) -> ServiceRule {
    let counters = saved.counters.get(table, chain, position);
    // Comments repeat the service port's name and make lines long.
    let mut short = rule.clone();
    short.matches.retain(|module| !matches!(module, Match::Comment(_)));
    ServiceRule {
        location: format!("{table} {chain}"),
        text: short.to_string(),
        packets: counters.map(|counters| counters.packets),
        bytes: counters.map(|counters| counters.bytes),
    }
}

/// Returns the elements of Ferroute's nftables table that belong to a service port. `elements` have the names of their
/// sets.
fn nftables_elements(
    elements: &[CountedElement],
    port: &ServicePortName,
    entry: &ServicePortEntry,
) -> Vec<ServiceRule> {
    let frontends: Vec<Key> =
        entry.service.frontends(port.protocol).map(|(_, frontend)| frontend_key(frontend)).collect();
    let owner = |set: &Name| SetId::from_name(set).map(SetId::key_owner);
    let numbers: BTreeSet<ListNumber> = elements
        .iter()
        .filter(|(set, element, _)| {
            // Another service port may own a frontend.
            owner(set) == Some(KeyOwner::Frontend)
                && frontends.contains(&element.key)
                && element.comment.as_ref().is_some_and(|comment| *comment == Comment::new(&port.to_string()))
        })
        .filter_map(|(_, element, _)| Some(ListNumber::from_class_id(element.data.as_ref()?.class_id()?)?.0))
        .collect();
    let belongs = |set: &Name, key: &Key| match owner(set) {
        Some(KeyOwner::Frontend) => frontends.contains(key),
        Some(KeyOwner::ClusterIp) => entry.service.cluster_ip.is_some_and(|address| key[..] == [address.into()]),
        Some(KeyOwner::Endpoint) => entry.endpoints.iter().any(|endpoint| {
            let address = endpoint.address.into();
            key[..] == [address, address, Value::protocol(port.protocol), Value::Port(endpoint.port)]
        }),
        Some(KeyOwner::List) => list_number(key).is_some_and(|number| numbers.contains(&number)),
        Some(KeyOwner::None) | None => false,
    };
    let selected = elements.iter().filter(|(set, element, _)| belongs(set, &element.key));
    selected
        .map(|(set, element, counter)| ServiceRule {
            location: format!("@{set}"),
            text: element.to_string(),
            packets: counter.map(|counter| counter.packets),
            bytes: counter.map(|counter| counter.bytes),
        })
        .collect()
}

#[cfg(test)]
mod tests;
