//! Test fixtures for several modes: the nginx example, its node, and packets.

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{
    LocalTrafficDetector, Protocol, ProxySettings,
    testing::{Cluster, ServiceBuilder, pod, service, slice},
};

use crate::{Host, Packet, Route};

/// A node with pods behind `cni0` and other hosts behind `eth0`.
pub(crate) fn host() -> Host {
    let route = |to: &str, interface: &str, source: &str| Route {
        to: to.parse().unwrap(),
        interface: interface.to_owned(),
        source: ip(source),
    };
    Host {
        addresses: ["192.168.49.2", "172.17.0.1", "fd00:49::2", "fd00:17::1"].map(ip).into(),
        routes: vec![
            route("172.17.0.0/24", "cni0", "172.17.0.1"),
            route("0.0.0.0/0", "eth0", "192.168.49.2"),
            route("fd00:17::/64", "cni0", "fd00:17::1"),
            route("::/0", "eth0", "fd00:49::2"),
        ],
        route_localnet: true,
        ..Host::default()
    }
}

/// Returns the proxy settings: pods are recognised by their addresses.
pub(crate) fn settings() -> ProxySettings {
    let detector = LocalTrafficDetector::ClusterCidr(vec!["172.17.0.0/16".parse().unwrap()]);
    ProxySettings { detector, ..ProxySettings::default() }
}

/// A Service with three local pods.
pub(crate) fn nginx(change: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> Cluster {
    let port = service("default/nginx-service").cluster_ip("10.111.175.78").port("", 80).node_port(31628);
    let pods = ["172.17.0.4", "172.17.0.5", "172.17.0.6"].map(|address| pod(address).on("node"));
    let slice = pods
        .into_iter()
        .fold(slice("default/nginx-service-a", "nginx-service").port("", 80), |slice, pod| slice.pod(pod));
    Cluster::new("node").service(change(port)).slice(slice)
}

/// A TCP connection from a pod.
pub(crate) fn from_pod(to: &str) -> Packet {
    let source = if socket(to).is_ipv4() { "172.17.0.14:40000" } else { "[fd00:17::14]:40000" };
    Packet::arriving(Protocol::Tcp, socket(source), socket(to), "cni0")
}

/// A TCP connection from an external client.
pub(crate) fn from_outside(to: &str) -> Packet {
    let source = if socket(to).is_ipv4() { "203.0.113.7:40000" } else { "[2001:db8::7]:40000" };
    Packet::arriving(Protocol::Tcp, socket(source), socket(to), "eth0")
}

/// A TCP connection from the node itself.
pub(crate) fn from_node(to: &str) -> Packet {
    let host = host();
    let destination = socket(to);
    let source = host.route(destination.ip()).map_or(destination.ip(), |route| route.source);
    Packet::local(Protocol::Tcp, SocketAddr::new(source, 40_000), destination)
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}
