use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use ferroute_core::{Endpoint, Frontend, Protocol, ServicePortName};
use ipnet::IpNet;

use super::{
    Scheduler,
    sets::{Entry, SetKind},
};

/// The identity of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerKey {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl ServerKey {
    /// Returns the frontend. A node port has a virtual server at each address.
    pub fn frontend(self) -> Frontend {
        Frontend { address: Some(self.address), protocol: self.protocol, port: self.port }
    }
}

/// The settings of a virtual server in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The scheduler: `rr`.
    pub scheduler: Box<str>,
    /// Flags (`IP_VS_SVC_F_*`) without `IP_VS_SVC_F_HASHED`, which the kernel sets itself.
    pub flags: u32,
    /// The timeout of persistence in seconds, and 0 without.
    pub timeout: u32,
    /// How many bits of a client's address persistence distinguishes, as an IPv4 mask or an IPv6 prefix length, if
    /// another program has set it (`ipvsadm -M`); `None` for all.
    pub netmask: Option<u32>,
}

/// The settings of a virtual server that differ between servers; see [`ServerConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Scheduler; `None` for the configured one.
    pub scheduler: Option<&'static str>,
    /// The flags.
    pub flags: u32,
    /// The timeout of persistence in seconds.
    pub timeout: u32,
}

/// A real server of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealServer {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

/// Real servers of a virtual server with their weights, each once and sorted. All virtual servers with the same real
/// servers share the list, which uses 8 bytes for an IPv4 address, port and weight.
#[derive(Clone, PartialEq, Eq)]
pub enum RealServers {
    /// With IPv4 addresses.
    V4(Arc<[(Ipv4Addr, u16, u16)]>),
    /// With IPv6 addresses.
    V6(Arc<[(Ipv6Addr, u16, u16)]>),
}

/// A set of [`SetKind`]s.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SetMask(u32);

/// A planned virtual server with the set entries that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The service port that it belongs to.
    pub owner: ServicePortName,
    /// The sets that contain the frontend.
    pub(crate) sets: SetMask,
    /// Whether the frontend is a node port at an address of the node.
    pub(crate) is_node_port: bool,
    /// Whether the dummy device has the address.
    pub(crate) is_bound: bool,
    /// Whether the node itself is not permitted to use the frontend.
    pub(crate) denies_node: bool,
    /// The permitted sources; only with [`SetKind::LoadBalancerFirewall`].
    pub(crate) source_ranges: Box<[IpNet]>,
    /// The timeout of session affinity in seconds.
    pub(crate) affinity: Option<u32>,
    /// Scheduler; `None` for the configured one.
    pub(crate) scheduler: Option<Scheduler>,
    /// The real servers.
    pub(crate) real_servers: RealServers,
}

impl SetMask {
    pub(crate) fn with(self, kind: SetKind) -> Self {
        Self(self.0 | 1 << kind.index())
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn contains(self, kind: SetKind) -> bool {
        self.0 & 1 << kind.index() != 0
    }
}

impl Server {
    /// Returns the real servers.
    pub fn real_servers(&self) -> &RealServers {
        &self.real_servers
    }

    /// Returns the timeout of session affinity in seconds.
    pub fn affinity(&self) -> Option<u32> {
        self.affinity
    }

    /// Returns the permitted sources; empty for all.
    pub fn source_ranges(&self) -> &[IpNet] {
        &self.source_ranges
    }

    /// Reports whether this is a node port at an address of the node.
    pub fn is_node_port(&self) -> bool {
        self.is_node_port
    }

    /// Returns the settings in the kernel, where this scheduler is configured.
    pub fn settings(&self, configured: &str) -> ServerSettings {
        let persistent = if self.affinity.is_some() { FLAG_PERSISTENT } else { 0 };
        let hashes_port = self.scheduler.map_or(configured == "mh", |scheduler| scheduler == Scheduler::SourcePortHash);
        let hashed = if hashes_port { FLAG_SOURCE_HASH } else { 0 };
        ServerSettings {
            scheduler: self.scheduler.map(Scheduler::name),
            flags: persistent | hashed,
            timeout: self.affinity.unwrap_or_default(),
        }
    }

    /// Calls `each` with the set entries of this server, whose key is `key`. Other servers may need the same entries.
    pub(crate) fn entries(&self, key: ServerKey, mut each: impl FnMut(SetKind, Entry)) {
        for kind in SetKind::ALL.into_iter().filter(|kind| self.sets.contains(*kind)) {
            match kind {
                SetKind::LoadBalancerSourceCidr => {
                    self.source_ranges.iter().for_each(|net| each(kind, Entry::ServiceAndNetwork(key, *net)));
                }
                SetKind::LoadBalancerSourceIp => each(kind, Entry::ServiceAndAddress(key, key.address)),
                SetKind::NodePortTcp | SetKind::NodePortLocalTcp | SetKind::NodePortUdp | SetKind::NodePortLocalUdp => {
                    each(kind, Entry::Port(key.port));
                }
                SetKind::NodePortIps => each(kind, Entry::Address(key.address)),
                _ => each(kind, Entry::Service(key)),
            }
        }
    }
}

impl RealServers {
    /// Returns a list of these sockets with their weights, all of one IP family.
    pub fn new(sockets: impl IntoIterator<Item = (SocketAddr, u16)>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (socket, weight) in sockets {
            match socket {
                SocketAddr::V4(socket) => v4.push((*socket.ip(), socket.port(), weight)),
                SocketAddr::V6(socket) => v6.push((*socket.ip(), socket.port(), weight)),
            }
        }
        if v6.is_empty() { Self::V4(sorted(v4)) } else { Self::V6(sorted(v6)) }
    }

    /// Returns the number of real servers.
    pub fn len(&self) -> usize {
        match self {
            Self::V4(servers) => servers.len(),
            Self::V6(servers) => servers.len(),
        }
    }

    /// Reports whether there are no real servers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the weight of a real server; `None` if it is not in the list.
    pub fn weight(&self, real: RealServer) -> Option<u16> {
        match (self, real.address) {
            (Self::V4(servers), IpAddr::V4(address)) => weight(servers, address, real.port),
            (Self::V6(servers), IpAddr::V6(address)) => weight(servers, address, real.port),
            _ => None,
        }
    }

    /// Reports whether the weights differ from the default.
    pub fn has_weights(&self) -> bool {
        self.iter().any(|(_, weight)| weight != Endpoint::DEFAULT_WEIGHT)
    }

    /// Returns the real servers with their weights in their order.
    pub fn iter(&self) -> impl Iterator<Item = (RealServer, u16)> + '_ {
        let (v4, v6) = match self {
            Self::V4(servers) => (&servers[..], &[][..]),
            Self::V6(servers) => (&[][..], &servers[..]),
        };
        let real = |address, port| RealServer { address, port };
        let v4 = v4.iter().map(move |(address, port, weight)| (real((*address).into(), *port), *weight));
        v4.chain(v6.iter().map(move |(address, port, weight)| (real((*address).into(), *port), *weight)))
    }
}

fn weight<T: Ord + Copy>(servers: &[(T, u16, u16)], address: T, port: u16) -> Option<u16> {
    let found = servers.binary_search_by_key(&(address, port), |(address, port, _)| (*address, *port)).ok()?;
    Some(servers[found].2)
}

fn sorted<T: Ord + Copy>(mut servers: Vec<(T, u16, u16)>) -> Arc<[(T, u16, u16)]> {
    servers.sort_unstable();
    servers.dedup_by_key(|(address, port, _)| (*address, *port));
    servers.into()
}

impl fmt::Debug for RealServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl ServerSettings {
    /// Returns the name of the scheduler, given the configured one.
    pub fn scheduler(self, configured: &str) -> &str {
        self.scheduler.unwrap_or(configured)
    }

    /// Returns all settings, where this scheduler is configured.
    pub fn with_scheduler(self, configured: &str) -> ServerConfig {
        let Self { scheduler: _, flags, timeout } = self;
        ServerConfig { scheduler: self.scheduler(configured).into(), flags, timeout, netmask: None }
    }
}

impl RealServer {
    /// Returns the address and port.
    pub fn socket(self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

impl ServerKey {
    /// Returns the address and port.
    pub fn socket(self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

impl From<SocketAddr> for RealServer {
    fn from(socket: SocketAddr) -> Self {
        Self { address: socket.ip(), port: socket.port() }
    }
}

impl fmt::Display for ServerKey {
    /// Writes `10.96.0.1:80/tcp`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.socket(), self.protocol)
    }
}

impl fmt::Display for RealServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket().fmt(f)
    }
}

impl fmt::Debug for SetMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(SetKind::ALL.into_iter().filter(|kind| self.contains(*kind))).finish()
    }
}

/// `IP_VS_SVC_F_PERSISTENT` (`include/uapi/linux/ip_vs.h`): connections of a client go to the same real server.
pub const FLAG_PERSISTENT: u32 = 1;
/// `IP_VS_SVC_F_SCHED2`, `mh-port` of the scheduler `mh`.
pub const FLAG_SOURCE_HASH: u32 = 0x10;
/// `IP_VS_SVC_F_HASHED`: the kernel's own flag of every virtual server in its table.
pub(crate) const FLAG_HASHED: u32 = 2;
