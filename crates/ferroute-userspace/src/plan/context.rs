use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroute_core::{HostState, IpFamily, LocalTraffic, NodePortMatch, ProxySettings, ServiceTable};

/// The inputs of the planner besides Services, endpoints and the ports of listeners. If it changes, rules of any Service may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanContext {
    /// The IP family.
    pub family: IpFamily,
    /// The address of this host that connections to Services are sent to.
    pub listen_address: IpAddr,
    /// The node's primary address. If the source ranges of a load balancer contain it, the node itself may use the load
    /// balancer's addresses.
    pub node_ip: Option<IpAddr>,
    /// The addresses that node ports answer on.
    pub node_ports: NodePortMatch,
    /// Node ports answer on localhost.
    pub localhost_node_ports: bool,
    /// The match for packets of local pods, if they can be detected.
    pub local_traffic: Option<LocalTraffic>,
}

impl PlanContext {
    /// Derives the context from the settings, the node of `table`, and the host.
    pub fn new(settings: &ProxySettings, table: &ServiceTable, host: &HostState) -> Self {
        let family = table.family;
        let node_ip = table.node.primary_address(family);
        Self {
            family,
            listen_address: listen_address(family, node_ip, &host.addresses),
            node_ip,
            node_ports: settings.node_ports(family, &table.node, &host.addresses),
            localhost_node_ports: settings.localhost_node_ports(family),
            local_traffic: settings.local_traffic(family, &table.node),
        }
    }
}

/// Returns the node's address if the host has it, else the host's first one that other hosts and pods can reach. A host
/// without any serves its own processes only.
fn listen_address(family: IpFamily, node_ip: Option<IpAddr>, host: &[IpAddr]) -> IpAddr {
    let is_usable = |address: &&IpAddr| {
        IpFamily::of(**address) == family
            && match address {
                IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
                IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
            }
    };
    let node_ip = node_ip.filter(|address| host.contains(address));
    node_ip.or_else(|| host.iter().find(is_usable).copied()).unwrap_or(match family {
        IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
        IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
    })
}
