use std::net::IpAddr;

use ferroute_core::{FlowtableSettings, IpFamily, LocalTraffic, NodePortMatch, ProxySettings, ServiceTable};
use ipnet::IpNet;

use crate::model::{InterfacePattern, Match};

/// The settings of this mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftablesSettings {
    /// The settings for all modes. kube-proxy's defaults for node ports differ in this mode: they are served on the
    /// node's primary addresses only, and not on localhost.
    pub proxy: ProxySettings,
    /// Whether each frontend and endpoint gets a connection counter.
    pub counters: bool,
    /// Lets packets of established connections skip the hooks; `None` if none may.
    pub flowtable: Option<FlowtableSettings>,
}

/// The inputs of rules besides Services and endpoints. A change of them can affect the rules of all Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    /// The IP family.
    pub(crate) family: IpFamily,
    /// The mark of packets to masquerade.
    pub(crate) masquerade_mark: u32,
    /// Whether all traffic to cluster IPs is masqueraded.
    pub(crate) masquerade_all: bool,
    /// How to detect traffic from local pods; `None` if it cannot be detected.
    pub(crate) local_traffic: Option<LocalTraffic>,
    /// The addresses that serve node ports.
    pub(crate) node_ports: NodePortMatch,
    /// Whether localhost serves node ports.
    pub(crate) localhost_node_ports: bool,
    /// The node's primary address. If source ranges contain it, they also contain the load balancer's addresses.
    pub(crate) node_ip: Option<IpAddr>,
    /// The aggregated service CIDRs of this family. Packets to unassigned addresses in them are dropped, because they
    /// would otherwise be sent to the default gateway.
    pub(crate) service_networks: Vec<IpNet>,
    /// Whether elements have counters.
    pub(crate) counters: bool,
    /// The number of packets after which a connection is added to the flowtable; `None` without one.
    pub(crate) flowtable_packets: Option<u32>,
}

impl Context {
    /// Returns the context for a table's node and service CIDRs; `host` are the addresses of the host's interfaces.
    pub(crate) fn new(table: &ServiceTable, settings: &NftablesSettings, host: &[IpAddr]) -> Self {
        let (family, node, proxy) = (table.family, &table.node, &settings.proxy);
        let localhost_node_ports = proxy.localhost_node_ports(family);
        let mut node_ports = proxy.node_ports(family, node, host);
        if let NodePortMatch::Addresses(addresses) = &mut node_ports
            && !localhost_node_ports
        {
            addresses.retain(|address| !address.is_loopback());
        }
        Self {
            family,
            masquerade_mark: proxy.masquerade_mark(),
            masquerade_all: proxy.masquerade_all,
            local_traffic: proxy.local_traffic(family, node),
            node_ports,
            localhost_node_ports,
            node_ip: node.primary_address(family),
            service_networks: IpNet::aggregate(&table.service_cidrs),
            counters: settings.counters,
            flowtable_packets: settings.flowtable.as_ref().map(|flowtable| flowtable.packets),
        }
    }

    /// Returns the condition for traffic from local pods, or from others if `eq` is false; `None` if it cannot be
    /// detected.
    pub(super) fn match_local_pods(&self, eq: bool) -> Option<Match> {
        Some(match self.local_traffic.as_ref()? {
            LocalTraffic::Source(net) => Match::Saddr { net: *net, eq },
            LocalTraffic::Interface(name) => Match::Iifname { name: InterfacePattern::Exact(name.as_str().into()), eq },
            LocalTraffic::InterfacePrefix(prefix) => {
                Match::Iifname { name: InterfacePattern::Prefix(prefix.as_str().into()), eq }
            }
        })
    }
}
