//! What the kernel of this network namespace holds of a Service.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::{ServicePortEntry, IpFamily, Protocol, NamespacedName, ServicePortName};
use ferroute_host::conntrack;
use super::{
    ExplainedPort, Explanation, FlowCount, Handling, InForce, OwnRule, own_iptables_rules, own_nftables_elements,
};
use ferroute_iptables::{HostExec, exec::search_path};
use ferroute_proxy::kernel_rules::KernelRules;
use ferroute_nftables::{
    kernel::Counter,
    model::{Element, Name},
};

use ferroute_proxy::logging::chain;

use crate::desired::Desired;

/// Adds what is in force of each port to an explanation. What cannot be read is left out and told in one line.
pub(super) fn add(explanation: &mut Explanation, desired: &Desired, name: &NamespacedName, addresses: &[IpAddr]) {
    let Handling::Served { ports, .. } = &mut explanation.handling else { return };
    let mut trouble = Vec::new();
    for family in IpFamily::BOTH {
        let entries: Vec<(&ServicePortName, &ServicePortEntry)> = desired.table(family).ports_of(name).collect();
        if entries.is_empty() {
            continue;
        }
        let rules = keep(FamilyRules::read(family), &mut trouble);
        let mut flows: BTreeMap<Protocol, Option<Vec<conntrack::Entry>>> = BTreeMap::new();
        for (name, entry) in entries {
            let flows =
                flows.entry(name.protocol).or_insert_with(|| keep(read_flows(family, name.protocol), &mut trouble));
            let is_meant = |port: &&mut ExplainedPort| {
                port.family == family && port.protocol == name.protocol && *port.name == *name.port
            };
            let Some(port) = ports.iter_mut().find(is_meant) else { continue };
            let rules = rules.as_ref().map(|rules| rules.of(family, name, entry));
            let flows = flows.as_ref().map(|flows| count(flows, port, entry, addresses));
            if rules.is_some() || flows.is_some() {
                port.in_force = Some(InForce { rules, flows });
            }
        }
    }
    trouble.dedup();
    explanation.unread = (!trouble.is_empty()).then(|| trouble.join("; "));
}

/// The rules of a family, and the elements of our nftables table with what they have counted.
struct FamilyRules {
    kernel: KernelRules,
    elements: Vec<(Name, Element, Option<Counter>)>,
}

impl FamilyRules {
    fn read(family: IpFamily) -> anyhow::Result<Self> {
        let kernel = ferroute_proxy::kernel_rules::read(family, &HostExec, &search_path())?;
        let elements = kernel.ferroute_table().into_iter().flat_map(|found| {
            found.table.sets().flat_map(|set| {
                let counters = found.counters.get(&set.name);
                let counter = move |element: &Element| counters?.get(&element.key).copied();
                let all = found.table.elements(&set.name);
                all.map(move |element| (set.name.clone(), element.clone(), counter(element)))
            })
        });
        Ok(Self { elements: elements.collect(), kernel })
    }

    fn of(&self, family: IpFamily, name: &ServicePortName, entry: &ServicePortEntry) -> Vec<OwnRule> {
        let iptables = self.kernel.iptables.iter().flat_map(|found| own_iptables_rules(&found.saved, name));
        iptables.chain(own_nftables_elements(&self.elements, family, name, entry)).collect()
    }
}

fn read_flows(family: IpFamily, protocol: Protocol) -> anyhow::Result<Vec<conntrack::Entry>> {
    let mut flows = Vec::new();
    conntrack::list(family, protocol, |flow| {
        // What was not translated is nobody's Service.
        if flow.reply_source != flow.original_destination {
            flows.push(*flow);
        }
    })?;
    Ok(flows)
}

/// Connections to the port's frontends, by endpoint.
fn count(flows: &[conntrack::Entry], port: &ExplainedPort, entry: &ServicePortEntry, addresses: &[IpAddr]) -> Vec<FlowCount> {
    let service = &entry.service;
    let is_local = |address: IpAddr| address.is_loopback() || addresses.contains(&address);
    let is_frontend =
        |to: SocketAddr| service.frontends(port.protocol).any(|(_, frontend)| frontend.matches(to, is_local));
    let mut counts: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    for flow in flows.iter().filter(|flow| is_frontend(flow.original_destination)) {
        *counts.entry(flow.reply_source).or_default() += 1;
    }
    let is_current = |address: SocketAddr| {
        let usages = port.endpoints.iter().filter(|endpoint| endpoint.address == address);
        usages.flat_map(|endpoint| [endpoint.cluster, endpoint.local_only]).flatten().any(|usage| usage.is_used())
    };
    let count = |(endpoint, flows)| FlowCount { endpoint, flows, current: is_current(endpoint) };
    counts.into_iter().map(count).collect()
}

/// What was read, or nothing with the reason noted.
fn keep<T>(read: anyhow::Result<T>, trouble: &mut Vec<String>) -> Option<T> {
    read.map_err(|error| trouble.push(chain(error.as_ref()))).ok()
}
