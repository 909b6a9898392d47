use std::net::IpAddr;

/// State of the host that planned rules depend on, besides the Services and the Node.
///
/// Every mode's planner takes it as an argument, reads the fields that its rules need, and never reads the host itself.
/// The default is a host without addresses or optional features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostState {
    /// Addresses of all interfaces, of both families.
    pub addresses: Vec<IpAddr>,
    /// The installed `iptables` supports `MASQUERADE --random-fully` (1.6.2 and newer).
    pub random_fully: bool,
    /// The nfacct counters that exist.
    pub counters: NfacctCounters,
    /// The sysctl `net.netfilter.nf_conntrack_tcp_be_liberal` is set, so that out-of-window TCP packets are not
    /// classified as invalid and need not be dropped.
    pub conntrack_tcp_be_liberal: bool,
}

/// The nfacct counters that iptables rules refer to. The kernel rejects a rule whose counter does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NfacctCounters {
    /// [`NfacctCounters::INVALID_DROPPED`] exists.
    pub invalid_dropped: bool,
    /// [`NfacctCounters::LOCALHOST_ACCEPTED`] exists.
    pub localhost_accepted: bool,
}

impl NfacctCounters {
    /// Name of the counter of packets dropped in connection tracking state INVALID.
    pub const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
    /// Name of the counter of new connections to node ports on localhost.
    pub const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";
}
