//! The intended differences between iptables mode and nftables mode.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ferroute_core::{LocalTraffic, NodePortMatch, Protocol, ProxySettings, ServicePort, ServiceTable};
use ferroute_trace::{Host, Origin, Packet};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Outcomes, PacketOutcome};

/// An intended difference between iptables mode and nftables mode, which kube-proxy has as well if nothing else is stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ModeDifference {
    /// Connections to a cluster IP on a port that its Service does not have: nftables mode rejects them, iptables mode has
    /// no rule for them.
    UnknownPortOfClusterIp,
    /// Packets to unassigned addresses in the Service networks: nftables mode drops them, iptables mode has no rule for
    /// them.
    UnassignedClusterIp,
    /// The node's own connections to an external address of a Service without endpoints: nftables mode rejects them,
    /// iptables mode has no rule for them.
    NodeToExternalAddressWithoutEndpoints,
    /// Clients outside of the source ranges of a Service without endpoints: nftables mode drops their packets, iptables
    /// mode rejects them.
    SourceRangesWithoutEndpoints,
    /// Packets from outside that claim to come from the node, or to be for its localhost, to a Service without endpoints:
    /// Ferroute's nftables mode rejects them before the kernel would drop them.
    SpoofedAddressWithoutEndpoints,
    /// A load balancer address that is also an external IP of the same Service: nftables mode applies the source ranges,
    /// in iptables mode the rule of the external IP comes first.
    SourceRangesOnExternalIp,
    /// A node port without (local) endpoints, at an address that `nodePortAddresses` excludes: iptables mode rejects
    /// or drops connections, nftables mode has no rule for them.
    NodePortOnExcludedAddress,
    /// A pod on another node that reaches itself through this node: iptables mode masquerades the connection, nftables
    /// mode only does so for endpoints on this node.
    HairpinFromOtherNode,
    /// Node ports on further addresses of the node: without `nodePortAddresses`, nftables mode serves node ports on the
    /// primary address only, and never on localhost; iptables mode serves them on all addresses.
    NodePortAddresses,
}

/// Finds the [`ModeDifference`] that applies to a packet, for one IP family of a node.
pub struct ModeDifferences<'a> {
    services: &'a ServiceTable,
    settings: &'a ProxySettings,
    host: &'a Host,
    /// The addresses that serve node ports.
    node_ports: NodePortMatch,
    /// Services by external IP and load balancer address.
    by_external_address: HashMap<IpAddr, Vec<(Protocol, &'a ServicePort)>>,
    /// The ports of each cluster IP.
    cluster_ips: HashMap<IpAddr, HashSet<(Protocol, u16)>>,
    /// Whether an endpoint is on this node, by its address.
    endpoints: HashMap<IpAddr, bool>,
    node_port_numbers: HashSet<(Protocol, u16)>,
}

impl<'a> ModeDifferences<'a> {
    /// Creates the differences for a node. `settings` apply to both modes; `host` has the addresses that the rules of both
    /// were planned for.
    pub fn new(services: &'a ServiceTable, settings: &'a ProxySettings, host: &'a Host) -> Self {
        let mut by_external_address: HashMap<IpAddr, Vec<(Protocol, &ServicePort)>> = HashMap::new();
        for (name, entry) in &services.entries {
            let service = &entry.service;
            for address in service.external_ips.iter().chain(&service.load_balancer_vips) {
                by_external_address.entry(*address).or_default().push((name.protocol, service));
            }
        }
        let mut cluster_ips: HashMap<IpAddr, HashSet<(Protocol, u16)>> = HashMap::new();
        for (name, entry) in &services.entries {
            if let Some(address) = entry.service.cluster_ip {
                cluster_ips.entry(address).or_default().insert((name.protocol, entry.service.port));
            }
        }
        let entries = services.entries.iter();
        let numbers = entries.filter_map(|(name, entry)| Some((name.protocol, entry.service.node_port?.get())));
        Self {
            node_ports: settings.node_ports(services.family, &services.node, &host.addresses),
            by_external_address,
            cluster_ips,
            endpoints: services
                .entries
                .values()
                .flat_map(|entry| entry.endpoints.iter().map(|endpoint| (endpoint.address, endpoint.may_be_local())))
                .collect(),
            node_port_numbers: numbers.collect(),
            services,
            settings,
            host,
        }
    }

    /// Returns the difference that applies to a packet with these outcomes in iptables mode, and its outcomes in nftables
    /// mode. `trace` traces other packets through the same iptables rules.
    pub fn difference(
        &self,
        packet: &Packet,
        iptables: &Outcomes,
        trace: impl Fn(&Packet) -> Outcomes,
    ) -> Option<(ModeDifference, Outcomes)> {
        use ModeDifference::*;
        let (to, from) = (packet.destination, packet.source.ip());
        let by_node = packet.origin == Origin::Local;
        let only = |outcome: PacketOutcome| Outcomes::from([(outcome, 1.0)]);
        let is = |outcome: PacketOutcome| iptables.keys().eq([&outcome]);
        let unserved = is(PacketOutcome::Rejected) || is(PacketOutcome::Untouched);
        let external_services = || {
            let services = self.by_external_address.get(&to.ip()).into_iter().flatten();
            let matching =
                services.filter(|(protocol, service)| *protocol == packet.protocol && service.port == to.port());
            matching.map(|(_, service)| *service)
        };
        let load_balanced = || external_services().filter(|service| service.load_balancer_vips.contains(&to.ip()));
        let excluded = |service: &ServicePort| {
            let ranges = &service.load_balancer_source_ranges;
            !ranges.is_empty() && !ranges.iter().any(|range| range.contains(&from))
        };
        if unserved && load_balanced().any(excluded) {
            return Some((SourceRangesWithoutEndpoints, only(PacketOutcome::Dropped)));
        }
        let external = |service: &ServicePort| service.external_ips.contains(&to.ip());
        if !unserved && load_balanced().any(|service| excluded(service) && external(service)) {
            return Some((SourceRangesOnExternalIp, only(PacketOutcome::Dropped)));
        }
        if by_node && is(PacketOutcome::Untouched) && external_services().next().is_some() {
            return Some((NodeToExternalAddressWithoutEndpoints, only(PacketOutcome::Rejected)));
        }
        let spoofed = !by_node && (self.host.is_martian_source(from) || to.ip().is_loopback());
        if spoofed && is(PacketOutcome::Dropped) && self.is_rejected(packet) && !load_balanced().any(excluded) {
            return Some((SpoofedAddressWithoutEndpoints, only(PacketOutcome::Rejected)));
        }
        let ports = self.cluster_ips.get(&to.ip());
        if is(PacketOutcome::Untouched) && ports.is_some_and(|ports| !ports.contains(&(packet.protocol, to.port()))) {
            return Some((UnknownPortOfClusterIp, only(PacketOutcome::Rejected)));
        }
        if is(PacketOutcome::Untouched) && self.services.service_cidrs.iter().any(|net| net.contains(&to.ip())) {
            return Some((UnassignedClusterIp, only(PacketOutcome::Dropped)));
        }
        let rejected_or_dropped = is(PacketOutcome::Rejected) || is(PacketOutcome::Dropped);
        // The kernel drops packets to loopback addresses that arrive from other hosts.
        let arrives = self.host.owns(to.ip()) && (!to.ip().is_loopback() || by_node);
        let node_port = self.node_port_numbers.contains(&(packet.protocol, to.port()));
        if node_port && arrives && !self.serves_node_ports_on(to.ip()) {
            return rejected_or_dropped.then(|| (NodePortOnExcludedAddress, only(PacketOutcome::Untouched)));
        }
        self.hairpin(packet, iptables, trace).map(|outcomes| (HairpinFromOtherNode, outcomes))
    }

    /// Reports whether a packet's destination is a frontend of a service port without endpoints.
    fn is_rejected(&self, packet: &Packet) -> bool {
        let serves = |address| self.serves_node_ports_on(address) && self.host.owns(address);
        let owner = self.services.entries.iter().find(|(name, entry)| {
            let mut frontends = entry.service.frontends(name.protocol);
            name.protocol == packet.protocol
                && frontends.any(|(_, frontend)| frontend.matches(packet.destination, serves))
        });
        owner.is_some_and(|(_, entry)| !self.services.endpoint_sets(entry).has_any_endpoints)
    }

    /// Returns the outcomes in nftables mode if the sender is an endpoint on another node that reaches itself through this
    /// node.
    fn hairpin(&self, packet: &Packet, iptables: &Outcomes, trace: impl Fn(&Packet) -> Outcomes) -> Option<Outcomes> {
        let from = packet.source.ip();
        let is_hairpin =
            |outcome: &PacketOutcome| matches!(outcome, PacketOutcome::Delivered { to, .. } if to.ip() == from);
        let is_remote = packet.origin != Origin::Local && self.endpoints.get(&from) == Some(&false);
        if !is_remote || !iptables.keys().any(is_hairpin) {
            return None;
        }
        // Packets of a neighbour that is not an endpoint show whether there is another reason to masquerade.
        let neighbour = self.neighbour(packet)?;
        let source = SocketAddr::new(neighbour, packet.source.port());
        let of_neighbour = trace(&Packet { source, ..packet.clone() });
        let keeps_source = of_neighbour
            .keys()
            .filter(|outcome| is_hairpin(outcome))
            .any(|outcome| matches!(outcome, PacketOutcome::Delivered { from, .. } if *from == neighbour));
        let with_own_source = |outcome: &PacketOutcome| match outcome.clone() {
            PacketOutcome::Delivered { to, interface, .. } if is_hairpin(outcome) => {
                PacketOutcome::Delivered { to, from, interface }
            }
            other => other,
        };
        keeps_source.then(|| iptables.iter().map(|(outcome, share)| (with_own_source(outcome), *share)).collect())
    }

    /// Returns an address that rules treat like the packet's source, except that it is not an endpoint.
    fn neighbour(&self, packet: &Packet) -> Option<IpAddr> {
        let from = packet.source.ip();
        let services = self.by_external_address.get(&packet.destination.ip()).into_iter().flatten();
        let mut networks: Vec<IpNet> =
            services.flat_map(|(_, service)| service.load_balancer_source_ranges.iter().copied()).collect();
        if let Some(LocalTraffic::Source(net)) = self.settings.local_traffic(self.services.family, &self.services.node)
        {
            networks.push(net);
        }
        let is_alike = |other: &IpAddr| networks.iter().all(|net| net.contains(other) == net.contains(&from));
        let is_free = |other: &IpAddr| !self.endpoints.contains_key(other) && !self.host.owns(*other);
        (1..=255_u8).map(|bits| flip_bits(from, bits)).find(|other| is_alike(other) && is_free(other))
    }

    /// Reports whether node ports are served on an address of the node.
    pub(super) fn serves_node_ports_on(&self, address: IpAddr) -> bool {
        let is_selected = match &self.node_ports {
            NodePortMatch::AnyLocal => true,
            NodePortMatch::Addresses(addresses) => addresses.contains(&address),
        };
        is_selected && (!address.is_loopback() || self.settings.localhost_node_ports(self.services.family))
    }
}

impl ModeDifference {
    /// Returns a description in one sentence.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownPortOfClusterIp => {
                "nftables mode rejects unknown ports of cluster IPs; iptables mode has no rule for them"
            }
            Self::UnassignedClusterIp => {
                "nftables mode drops packets to unassigned cluster IPs; iptables mode has no rule for them"
            }
            Self::NodeToExternalAddressWithoutEndpoints => {
                "only nftables mode rejects the node's own connections to external addresses without endpoints"
            }
            Self::SourceRangesWithoutEndpoints => {
                "without endpoints, nftables mode drops clients outside of the source ranges; iptables mode rejects all clients"
            }
            Self::SpoofedAddressWithoutEndpoints => {
                "without endpoints, nftables mode rejects clients with an address of the node; in iptables mode the kernel drops them first"
            }
            Self::SourceRangesOnExternalIp => {
                "only nftables mode applies source ranges to a load balancer address that is also an external IP"
            }
            Self::NodePortOnExcludedAddress => {
                "iptables mode rejects node ports without endpoints on all node addresses, nftables mode only on those that serve them"
            }
            Self::HairpinFromOtherNode => {
                "only iptables mode masquerades pods of other nodes that reach themselves through this node"
            }
            Self::NodePortAddresses => {
                "by default, nftables mode serves node ports on the primary address only, iptables mode on all addresses"
            }
        }
    }
}

impl fmt::Display for ModeDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Flips some of the last eight bits of an address.
fn flip_bits(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from(u32::from(address) ^ u32::from(bits)).into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) ^ u128::from(bits)).into(),
    }
}
