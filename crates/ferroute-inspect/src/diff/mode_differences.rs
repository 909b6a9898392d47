//! The differences between the outcomes of packets in two modes that follow from the modes' traits.

use std::{collections::BTreeMap, net::SocketAddr};

use ferroute_core::{
    ConfiguredMode, Connection, Endpoint, FamilySettings, Frontend, Method, ModeTrait, ModeTraits, Outcome,
    ProxySettings, ServicePortEntry, ServicePortName, ServiceTable, SourceAddress, Sources, forwarding,
};
use ferroute_trace::{Host, Origin, Packet};

use super::{Outcomes, PacketOutcome, outcomes::shares_agree};

/// Determines the traits that explain why packets have different outcomes in another mode, for one IP family of a node.
pub(super) struct ModeDifferences<'a> {
    services: &'a ServiceTable,
    host: &'a Host,
    expected: Side,
    /// Settings that the actual rules may follow: the same settings, or the defaults of their mode if these differ.
    actual: Vec<Candidate>,
}

/// A mode with its settings.
struct Side {
    traits: ModeTraits,
    settings: FamilySettings,
}

/// Traits and settings that the actual rules may follow.
struct Candidate {
    side: Side,
    /// For each trait that differs: the expected side with the actual value, and the actual side with the expected
    /// value.
    mixed: Vec<(&'static ModeTrait, [Side; 2])>,
}

/// A packet to a frontend of a service port.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) name: &'a ServicePortName,
    pub(super) entry: &'a ServicePortEntry,
    pub(super) frontend: Frontend,
    pub(super) packet: &'a Packet,
}

/// Decision of a mode about a packet.
#[derive(PartialEq, Eq)]
enum Decision {
    Rejected,
    Dropped,
    Untouched,
    Forwarded { endpoints: BTreeMap<SocketAddr, Target>, method: Option<Method> },
}

/// An endpoint that a packet may reach.
#[derive(PartialEq, Eq)]
struct Target {
    source: Seen,
    weight: u16,
}

/// The source address that an endpoint sees.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Client,
    Node,
    /// The address of the Service, if it belongs to the node.
    Service,
}

impl<'a> ModeDifferences<'a> {
    /// Creates the differences between two modes, each with the settings that the configuration has for it; `host` has the
    /// addresses that both sets of rules were planned for.
    pub(super) fn new(
        services: &'a ServiceTable,
        host: &'a Host,
        (expected, settings): (&ModeTraits, &ProxySettings),
        (actual, actual_settings): (&ModeTraits, &ProxySettings),
    ) -> Self {
        let side = |traits: ModeTraits, settings: &ProxySettings| Side {
            settings: FamilySettings::new(settings, services, &traits, &host.addresses),
            traits,
        };
        // The actual mode may have been configured without `nodePortAddresses`.
        let defaults = ProxySettings {
            node_port_addresses: actual.node_ports_by_default.into(),
            localhost_node_ports: true,
            ..actual_settings.clone()
        };
        let has_other_defaults = expected.node_ports_by_default != actual.node_ports_by_default;
        let candidate = |actual_settings: &ProxySettings| {
            let [expected, actual] = [(expected, settings), (actual, actual_settings)]
                .map(|(traits, settings)| ConfiguredMode { traits: *traits, settings: settings.clone() });
            let mix = |it: &'static ModeTrait| {
                let mixed = [it.replaced(&expected, &actual), it.replaced(&actual, &expected)];
                let differs = mixed[0].traits != expected.traits;
                differs.then(|| (it, mixed.map(|mode| side(mode.traits, &mode.settings))))
            };
            let mixed = ModeTrait::ALL.iter().filter_map(mix).collect();
            Candidate { side: side(actual.traits, actual_settings), mixed }
        };
        Self {
            services,
            host,
            expected: side(*expected, settings),
            actual: [Some(actual_settings), Some(&defaults).filter(|_| has_other_defaults)]
                .into_iter()
                .flatten()
                .map(candidate)
                .collect(),
        }
    }

    /// Returns the traits that cause these outcomes of a packet; none if the traits do not explain them.
    pub(super) fn explain(
        &self,
        attempt: Attempt<'_>,
        expected: &Outcomes,
        actual: &Outcomes,
    ) -> Vec<&'static ModeTrait> {
        let decide = |side: &Side| self.decide(side, attempt);
        let before = decide(&self.expected);
        if !before.agrees(attempt.packet, expected) {
            return Vec::new();
        }
        for Candidate { side, mixed } in &self.actual {
            let after = decide(side);
            if before == after || !after.agrees(attempt.packet, actual) {
                continue;
            }
            let decisive = |[expected, actual]: &[Side; 2]| [decide(expected) != before, decide(actual) != after];
            let decisive: Vec<_> = mixed.iter().map(|(it, sides)| (*it, decisive(sides))).collect();
            // If the modes differ only through a combination of traits, each of these is decisive for the other mode.
            for way in [0, 1] {
                let traits: Vec<_> = decisive.iter().filter(|(_, by)| by[way]).map(|(it, _)| *it).collect();
                if !traits.is_empty() {
                    return traits;
                }
            }
        }
        Vec::new()
    }

    fn decide(&self, side: &Side, attempt: Attempt<'_>) -> Decision {
        let Attempt { name, entry, frontend, packet } = attempt;
        let (to, source) = (packet.destination.ip(), packet.source.ip());
        let forwarding = forwarding(self.services, name, entry, &side.settings, &side.traits);
        let interface = match &packet.origin {
            Origin::Local => None,
            Origin::Interface(name) => Some(name.as_str()),
        };
        let kind = entry.service.claims(name.protocol).find(|(_, other)| *other == frontend).map(|(kind, _)| kind);
        let Some(kind) = kind else { return Decision::Untouched };
        let outcome = if frontend.address.is_none() && !side.settings.serves_node_ports_at(to) {
            forwarding.outcome_at_other_address()
        } else {
            forwarding.outcome_of(&Connection {
                frontend,
                kind,
                source,
                is_from_node: interface.is_none(),
                is_from_pod: side.settings.local_traffic.as_ref().is_some_and(|pods| pods.matches(source, interface)),
            })
        };
        let route = match outcome {
            Outcome::Reject(_) => return Decision::Rejected,
            Outcome::Drop(_) => return Decision::Dropped,
            Outcome::NotOurs => return Decision::Untouched,
            Outcome::Forward(route) => route,
        };
        let owns_endpoint =
            |endpoint: &Endpoint| side.traits.sources != Sources::Node && self.host.owns(endpoint.address);
        // If the address of the Service belongs to the node, the node sends to it from that address.
        let has_service_source = side.traits.sources == Sources::ServiceOfNode && interface.is_none();
        let source = if has_service_source { to } else { source };
        let endpoints = forwarding.list(route.list).unwrap_or_default().iter().map(|endpoint| {
            let source = match forwarding.source_address(route, endpoint, source, interface.is_none()) {
                // Received packets for the node itself do not pass a hook in which they could be masqueraded.
                SourceAddress::Node if interface.is_some() && owns_endpoint(endpoint) => Seen::Client,
                SourceAddress::Node => Seen::Node,
                SourceAddress::Kept if has_service_source => Seen::Service,
                SourceAddress::Kept => Seen::Client,
            };
            let weight = if side.traits.weights { endpoint.weight } else { 1 };
            let target = Target { source, weight };
            (endpoint.socket(), target)
        });
        Decision::Forwarded { endpoints: endpoints.collect(), method: forwarding.method() }
    }
}

impl Decision {
    /// Reports whether a packet with these outcomes was treated as decided.
    fn agrees(&self, packet: &Packet, outcomes: &Outcomes) -> bool {
        let only = |outcome| outcomes.keys().eq([&outcome]);
        let (endpoints, method) = match self {
            Self::Rejected => return only(PacketOutcome::Rejected),
            Self::Dropped => return only(PacketOutcome::Dropped),
            Self::Untouched => return only(PacketOutcome::Untouched),
            Self::Forwarded { endpoints, method } => (endpoints, method),
        };
        let is_hashed = matches!(method, Some(Method::SourceHash | Method::SourcePortHash));
        let total: f64 = endpoints.values().map(|target| f64::from(target.weight)).sum();
        let mut reached = outcomes.iter().map(|(outcome, share)| match outcome {
            PacketOutcome::Delivered { to, from, .. } => Some((*to, *from, *share)),
            // Sent to an endpoint whose address is that of the frontend.
            PacketOutcome::Untouched => Some((packet.destination, packet.source.ip(), *share)),
            _ => None,
        });
        (is_hashed || outcomes.len() == endpoints.len())
            && reached.all(|reached| {
                reached.is_some_and(|(to, from, share)| {
                    endpoints.get(&to).is_some_and(|target| {
                        // The node's own packets always have one of its addresses.
                        let seen = if from == packet.source.ip() { Seen::Client } else { Seen::Node };
                        (seen == target.source || packet.origin == Origin::Local)
                            && (is_hashed || shares_agree(share, f64::from(target.weight) / total))
                    })
                })
            })
    }
}
