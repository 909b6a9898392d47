use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroute_core::{IpFamily, LocalTraffic, NodePortMatch, ProxySettings, ServiceTable};

use crate::{Match, Sense, rule::InterfaceMatch};

/// What rules depend on besides Services and endpoints. Where this differs, rules of any Service may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanContext {
    /// Whose rules these are.
    pub family: IpFamily,
    /// The mark that says «masquerade».
    pub masquerade_mark: u32,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// How packets of local pods look, where that can be told.
    pub local_traffic: Option<LocalTraffic>,
    /// Which addresses answer on node ports.
    pub node_ports: NodePortMatch,
    /// The node's own address; sources that come from it may use load-balancer addresses if it is within the ranges.
    pub node_ip: IpAddr,
    /// Node ports answer on localhost.
    pub localhost_node_ports: bool,
    /// There are so many endpoints that comments on their rules cost too much.
    pub large_cluster: bool,
    /// `MASQUERADE` understands `--random-fully`.
    pub random_fully: bool,
    /// Which counters there are.
    pub counters: NfacctCounters,
    /// The kernel lets odd TCP packets pass, so that invalid ones need not be dropped.
    pub conntrack_tcp_be_liberal: bool,
}

/// What the planner must know of the host. Somebody else finds it out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Addresses of all interfaces, of both families.
    pub addresses: Vec<IpAddr>,
    /// See [`PlanContext::random_fully`].
    pub random_fully: bool,
    /// See [`PlanContext::counters`].
    pub counters: NfacctCounters,
    /// See [`PlanContext::conntrack_tcp_be_liberal`].
    pub conntrack_tcp_be_liberal: bool,
}

/// The counters (`nfacct`) that rules of ours use. A rule that names one that is not there is refused by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NfacctCounters {
    /// [`NfacctCounters::INVALID_DROPPED`] is there.
    pub invalid_dropped: bool,
    /// [`NfacctCounters::LOCALHOST_ACCEPTED`] is there.
    pub localhost_accepted: bool,
}

impl NfacctCounters {
    /// Counts packets dropped because they belong to no connection.
    pub const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
    /// Counts new connections to node ports on localhost.
    pub const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";

    /// The match that counts under `name`.
    pub(super) fn count(name: &str) -> Match {
        Match::Nfacct(name.into())
    }
}

impl PlanContext {
    /// Endpoints beyond which kube-proxy leaves the comments on endpoints' rules away.
    pub const LARGE_CLUSTER: usize = 1000;

    /// What the operator's settings, the table's node and endpoints, and the host come to.
    pub fn new(settings: &ProxySettings, table: &ServiceTable, host: &HostFacts) -> Self {
        let family = table.family;
        let endpoints: usize = table.entries.values().map(|entry| entry.endpoints.len()).sum();
        Self {
            family,
            masquerade_mark: settings.masquerade_mark(),
            masquerade_all: settings.masquerade_all,
            local_traffic: settings.local_traffic(family, &table.node),
            node_ports: settings.node_ports(family, &table.node, &host.addresses),
            node_ip: table.node.primary_address(family).unwrap_or(match family {
                // kube-proxy's stand-in for a node whose address it does not know.
                IpFamily::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpFamily::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
            }),
            localhost_node_ports: settings.localhost_node_ports(family),
            large_cluster: endpoints > Self::LARGE_CLUSTER,
            random_fully: host.random_fully,
            counters: host.counters,
            conntrack_tcp_be_liberal: host.conntrack_tcp_be_liberal,
        }
    }

    /// Narrows a rule down to packets of local pods, or to others; `None` where that cannot be told, or where there are
    /// no others: nf_tables' `iptables` refuses a rule for packets from outside of everywhere.
    pub(super) fn of_local_pods(&self, rule: crate::Rule, local: bool) -> Option<crate::Rule> {
        let interface = |interface| if local { Sense::Is(interface) } else { Sense::Not(interface) };
        Some(match self.local_traffic.as_ref()? {
            LocalTraffic::From(net) if local => rule.source(*net),
            LocalTraffic::From(net) if net.prefix_len() == 0 => return None,
            LocalTraffic::From(net) => rule.source_not(*net),
            LocalTraffic::Interface(name) => rule.in_interface(interface(InterfaceMatch::Name(name.as_str().into()))),
            LocalTraffic::InterfacePrefix(prefix) => {
                rule.in_interface(interface(InterfaceMatch::Prefix(prefix.as_str().into())))
            }
        })
    }
}
