//! From the objects that somebody wrote to a whole cluster: which pods there are, where, and with which addresses; the
//! Services with all that an API server and a cloud would fill in; the endpoint slices and Nodes that its controllers
//! would make.
//!
//! ```text
//!   Deployments, Pods ──► pods (node, addresses, ports) ──┐
//!                                                         ├──► slices
//!   Services ──► Services with cluster IPs, node ports ───┘
//! ```
//!
//! All of it is a pure function of the objects and of the plan before, so nothing here needs root, and the same YAML
//! gives the same cluster on every machine. What is *not* here: network namespaces, processes, files.

mod assign;
mod error;
mod manifest;
mod nodes;
mod objects;
mod pods;
mod pool;
mod services;
mod slices;

use std::collections::BTreeMap;

use ferroute_api::{EndpointSlice, Endpoints, Object, Service, ServicePort};
use ferroute_core::Protocol;
use serde::{Deserialize, Serialize};

pub use error::{ObjectName, PlanError, Problem, Resource, Unfit};
pub(crate) use manifest::to_yaml;
pub use objects::{Objects, ObjectsError, Workload};

use crate::layout::{Addresses, NodeId};

/// A cluster as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPlan {
    /// Whether everything has IPv6 addresses too.
    pub ipv6: bool,
    /// The pods, in the order of their workloads.
    pub pods: Vec<PlannedPod>,
    /// The Services, complete.
    pub services: Vec<Service>,
    /// Slices that the user wrote himself.
    pub own_slices: Vec<EndpointSlice>,
    /// Endpoints that the user wrote himself.
    pub own_endpoints: Vec<Endpoints>,
}

/// A pod with its place in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name; pods of a Deployment are numbered from 1.
    pub name: String,
    /// The node that it runs on.
    pub node: NodeId,
    /// Uses the node's network; its addresses are then the node's.
    pub host_network: bool,
    /// Its addresses.
    pub addresses: Addresses,
    /// Its labels, which Services select it by.
    pub labels: BTreeMap<String, String>,
    /// The ports that it listens on; never empty.
    pub ports: Vec<PodPort>,
}

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPort {
    /// Name that Services can send to; may be empty.
    pub name: String,
    /// The port number.
    pub number: u16,
    /// Its protocol.
    #[serde(with = "protocol_name")]
    pub protocol: Protocol,
}

impl ClusterPlan {
    /// Plans the cluster for `objects`. What `previous` gave out and is still asked for stays as it was.
    ///
    /// # Errors
    ///
    /// The first object that an API server would refuse, or that there is no room for.
    pub fn new(objects: &Objects, previous: Option<&Self>, ipv6: bool) -> Result<Self, PlanError> {
        let (old_pods, old_services) =
            previous.map_or((&[][..], &[][..]), |plan| (plan.pods.as_slice(), plan.services.as_slice()));
        let services = services::fill_in(&objects.services, old_services, ipv6)?;
        let mut pods = pods::place(&objects.workloads, old_pods, ipv6)?;
        for pod in pods.iter_mut().filter(|pod| pod.ports.is_empty()) {
            pod.ports = undeclared_ports(pod, &services);
        }
        let (own_slices, own_endpoints) = (objects.slices.clone(), objects.endpoints.clone());
        Ok(Self { ipv6, pods, services, own_slices, own_endpoints })
    }

    /// All endpoint slices: those of the Services with a selector, and the user's own.
    pub fn slices(&self, is_ready: impl Fn(&PlannedPod) -> bool) -> Vec<EndpointSlice> {
        let made = self.services.iter().flat_map(|service| slices::slices_of(service, &self.pods, &is_ready));
        made.chain(self.own_slices.iter().cloned()).collect()
    }

    /// All that a proxy reads: Nodes, Services, slices, Endpoints.
    pub fn objects(&self, is_ready: impl Fn(&PlannedPod) -> bool) -> Vec<Object> {
        let nodes = NodeId::ALL.into_iter().map(|node| Object::Node(nodes::node(node, self.ipv6)));
        let services = self.services.iter().cloned().map(Object::Service);
        let slices = self.slices(is_ready).into_iter().map(Object::EndpointSlice);
        let endpoints = self.own_endpoints.iter().cloned().map(Object::Endpoints);
        nodes.chain(services).chain(slices).chain(endpoints).collect()
    }
}

impl PlannedPod {
    /// Whether the Service selects it.
    pub fn is_behind(&self, service: &Service) -> bool {
        let selector = &service.spec.selector;
        service.metadata.namespace == self.namespace && !selector.is_empty() && selects(selector, &self.labels)
    }

    /// The number that a Service's port has on this pod; `None` when it is a name that the pod does not know.
    pub fn target_port(&self, port: &ServicePort) -> Option<u16> {
        slices::resolve(port, self).map(|(_, number, _)| number)
    }

    /// `web-server`, or `web-server@shop` in a namespace other than `default`: unique in the cluster, and good as the
    /// name of a file.
    pub fn short_name(&self) -> String {
        match self.namespace.as_str() {
            "default" => self.name.clone(),
            namespace => format!("{}@{namespace}", self.name),
        }
    }
}

/// Whether an object with `labels` has all that a selector wants.
fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// What a pod that does not say it listens on: the ports that Services expect of it, or the web's.
fn undeclared_ports(pod: &PlannedPod, services: &[Service]) -> Vec<PodPort> {
    let expected = services.iter().filter(|service| pod.is_behind(service)).flat_map(|service| &service.spec.ports);
    let mut ports: Vec<PodPort> = Vec::new();
    for (_, number, protocol) in expected.filter_map(|port| slices::resolve(port, pod)) {
        if !ports.iter().any(|port| (port.number, port.protocol) == (number, protocol)) {
            ports.push(PodPort { name: String::new(), number, protocol });
        }
    }
    if ports.is_empty() {
        ports.push(PodPort { name: String::new(), number: 80, protocol: Protocol::Tcp });
    }
    ports
}

/// Protocols in files are written as in rules.
mod protocol_name {
    use ferroute_core::Protocol;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(protocol: &Protocol, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(protocol.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protocol, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
