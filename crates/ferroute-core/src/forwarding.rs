//! The proxy's decisions about connections to a Service. They are made here only: planners encode them, commands print
//! or compare them.
//!
//! ```text
//!   Service, ModeTraits, settings ──► Routes     the list of endpoints and the source address, for each kind of frontend and
//!                                       │        class of clients; does not depend on endpoints
//!   endpoints, policies, hints ─────► lists      the endpoints of each policy, or the refusal where there are none
//!                                       ▼
//!                                    Outcome     forward, reject, drop, or not ours
//! ```

mod connection;

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

pub use self::connection::Connection;
use crate::{
    ConnectionLimits, Endpoint, EndpointSets, FamilySettings, Frontend, FrontendKind, Method, ModeTraits, Protocol,
    ServicePort, ServicePortEntry, ServicePortName, ServiceTable, TrafficPolicy,
    mode_traits::{Hairpin, Sources, WithoutLocalEndpoints},
};

/// A class of clients, by what the rules can recognise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// A pod, recognised by the configured [`LocalTraffic`](crate::LocalTraffic). If none is configured, pods count as
    /// outside.
    Pod,
    /// The node itself.
    Node,
    /// Any other client.
    Outside,
}

/// The source address that an endpoint sees, except for connections of an endpoint to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceAddress {
    /// The source address of the packet.
    Kept,
    /// The node's: the connection is masqueraded or relayed.
    Node,
}

/// Forwarding of connections of a class of clients, if their list has endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The list of endpoints that they use.
    pub list: TrafficPolicy,
    /// The source address that the endpoint sees.
    pub source: SourceAddress,
}

/// The routes of one kind of frontend, by class of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Routes {
    /// [`Client::Pod`]; the same as `outside` where pods cannot be recognised.
    pub pod: Route,
    /// [`Client::Node`].
    pub node: Route,
    /// [`Client::Outside`].
    pub outside: Route,
}

/// Result of forwarding a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Forwarded to one of the endpoints of a non-empty list.
    Forward(Route),
    /// Rejected.
    Reject(Refusal),
    /// Dropped.
    Drop(Refusal),
    /// Not handled: the proxy has no rule for the connection.
    NotOurs,
}

/// The reason why a connection reaches no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// No node has a usable endpoint.
    NoEndpoints,
    /// The policy is Local, and only other nodes have usable endpoints.
    NoLocalEndpoints,
    /// The mode does not support the protocol.
    UnsupportedProtocol,
    /// The client is outside of the load balancer's source ranges.
    SourceRanges,
}

/// Forwarding decisions of a mode for the connections to a service port.
#[derive(Clone, Debug)]
pub struct PortForwarding<'a> {
    /// The service port, with the frontends that it owns.
    pub service: &'a ServicePort,
    /// Protocol.
    pub protocol: Protocol,
    /// The endpoints of each policy.
    pub endpoints: EndpointSets,
    /// The routes of the cluster IP.
    pub internal: Routes,
    /// The routes of all other frontends.
    pub external: Routes,
    node_ip: Option<IpAddr>,
    no_masquerade_cidrs: Arc<[IpNet]>,
    traits: &'a ModeTraits,
}

/// Returns the forwarding decisions of a mode with these traits for the connections to a service port of `table`.
pub fn forwarding<'a>(
    table: &ServiceTable,
    name: &ServicePortName,
    entry: &'a ServicePortEntry,
    settings: &FamilySettings,
    traits: &'a ModeTraits,
) -> PortForwarding<'a> {
    let forwarding = PortForwarding::without_endpoints(&entry.service, name.protocol, settings, traits);
    PortForwarding { endpoints: table.endpoint_sets(entry), ..forwarding }
}

impl Client {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Pod, Self::Node, Self::Outside];
}

impl Routes {
    /// Returns the routes of cluster IPs of Services with this internal policy. They do not depend on endpoints.
    ///
    /// Endpoints may have no route to clients outside of the cluster, so connections of these clients are masqueraded
    /// if pods can be recognised.
    pub fn internal(policy: TrafficPolicy, settings: &FamilySettings, traits: &ModeTraits) -> Self {
        let route = |is_masqueraded| Route {
            list: policy,
            source: match is_masqueraded || traits.sources == Sources::Node {
                true => SourceAddress::Node,
                false => SourceAddress::Kept,
            },
        };
        let outside = settings.masquerade_all || settings.local_traffic.is_some();
        Self {
            pod: route(settings.masquerade_all),
            node: route(outside || traits.sources == Sources::ServiceOfNode),
            outside: route(outside),
        }
    }

    /// Returns the routes of external IPs, load balancer IPs and node ports of Services with this external policy. They do not
    /// depend on endpoints.
    ///
    /// Policy Local preserves the client's address. It does not apply to pods and to the node itself: their connections are
    /// treated as if they left the cluster and came back through a load balancer, which could send them to any node. Otherwise
    /// connections are masqueraded, because the replies have to return through this node.
    pub fn external(policy: TrafficPolicy, settings: &FamilySettings, traits: &ModeTraits) -> Self {
        use SourceAddress::{Kept, Node};
        let route = |list, source| Route { list, source: if traits.sources == Sources::Node { Node } else { source } };
        let all = |route| Self { pod: route, node: route, outside: route };
        if policy == TrafficPolicy::Cluster {
            return all(route(TrafficPolicy::Cluster, Node));
        }
        let outside = route(TrafficPolicy::Local, Kept);
        if traits.local_policy_for_all_clients {
            return all(outside);
        }
        let pod = if settings.local_traffic.is_some() { route(TrafficPolicy::Cluster, Kept) } else { outside };
        Self { pod, node: route(TrafficPolicy::Cluster, Node), outside }
    }

    /// Returns the route of a class of clients.
    pub fn of(&self, client: Client) -> Route {
        match client {
            Client::Pod => self.pod,
            Client::Node => self.node,
            Client::Outside => self.outside,
        }
    }
}

impl<'a> PortForwarding<'a> {
    /// Returns the part that depends on the Service alone, as if it had no endpoints: routes and source ranges.
    pub fn without_endpoints(
        service: &'a ServicePort,
        protocol: Protocol,
        settings: &FamilySettings,
        traits: &'a ModeTraits,
    ) -> Self {
        Self {
            service,
            protocol,
            endpoints: EndpointSets::default(),
            internal: Routes::internal(service.internal_policy, settings, traits),
            external: Routes::external(service.external_policy, settings, traits),
            node_ip: settings.node_ip,
            no_masquerade_cidrs: Arc::clone(&settings.no_masquerade_cidrs),
            traits,
        }
    }

    /// Returns the endpoints of a policy, in the order of [`ServicePortEntry::endpoints`].
    ///
    /// # Errors
    /// The reason why there are none.
    pub fn list(&self, policy: TrafficPolicy) -> Result<&[Endpoint], Refusal> {
        if !self.endpoints.has_any_endpoints {
            return Err(Refusal::NoEndpoints);
        }
        if !self.traits.protocols.contains(&self.protocol) {
            return Err(Refusal::UnsupportedProtocol);
        }
        let list = match self.effective(policy) {
            TrafficPolicy::Local => &self.endpoints.local,
            TrafficPolicy::Cluster => &self.endpoints.cluster,
        };
        if list.is_empty() { Err(Refusal::NoLocalEndpoints) } else { Ok(list) }
    }

    /// Returns the policy whose endpoints traffic of a policy uses.
    fn effective(&self, policy: TrafficPolicy) -> TrafficPolicy {
        match self.traits.without_local_endpoints {
            WithoutLocalEndpoints::UseCluster if self.endpoints.local.is_empty() => TrafficPolicy::Cluster,
            WithoutLocalEndpoints::UseCluster | WithoutLocalEndpoints::Drop => policy,
        }
    }

    /// Returns the route that connections use in place of one whose list may have no endpoints.
    fn effective_route(&self, route: Route, client: Client) -> Route {
        let list = self.effective(route.list);
        // Endpoints on other nodes would send replies to the Service's address, where they are lost or reach other
        // hosts.
        let lacks_source =
            list != route.list && client == Client::Node && self.traits.sources == Sources::ServiceOfNode;
        Route { list, source: if lacks_source { SourceAddress::Node } else { route.source } }
    }

    /// Returns the outcome with the source address that all endpoints of the list see. It differs from the outcome of
    /// the route only if all of them keep sources.
    pub fn as_seen(&self, outcome: Outcome, client: Client) -> Outcome {
        let keeps_sources = |endpoint: &Endpoint| self.keeps_sources(endpoint, client == Client::Node);
        match outcome {
            Outcome::Forward(route) if self.list(route.list).is_ok_and(|list| list.iter().all(keeps_sources)) => {
                Outcome::Forward(Route { source: SourceAddress::Kept, ..route })
            }
            other => other,
        }
    }

    /// Reports whether endpoints see the Service's address, where the route keeps the source of connections: the node
    /// sends its own connections to an address that it has from this address.
    pub fn has_service_source(&self, route: Route, kind: FrontendKind, client: Client) -> bool {
        client == Client::Node
            && kind != FrontendKind::NodePort
            && route.source == SourceAddress::Kept
            && self.traits.sources == Sources::ServiceOfNode
    }

    /// Reports whether an endpoint in [`FamilySettings::no_masquerade_cidrs`] sees the original source address of
    /// clients, or of the node itself, where other endpoints see the node's. If the node's connections have the
    /// Service's address as their source, it could not reply to the node.
    pub fn keeps_sources(&self, endpoint: &Endpoint, is_from_node: bool) -> bool {
        self.is_in_no_masquerade_cidrs(endpoint)
            && match self.traits.sources {
                Sources::Clients => true,
                Sources::ServiceOfNode => !is_from_node,
                Sources::Node => false,
            }
    }

    fn is_in_no_masquerade_cidrs(&self, endpoint: &Endpoint) -> bool {
        self.no_masquerade_cidrs.iter().any(|net| net.contains(&endpoint.address))
    }

    /// Reports whether connections of an endpoint to itself are masqueraded.
    pub fn masquerades_hairpin(&self, endpoint: &Endpoint) -> bool {
        self.traits.hairpin == Hairpin::All || endpoint.may_be_local() || self.is_in_no_masquerade_cidrs(endpoint)
    }

    /// Returns the method that chooses endpoints; `None` for the default of the mode.
    pub fn method(&self) -> Option<Method> {
        self.service.balancing.method.filter(|method| self.traits.methods.contains(method))
    }

    /// Returns the limits of the connections to the service port; `None` if there are none or the mode does not support
    /// them.
    pub fn limits(&self) -> Option<&ConnectionLimits> {
        self.service.limits.as_deref().filter(|_| self.traits.limits)
    }

    /// Returns the routes of a kind of frontend.
    pub fn routes(&self, kind: FrontendKind) -> &Routes {
        if kind == FrontendKind::ClusterIp { &self.internal } else { &self.external }
    }

    /// Reports whether connections of some clients to a kind of frontend are forwarded.
    pub fn is_served(&self, kind: FrontendKind) -> bool {
        let Routes { pod, node, outside } = self.routes(kind);
        [pod, node, outside].into_iter().any(|route| self.list(route.list).is_ok())
    }

    /// Returns the outcome of connections of a class of clients that may use the frontend.
    pub fn outcome(&self, kind: FrontendKind, client: Client) -> Outcome {
        let route = self.routes(kind).of(client);
        match self.list(route.list) {
            Ok(_) => Outcome::Forward(self.effective_route(route, client)),
            Err(refusal) => self.refuse(refusal, kind, client),
        }
    }

    /// Returns the outcome of connections to a restricted frontend from clients outside of the source ranges.
    pub fn outcome_outside_source_ranges(&self, kind: FrontendKind, client: Client) -> Outcome {
        match self.list(TrafficPolicy::Cluster) {
            Err(refusal @ (Refusal::NoEndpoints | Refusal::UnsupportedProtocol))
                if !self.traits.source_ranges_before_rejection.contains(&client) =>
            {
                self.refuse(refusal, kind, client)
            }
            _ => Outcome::Drop(Refusal::SourceRanges),
        }
    }

    fn refuse(&self, refusal: Refusal, kind: FrontendKind, client: Client) -> Outcome {
        let leaves_node = client == Client::Node
            && matches!(kind, FrontendKind::ExternalIp | FrontendKind::LoadBalancer)
            && !self.traits.rejects_own_external_connections;
        match (refusal, self.traits.without_local_endpoints) {
            // Another host with the address may support the protocol, but this Service's address is the same
            // everywhere.
            (Refusal::UnsupportedProtocol, _) => Outcome::Reject(refusal),
            _ if leaves_node => Outcome::NotOurs,
            (Refusal::NoLocalEndpoints, WithoutLocalEndpoints::Drop) | (Refusal::SourceRanges, _) => {
                Outcome::Drop(refusal)
            }
            (Refusal::NoEndpoints | Refusal::NoLocalEndpoints, _) => Outcome::Reject(refusal),
        }
    }

    /// Reports whether a kind of frontend has source ranges. An address may be of two kinds of which only one has
    /// source ranges; see [`PortForwarding::is_restricted`].
    pub fn has_source_ranges(&self, kind: FrontendKind) -> bool {
        let ServicePort { load_balancer_source_ranges: ranges, source_ranges_scope: scope, .. } = self.service;
        let is_in_scope = kind == FrontendKind::LoadBalancer || self.traits.source_ranges_scope && scope.contains(kind);
        !ranges.is_empty() && is_in_scope
    }

    /// Reports whether only clients in [`PortForwarding::permitted_sources`] may use a frontend of [`ServicePort::frontends`].
    pub fn is_restricted(&self, kind: FrontendKind, frontend: Frontend) -> bool {
        // Checked first: most Services have no source ranges, and some have thousands of addresses.
        if self.service.load_balancer_source_ranges.is_empty() {
            return false;
        }
        let is_in = |addresses: &[IpAddr]| frontend.address.is_some_and(|address| addresses.contains(&address));
        let kind = match self.traits.source_ranges_on_external_ips {
            true if is_in(&self.service.load_balancer_vips) => FrontendKind::LoadBalancer,
            false if is_in(&self.service.external_ips) => FrontendKind::ExternalIp,
            _ => kind,
        };
        self.has_source_ranges(kind)
    }

    /// Returns the sources that may use these restricted addresses.
    ///
    /// If the node is permitted, these addresses are permitted as well: if they are assigned to the node, its own
    /// packets have them as their source.
    pub fn permitted_sources(&self, addresses: &[IpAddr]) -> Vec<IpNet> {
        let mut sources = self.service.load_balancer_source_ranges.clone();
        if self.permits_node() {
            sources.extend(addresses.iter().copied().map(IpNet::from));
        }
        sources
    }

    /// Reports whether the node itself may use restricted addresses.
    pub fn permits_node(&self) -> bool {
        let ranges = &self.service.load_balancer_source_ranges;
        self.node_ip.is_some_and(|node| ranges.iter().any(|net| net.contains(&node)))
    }
}

#[cfg(test)]
mod tests;
