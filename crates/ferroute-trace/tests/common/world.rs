//! The network around a node, and the clients of its Services.
//!
//! ```text
//!   outside ── eth0 192.168.0.1  ┌──────┐  pods 10.244.0.1 ── the node's pods
//!   other nodes ─────────────────┤ node ├─────────────────
//!              eth1 192.168.7.1  └──────┘
//! ```

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{IpFamily, LocalTrafficDetector, Protocol, ProxySettings, testing::arbitrary};
use ferroute_trace::{Host, Packet, Route};
use ipnet::IpNet;
use proptest::prelude::*;

/// The proxy settings and the node's network.
#[derive(Clone, Debug)]
pub struct World {
    pub settings: ProxySettings,
    /// Interface of local pods: of all of them, or of one.
    pub pods: &'static str,
}

impl World {
    pub fn new(settings: ProxySettings) -> Self {
        let pods = match settings.detector {
            LocalTrafficDetector::InterfaceNamePrefix(_) => "veth1",
            _ => "cbr0",
        };
        Self { settings, pods }
    }

    /// Returns the node's addresses, in the order of its interfaces.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let all =
            ["127.0.0.1", "::1", "192.168.0.1", "fd00:168::1", "192.168.7.1", "fd00:7::1", "10.244.0.1", "fd00:244::1"];
        all.map(ip).into()
    }

    pub fn host(&self) -> Host {
        let route = |to: &str, interface: &str, source| Route {
            to: to.parse().unwrap(),
            interface: interface.to_owned(),
            source: ip(source),
        };
        Host {
            addresses: self.addresses(),
            routes: vec![
                route("0.0.0.0/0", "eth0", "192.168.0.1"),
                route("::/0", "eth0", "fd00:168::1"),
                route("192.168.7.0/24", "eth1", "192.168.7.1"),
                route("10.244.0.0/24", self.pods, "10.244.0.1"),
                route("fd00:244::/64", self.pods, "fd00:244::1"),
            ],
            // The proxy sets this sysctl if node ports are served on localhost.
            route_localnet: self.settings.localhost_node_ports(IpFamily::V4),
            // And these routes.
            localhost_routes: self.settings.localhost_node_ports(IpFamily::V6),
            ..Host::default()
        }
    }

    /// Returns the source of the node's own packets to an address, and of packets that are masqueraded on their way to
    /// it.
    pub fn address_towards(&self, to: IpAddr) -> IpAddr {
        let pods: [IpNet; 2] = ["10.244.0.0/24", "fd00:244::/64"].map(|net| net.parse().unwrap());
        let towards_pods = pods.iter().any(|net| net.contains(&to)) && !self.owns(to);
        let [v4, v6] = if towards_pods { ["10.244.0.1", "fd00:244::1"] } else { ["192.168.0.1", "fd00:168::1"] };
        ip(if to.is_ipv4() { v4 } else { v6 })
    }

    pub fn owns(&self, address: IpAddr) -> bool {
        self.addresses().contains(&address)
    }
}

/// A client of Services.
#[derive(Clone, Debug)]
pub enum Client {
    /// A pod of this node.
    Pod(IpAddr),
    /// A host behind `eth0`: pods of other nodes, other nodes, external clients.
    Elsewhere(IpAddr),
    /// A process on the node.
    Node,
}

impl Client {
    /// Returns clients of each kind, among them all addresses of endpoints.
    pub fn all(family: IpFamily) -> Vec<Self> {
        let (pods, others): (&[&str], &[&str]) = match family {
            IpFamily::V4 => (
                &["10.244.0.200", "10.244.0.3", "10.244.0.6", "10.244.0.9"],
                &["10.244.1.200", "10.244.1.4", "10.1.2.3", "192.0.2.1", "198.51.100.200"],
            ),
            IpFamily::V6 => (
                &["fd00:244::200", "fd00:244::3", "fd00:244::6", "fd00:244::9"],
                &["fd00:244:0:1::200", "fd00:244:0:1::4", "fd00:168::99", "2001:db8:77::1", "2a00::1"],
            ),
        };
        let pods = pods.iter().copied().map(ip).map(Self::Pod);
        pods.chain(others.iter().copied().map(ip).map(Self::Elsewhere)).chain([Self::Node]).collect()
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::Pod(_) => "pod",
            Self::Elsewhere(_) => "elsewhere",
            Self::Node => "node",
        }
    }

    /// Returns the first packet of a connection.
    pub fn packet(&self, world: &World, protocol: Protocol, to: SocketAddr) -> Packet {
        let source = |address| SocketAddr::new(address, 40_000);
        match self {
            Self::Pod(address) => Packet::arriving(protocol, source(*address), to, world.pods),
            Self::Elsewhere(address) => Packet::arriving(protocol, source(*address), to, "eth0"),
            // The source of packets to the node itself is their destination.
            Self::Node if world.owns(to.ip()) => Packet::local(protocol, source(to.ip()), to),
            Self::Node => Packet::local(protocol, source(world.address_towards(to.ip())), to),
        }
    }
}

/// Generates worlds.
pub fn world() -> impl Strategy<Value = World> {
    arbitrary::settings().prop_map(World::new)
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
