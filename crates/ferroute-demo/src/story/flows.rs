//! Which connections the story makes, and where they may end. Pure.

use std::net::{IpAddr, SocketAddr};

use ferroute_api::{Service, ServicePort};
use ferroute_core::{IpFamily, Protocol, parse::parse_ip};

use crate::{
    layout::{Addresses, NodeId, outside_addresses},
    plan::{ClusterPlan, PlannedPod},
};

/// Many connections of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) client: Client,
    pub(crate) source: IpAddr,
    pub(crate) frontend: Frontend,
    pub(crate) destination: SocketAddr,
    pub(crate) protocol: Protocol,
    /// The pods that may answer, by their short names.
    pub(crate) pods: Vec<String>,
    /// One of them gets everything.
    pub(crate) sticks: bool,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// A pod on the first node, by its short name.
    Pod(String),
    /// The first node itself.
    Node,
    /// The machine outside the cluster.
    Outside,
}

/// Which of a Service's addresses is called.
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

/// From a pod, from the first node and from outside, to every address of a Service's ports.
pub(crate) fn flows_of(plan: &ClusterPlan, service: &Service) -> Vec<Flow> {
    let mut flows = Vec::new();
    for port in &service.spec.ports {
        let Some(protocol) = protocol(port) else { continue };
        for (frontend, address) in frontends(service, port) {
            for (client, addresses) in clients(plan) {
                let Some(source) = addresses.of(IpFamily::of(address.ip())) else { continue };
                let is_local = is_local_only(service, &client, frontend);
                let pods = pods_behind(plan, service, port, IpFamily::of(address.ip()), is_local);
                flows.push(Flow {
                    client,
                    source,
                    frontend,
                    destination: address,
                    protocol,
                    pods,
                    sticks: service.spec.session_affinity.as_deref() == Some("ClientIP"),
                });
            }
        }
    }
    flows
}

/// How many connections tell whether every pod gets its share: so many that a pod that gets none by chance is rarer
/// than one in a million stories.
pub(crate) fn enough_for(pods: usize) -> usize {
    // Of n connections, each of k pods misses all with probability (1-1/k)^n < exp(-n/k).
    let pods_f = f64::from(u32::try_from(pods.max(1)).unwrap_or(u32::MAX));
    let count = pods_f * (pods_f * 1e6).ln();
    // A float that is too big for the type becomes its greatest value.
    count.ceil() as usize
}

/// A pod that is behind no Service where there is one, because it only asks.
fn clients(plan: &ClusterPlan) -> Vec<(Client, Addresses)> {
    let on_node = || plan.pods.iter().filter(|pod| pod.node == NodeId::Node && !pod.host_network);
    let is_idle = |pod: &&PlannedPod| !plan.services.iter().any(|service| pod.is_behind(service));
    let pod = on_node().find(is_idle).or_else(|| on_node().next());
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
        let node = families.iter().filter_map(|family| NodeId::Node.addresses(true).of(*family));
        frontends.extend(node.map(|ip| (Frontend::NodePort, SocketAddr::new(ip, node_port))).collect::<Vec<_>>());
    }
    // With source ranges it depends on the client's address whether it may.
    if spec.load_balancer_source_ranges.is_empty() {
        let vips =
            service.status.load_balancer.ingress.iter().filter(|point| point.ip_mode.as_deref() != Some("Proxy"));
        frontends.extend(at(Frontend::LoadBalancer, &vips.map(|point| point.ip.as_str()).collect::<Vec<_>>(), number));
    }
    let external: Vec<&str> = spec.external_ips.iter().map(String::as_str).collect();
    frontends.extend(at(Frontend::External, &external, number));
    frontends
}

/// Whether only pods on the first node may answer. What comes from the cluster itself to an address for outside traffic
/// may go to all pods in any case, as if it came back through a load balancer.
fn is_local_only(service: &Service, client: &Client, frontend: Frontend) -> bool {
    let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    match frontend {
        Frontend::ClusterIp => is_local(&service.spec.internal_traffic_policy),
        _ => *client == Client::Outside && is_local(&service.spec.external_traffic_policy),
    }
}

fn pods_behind(
    plan: &ClusterPlan,
    service: &Service,
    port: &ServicePort,
    family: IpFamily,
    local_only: bool,
) -> Vec<String> {
    let pods = plan.pods.iter().filter(|pod| {
        pod.is_behind(service)
            && pod.target_port(port).is_some()
            && pod.addresses.of(family).is_some()
            && (!local_only || pod.node == NodeId::Node)
    });
    pods.map(PlannedPod::short_name).collect()
}

/// `None` for SCTP, which the demo's pods do not speak.
fn protocol(port: &ServicePort) -> Option<Protocol> {
    port.protocol.as_deref().unwrap_or("TCP").parse().ok().filter(|protocol| *protocol != Protocol::Sctp)
}
