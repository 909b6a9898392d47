//! The connections of the tour and the pods that may answer them. Pure.

use std::net::{IpAddr, SocketAddr};

use ferroute_api::{Service, ServicePort};
use ferroute_core::{IpFamily, Protocol, parse::parse_ip};

use crate::{
    layout::{Addresses, NodeId, outside_addresses},
    plan::{ClusterPlan, PlannedPod},
};

/// Connections from one client to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) client: Client,
    pub(crate) source: IpAddr,
    pub(crate) frontend: Frontend,
    pub(crate) destination: SocketAddr,
    pub(crate) protocol: Protocol,
    /// The short names of the pods that may answer.
    pub(crate) pods: Vec<String>,
    /// Whether there is session affinity: one pod answers all connections.
    pub(crate) has_affinity: bool,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// A pod on the first node, with its short name.
    Pod(String),
    /// The first node itself.
    Node,
    /// The external machine.
    Outside,
}

/// The kind of a Service's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frontend {
    ClusterIp,
    NodePort,
    LoadBalancer,
    External,
}

impl Frontend {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "cluster IP",
            Self::NodePort => "node port",
            Self::LoadBalancer => "load balancer",
            Self::External => "external IP",
        }
    }
}

impl Client {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Pod(name) => name,
            Self::Node => NodeId::Node.name(),
            Self::Outside => crate::layout::OUTSIDE,
        }
    }
}

/// Returns the flows from a pod, the first node and outside to every address of a Service.
pub(crate) fn service_flows(plan: &ClusterPlan, service: &Service) -> Vec<Flow> {
    let mut flows = Vec::new();
    for port in &service.spec.ports {
        let Some(protocol) = protocol(port) else { continue };
        for (frontend, address) in frontends(service, port) {
            for (client, addresses) in clients(plan) {
                let Some(source) = addresses.get(IpFamily::of(address.ip())) else { continue };
                let is_local = is_local_only(service, &client, frontend);
                let pods = endpoints(plan, service, port, IpFamily::of(address.ip()), is_local);
                flows.push(Flow {
                    client,
                    source,
                    frontend,
                    destination: address,
                    protocol,
                    pods,
                    has_affinity: service.spec.session_affinity.as_deref() == Some("ClientIP"),
                });
            }
        }
    }
    flows
}

/// Returns the number of connections that reach every one of `pods` pods, except with a probability below one in a million.
pub(crate) fn required_connections(pods: usize) -> usize {
    // One of k pods gets none of n connections with probability (1-1/k)^n < exp(-n/k).
    let pods_f = f64::from(u32::try_from(pods.max(1)).unwrap_or(u32::MAX));
    let count = pods_f * (pods_f * 1e6).ln();
    // The cast saturates.
    count.ceil() as usize
}

/// Returns the clients: a pod, preferably one that is not an endpoint, the first node, and the external machine.
fn clients(plan: &ClusterPlan) -> Vec<(Client, Addresses)> {
    let on_node = || plan.pods.iter().filter(|pod| pod.node == NodeId::Node && !pod.host_network);
    let pod = on_node().find(|pod| plan.is_idle(pod)).or_else(|| on_node().next());
    let pod = pod.map(|pod| (Client::Pod(pod.short_name()), pod.addresses));
    let machines = [(Client::Node, NodeId::Node.addresses(plan.ipv6)), (Client::Outside, outside_addresses(plan.ipv6))];
    pod.into_iter().chain(machines).collect()
}

fn frontends(service: &Service, port: &ServicePort) -> Vec<(Frontend, SocketAddr)> {
    let number = u16::try_from(port.port).unwrap_or_default();
    let at = |frontend, ips: &[&str], number| {
        let ips = ips.iter().filter_map(|ip| parse_ip(ip).ok());
        ips.map(|ip| (frontend, SocketAddr::new(ip, number))).collect::<Vec<_>>()
    };
    let spec = &service.spec;
    let cluster_ips: Vec<&str> = spec.cluster_ips.iter().map(String::as_str).collect();
    let mut frontends = at(Frontend::ClusterIp, &cluster_ips, number);
    let node_port = port.node_port.and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0);
    if let Some(node_port) = node_port {
        let families = frontends.iter().map(|(_, address)| IpFamily::of(address.ip())).collect::<Vec<_>>();
        let node = families.iter().filter_map(|family| NodeId::Node.addresses(true).get(*family));
        frontends.extend(node.map(|ip| (Frontend::NodePort, SocketAddr::new(ip, node_port))).collect::<Vec<_>>());
    }
    // Source ranges may exclude some of the clients.
    if spec.load_balancer_source_ranges.is_empty() {
        let vips =
            service.status.load_balancer.ingress.iter().filter(|point| point.ip_mode.as_deref() != Some("Proxy"));
        frontends.extend(at(Frontend::LoadBalancer, &vips.map(|point| point.ip.as_str()).collect::<Vec<_>>(), number));
    }
    let external: Vec<&str> = spec.external_ips.iter().map(String::as_str).collect();
    frontends.extend(at(Frontend::External, &external, number));
    frontends
}

/// Reports whether only pods on the first node may answer. The external traffic policy does not apply to connections from
/// within the cluster.
fn is_local_only(service: &Service, client: &Client, frontend: Frontend) -> bool {
    let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    match frontend {
        Frontend::ClusterIp => is_local(&service.spec.internal_traffic_policy),
        _ => *client == Client::Outside && is_local(&service.spec.external_traffic_policy),
    }
}

fn endpoints(
    plan: &ClusterPlan,
    service: &Service,
    port: &ServicePort,
    family: IpFamily,
    local_only: bool,
) -> Vec<String> {
    let pods = plan.pods.iter().filter(|pod| {
        pod.is_selected_by(service)
            && pod.target_port(port).is_some()
            && pod.addresses.get(family).is_some()
            && (!local_only || pod.node == NodeId::Node)
    });
    pods.map(PlannedPod::short_name).collect()
}

/// Returns the protocol; `None` for SCTP, which the demo's pods do not support.
fn protocol(port: &ServicePort) -> Option<Protocol> {
    port.protocol.as_deref().unwrap_or("TCP").parse().ok().filter(|protocol| *protocol != Protocol::Sctp)
}
