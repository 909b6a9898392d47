use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ferroute_core::{IpFamily, LocalTraffic, Protocol, ProxySettings, ServicePortEntry, ServiceTable};
use ferroute_trace::{Host, Packet};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A client of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Client {
    /// A pod on this node that is not an endpoint.
    Pod,
    /// The node itself.
    Node,
    /// A host outside of the cluster.
    Outside,
    /// An endpoint of the Service, which may be sent back to itself.
    Endpoint(IpAddr),
    /// An address at the edge of a source range, or next to it.
    Source(IpAddr),
}

/// The addresses and interfaces of clients and frontends, seen from the node.
#[derive(Clone, Debug)]
pub(super) struct Topology<'a> {
    /// The node's addresses and routes.
    host: &'a Host,
    /// The address of a pod and the interface to it.
    pod: (IpAddr, String),
    /// The address of a host outside of the cluster and the interface to it.
    outside: (IpAddr, String),
    /// The interface to this node's pods.
    pod_interface: String,
    /// External and load balancer IPs of Services. No client has such an address, except for the node if the address is
    /// assigned to it.
    external: HashSet<IpAddr>,
    family: IpFamily,
}

impl<'a> Topology<'a> {
    /// Creates the topology of a node. Pods are chosen so that the configured detector of local traffic recognizes
    /// them.
    pub(super) fn new(table: &ServiceTable, settings: &ProxySettings, host: &'a Host) -> Self {
        let family = table.family;
        let outside = OUTSIDE[family.index()];
        let detector = settings.local_traffic(family, &table.node);
        let network = table.node.pod_cidr(family);
        let network = network.or(match &detector {
            Some(LocalTraffic::Source(net)) if net.prefix_len() > 0 => Some(*net),
            _ => None,
        });
        let pod = network.map_or(PODS[family.index()], last_but_one);
        let interface_to =
            |address: IpAddr| host.route(address).map_or(DEFAULT_INTERFACE.to_owned(), |route| route.interface.clone());
        let pod_interface = match detector {
            Some(LocalTraffic::Interface(name)) => name,
            Some(LocalTraffic::InterfacePrefix(prefix)) => {
                let existing = host.routes.iter().map(|route| &route.interface).find(|name| name.starts_with(&prefix));
                existing.cloned().unwrap_or_else(|| format!("{prefix}0"))
            }
            Some(LocalTraffic::Source(_)) | None => interface_to(pod),
        };
        let outside = (outside, interface_to(outside));
        let services = table.entries.values().map(|entry| &entry.service);
        let external = services.flat_map(|service| service.external_ips.iter().chain(&service.load_balancer_vips));
        let external = external.copied().collect();
        Self { host, pod: (pod, pod_interface.clone()), outside, pod_interface, external, family }
    }

    /// Returns clients that together observe any difference: one of each kind, a local and a remote endpoint, and the
    /// edges of source ranges.
    pub(super) fn clients(&self, entry: &ServicePortEntry, ranges: &[IpNet]) -> Vec<Client> {
        let endpoint = |local: bool| {
            entry.endpoints.iter().find(|endpoint| endpoint.may_be_local() == local && endpoint.is_usable())
        };
        let endpoints =
            [true, false].into_iter().filter_map(endpoint).map(|endpoint| Client::Endpoint(endpoint.address));
        let is_host = |address: &IpAddr| !self.external.contains(address);
        let edges: BTreeSet<IpAddr> = ranges.iter().take(MAX_RANGES).flat_map(edges).filter(is_host).collect();
        [Client::Pod, Client::Node, Client::Outside]
            .into_iter()
            .chain(endpoints)
            .chain(edges.into_iter().map(Client::Source))
            .collect()
    }

    /// Returns the first packet of a connection; `None` if the client cannot send packets to this address.
    pub(super) fn packet(
        &self,
        client: &Client,
        entry: &ServicePortEntry,
        protocol: Protocol,
        to: SocketAddr,
    ) -> Option<Packet> {
        let arriving = |from: IpAddr, interface: &str| {
            Packet::arriving(protocol, SocketAddr::new(from, SOURCE_PORT), to, interface)
        };
        // The kernel drops packets to loopback addresses that arrive from other hosts.
        if to.ip().is_loopback() && *client != Client::Node {
            return None;
        }
        Some(match client {
            Client::Pod => arriving(self.pod.0, &self.pod.1),
            Client::Outside => arriving(self.outside.0, &self.outside.1),
            Client::Endpoint(address) | Client::Source(address) if self.host.owns(*address) => return None,
            Client::Source(address) => arriving(*address, &self.outside.1),
            Client::Endpoint(address) => {
                let local =
                    entry.endpoints.iter().any(|endpoint| endpoint.address == *address && endpoint.may_be_local());
                arriving(*address, if local { &self.pod_interface } else { &self.outside.1 })
            }
            Client::Node => {
                // When the node sends to one of its own addresses, it sends from the same address.
                let by_route = || self.host.route(to.ip()).map(|route| route.source);
                let source = if self.host.owns(to.ip()) { Some(to.ip()) } else { by_route() };
                Packet::local(protocol, SocketAddr::new(source?, SOURCE_PORT), to)
            }
        })
    }

    /// Returns the node addresses at which node ports are compared: the primary address, another one, and localhost.
    pub(super) fn node_port_addresses(&self, table: &ServiceTable) -> Vec<IpAddr> {
        let mut addresses = self.host.addresses.iter().copied().filter(|address| IpFamily::of(*address) == self.family);
        let primary = table.node.primary_address(self.family).filter(|address| self.host.owns(*address));
        let other = addresses.find(|address| Some(*address) != primary && !address.is_loopback());
        primary.into_iter().chain(other).chain([self.family.localhost()]).collect()
    }
}

/// Returns the last but one address: the last is the broadcast address, and low ones are used by bridges and pods.
fn last_but_one(net: IpNet) -> IpAddr {
    match net {
        IpNet::V4(net) if net.prefix_len() < 31 => Ipv4Addr::from(u32::from(net.broadcast()) - 1).into(),
        IpNet::V6(net) if net.prefix_len() < 127 => Ipv6Addr::from(u128::from(net.broadcast()) - 1).into(),
        net => net.addr(),
    }
}

/// Returns the first and last address of a network, and those before and after it.
fn edges(net: &IpNet) -> Vec<IpAddr> {
    let neighbours = match net {
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
    [net.network(), net.broadcast()].into_iter().chain(neighbours.into_iter().flatten()).filter(possible).collect()
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

/// Addresses of hosts outside of the cluster, by IP family, reserved for documentation (RFC 5737, RFC 3849).
const OUTSIDE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 123)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x123))];

/// Addresses of pods if the pod network is unknown, by IP family. In this case the detector does not match addresses.
const PODS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 18, 0, 123)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0x123))];

/// An ephemeral port.
const SOURCE_PORT: u16 = 40_000;

/// The interface to addresses without a route.
const DEFAULT_INTERFACE: &str = "eth0";

/// Maximum number of a Service's source ranges whose edges are tried.
const MAX_RANGES: usize = 64;
