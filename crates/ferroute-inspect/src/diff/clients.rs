use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ferroute_core::{Endpoint, ServicePortEntry, IpFamily, LocalTraffic, Protocol, ProxySettings, ServiceTable};
use ferroute_trace::{Host, Packet};
use ipnet::IpNet;
use serde::{Serialize, Serializer};

/// Somebody who calls a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// A pod of this node that is no endpoint.
    Pod,
    /// The node itself.
    Node,
    /// Somebody outside of the cluster.
    Outside,
    /// An endpoint of the Service, which may get to itself.
    Endpoint(IpAddr),
    /// Somebody at the edge of a source range, or just beyond.
    Source(IpAddr),
}

/// Where clients and frontends are, seen from the node.
#[derive(Clone, Debug)]
pub struct Surroundings<'a> {
    /// The node among its networks.
    host: &'a Host,
    /// A pod's address and the interface that it is behind.
    pod: (IpAddr, String),
    /// The same for somebody outside.
    outside: (IpAddr, String),
    /// The interface that this node's pods are behind.
    pods: String,
    family: IpFamily,
}

impl<'a> Surroundings<'a> {
    /// Clients as the operator's settings tell them apart.
    pub fn new(table: &ServiceTable, settings: &ProxySettings, host: &'a Host) -> Self {
        let family = table.family;
        let outside = STRANGERS[family.index()];
        let detector = settings.local_traffic(family, &table.node);
        let network = table.node.pod_cidr(family);
        let network = network.or(match &detector {
            Some(LocalTraffic::Source(net)) if net.prefix_len() > 0 => Some(*net),
            _ => None,
        });
        let pod = network.map_or(PODS[family.index()], last_but_one);
        let interface_to =
            |address: IpAddr| host.route(address).map_or(OUTWARD.to_owned(), |way| way.interface.clone());
        let pods = match detector {
            Some(LocalTraffic::Interface(name)) => name,
            // The name of any interface that starts so.
            Some(LocalTraffic::InterfacePrefix(prefix)) => {
                let known = host.routes.iter().map(|way| &way.interface).find(|name| name.starts_with(&prefix));
                known.cloned().unwrap_or_else(|| format!("{prefix}0"))
            }
            Some(LocalTraffic::Source(_)) | None => interface_to(pod),
        };
        let outside = (outside, interface_to(outside));
        Self { host, pod: (pod, pods.clone()), outside, pods, family }
    }

    /// Those that see a difference if there is one: one of each kind, an endpoint of this node and one of another, and
    /// the edges of source ranges.
    pub(super) fn clients(&self, entry: &ServicePortEntry, ranges: &[IpNet]) -> Vec<Client> {
        let endpoint =
            |local: bool| entry.endpoints.iter().find(|endpoint| endpoint.local == local && is_used(endpoint));
        let endpoints =
            [true, false].into_iter().filter_map(endpoint).map(|endpoint| Client::Endpoint(endpoint.address));
        let edges: BTreeSet<IpAddr> = ranges.iter().take(MOST_RANGES).flat_map(edges).collect();
        [Client::Pod, Client::Node, Client::Outside]
            .into_iter()
            .chain(endpoints)
            .chain(edges.into_iter().map(Client::Source))
            .collect()
    }

    /// The first packet of a connection of a client; `None` if it cannot send one there.
    pub(super) fn packet(&self, client: &Client, entry: &ServicePortEntry, protocol: Protocol, to: SocketAddr) -> Option<Packet> {
        let arriving = |from: IpAddr, interface: &str| {
            Packet::arriving(protocol, SocketAddr::new(from, SOURCE_PORT), to, interface)
        };
        // What others send to the node's localhost is dropped by the kernel itself.
        if to.ip().is_loopback() && *client != Client::Node {
            return None;
        }
        Some(match client {
            Client::Pod => arriving(self.pod.0, &self.pod.1),
            Client::Outside => arriving(self.outside.0, &self.outside.1),
            Client::Source(address) => arriving(*address, &self.outside.1),
            Client::Endpoint(address) if self.host.owns(*address) => return None,
            Client::Endpoint(address) => {
                let local = entry.endpoints.iter().any(|endpoint| endpoint.address == *address && endpoint.local);
                arriving(*address, if local { &self.pods } else { &self.outside.1 })
            }
            Client::Node => {
                let towards = || self.host.route(to.ip()).map(|way| way.source);
                // To itself it uses the address that it calls.
                let source = if self.host.owns(to.ip()) { Some(to.ip()) } else { towards() };
                Packet::local(protocol, SocketAddr::new(source?, SOURCE_PORT), to)
            }
        })
    }

    /// Addresses of the node at which node ports are looked at: the primary one, another one, and localhost.
    pub(super) fn node_port_addresses(&self, table: &ServiceTable) -> Vec<IpAddr> {
        let own = || self.host.addresses.iter().copied().filter(|address| IpFamily::of(*address) == self.family);
        let primary = table.node.primary_address(self.family).filter(|address| self.host.owns(*address));
        let other = own().find(|address| Some(*address) != primary && !address.is_loopback());
        let localhost = match self.family {
            IpFamily::V4 => IpAddr::from(Ipv4Addr::LOCALHOST),
            IpFamily::V6 => IpAddr::from(Ipv6Addr::LOCALHOST),
        };
        primary.into_iter().chain(other).chain([localhost]).collect()
    }

    pub(super) fn host(&self) -> &'a Host {
        self.host
    }
}

fn is_used(endpoint: &Endpoint) -> bool {
    endpoint.ready || endpoint.is_serving_terminating()
}

/// The last address but one: the last is the broadcast address, and low ones belong to bridges and pods.
fn last_but_one(net: IpNet) -> IpAddr {
    match net {
        IpNet::V4(net) if net.prefix_len() < 31 => Ipv4Addr::from(u32::from(net.broadcast()) - 1).into(),
        IpNet::V6(net) if net.prefix_len() < 127 => Ipv6Addr::from(u128::from(net.broadcast()) - 1).into(),
        net => net.addr(),
    }
}

/// The first and the last address of a network, and those before and behind it.
fn edges(net: &IpNet) -> Vec<IpAddr> {
    let beyond = match net {
        IpNet::V4(net) => {
            let (first, last) = (u32::from(net.network()), u32::from(net.broadcast()));
            [first.checked_sub(1), last.checked_add(1)].map(|address| address.map(|it| Ipv4Addr::from(it).into()))
        }
        IpNet::V6(net) => {
            let (first, last) = (u128::from(net.network()), u128::from(net.broadcast()));
            [first.checked_sub(1), last.checked_add(1)].map(|address| address.map(|it| Ipv6Addr::from(it).into()))
        }
    };
    let possible = |address: &IpAddr| !(address.is_unspecified() || address.is_loopback() || address.is_multicast());
    [net.network(), net.broadcast()].into_iter().chain(beyond.into_iter().flatten()).filter(possible).collect()
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod => f.write_str("a pod"),
            Self::Node => f.write_str("the node"),
            Self::Outside => f.write_str("outside"),
            Self::Endpoint(address) => write!(f, "endpoint {address}"),
            Self::Source(address) => write!(f, "source {address}"),
        }
    }
}

impl Serialize for Client {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Addresses that are set apart for documentation (RFC 5737, RFC 3849), by family.
const STRANGERS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 123)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x123))];

/// A pod's address where nothing tells the pods' network, by family: no detector asks for it then.
const PODS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 18, 0, 123)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0x123))];

/// Any port that programs choose for themselves.
const SOURCE_PORT: u16 = 40_000;

/// Where packets come from that no route tells of.
const OUTWARD: &str = "eth0";

/// Source ranges of a Service beyond which no more edges are tried.
const MOST_RANGES: usize = 64;
