//! The frontends to which packets are walked through the kernel's rules, and these packets.

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{
    Frontend, FrontendKind, IpFamily, ModeTraits, NodePortMatch, Protocol, ServicePortName, TrafficPolicy,
};
use ferroute_modes::kernel_rules::KernelRules;
use ferroute_trace::{Host, Packet};

use super::{firewalls::is_pod, order};
use crate::{desired::Desired, doctor::EarlierEffect};

/// A frontend at one address.
pub(super) struct Destination {
    pub(super) address: IpAddr,
    pub(super) kind: FrontendKind,
    pub(super) policy: TrafficPolicy,
    /// Whether the kernel considers the address one of the host's.
    pub(super) is_local: bool,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
    pub(super) service: String,
    /// Whether it is a cluster IP that another program has added to the host's addresses, as NodeLocal DNSCache does.
    is_bound: bool,
    /// Whether it is for clients outside of the cluster.
    pub(super) is_external: bool,
    pub(super) has_endpoints: bool,
    /// An endpoint that is a pod on this node.
    pub(super) own_pod: Option<IpAddr>,
}

impl Destination {
    pub(super) fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Returns the effect of a rule with this effect on connections to the destination; [`None`] if there is none.
    pub(super) fn suffers(&self, effect: EarlierEffect, traits: &ModeTraits) -> Option<EarlierEffect> {
        match effect {
            // Virtual servers take packets without a connection as well, but these are not masqueraded.
            EarlierEffect::Untracked | EarlierEffect::TransparentProxy
                if traits.binds_service_addresses && !self.is_external =>
            {
                None
            }
            EarlierEffect::Untracked if self.is_bound => Some(EarlierEffect::LeftToProcess),
            effect => Some(effect),
        }
    }
}

/// A frontend of a service port, the port's traffic policies, whether it has endpoints, and one that is a pod on this node.
type Claim<'a> = (&'a ServicePortName, [TrafficPolicy; 2], (bool, Option<IpAddr>), FrontendKind, Frontend);

/// Returns the frontends of all service ports: first those of each kind, and those that rules of other programs name.
pub(super) fn destinations(desired: &Desired, rules: &KernelRules, traits: &ModeTraits) -> Vec<Destination> {
    let family = rules.family;
    let table = desired.table(family);
    let (host, node_port_address) = (&desired.host.addresses, node_port_address(desired, family));
    let frontends = table.entries.iter().flat_map(|(name, entry)| {
        let local = entry.endpoints.iter().filter(|endpoint| endpoint.local).map(|endpoint| endpoint.address);
        let own_pod = local.into_iter().find(|address| is_pod(desired, *address));
        let endpoints = (!entry.endpoints.is_empty(), own_pod);
        let frontends = entry.service.claims(name.protocol);
        let policies = [entry.service.internal_policy, entry.service.external_policy];
        frontends.map(move |(kind, frontend)| (name, policies, endpoints, kind, frontend))
    });
    let destination = |(name, policies, (has_endpoints, own_pod), kind, frontend): Claim<'_>| {
        let address = frontend.address.or(node_port_address)?;
        let is_local = host.contains(&address) || traits.binds_service_addresses;
        let is_external = kind != FrontendKind::ClusterIp;
        let is_bound = !is_external && host.contains(&address);
        let (port, protocol, service) = (frontend.port, name.protocol, name.to_string());
        let policy = policies[usize::from(is_external)];
        Some(Destination {
            address,
            is_local,
            port,
            protocol,
            service,
            kind,
            policy,
            is_bound,
            is_external,
            has_endpoints,
            own_pod,
        })
    };
    order::ordered(frontends.filter_map(destination).collect(), rules)
}

/// Returns an address that serves node ports: that of the node, if it is one of them.
pub(super) fn node_port_address(desired: &Desired, family: IpFamily) -> Option<IpAddr> {
    let (node, host) = (&desired.table(family).node, &desired.host.addresses);
    match desired.resolved.settings.node_ports(family, node, host) {
        NodePortMatch::AnyLocal => {
            let is_own = |address: &&IpAddr| IpFamily::of(**address) == family && !address.is_loopback();
            let primary = node.primary_address(family).filter(|address| host.contains(address));
            primary.or_else(|| host.iter().find(is_own).copied())
        }
        NodePortMatch::Addresses(addresses) => addresses.first().copied(),
    }
}

/// Returns a packet of another client, one of the host itself and, `with_own`, one of a pod that connects to itself, each with
/// whether it is the last one. Clients of cluster IPs are pods.
pub(super) fn packets(
    destination: &Destination,
    host: &Host,
    pod: Option<IpAddr>,
    with_own: bool,
) -> Vec<(Packet, bool)> {
    let outside = outside_address(IpFamily::of(destination.address));
    let client = pod.filter(|_| !destination.is_external).unwrap_or(outside);
    let own = destination.own_pod.filter(|_| with_own && destination.has_endpoints);
    let own = own.and_then(|pod| packet_from(pod, destination, host)).map(|packet| (packet, true));
    let others = [packet_from(client, destination, host), local_packet(destination, host)];
    others.into_iter().flatten().map(|packet| (packet, false)).chain(own).collect()
}

/// Returns a packet of another client.
pub(super) fn packet_from(client: IpAddr, destination: &Destination, host: &Host) -> Option<Packet> {
    let (to, protocol) = (destination.socket(), destination.protocol);
    let (interface, _) = host.path_to(client, Some((protocol, to.port(), CLIENT_PORT)))?;
    Some(Packet::arriving(protocol, SocketAddr::new(client, CLIENT_PORT), to, &interface))
}

/// Returns a packet of the host itself.
pub(super) fn local_packet(destination: &Destination, host: &Host) -> Option<Packet> {
    let (to, protocol) = (destination.socket(), destination.protocol);
    let source = host.source_to(to.ip(), Some((protocol, CLIENT_PORT, to.port())))?;
    Some(Packet::local(protocol, SocketAddr::new(source, CLIENT_PORT), to))
}

/// Returns an address outside of the cluster.
pub(super) fn outside_address(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => IpAddr::from([203, 0, 113, 7]),
        IpFamily::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7]),
    }
}

/// A port of a client.
pub(super) const CLIENT_PORT: u16 = 50000;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a frontend with this address and port.
    pub(in super::super) fn destination_at(address: [u8; 4], port: u16) -> Destination {
        Destination { address: address.into(), ..destination(port) }
    }

    /// Returns an external IP with this port.
    pub(in super::super) fn destination(port: u16) -> Destination {
        Destination {
            address: "192.0.2.1".parse().unwrap(),
            kind: FrontendKind::ExternalIp,
            policy: TrafficPolicy::Cluster,
            is_local: true,
            port,
            protocol: Protocol::Tcp,
            service: "shop/web:http".to_owned(),
            is_bound: false,
            is_external: true,
            has_endpoints: true,
            own_pod: None,
        }
    }

    #[test]
    fn packets_without_a_connection_are_left_to_some_processes_and_virtual_servers() {
        use EarlierEffect::{LeftToProcess, Translated, TransparentProxy, Untracked};
        let external = destination(80);
        let internal = || Destination { is_external: false, is_local: false, ..destination(80) };
        let bound = Destination { is_bound: true, ..internal() };
        let internal = internal();
        let (rules, servers) = (&ModeTraits::IPTABLES, &ModeTraits::IPVS);
        for (destination, traits, effect, expected) in [
            (&external, rules, Untracked, Some(Untracked)),
            (&internal, rules, Untracked, Some(Untracked)),
            (&bound, rules, Untracked, Some(LeftToProcess)),
            (&bound, rules, TransparentProxy, Some(TransparentProxy)),
            (&external, servers, Untracked, Some(Untracked)),
            (&internal, servers, Untracked, None),
            (&internal, servers, Translated, Some(Translated)),
        ] {
            assert_eq!(destination.suffers(effect, traits), expected, "{effect:?} {}", destination.is_external);
        }
    }
}
