//! The owners of addresses: pods, nodes and other machines.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
};

use ferroute_api::Pod;
use ferroute_core::{FrontendKind, IpFamily, Protocol, ServicePortName, ServiceTable};
use ferroute_demo::{
    layout::{NodeId, OUTSIDE, outside_addresses},
    plan::ClusterPlan,
};
use ferroute_source::Event;
use ferroute_trace::Host;

/// A map from addresses to their owners.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<IpAddr, AddressOwner>);

/// The owner of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressOwner {
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A node.
    Node(String),
    /// A machine that is not a node.
    Machine(&'static str),
}

impl Names {
    /// Returns the owner of an address.
    pub fn owner(&self, address: IpAddr) -> Option<&AddressOwner> {
        self.0.get(&address)
    }

    /// Returns the sorted addresses of a pod or machine. A pod can be given as `NAME` or `NAMESPACE/NAME`; pods in several
    /// namespaces may have the same name, so the addresses may have different owners.
    pub fn addresses(&self, name: &str) -> Vec<(IpAddr, &AddressOwner)> {
        self.0.iter().filter(|(_, owner)| owner.has_name(name)).map(|(address, owner)| (*address, owner)).collect()
    }

    pub(super) fn add_pod(&mut self, pod: &Pod) {
        // Its addresses are the node's.
        if pod.spec.host_network {
            return;
        }
        let addresses = pod.status.pod_ips.iter().map(|address| &address.ip).chain(&pod.status.pod_ip);
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        for address in addresses.filter_map(|text| text.parse().ok()) {
            self.0.insert(address, AddressOwner::Pod { namespace: namespace.clone(), name: name.clone() });
        }
    }

    pub(super) fn add_demo(&mut self, plan: &ClusterPlan) {
        for pod in plan.pods.iter().filter(|pod| !pod.host_network) {
            let owner = || AddressOwner::Pod { namespace: pod.namespace.clone(), name: pod.name.clone() };
            self.0.extend(pod.addresses.iter().map(|address| (address, owner())));
        }
        for node in NodeId::ALL {
            let addresses = node.addresses(plan.ipv6).iter().chain(node.bridge_addresses(plan.ipv6).iter());
            self.0.extend(addresses.map(|address| (address, AddressOwner::Node(node.name().to_owned()))));
        }
        self.0.extend(outside_addresses(plan.ipv6).iter().map(|address| (address, AddressOwner::Machine(OUTSIDE))));
    }

    pub(super) fn add_event(&mut self, event: &Event) {
        match event {
            Event::NodeApplied(node) => {
                let addresses = node.status.addresses.iter().filter_map(|address| address.address.parse().ok());
                self.0.extend(addresses.map(|address| (address, AddressOwner::Node(node.metadata.name.clone()))));
            }
            Event::SliceApplied(slice) => {
                for endpoint in &slice.endpoints {
                    let Some(pod) = endpoint.target_ref.as_ref().filter(|target| target.kind == "Pod") else {
                        continue;
                    };
                    let (namespace, name) = (slice.metadata.namespace.clone(), pod.name.clone());
                    let owner = AddressOwner::Pod { namespace, name };
                    for address in endpoint.addresses.iter().filter_map(|text| text.parse().ok()) {
                        // A pod in the host network has the node's address.
                        self.0.entry(address).or_insert_with(|| owner.clone());
                    }
                }
            }
            _ => {}
        }
    }
}

impl AddressOwner {
    fn has_name(&self, text: &str) -> bool {
        match self {
            Self::Pod { namespace, name } => match text.split_once('/') {
                Some(namespaced) => namespaced == (namespace, name),
                None => text == name,
            },
            Self::Node(name) => text == name,
            Self::Machine(name) => text == *name,
        }
    }
}

impl fmt::Display for AddressOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { namespace, name } => write!(f, "pod {namespace}/{name}"),
            Self::Node(name) => write!(f, "node {name}"),
            Self::Machine(name) => f.write_str(name),
        }
    }
}

/// Returns the service port of which `address` is a frontend. Any address of the host is taken to serve node ports.
pub(super) fn frontend<'a>(
    table: &'a ServiceTable,
    host: &Host,
    address: SocketAddr,
    protocol: Protocol,
) -> Option<(&'a ServicePortName, FrontendKind)> {
    debug_assert_eq!(table.family, IpFamily::of(address.ip()), "bug: the other family's table");
    let mut node_port = None;
    for (name, entry) in table.entries.iter().filter(|(name, _)| name.protocol == protocol) {
        let mut frontends = entry.service.frontends(protocol);
        match frontends.find(|(_, frontend)| frontend.matches(address, |ip| host.owns(ip))) {
            Some((FrontendKind::NodePort, _)) => node_port = Some((name, FrontendKind::NodePort)),
            Some((kind, _)) => return Some((name, kind)),
            None => {}
        }
    }
    node_port
}
