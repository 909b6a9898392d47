use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroute_core::{HostState, IpFamily, LocalTraffic, NfacctCounters, NodePortMatch, ProxySettings, ServiceTable};

use crate::{Match, Rule, Sense, rule::InterfaceMatch};

/// The inputs of the planner besides Services and endpoints. If it changes, rules of any Service may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanContext {
    /// The IP family.
    pub family: IpFamily,
    /// The mark of packets to be masqueraded.
    pub masquerade_mark: u32,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// The match for packets of local pods, if they can be detected.
    pub local_traffic: Option<LocalTraffic>,
    /// The addresses that node ports answer on.
    pub node_ports: NodePortMatch,
    /// The node's primary address. If the source ranges of a load balancer contain it, the node itself may use the load
    /// balancer's addresses.
    pub node_ip: IpAddr,
    /// Node ports answer on localhost.
    pub localhost_node_ports: bool,
    /// The cluster has so many endpoints that their rules have no comments.
    pub large_cluster: bool,
    /// See [`HostState::random_fully`].
    pub random_fully: bool,
    /// See [`HostState::counters`].
    pub counters: NfacctCounters,
    /// See [`HostState::conntrack_tcp_be_liberal`].
    pub conntrack_tcp_be_liberal: bool,
}

impl PlanContext {
    /// The number of endpoints above which kube-proxy omits the comments on rules of endpoints.
    const LARGE_CLUSTER: usize = 1000;

    /// Derives the context from the proxy's settings, the node and endpoints of `table`, and the host.
    pub fn new(settings: &ProxySettings, table: &ServiceTable, host: &HostState) -> Self {
        let family = table.family;
        let endpoints: usize = table.entries.values().map(|entry| entry.endpoints.len()).sum();
        Self {
            family,
            masquerade_mark: settings.masquerade_mark(),
            masquerade_all: settings.masquerade_all,
            local_traffic: settings.local_traffic(family, &table.node),
            node_ports: settings.node_ports(family, &table.node, &host.addresses),
            node_ip: table.node.primary_address(family).unwrap_or(match family {
                // kube-proxy's default for a node without addresses.
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

    /// Restricts a rule to packets of local pods (`local`) or to all other packets. `None` if local pods cannot be
    /// detected, or if no other packets exist: `iptables-nft` rejects a rule for sources outside of every network.
    pub(super) fn restrict_to_pods(&self, rule: Rule, local: bool) -> Option<Rule> {
        let interface = |interface| if local { Sense::Is(interface) } else { Sense::Not(interface) };
        Some(match self.local_traffic.as_ref()? {
            LocalTraffic::Source(net) if local => rule.source(*net),
            LocalTraffic::Source(net) if net.prefix_len() == 0 => return None,
            LocalTraffic::Source(net) => rule.source_not(*net),
            LocalTraffic::Interface(name) => rule.in_interface(interface(InterfaceMatch::Name(name.as_str().into()))),
            LocalTraffic::InterfacePrefix(prefix) => {
                rule.in_interface(interface(InterfaceMatch::Prefix(prefix.as_str().into())))
            }
        })
    }
}

/// Returns the match that counts packets in the nfacct counter `name`.
pub(super) fn count_packet(name: &str) -> Match {
    Match::Nfacct(name.into())
}
