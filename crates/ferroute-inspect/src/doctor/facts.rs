use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use ferroute_config::ModeName;
use ferroute_core::Protocol;

/// Something that was looked at, or why it could not be.
pub type Looked<T> = Result<T, String>;

/// What was found out about a host and its cluster.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The configured mode, or the one that replaces it here.
    pub mode: ModeName,
    /// By [`ferroute_core::IpFamily::index`].
    pub families: [FamilyFacts; 2],
    /// Values of sysctls by their dotted names; those that the kernel does not have are missing.
    pub sysctls: Looked<BTreeMap<String, String>>,
    /// Names of network interfaces that are bridges.
    pub bridges: Looked<Vec<String>>,
    /// The kernel's connection table; `None` inside if it has none.
    pub conntrack: Looked<Option<Conntrack>>,
    /// Sockets of this network namespace that wait for connections or datagrams.
    pub listeners: Looked<Vec<Listener>>,
    /// Processes of this machine that are service proxies.
    pub proxies: Looked<Vec<Process>>,
    /// The API server's clock; `None` where there is no API server.
    pub clock: Option<Looked<Clock>>,
    /// Node ports of Services; `None` without a source of Services.
    pub node_ports: Option<Vec<NodePort>>,
    /// Endpoints of Services, each with what came of an attempt to connect; `None` if nobody tried.
    pub endpoints: Option<Vec<EndpointProbe>>,
}

/// What is known about one IP family.
#[derive(Clone, Debug)]
pub struct FamilyFacts {
    /// The kernel has the family.
    pub in_kernel: bool,
    /// There are Services of the family; `None` without a source of Services.
    pub wanted: Option<bool>,
    /// The host supports the mode, or why it does not.
    pub supported: Looked<()>,
    /// Rules that `iptables` shows, by backend.
    pub backends: Looked<Vec<BackendRules>>,
    /// Service proxies whose rules are in the kernel, by a name for people.
    pub rules_of: Looked<Vec<String>>,
}

/// Rules of one backend of `iptables`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRules {
    /// `nf_tables` or `legacy`.
    pub backend: String,
    /// How many rules there are, of anybody.
    pub rules: usize,
    /// Packets that no rule of `FORWARD` takes are dropped.
    pub forward_drops: bool,
}

/// The kernel's connection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections in it.
    pub count: u64,
    /// Connections that it has room for.
    pub max: u64,
    /// Packets dropped since the start because there was no room, or a connection could not be put in.
    pub dropped: u64,
}

/// A socket that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Where.
    pub address: SocketAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Whose it is, where that can be seen.
    pub process: Option<Process>,
}

/// A process of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its name.
    pub name: String,
}

/// A clock beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// How far the two are apart.
    pub difference: Duration,
    /// The other is ahead of ours.
    pub ahead: bool,
}

/// A node port that a Service asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePort {
    /// Its number.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// The service port, by name.
    pub service: String,
}

/// An attempt to connect to an endpoint from this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointProbe {
    /// The service port, by name.
    pub service: String,
    /// Where.
    pub endpoint: SocketAddr,
    /// What came of it.
    pub reached: Reached,
}

/// What came of an attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reached {
    /// It was let in.
    Yes,
    /// The host is there, and nobody listens.
    Refused,
    /// Nothing came back.
    Silent,
    /// The network says that there is no way.
    NoWay(String),
}

impl Facts {
    /// A sysctl's value; `Ok(None)` if the kernel does not have it.
    pub(crate) fn sysctl(&self, name: &str) -> Looked<Option<&str>> {
        self.sysctls.as_ref().map(|sysctls| sysctls.get(name).map(String::as_str)).map_err(Clone::clone)
    }
}

impl Listener {
    /// It takes what comes to this host on all addresses, or on those that others can reach.
    pub(crate) fn is_reachable(&self) -> bool {
        // A socket of IPv6 that waits for IPv4 has its address within that of IPv6.
        !self.address.ip().to_canonical().is_loopback()
    }
}
