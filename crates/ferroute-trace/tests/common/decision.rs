//! The decision that planners and commands share, in the terms of the specification.

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{
    FamilySettings, FrontendKind, Hairpin, ModeTraits, NamespacedName, Outcome, PortForwarding, ServicePortName,
    ServiceTable, SourceAddress, Unserved, forwarding,
};

use super::{
    specification::{Expected, Frontend, Port},
    world::Client,
};

/// What a mode decides about the connections to a service port.
pub struct Decision<'a> {
    port: &'a Port<'a>,
    forwarding: PortForwarding<'a>,
    traits: &'static ModeTraits,
}

impl<'a> Decision<'a> {
    pub fn new(port: &'a Port<'a>, table: &'a ServiceTable, traits: &'static ModeTraits) -> Self {
        let service = NamespacedName::from_metadata(&port.service.metadata);
        let name = ServicePortName { service, port: port.name.into(), protocol: port.protocol };
        let settings = FamilySettings::new(&port.world.settings, table, traits, &port.world.addresses());
        Self { port, forwarding: forwarding(table, &name, &table.entries[&name], &settings, traits), traits }
    }

    /// Returns what happens to a connection to a frontend.
    pub fn expected(&self, client: &Client, source: IpAddr, (frontend, address): (Frontend, SocketAddr)) -> Expected {
        use ferroute_core::Client::{Node, Outside, Pod};
        let (port, forwarding) = (self.port, &self.forwarding);
        let origin = if matches!(client, Client::Node) { Node } else { Outside };
        // Routes depend on the source, even of the node's own packets; refusals do not.
        let class = if port.is_detected_as_pod(client, source) == Some(true) { Pod } else { origin };
        let kind = match frontend {
            Frontend::ClusterIp => FrontendKind::ClusterIp,
            Frontend::ExternalIp => FrontendKind::ExternalIp,
            Frontend::LoadBalancer => FrontendKind::LoadBalancer,
            Frontend::NodePort => FrontendKind::NodePort,
        };
        let key = ferroute_core::Frontend {
            address: (frontend != Frontend::NodePort).then_some(address.ip()),
            port: address.port(),
            protocol: port.protocol,
        };
        // The node is permitted by its own address, although its packets may have a Service's.
        let by = port.own_address().filter(|_| self.traits.binds_service_addresses && origin == Node);
        let is_permitted = forwarding
            .permitted_sources(&forwarding.service.load_balancer_vips)
            .iter()
            .any(|net| net.contains(&by.unwrap_or(source)));
        let outcome = match forwarding.is_restricted(kind, key) && !is_permitted {
            true => forwarding.outcome_outside_source_ranges(kind, origin),
            false => match forwarding.outcome(kind, class) {
                forwarded @ Outcome::Forward(_) => forwarded,
                _ if origin == Node => forwarding.outcome(kind, origin),
                refused => refused,
            },
        };
        match outcome {
            Outcome::Reject(_) => Expected::Refused,
            Outcome::Drop(_) => Expected::Dropped,
            Outcome::NotOurs => Expected::Untouched,
            Outcome::Forward(route) => {
                let endpoints = forwarding.list(route.list).unwrap().iter().map(|endpoint| {
                    let is_hairpin =
                        source == endpoint.address && (self.traits.hairpin == Hairpin::All || endpoint.local);
                    let from = match route.source == SourceAddress::Node || is_hairpin {
                        true => port.masqueraded(client, source, endpoint.address),
                        false => source,
                    };
                    (endpoint.socket(), from)
                });
                Expected::OneOf(endpoints.collect())
            }
        }
    }

    /// Returns what happens to a connection to the node port on an address on which it is not served.
    pub fn expected_on_other_address(&self) -> Expected {
        match self.forwarding.outcome(FrontendKind::NodePort, ferroute_core::Client::Outside) {
            Outcome::Reject(_) if self.traits.refuses_node_ports_at_all_addresses => Expected::Refused,
            Outcome::Drop(_) if self.traits.refuses_node_ports_at_all_addresses => Expected::Dropped,
            _ => Expected::Untouched,
        }
    }
}

/// Returns what happens to a connection to a port that no Service has, at an address of a Service.
pub fn expected_on_unknown_port(traits: &ModeTraits, frontend: Frontend) -> Expected {
    match frontend {
        Frontend::ClusterIp => unserved(traits.unknown_ports),
        _ if traits.binds_service_addresses => unserved(traits.unknown_ports),
        _ => Expected::Untouched,
    }
}

/// Returns what happens to a connection to an address in the networks of cluster IPs that no Service has.
pub fn expected_on_unassigned_address(traits: &ModeTraits, table: &ServiceTable) -> Expected {
    if table.service_cidrs.is_empty() { Expected::Untouched } else { unserved(traits.unassigned_addresses) }
}

fn unserved(unserved: Unserved) -> Expected {
    match unserved {
        Unserved::Routed => Expected::Untouched,
        Unserved::Rejected => Expected::Refused,
        Unserved::Dropped => Expected::Dropped,
    }
}
