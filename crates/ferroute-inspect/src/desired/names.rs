//! Who is behind an address.

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

/// Names of pods and machines by their addresses, as far as objects tell them.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<IpAddr, Named>);

/// Somebody who has an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A node.
    Node(String),
    /// A machine that is no node.
    Machine(&'static str),
}

impl Names {
    /// Who has this address.
    pub fn at(&self, address: IpAddr) -> Option<&Named> {
        self.0.get(&address)
    }

    /// The addresses of a pod or machine, sorted. A pod is named as `NAME` or `NAMESPACE/NAME`; pods of several
    /// namespaces may share a name, so what comes is told with its owner.
    pub fn addresses_of(&self, wanted: &str) -> Vec<(IpAddr, &Named)> {
        self.0.iter().filter(|(_, named)| named.is(wanted)).map(|(address, named)| (*address, named)).collect()
    }

    pub(super) fn add_pod(&mut self, pod: &Pod) {
        // Its address is the node's.
        if pod.spec.host_network {
            return;
        }
        let listed = pod.status.pod_ips.iter().map(|address| &address.ip).chain(&pod.status.pod_ip);
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        for address in listed.filter_map(|text| text.parse().ok()) {
            self.0.insert(address, Named::Pod { namespace: namespace.clone(), name: name.clone() });
        }
    }

    pub(super) fn add_demo(&mut self, plan: &ClusterPlan) {
        for pod in plan.pods.iter().filter(|pod| !pod.host_network) {
            let named = || Named::Pod { namespace: pod.namespace.clone(), name: pod.name.clone() };
            self.0.extend(pod.addresses.iter().map(|address| (address, named())));
        }
        for node in NodeId::ALL {
            let own = node.addresses(plan.ipv6).iter().chain(node.bridge_addresses(plan.ipv6).iter());
            self.0.extend(own.map(|address| (address, Named::Node(node.name().to_owned()))));
        }
        self.0.extend(outside_addresses(plan.ipv6).iter().map(|address| (address, Named::Machine(OUTSIDE))));
    }

    pub(super) fn add_event(&mut self, event: &Event) {
        match event {
            Event::NodeApplied(node) => {
                let addresses = node.status.addresses.iter().filter_map(|address| address.address.parse().ok());
                self.0.extend(addresses.map(|address| (address, Named::Node(node.metadata.name.clone()))));
            }
            Event::SliceApplied(slice) => {
                for endpoint in &slice.endpoints {
                    let Some(pod) = endpoint.target_ref.as_ref().filter(|target| target.kind == "Pod") else {
                        continue;
                    };
                    let (namespace, name) = (slice.metadata.namespace.clone(), pod.name.clone());
                    let named = Named::Pod { namespace, name };
                    for address in endpoint.addresses.iter().filter_map(|text| text.parse().ok()) {
                        // A pod of the host's network has the node's address.
                        self.0.entry(address).or_insert_with(|| named.clone());
                    }
                }
            }
            _ => {}
        }
    }
}

impl Named {
    fn is(&self, wanted: &str) -> bool {
        match self {
            Self::Pod { namespace, name } => match wanted.split_once('/') {
                Some((wanted_namespace, wanted_name)) => (wanted_namespace, wanted_name) == (namespace, name),
                None => wanted == name,
            },
            Self::Node(name) => wanted == name,
            Self::Machine(name) => wanted == *name,
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { namespace, name } => write!(f, "pod {namespace}/{name}"),
            Self::Node(name) => write!(f, "node {name}"),
            Self::Machine(name) => f.write_str(name),
        }
    }
}

/// The service port that has `address` as one of its frontends. Whether the operator lets node ports answer there is
/// for the rules to tell.
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
