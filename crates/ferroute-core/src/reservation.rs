use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
};

use serde::{Deserialize, Serialize};

use crate::{Frontend, IpFamily, Protocol, ProxySettings};

/// Reason why a frontend may be neither a load balancer IP nor an external IP, nor in two cases a node port.
///
/// Anyone who may create Services can list any address in `externalIPs`. The node itself needs a few addresses and
/// ports: without a connection to the API server, the proxy would not receive the deletion of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reservation {
    /// Address of an API server: the one that the proxy connects to, or an endpoint of `default/kubernetes`.
    ApiServer,
    /// The proxy itself serves health checks or metrics there.
    Proxy,
    /// The proxy answers the health checks of a Service there (`healthCheckNodePort`).
    HealthCheck,
    /// Port of the node itself, from [`ProxySettings::protected_node_ports`].
    Node,
    /// Address of another host: an API server, a Node, or a next hop of this host's routes. The mode would make it an
    /// address of this host on all ports.
    OtherHost,
}

/// Addresses of other hosts that this node connects to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OtherHosts {
    /// The addresses and ports of the API server that the proxy connects to, or of the HTTP proxy before it.
    pub api_server: Vec<SocketAddr>,
    /// Addresses of Nodes and next hops, in modes that make Service addresses local
    /// ([`binds_service_addresses`](crate::ModeTraits::binds_service_addresses)). `None` in other modes, in which a
    /// Service takes over single ports only.
    pub addresses: Option<Vec<IpAddr>>,
}

/// The reserved frontends of one IP family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    /// Single ports, also as node ports (without an address) where the address is one of this host.
    ports: BTreeMap<Frontend, Reservation>,
    /// The node's addresses, of which `node_ports` are reserved.
    node: BTreeSet<IpAddr>,
    node_ports: Vec<RangeInclusive<u16>>,
    /// Addresses of other hosts.
    hosts: BTreeSet<IpAddr>,
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ApiServer => "the API server",
            Self::Proxy => "the proxy's own health checks and metrics",
            Self::HealthCheck => "the health checks of a Service (healthCheckNodePort)",
            Self::Node => "the node, by --protect-node-ports",
            Self::OtherHost => "another host that has the address: this mode would make it an address of this node",
        })
    }
}

impl Reservations {
    /// Returns the reservations of a family. `endpoints` are the endpoints of the API server; `host` has the addresses
    /// of this host's interfaces.
    pub(crate) fn new(
        family: IpFamily,
        settings: &ProxySettings,
        endpoints: impl IntoIterator<Item = Frontend>,
        others: &OtherHosts,
        host: &[IpAddr],
    ) -> Self {
        let host: BTreeSet<IpAddr> = host.iter().copied().filter(|address| IpFamily::of(*address) == family).collect();
        let tcp = |address: IpAddr, port| Frontend { address: Some(address), protocol: Protocol::Tcp, port };
        let mut ports = BTreeMap::new();
        for listener in &settings.own_listeners {
            let addresses = host.iter().filter(|address| listener.ip().is_unspecified() || listener.ip() == **address);
            ports.extend(addresses.map(|address| (tcp(*address, listener.port()), Reservation::Proxy)));
        }
        let api_server = others.api_server.iter().filter(|socket| IpFamily::of(socket.ip()) == family);
        let api_server: BTreeSet<Frontend> =
            endpoints.into_iter().chain(api_server.map(|socket| tcp(socket.ip(), socket.port()))).collect();
        let mut hosts = BTreeSet::new();
        if let Some(addresses) = &others.addresses {
            hosts.extend(addresses.iter().copied().filter(|address| IpFamily::of(*address) == family));
            hosts.extend(api_server.iter().filter_map(|frontend| frontend.address));
            // This host's addresses are local anyway.
            hosts.retain(|address| !host.contains(address));
        }
        ports.extend(api_server.into_iter().map(|frontend| (frontend, Reservation::ApiServer)));
        let is_own = |frontend: &Frontend| frontend.address.is_some_and(|address| host.contains(&address));
        let own = ports.iter().filter(|(frontend, _)| is_own(frontend));
        let node_port = |frontend: &Frontend| Frontend { address: None, ..*frontend };
        let own: Vec<_> = own.map(|(frontend, reservation)| (node_port(frontend), *reservation)).collect();
        ports.extend(own);
        let node_ports = settings.protected_node_ports.clone();
        let node = if node_ports.is_empty() { BTreeSet::new() } else { host };
        Self { ports, node, node_ports, hosts }
    }

    /// Returns why a frontend is reserved.
    pub(crate) fn get(&self, frontend: Frontend) -> Option<Reservation> {
        if let Some(reservation) = self.ports.get(&frontend) {
            return Some(*reservation);
        }
        let address = frontend.address?;
        let is_node_port =
            || self.node.contains(&address) && self.node_ports.iter().any(|ports| ports.contains(&frontend.port));
        match () {
            () if self.hosts.contains(&address) => Some(Reservation::OtherHost),
            () => is_node_port().then_some(Reservation::Node),
        }
    }

    /// Reports whether nothing is reserved.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { ports, node, node_ports: _, hosts } = self;
        ports.is_empty() && node.is_empty() && hosts.is_empty()
    }
}
