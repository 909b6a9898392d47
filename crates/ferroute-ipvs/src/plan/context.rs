use std::{collections::BTreeSet, net::IpAddr};

use ferroute_core::{HostState, IpFamily, LocalTraffic, NodePortMatch, ProxySettings, ServiceTable};

/// The settings of the mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsSettings {
    /// The settings of all modes.
    pub proxy: ProxySettings,
    /// The scheduler of all virtual servers; empty for [`DEFAULT_SCHEDULER`].
    pub scheduler: String,
    /// Virtual servers at addresses in these networks are never removed.
    pub exclude_cidrs: Vec<ipnet::IpNet>,
}

impl IpvsSettings {
    /// Returns the scheduler.
    pub fn scheduler(&self) -> &str {
        if self.scheduler.is_empty() { DEFAULT_SCHEDULER } else { &self.scheduler }
    }
}

/// The scheduler if none is configured, as in kube-proxy.
pub const DEFAULT_SCHEDULER: &str = "rr";

/// The inputs of the planner besides Services and endpoints. If it changes, objects of any Service may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanContext {
    /// The IP family.
    pub family: IpFamily,
    /// The scheduler of all virtual servers.
    pub scheduler: Box<str>,
    /// The addresses of the node that have a virtual server for each node port.
    pub node_ports: Vec<IpAddr>,
    /// The addresses of the host besides those of the dummy device. The device does not get them a second time.
    pub host_addresses: BTreeSet<IpAddr>,
    /// The node's primary address. If the source ranges of a load balancer contain it, the node itself may use the load
    /// balancer's addresses.
    pub node_ip: Option<IpAddr>,
    /// The mark of packets to be masqueraded.
    pub masquerade_mark: u32,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// The match for packets of local pods, if they can be detected.
    pub local_traffic: Option<LocalTraffic>,
    /// See [`HostState::random_fully`].
    pub random_fully: bool,
}

impl PlanContext {
    /// Derives the context from the settings, the node of `table`, and the host, whose addresses must not include those of
    /// the dummy device.
    pub fn new(settings: &IpvsSettings, table: &ServiceTable, host: &HostState) -> Self {
        let (family, proxy) = (table.family, &settings.proxy);
        // As in kube-proxy: other hosts cannot use these addresses.
        let is_reachable = |address: &&IpAddr| {
            IpFamily::of(**address) == family
                && !address.is_loopback()
                && !matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
        };
        let host_addresses: BTreeSet<IpAddr> = host.addresses.iter().filter(is_reachable).copied().collect();
        let node_ports = match proxy.node_ports(family, &table.node, &host.addresses) {
            NodePortMatch::AnyLocal => host_addresses.iter().copied().collect(),
            NodePortMatch::Addresses(addresses) => addresses.into_iter().filter(|ip| !ip.is_loopback()).collect(),
        };
        Self {
            family,
            scheduler: settings.scheduler().into(),
            node_ports,
            host_addresses,
            node_ip: table.node.primary_address(family),
            masquerade_mark: proxy.masquerade_mark(),
            masquerade_all: proxy.masquerade_all,
            local_traffic: proxy.local_traffic(family, &table.node),
            random_fully: host.random_fully,
        }
    }
}
