use std::{net::SocketAddr, sync::Arc};

use crate::{
    Balancing, CreationTime, Endpoint, IpFamily, NamespacedName, NodeView, Protocol, ServicePort, ServicePortEntry,
    ServicePortName, ServiceTable, SourceRangesScope, TrafficPolicy,
};

/// Returns a ready endpoint `address:port` on another node.
pub fn endpoint(socket: &str) -> Endpoint {
    let socket = parse_socket(socket);
    Endpoint {
        address: socket.ip(),
        port: socket.port(),
        ready: true,
        serving: true,
        terminating: false,
        local: false,
        node_unknown: false,
        hints: None,
        weight: Endpoint::DEFAULT_WEIGHT,
        ejected: false,
    }
}

/// Returns a service port with the cluster IP and port `address:port` only.
pub fn service_port(socket: &str) -> ServicePort {
    let socket = parse_socket(socket);
    ServicePort {
        cluster_ip: Some(socket.ip()),
        port: socket.port(),
        node_port: None,
        external_ips: Vec::new(),
        load_balancer_vips: Vec::new(),
        load_balancer_source_ranges: Vec::new(),
        source_ranges_scope: SourceRangesScope::default(),
        health_check_node_port: None,
        affinity: None,
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        balancing: Balancing::default(),
        limits: None,
        created: CreationTime::UNKNOWN,
        is_urgent: false,
    }
}

/// Returns a service port with endpoints, which are sorted as [`ServicePortEntry::endpoints`] requires.
pub fn entry(service: ServicePort, endpoints: impl IntoIterator<Item = Endpoint>) -> ServicePortEntry {
    let mut endpoints: Vec<Endpoint> = endpoints.into_iter().collect();
    endpoints.sort_by_key(Endpoint::to_string);
    ServicePortEntry { service: Arc::new(service), endpoints: endpoints.into() }
}

/// Replaces an endpoint, by its position.
pub fn replace_endpoint(entry: &mut ServicePortEntry, i: usize, endpoint: Endpoint) {
    let mut endpoints: Vec<Endpoint> = entry.endpoints.iter().collect();
    endpoints[i] = endpoint;
    entry.endpoints = endpoints.into();
}

/// Returns a node with a name only.
pub fn node(name: &str) -> NodeView {
    NodeView { name: name.to_owned(), ..NodeView::default() }
}

/// Returns the name `namespace/name`.
pub fn namespaced_name(full: &str) -> NamespacedName {
    let (namespace, name) = split(full);
    NamespacedName::new(namespace, name)
}

/// Returns the name of a TCP port: `namespace/name:port`, or `namespace/name` for a port without a name.
pub fn port_name(full: &str) -> ServicePortName {
    let (service, port) = full.split_once(':').unwrap_or((full, ""));
    ServicePortName { service: namespaced_name(service), port: port.into(), protocol: Protocol::Tcp }
}

/// Like [`port_name`], for a UDP port.
pub fn udp_port_name(full: &str) -> ServicePortName {
    ServicePortName { protocol: Protocol::Udp, ..port_name(full) }
}

/// Returns a table with these entries.
pub fn table(
    family: IpFamily,
    node: NodeView,
    entries: impl IntoIterator<Item = (ServicePortName, ServicePortEntry)>,
) -> ServiceTable {
    ServiceTable { entries: entries.into_iter().collect(), ..ServiceTable::new(family, Arc::new(node)) }
}

pub(super) fn split(full: &str) -> (&str, &str) {
    full.split_once('/').unwrap_or_else(|| panic!("{full:?} is not namespace/name"))
}

fn parse_socket(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is not address:port"))
}
