use std::net::IpAddr;

use super::{Client, Outcome, PortForwarding, Route, SourceAddress};
use crate::{Endpoint, Frontend, FrontendKind};

/// A connection to a frontend of a service port, as rules see its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The frontend.
    pub frontend: Frontend,
    /// Kind.
    pub kind: FrontendKind,
    /// The source address.
    pub source: IpAddr,
    /// The client is the node itself.
    pub is_from_node: bool,
    /// The configured [`LocalTraffic`](crate::LocalTraffic) matches.
    pub is_from_pod: bool,
}

impl PortForwarding<'_> {
    /// Returns the outcome of a connection. Its route depends on the source, even for the node's own packets; a refusal
    /// does not.
    pub fn outcome_of(&self, connection: &Connection) -> Outcome {
        let Connection { frontend, kind, is_from_node, is_from_pod, .. } = *connection;
        let origin = if is_from_node { Client::Node } else { Client::Outside };
        if self.is_restricted(kind, frontend) && !self.permits(connection) {
            return self.outcome_outside_source_ranges(kind, origin);
        }
        // If all clients have the same external routes, only the route of the node itself differs.
        let by_source = kind == FrontendKind::ClusterIp || !self.traits.local_policy_for_all_clients;
        match self.outcome(kind, if is_from_pod && by_source { Client::Pod } else { origin }) {
            forwarded @ Outcome::Forward(_) => forwarded,
            _ if is_from_node => self.outcome(kind, origin),
            refused => refused,
        }
    }

    /// Returns the outcome of a connection to the node port at an address of the node that does not serve it.
    pub fn outcome_at_other_address(&self) -> Outcome {
        match self.outcome(FrontendKind::NodePort, Client::Outside) {
            refused @ (Outcome::Reject(_) | Outcome::Drop(_)) if self.traits.refuses_node_ports_at_all_addresses => {
                refused
            }
            _ => Outcome::NotOurs,
        }
    }

    /// Returns the source address that an endpoint sees of a connection from `source`.
    ///
    /// Endpoints in [`FamilySettings::no_masquerade_cidrs`](crate::FamilySettings::no_masquerade_cidrs) see the
    /// client's address, unless the endpoint is the client or could not answer.
    pub fn source_address(
        &self,
        route: Route,
        endpoint: &Endpoint,
        source: IpAddr,
        is_from_node: bool,
    ) -> SourceAddress {
        let is_hairpin = source == endpoint.address && self.masquerades_hairpin(endpoint);
        match is_hairpin {
            true => SourceAddress::Node,
            false if self.keeps_sources(endpoint, is_from_node) && !source.is_loopback() => SourceAddress::Kept,
            false => route.source,
        }
    }

    /// Reports whether the source ranges permit a connection. The node is permitted by its own address, even if its
    /// packets have the Service's address as their source because the host has that address.
    fn permits(&self, connection: &Connection) -> bool {
        let own = self.node_ip.filter(|_| connection.is_from_node && self.traits.binds_service_addresses);
        let source = own.unwrap_or(connection.source);
        self.permitted_sources(&self.service.load_balancer_vips).iter().any(|net| net.contains(&source))
    }
}
