//! Plans a cluster from a user's objects: pods with their nodes and addresses, Services with the fields that the API server
//! and a cloud provider assign, and the EndpointSlices and Nodes that controllers create.
//!
//! ```text
//!   Deployments, Pods ──► pods (node, addresses, ports) ──┐
//!                                                         ├──► slices
//!   Services ──► Services with cluster IPs, node ports ───┘
//! ```
//!
//! The plan is a pure function of the objects and the previous plan: the same YAML gives the same cluster on every machine.

mod assign;
mod controllers;
mod error;
mod objects;
mod pods;
mod pool;
mod services;

use std::collections::BTreeMap;

use ferroute_api::{EndpointSlice, Endpoints, Object, Service, ServicePort};
use ferroute_core::Protocol;
use serde::{Deserialize, Serialize};

pub use error::{FieldError, ObjectName, PlanError, Problem, Resource};
pub(crate) use objects::to_yaml;
pub use objects::{Objects, ObjectsError, Workload};

use crate::layout::{Addresses, NodeId};

/// A planned cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPlan {
    /// Whether machines and pods have IPv6 addresses.
    pub ipv6: bool,
    /// The pods, in the order of their workloads.
    pub pods: Vec<PlannedPod>,
    /// The Services, with all assigned fields.
    pub services: Vec<Service>,
    /// The user's own EndpointSlices.
    pub own_slices: Vec<EndpointSlice>,
    /// The user's own Endpoints.
    pub own_endpoints: Vec<Endpoints>,
}

/// A planned pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedPod {
    /// The namespace.
    pub namespace: String,
    /// The name; pods of a Deployment are numbered from 1.
    pub name: String,
    /// The node.
    pub node: NodeId,
    /// Whether the pod uses the node's network and addresses.
    pub host_network: bool,
    /// The addresses.
    pub addresses: Addresses,
    /// The labels, which Services select.
    pub labels: BTreeMap<String, String>,
    /// The ports that the pod listens on; never empty.
    pub ports: Vec<PodPort>,
}

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPort {
    /// The name, which Services may use as target port; may be empty.
    pub name: String,
    /// The port number.
    pub number: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl ClusterPlan {
    /// Plans the cluster for `objects`. Objects that are in `previous` keep their addresses and ports.
    ///
    /// # Errors
    ///
    /// The first object that the API server would reject or that does not fit into the cluster.
    pub fn new(objects: &Objects, previous: Option<&Self>, ipv6: bool) -> Result<Self, PlanError> {
        let (old_pods, old_services) =
            previous.map_or((&[][..], &[][..]), |plan| (plan.pods.as_slice(), plan.services.as_slice()));
        let services = services::complete(&objects.services, old_services, ipv6)?;
        let mut pods = pods::place(&objects.workloads, old_pods, ipv6)?;
        for pod in pods.iter_mut().filter(|pod| pod.ports.is_empty()) {
            pod.ports = undeclared_ports(pod, &services);
        }
        let (own_slices, own_endpoints) = (objects.slices.clone(), objects.endpoints.clone());
        Ok(Self { ipv6, pods, services, own_slices, own_endpoints })
    }

    /// Reports whether no Service selects a pod of the plan.
    pub fn is_idle(&self, pod: &PlannedPod) -> bool {
        !self.services.iter().any(|service| pod.is_selected_by(service))
    }

    /// Returns all EndpointSlices: those of Services with a selector, and the user's own.
    pub fn slices(&self, is_ready: impl Fn(&PlannedPod) -> bool) -> Vec<EndpointSlice> {
        let created =
            self.services.iter().flat_map(|service| controllers::service_slices(service, &self.pods, &is_ready));
        created.chain(self.own_slices.iter().cloned()).collect()
    }

    /// Returns all objects that a proxy or a command reads: Nodes, Services, EndpointSlices, Endpoints, Pods.
    pub fn objects(&self, is_ready: impl Fn(&PlannedPod) -> bool) -> Vec<Object> {
        let nodes = NodeId::ALL.into_iter().map(|node| Object::Node(controllers::node(node, self.ipv6)));
        let services = self.services.iter().cloned().map(Object::Service);
        let slices = self.slices(is_ready).into_iter().map(Object::EndpointSlice);
        let endpoints = self.own_endpoints.iter().cloned().map(Object::Endpoints);
        let pods = self.pods.iter().map(|pod| Object::Pod(controllers::pod(pod)));
        nodes.chain(services).chain(slices).chain(endpoints).chain(pods).collect()
    }
}

impl PlannedPod {
    /// Reports whether a Service selects the pod.
    pub fn is_selected_by(&self, service: &Service) -> bool {
        let selector = &service.spec.selector;
        service.metadata.namespace == self.namespace && !selector.is_empty() && selects(selector, &self.labels)
    }

    /// Returns the target port of a Service's port on this pod; `None` if the pod has no port with the target's name.
    pub fn target_port(&self, port: &ServicePort) -> Option<u16> {
        controllers::target_port(port, self).map(|(_, number, _)| number)
    }

    /// Returns `web-server`, or `web-server@shop` in a namespace other than `default`: unique in the cluster, and valid as
    /// a file name.
    pub fn short_name(&self) -> String {
        match self.namespace.as_str() {
            "default" => self.name.clone(),
            namespace => format!("{}@{namespace}", self.name),
        }
    }
}

/// Reports whether a selector matches labels.
fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Returns the ports of a pod that declares none: the target ports of its Services, or port 80.
fn undeclared_ports(pod: &PlannedPod, services: &[Service]) -> Vec<PodPort> {
    let expected =
        services.iter().filter(|service| pod.is_selected_by(service)).flat_map(|service| &service.spec.ports);
    let mut ports: Vec<PodPort> = Vec::new();
    for (_, number, protocol) in expected.filter_map(|port| controllers::target_port(port, pod)) {
        if !ports.iter().any(|port| (port.number, port.protocol) == (number, protocol)) {
            ports.push(PodPort { name: String::new(), number, protocol });
        }
    }
    if ports.is_empty() {
        ports.push(PodPort { name: String::new(), number: 80, protocol: Protocol::Tcp });
    }
    ports
}

#[cfg(test)]
mod tests;
