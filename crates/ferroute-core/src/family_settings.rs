use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use crate::{IpFamily, LocalTraffic, ModeTraits, NodePortMatch, ProxySettings, ServiceTable};

/// Settings of the proxy, resolved for one IP family of a node. A change may affect the rules of every Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilySettings {
    /// The IP family.
    pub family: IpFamily,
    /// Mark of packets to be masqueraded.
    pub masquerade_mark: u32,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// The aggregated [`ProxySettings::no_masquerade_cidrs`] of the family.
    pub no_masquerade_cidrs: Arc<[IpNet]>,
    /// Match for packets from local pods; `None` if they cannot be recognised.
    pub local_traffic: Option<LocalTraffic>,
    /// Addresses that serve node ports.
    pub node_ports: NodePortMatch,
    /// Node ports are served on localhost.
    pub localhost_node_ports: bool,
    /// Node ports that are served at all addresses are served at IPv6 link-local ones, too.
    pub link_local_node_ports: bool,
    /// The node's primary address, if it is known.
    pub node_ip: Option<IpAddr>,
}

impl FamilySettings {
    /// Resolves the settings for the family and node of `table`, in a mode with these traits; `host` has the addresses of all
    /// interfaces.
    pub fn new(settings: &ProxySettings, table: &ServiceTable, traits: &ModeTraits, host: &[IpAddr]) -> Self {
        let family = table.family;
        let localhost_node_ports =
            traits.localhost_node_ports.contains(&family) && settings.localhost_node_ports(family);
        let mut node_ports = settings.node_ports(family, &table.node, host);
        if let NodePortMatch::Addresses(addresses) = &mut node_ports
            && !localhost_node_ports
        {
            addresses.retain(|address| !address.is_loopback());
        }
        let no_masquerade_cidrs = settings.no_masquerade_cidrs.iter().copied();
        let no_masquerade_cidrs: Vec<IpNet> =
            no_masquerade_cidrs.filter(|net| IpFamily::of(net.addr()) == family).collect();
        Self {
            family,
            masquerade_mark: settings.masquerade_mark(),
            masquerade_all: settings.masquerade_all,
            no_masquerade_cidrs: IpNet::aggregate(&no_masquerade_cidrs).into(),
            local_traffic: settings.local_traffic(family, &table.node),
            node_ports,
            localhost_node_ports,
            link_local_node_ports: traits.link_local_node_ports,
            node_ip: table.node.primary_address(family),
        }
    }

    /// Reports whether node ports are served at all addresses that a node may have.
    pub fn serves_node_ports_everywhere(&self) -> bool {
        self.node_ports == NodePortMatch::AnyLocal
            && self.localhost_node_ports
            && (self.family == IpFamily::V4 || self.link_local_node_ports)
    }

    /// Reports whether node ports are served at an address of the node.
    pub fn serves_node_ports_at(&self, address: IpAddr) -> bool {
        let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        let is_selected = match &self.node_ports {
            NodePortMatch::AnyLocal => self.link_local_node_ports || !is_link_local,
            NodePortMatch::Addresses(addresses) => addresses.contains(&address),
        };
        is_selected && (!address.is_loopback() || self.localhost_node_ports)
    }
}
