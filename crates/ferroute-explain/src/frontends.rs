use std::net::IpAddr;

use ferroute_core::{ServicePort, ServicePortName};
use ferroute_nftables::plan::Frontend;

/// All frontends of a service port, each once, sorted.
pub(crate) fn frontends(name: &ServicePortName, service: &ServicePort) -> Vec<Frontend> {
    let at = |address: IpAddr| Frontend { address: Some(address), protocol: name.protocol, port: service.port };
    let outside = service.external_ips.iter().chain(&service.load_balancer_vips).copied();
    let node_port = service.node_port.map(|port| Frontend { address: None, protocol: name.protocol, port: port.get() });
    let mut all: Vec<Frontend> = std::iter::once(service.cluster_ip).chain(outside).map(at).chain(node_port).collect();
    all.sort_unstable();
    all.dedup();
    all
}
