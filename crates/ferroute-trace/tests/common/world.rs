//! Nodes of a cluster with their networks, and those who call Services.
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

/// What the operator decided, and what follows for the node's interfaces.
#[derive(Clone, Debug)]
pub struct World {
    pub settings: ProxySettings,
    /// The interface that pods are behind, all of them or one.
    pub pods: &'static str,
}

impl World {
    pub fn of(settings: ProxySettings) -> Self {
        let pods = match settings.detector {
            LocalTrafficDetector::InterfaceNamePrefix(_) => "veth1",
            _ => "cbr0",
        };
        Self { settings, pods }
    }

    /// The node's own addresses, as its interfaces have them.
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
            // What the proxy asks the kernel for when node ports answer on localhost.
            route_localnet: self.settings.localhost_node_ports(IpFamily::V4),
        }
    }

    /// What the node's packets to an address have as their source, and what is left of others when they are
    /// masqueraded on the way there.
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

/// Somebody who calls.
#[derive(Clone, Debug)]
pub enum Client {
    /// A pod of this node.
    Pod(IpAddr),
    /// Anybody else: pods of other nodes, other nodes, the rest of the world.
    Elsewhere(IpAddr),
    /// A program of the node itself.
    Node,
}

impl Client {
    /// One of each kind, and every pod that is an endpoint somewhere.
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

    /// The first packet of a connection.
    pub fn packet(&self, world: &World, protocol: Protocol, to: SocketAddr) -> Packet {
        let source = |address| SocketAddr::new(address, 40_000);
        match self {
            Self::Pod(address) => Packet::arriving(protocol, source(*address), to, world.pods),
            Self::Elsewhere(address) => Packet::arriving(protocol, source(*address), to, "eth0"),
            // To itself it uses the address that it calls.
            Self::Node if world.owns(to.ip()) => Packet::local(protocol, source(to.ip()), to),
            Self::Node => Packet::local(protocol, source(world.address_towards(to.ip())), to),
        }
    }
}

/// Worlds of any kind.
pub fn world() -> impl Strategy<Value = World> {
    arbitrary::settings().prop_map(World::of)
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
