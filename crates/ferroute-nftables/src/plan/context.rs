use std::net::IpAddr;

use ferroute_core::{IpFamily, LocalTraffic, NodePortMatch, ProxySettings, ServiceTable};
use ipnet::IpNet;

use crate::model::{InterfaceName, Match};

/// What the operator has decided for this mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftablesSettings {
    /// What holds for all modes. Note that kube-proxy's defaults for this mode differ from those for iptables: node ports
    /// answer on the node's primary address only, and not on localhost.
    pub proxy: ProxySettings,
    /// Count the connections of each frontend and of each endpoint.
    pub counters: bool,
}

/// What rules depend on besides Services and endpoints. Where this differs, rules of any Service may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
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
    /// Node ports answer on localhost, too.
    pub localhost_node_ports: bool,
    /// The node's own address; sources that come from it may use load-balancer addresses if it is within the ranges.
    pub node_ip: Option<IpAddr>,
    /// Networks of this family that cluster IPs are taken from, none within another. Packets to addresses in there that no
    /// Service has are dropped, as they would else wander off to the default gateway.
    pub service_networks: Vec<IpNet>,
    /// Elements count.
    pub counters: bool,
}

impl Context {
    /// What the settings, the table's node and networks, and the addresses of the host's interfaces come to.
    pub fn new(table: &ServiceTable, settings: &NftablesSettings, host: &[IpAddr]) -> Self {
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
        }
    }

    /// What tells packets of local pods from others; `None` where they cannot be told.
    pub(super) fn match_local_pods(&self, is: bool) -> Option<Match> {
        Some(match self.local_traffic.as_ref()? {
            LocalTraffic::From(net) => Match::Source { net: *net, is },
            LocalTraffic::Interface(name) => Match::Interface { name: InterfaceName::Exact(name.as_str().into()), is },
            LocalTraffic::InterfacePrefix(prefix) => {
                Match::Interface { name: InterfaceName::Prefix(prefix.as_str().into()), is }
            }
        })
    }
}
