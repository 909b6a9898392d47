use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ferroute_config::ModeName;
use ferroute_core::{Client, IpFamily, Protocol};

/// A value read from the host, or the reason why it could not be read.
pub type Reading<T> = Result<T, String>;

/// An address of a Service to which the kernel sends no packets of the host itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrouted {
    /// The address.
    pub address: IpAddr,
    /// Whether a route of type `blackhole`, `unreachable` or `prohibit` refuses the packets; otherwise no route covers them.
    pub is_refused: bool,
}

/// A connection of a pod on this node to an endpoint elsewhere that the kernel does not route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnroutedPod {
    /// The pod's address.
    pub pod: IpAddr,
    /// The endpoint's address.
    pub endpoint: IpAddr,
    /// The kernel's reason.
    pub reason: String,
}

/// The state of a host and its cluster that the checks depend on.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The configured mode, or its replacement.
    pub mode: ModeName,
    /// Whether this process has the capability `CAP_NET_ADMIN`.
    pub net_admin: Reading<bool>,
    /// Whether the mode's rules accept packets of Services that a firewall would drop.
    pub accepts_in_firewalls: bool,
    /// The inputs of each IP family, by [`IpFamily::index`].
    pub families: [FamilyInputs; 2],
    /// Sysctls by their dotted names, without those that the kernel does not have.
    pub sysctls: Reading<BTreeMap<String, String>>,
    /// The sysctls that the mode relies on, by their dotted names, with the values that it sets.
    pub required_sysctls: Vec<(String, String)>,
    /// Names of network interfaces that lack the route that replies to `::1` need; empty if no node port is served
    /// there.
    pub missing_localhost_routes: Reading<Vec<String>>,
    /// The names of network interfaces that are bridges.
    pub bridges: Reading<Vec<String>>,
    /// Use of the conntrack table; `None` if conntrack is not loaded.
    pub conntrack: Reading<Option<ConntrackUsage>>,
    /// The listening sockets in this network namespace.
    pub listeners: Reading<Vec<Listener>>,
    /// The running service proxies.
    pub proxies: Reading<Vec<Process>>,
    /// Problems of the node that the running proxy reports; `None` if no proxy responds.
    pub proxy_problems: Option<Vec<String>>,
    /// The offset of the API server's clock; `None` without an API server.
    pub clock: Option<Reading<ClockOffset>>,
    /// The node ports of Services; `None` without a source of Services.
    pub node_ports: Option<Vec<NodePort>>,
    /// The Services whose load balancer addresses of an IP family are open to all clients, because all their source ranges are
    /// of the other family; `None` without a source of Services.
    pub unrestricted: Option<Vec<(String, IpFamily)>>,
    /// The result of a connection attempt to each endpoint; `None` if there were none.
    pub endpoints: Option<Vec<EndpointProbe>>,
}

/// The inputs of one IP family.
#[derive(Clone, Debug)]
pub struct FamilyInputs {
    /// Names of network interfaces that connect endpoints on this node to a bridge that does not send packets back to
    /// the port from which they came.
    pub ports_without_hairpin: Reading<Vec<String>>,
    /// Whether the kernel supports the family.
    pub in_kernel: bool,
    /// Whether there are Services of the family; `None` without a source of Services.
    pub has_services: Option<bool>,
    /// Number of node ports that no address of the host serves, because none is in `nodePortAddresses`.
    pub unserved_node_ports: usize,
    /// The full lists of clients of iptables mode's session affinity.
    pub full_affinity_lists: Reading<Vec<FullAffinityList>>,
    /// Whether a process owns Ferroute's table, so that no other process can change it.
    pub table_is_owned: Reading<bool>,
    /// Dormant tables of Ferroute and of `iptables`, as `nft` names them.
    pub dormant_tables: Reading<Vec<String>>,
    /// Rules of other programs that may take packets to Services before the proxy does.
    pub earlier_rules: Reading<Vec<EarlierRule>>,
    /// Rules of other programs that refuse packets to Services, in tables without rules of the proxy.
    pub firewall_refusals: Reading<Vec<FirewallRefusal>>,
    /// A cluster IP to which the kernel has no route; `None` if there is none.
    pub unrouted: Reading<Option<Unrouted>>,
    /// A connection of a pod on this node to an endpoint elsewhere without a route; `None` if there is none.
    pub unrouted_pod: Reading<Option<UnroutedPod>>,
    /// The way in which the mode accesses its rules on this host, with the reason; `None` if there is only one way. An
    /// error is the reason why the host does not support the mode.
    pub supported: Result<Option<String>, String>,
    /// The rules in each backend of `iptables`.
    pub backends: Reading<Vec<BackendRules>>,
    /// Reasons why other rules that may exist could not be read.
    pub unread: Vec<String>,
    /// Descriptions of the service proxies whose rules are in the kernel.
    pub active_proxies: Reading<Vec<String>>,
}

/// The rules in one backend of `iptables`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRules {
    /// `nf_tables` or `legacy`.
    pub backend: String,
    /// The number of rules, of any program.
    pub rules: usize,
    /// Whether the policy of `FORWARD` is DROP, unless no packet to a Service meets it.
    pub forward_drops: bool,
    /// Whether `INPUT` drops or rejects packets that no rule accepts, before it reaches a rule that accepts Service traffic of ipvs
    /// or userspace mode.
    pub input_drops: bool,
}

/// A rule of another program that may take packets to a Service before the proxy does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierRule {
    /// The effect on the packets.
    pub effect: EarlierEffect,
    /// The rule: a command of `iptables`, or the words of `nft` with the chain and the table.
    pub rule: String,
    /// The service port.
    pub service: String,
}

/// The effect of a rule of another program on packets to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierEffect {
    /// It translates their destination.
    Translated,
    /// It excludes them from connection tracking, so that they are never translated.
    Untracked,
    /// The same, and the cluster IP is an address of the host, where a process answers.
    LeftToProcess,
    /// It accepts them in table `nat`, so that later rules do not translate them.
    Accepted,
    /// It assigns them to the socket of a transparent proxy.
    TransparentProxy,
    /// It keeps the proxy from masquerading them.
    Unmasqueraded,
    /// It sets the mark by which the proxy masquerades them.
    Masqueraded,
}

/// A rule of another program that refuses packets to a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallRefusal {
    /// The rule in the words of `nft`, or the policy, with the chain and the table.
    pub rule: String,
    /// The service port.
    pub service: String,
    /// Clients whose packets are refused: pods, or clients outside of the cluster.
    pub client: Client,
}

/// A list of the kernel module `xt_recent` that has as many clients as the module permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullAffinityList {
    /// The service port and the endpoint, as far as the rule names them.
    pub service: String,
    /// The number of clients.
    pub clients: usize,
}

/// The use of the conntrack table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackUsage {
    /// The number of entries.
    pub count: u64,
    /// The maximum number of entries.
    pub max: u64,
    /// Events since boot.
    pub events: ConntrackEvents,
}

/// Events of the conntrack table since boot, of all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackEvents {
    /// Packets dropped, mostly because the table was full, except for those counted in other fields.
    pub dropped: u64,
    /// Entries of flows without replies that were removed because the table was full.
    pub evicted: u64,
    /// Packets dropped because another packet with the same addresses and ports created its entry at the same time.
    pub not_inserted: u64,
    /// Packets dropped because too many entries had the same hash.
    pub chain_too_long: u64,
}

/// A listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The local address.
    pub address: SocketAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The owner, if it is visible.
    pub process: Option<Process>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process ID.
    pub pid: i32,
    /// The name.
    pub name: String,
}

/// The difference between another clock and this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The absolute difference.
    pub difference: Duration,
    /// Whether the other clock is ahead.
    pub ahead: bool,
}

/// A node port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePort {
    /// The port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// The name of the service port.
    pub service: String,
}

/// A connection attempt to an endpoint from this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointProbe {
    /// The name of the service port.
    pub service: String,
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// The result.
    pub result: ProbeResult,
}

/// The result of a connection attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The connection was established.
    Connected,
    /// The connection was refused.
    Refused,
    /// There was no reply.
    TimedOut,
    /// The network reported this error.
    Unreachable(String),
}

impl Inputs {
    /// Returns a sysctl's value; `Ok(None)` if the kernel does not have it.
    pub(super) fn sysctl(&self, name: &str) -> Reading<Option<&str>> {
        self.sysctls.as_ref().map(|sysctls| sysctls.get(name).map(String::as_str)).map_err(Clone::clone)
    }
}

impl Listener {
    /// Reports whether the socket accepts packets from other hosts.
    pub(super) fn is_reachable(&self) -> bool {
        // IPv6 sockets may have IPv4-mapped addresses.
        !self.address.ip().to_canonical().is_loopback()
    }
}
