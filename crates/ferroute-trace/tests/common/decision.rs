//! The decision that planners and commands share, in the terms of the specification.

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{
    Connection, FamilySettings, FrontendKind, ModeTraits, NamespacedName, Outcome, PortForwarding, ServicePortName,
    ServiceTable, SourceAddress, Unserved, forwarding,
};

use super::{
    specification::{Expected, Frontend, Port},
    world::Client,
};

/// Decisions of a mode about the connections to a service port.
pub struct Decision<'a> {
    port: &'a Port<'a>,
    forwarding: PortForwarding<'a>,
}

impl<'a> Decision<'a> {
    pub fn new(port: &'a Port<'a>, table: &'a ServiceTable, traits: &'static ModeTraits) -> Self {
        let service = NamespacedName::from_metadata(&port.service.metadata);
        let name = ServicePortName { service, port: port.name.into(), protocol: port.protocol };
        let settings = FamilySettings::new(&port.world.settings, table, traits, &port.world.addresses());
        Self { port, forwarding: forwarding(table, &name, &table.entries[&name], &settings, traits) }
    }

    /// Returns the result of a connection to a frontend.
    pub fn expected(&self, client: &Client, source: IpAddr, (frontend, address): (Frontend, SocketAddr)) -> Expected {
        let port = self.port;
        let connection = Connection {
            frontend: ferroute_core::Frontend {
                address: (frontend != Frontend::NodePort).then_some(address.ip()),
                port: address.port(),
                protocol: port.protocol,
            },
            kind: match frontend {
                Frontend::ClusterIp => FrontendKind::ClusterIp,
                Frontend::ExternalIp => FrontendKind::ExternalIp,
                Frontend::LoadBalancer => FrontendKind::LoadBalancer,
                Frontend::NodePort => FrontendKind::NodePort,
            },
            source,
            is_from_node: matches!(client, Client::Node),
            is_from_pod: port.is_detected_as_pod(client, source) == Some(true),
        };
        let route = match self.forwarding.outcome_of(&connection) {
            Outcome::Forward(route) => route,
            refused => return unforwarded(refused),
        };
        let endpoints = self.forwarding.list(route.list).unwrap().iter().map(|endpoint| {
            let from = match self.forwarding.source_address(route, endpoint, source, connection.is_from_node) {
                SourceAddress::Node => port.masqueraded(client, source, endpoint.address),
                SourceAddress::Kept => source,
            };
            (endpoint.socket(), from)
        });
        Expected::OneOf(endpoints.collect())
    }

    /// Returns the result of a connection to the node port at an address that does not serve it.
    pub fn expected_on_other_address(&self) -> Expected {
        unforwarded(self.forwarding.outcome_at_other_address())
    }
}

fn unforwarded(outcome: Outcome) -> Expected {
    match outcome {
        Outcome::Reject(_) => Expected::Refused,
        Outcome::Drop(_) => Expected::Dropped,
        Outcome::NotOurs => Expected::Untouched,
        Outcome::Forward(route) => panic!("{route:?}"),
    }
}

/// Returns the result of a connection to a port that no Service has, at an address of a Service.
pub fn expected_on_unknown_port(traits: &ModeTraits, frontend: Frontend) -> Expected {
    match frontend {
        Frontend::ClusterIp => unserved(traits.unknown_ports),
        _ if traits.binds_service_addresses => unserved(traits.unknown_ports),
        _ => Expected::Untouched,
    }
}

/// Returns the result of a connection to an address in the networks of cluster IPs that no Service has.
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
