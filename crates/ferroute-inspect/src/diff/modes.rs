use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ferroute_core::{LocalTraffic, NodePortMatch, Protocol, ProxySettings, ServicePort, ServiceTable};
use ferroute_trace::{Host, Origin, Packet};
use ipnet::IpNet;
use serde::Serialize;

use super::{End, Ends};

/// Where nftables mode does something else than iptables mode, on purpose and as kube-proxy's does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ModeDifference {
    /// A port of a cluster IP that its Service does not have is refused; iptables lets the packet wander off.
    UnknownPortOfClusterIp,
    /// An address out of the networks of cluster IPs that no Service has gets silence; iptables does not know these
    /// networks.
    UnassignedClusterIp,
    /// The node itself is refused at an external address of a Service without endpoints; iptables has no such rule for
    /// what the node sends.
    OwnCallToExternalAddressWithoutEndpoints,
    /// Source ranges are looked at first: strangers get silence also where there is no endpoint anyway; iptables refuses
    /// everybody there.
    SourceRangesWithoutEndpoints,
    /// Source ranges also guard an address of the balancer that is an external IP of the same Service as well; in
    /// iptables the rule of the external IP comes first.
    SourceRangesOnExternalIp,
    /// Where a node port does not answer because of `nodePortAddresses`, nothing is refused or dropped either; iptables
    /// refuses on all addresses of the node.
    NodePortBeside,
    /// A pod of another node that calls itself through this one is seen with its own address: only this node's own
    /// endpoints are in the set of those to masquerade. iptables masquerades for every endpoint.
    HairpinOfAnotherNode,
    /// Node ports answer on fewer addresses: without `nodePortAddresses` on the primary one only, and never on
    /// localhost, while iptables mode then has them on all. A matter of the two proxies' settings.
    NodePortAddresses,
}

/// What the differences between the modes depend on, beside the packet.
pub struct ModeFacts<'a> {
    services: &'a ServiceTable,
    settings: &'a ProxySettings,
    host: &'a Host,
    /// Which addresses answer on node ports.
    node_ports: NodePortMatch,
    /// Services by their external IPs and their balancers' addresses.
    by_external: HashMap<IpAddr, Vec<(Protocol, &'a ServicePort)>>,
    /// Cluster IPs with their known ports.
    cluster_ips: HashMap<IpAddr, HashSet<(Protocol, u16)>>,
    /// Whether an endpoint runs on this node, by its address.
    endpoints: HashMap<IpAddr, bool>,
    numbers: HashSet<(Protocol, u16)>,
}

impl<'a> ModeFacts<'a> {
    /// `settings` are those of both modes; `host` has the addresses that both were planned with.
    pub fn new(services: &'a ServiceTable, settings: &'a ProxySettings, host: &'a Host) -> Self {
        let mut by_external: HashMap<IpAddr, Vec<(Protocol, &ServicePort)>> = HashMap::new();
        for (name, entry) in &services.entries {
            let service = &entry.service;
            for address in service.external_ips.iter().chain(&service.load_balancer_vips) {
                by_external.entry(*address).or_default().push((name.protocol, service));
            }
        }
        let mut cluster_ips: HashMap<IpAddr, HashSet<(Protocol, u16)>> = HashMap::new();
        for (name, entry) in &services.entries {
            cluster_ips.entry(entry.service.cluster_ip).or_default().insert((name.protocol, entry.service.port));
        }
        let numbers = services.entries.iter();
        let numbers = numbers.filter_map(|(name, entry)| Some((name.protocol, entry.service.node_port?.get())));
        Self {
            node_ports: settings.node_ports(services.family, &services.node, &host.addresses),
            by_external,
            cluster_ips,
            endpoints: services
                .entries
                .values()
                .flat_map(|entry| entry.endpoints.iter().map(|endpoint| (endpoint.address, endpoint.local)))
                .collect(),
            numbers: numbers.collect(),
            services,
            settings,
            host,
        }
    }

    /// Whether the modes differ for a packet that ends like this in iptables mode, and how it then ends in nftables
    /// mode; `walk` walks other packets through the same rules of iptables.
    pub fn difference(
        &self,
        packet: &Packet,
        iptables: &Ends,
        walk: impl Fn(&Packet) -> Ends,
    ) -> Option<(ModeDifference, Ends)> {
        use ModeDifference::*;
        let (to, from) = (packet.destination, packet.source.ip());
        let by_node = packet.origin == Origin::Local;
        let only = |end: End| Ends::from([(end, 1.0)]);
        let is = |end: End| iptables.keys().eq([&end]);
        let unserved = is(End::Refused) || is(End::Untouched);
        let at = || {
            let known = self.by_external.get(&to.ip()).into_iter().flatten();
            let same = known.filter(|(protocol, service)| *protocol == packet.protocol && service.port == to.port());
            same.map(|(_, service)| *service)
        };
        let vips = || at().filter(|service| service.load_balancer_vips.contains(&to.ip()));
        let shut_out = |service: &ServicePort| {
            let ranges = &service.load_balancer_source_ranges;
            !ranges.is_empty() && !ranges.iter().any(|range| range.contains(&from))
        };
        if unserved && vips().any(shut_out) {
            return Some((SourceRangesWithoutEndpoints, only(End::Dropped)));
        }
        let external = |service: &ServicePort| service.external_ips.contains(&to.ip());
        if !unserved && vips().any(|service| shut_out(service) && external(service)) {
            return Some((SourceRangesOnExternalIp, only(End::Dropped)));
        }
        if by_node && is(End::Untouched) && at().next().is_some() {
            return Some((OwnCallToExternalAddressWithoutEndpoints, only(End::Refused)));
        }
        let ports = self.cluster_ips.get(&to.ip());
        if is(End::Untouched) && ports.is_some_and(|ports| !ports.contains(&(packet.protocol, to.port()))) {
            return Some((UnknownPortOfClusterIp, only(End::Refused)));
        }
        if is(End::Untouched) && self.services.service_cidrs.iter().any(|net| net.contains(&to.ip())) {
            return Some((UnassignedClusterIp, only(End::Dropped)));
        }
        let turned_away = is(End::Refused) || is(End::Dropped);
        // What others send to the node's localhost is dropped by the kernel itself.
        let arrives = self.host.owns(to.ip()) && (!to.ip().is_loopback() || by_node);
        let node_port = self.numbers.contains(&(packet.protocol, to.port()));
        if node_port && arrives && !self.answers_on_node_ports(to.ip()) {
            return turned_away.then(|| (NodePortBeside, only(End::Untouched)));
        }
        self.hairpin(packet, iptables, walk).map(|expected| (HairpinOfAnotherNode, expected))
    }

    /// The ends of an endpoint of another node that calls itself through this one.
    fn hairpin(&self, packet: &Packet, iptables: &Ends, walk: impl Fn(&Packet) -> Ends) -> Option<Ends> {
        let from = packet.source.ip();
        let itself = |end: &End| matches!(end, End::Delivered { to, .. } if to.ip() == from);
        let elsewhere = packet.origin != Origin::Local && self.endpoints.get(&from) == Some(&false);
        if !elsewhere || !iptables.keys().any(itself) {
            return None;
        }
        // What somebody beside it would be seen as tells whether there is another reason to masquerade.
        let neighbour = self.neighbour(packet)?;
        let of_neighbour = walk(&Packet { source: SocketAddr::new(neighbour, packet.source.port()), ..packet.clone() });
        let keeps = of_neighbour
            .keys()
            .filter(|end| itself(end))
            .any(|end| matches!(end, End::Delivered { from, .. } if *from == neighbour));
        let own_source = |end: &End| match end.clone() {
            End::Delivered { to, through, .. } if itself(end) => End::Delivered { to, from, through },
            other => other,
        };
        keeps.then(|| iptables.iter().map(|(end, share)| (own_source(end), *share)).collect())
    }

    /// Somebody who differs from the packet's sender in no more than that no endpoint has this address.
    fn neighbour(&self, packet: &Packet) -> Option<IpAddr> {
        let from = packet.source.ip();
        let known = self.by_external.get(&packet.destination.ip()).into_iter().flatten();
        let mut networks: Vec<IpNet> =
            known.flat_map(|(_, service)| service.load_balancer_source_ranges.iter().copied()).collect();
        if let Some(LocalTraffic::Source(net)) = self.settings.local_traffic(self.services.family, &self.services.node) {
            networks.push(net);
        }
        let alike = |other: &IpAddr| networks.iter().all(|net| net.contains(other) == net.contains(&from));
        let free = |other: &IpAddr| !self.endpoints.contains_key(other) && !self.host.owns(*other);
        (1..=255_u8).map(|bits| beside(from, bits)).find(|other| alike(other) && free(other))
    }

    /// Whether node ports answer on an address of the node.
    pub(super) fn answers_on_node_ports(&self, address: IpAddr) -> bool {
        let chosen = match &self.node_ports {
            NodePortMatch::AnyLocal => true,
            NodePortMatch::Addresses(addresses) => addresses.contains(&address),
        };
        chosen && (!address.is_loopback() || self.settings.localhost_node_ports(self.services.family))
    }
}

impl ModeDifference {
    /// In a sentence, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownPortOfClusterIp => {
                "unknown ports of cluster IPs are refused in nftables mode; iptables lets the packets wander off"
            }
            Self::UnassignedClusterIp => {
                "unassigned cluster IPs get silence in nftables mode; iptables does not know their networks"
            }
            Self::OwnCallToExternalAddressWithoutEndpoints => {
                "the node's own calls to external addresses without endpoints are refused in nftables mode only"
            }
            Self::SourceRangesWithoutEndpoints => {
                "source ranges hold also where there are no endpoints in nftables mode; iptables refuses everybody"
            }
            Self::SourceRangesOnExternalIp => {
                "source ranges guard a balancer's address that is an external IP, too, in nftables mode only"
            }
            Self::NodePortBeside => {
                "iptables refuses at node ports on all addresses of the node, nftables only where node ports answer"
            }
            Self::HairpinOfAnotherNode => {
                "pods of other nodes that call themselves through this one are masqueraded in iptables mode only"
            }
            Self::NodePortAddresses => {
                "node ports answer on fewer addresses in nftables mode: without nodePortAddresses, the primary one"
            }
        }
    }
}

impl fmt::Display for ModeDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The address with some of its last eight bits flipped.
fn beside(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from(u32::from(address) ^ u32::from(bits)).into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) ^ u128::from(bits)).into(),
    }
}
