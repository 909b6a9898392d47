use std::net::IpAddr;

use ferroute_core::{
    Client, FrontendKind, Method, ModeTraits, Outcome, PortForwarding, Protocol, Route, ServicePortEntry,
    ServicePortName, ServiceTable, SourceAddress, TrafficPolicy, forwarding,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    IpvsContext, RealServers, Scheduler, Server, ServerKey,
    server::SetMask,
    sets::{Entry, SetKind},
};

/// The objects of a service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortObjects {
    /// The virtual servers, each key once.
    pub(super) servers: Vec<(ServerKey, Server)>,
    /// Other set entries.
    pub(super) entries: Vec<(SetKind, Entry)>,
}

impl PortObjects {
    /// Plans a service port. A virtual server has one list of real servers, so all clients have the routes of clients
    /// outside of the cluster, except that rules masquerade connections to cluster IPs depending on their client.
    pub(super) fn new(
        name: &ServicePortName,
        entry: &ServicePortEntry,
        table: &ServiceTable,
        context: &IpvsContext,
    ) -> Self {
        let forwarding = forwarding(table, name, entry, &context.settings, &ModeTraits::IPVS);
        let (service, protocol) = (forwarding.service, forwarding.protocol);
        let mut plan = Self::default();
        for endpoint in entry.endpoints.iter().filter(|endpoint| forwarding.masquerades_hairpin(endpoint)) {
            let key = ServerKey { address: endpoint.address, port: endpoint.port, protocol };
            plan.entries.push((SetKind::LoopBack, Entry::ServiceAndAddress(key, endpoint.address)));
        }
        if let Some(port) = service.health_check_node_port {
            plan.entries.push((SetKind::HealthCheckNodePort, Entry::Port(port.get())));
        }
        // Without real servers, connections are rejected.
        let real_servers = |policy: TrafficPolicy| {
            RealServers::new(
                forwarding.list(policy).unwrap_or_default().iter().map(|endpoint| (endpoint.socket(), endpoint.weight)),
            )
        };
        let (internal, external) = (forwarding.internal.outside, forwarding.external.outside);
        let internal_servers = real_servers(internal.list);
        let external_servers =
            if external.list == internal.list { internal_servers.clone() } else { real_servers(external.list) };
        for (kind, frontend) in service.frontends(protocol) {
            let is_internal = kind == FrontendKind::ClusterIp;
            let is_restricted = forwarding.is_restricted(kind, frontend);
            let real_servers = if is_internal { &internal_servers } else { &external_servers };
            let mut sets = sets(kind, protocol, external.source);
            if !is_internal && masquerades_node(&forwarding, kind) {
                sets = sets.with(SetKind::Remote);
            }
            let server = Server {
                owner: name.clone(),
                sets,
                is_node_port: kind == FrontendKind::NodePort,
                // An address of another device is the host's already.
                is_bound: frontend.address.is_some_and(|ip| is_internal || !context.host_addresses.contains(&ip)),
                denies_node: is_restricted && !forwarding.permits_node(),
                source_ranges: Box::default(),
                affinity: service.affinity.map(|affinity| affinity.timeout_seconds),
                scheduler: scheduler(forwarding.method(), real_servers, context),
                real_servers: real_servers.clone(),
            };
            let server = match is_restricted {
                true => restrict(server, forwarding.permitted_sources(&[])),
                false => server,
            };
            let at = |address: IpAddr| ServerKey { address, port: frontend.port, protocol };
            match frontend.address {
                Some(address) => plan.add(at(address), server),
                None => context.node_ports.iter().for_each(|address| plan.add(at(*address), server.clone())),
            }
        }
        plan
    }

    /// Adds a virtual server. If the Service lists its address twice, the first kind determines the real servers, and
    /// the rules of all kinds apply.
    fn add(&mut self, key: ServerKey, server: Server) {
        match self.servers.iter_mut().find(|(existing, _)| *existing == key) {
            None => self.servers.push((key, server)),
            Some((_, existing)) => {
                existing.sets = existing.sets.or(server.sets);
                existing.denies_node |= server.denies_node;
                if existing.source_ranges.is_empty() {
                    existing.source_ranges = server.source_ranges;
                }
            }
        }
    }
}

/// Returns the scheduler of real servers; `None` for the configured one.
fn scheduler(method: Option<Method>, real_servers: &RealServers, context: &IpvsContext) -> Option<Scheduler> {
    let scheduler = match method {
        Some(method) => Scheduler::of_method(method),
        None => Scheduler::with_weights(&context.scheduler, real_servers),
    };
    scheduler.filter(|scheduler| !context.missing_schedulers.contains(scheduler))
}

/// Reports whether connections of the node itself to a kind of frontend need a separate rule that masquerades them: the
/// rules for all clients do not, and all endpoints are on other nodes.
fn masquerades_node(forwarding: &PortForwarding<'_>, kind: FrontendKind) -> bool {
    let routes = forwarding.routes(kind);
    routes.node.source == SourceAddress::Kept
        && matches!(forwarding.outcome(kind, Client::Node), Outcome::Forward(Route { source: SourceAddress::Node, .. }))
}

/// Returns the sets that contain a frontend. The sets of external traffic determine whether it is masqueraded;
/// `external` is the source address that its endpoints see.
fn sets(kind: FrontendKind, protocol: Protocol, external: SourceAddress) -> SetMask {
    let mask = SetMask::default();
    let is_kept = external == SourceAddress::Kept;
    match kind {
        FrontendKind::ClusterIp => mask.with(SetKind::ClusterIp),
        FrontendKind::ExternalIp if is_kept => mask.with(SetKind::ExternalIpLocal),
        FrontendKind::ExternalIp => mask.with(SetKind::ExternalIp),
        FrontendKind::LoadBalancer if is_kept => mask.with(SetKind::LoadBalancer).with(SetKind::LoadBalancerLocal),
        FrontendKind::LoadBalancer => mask.with(SetKind::LoadBalancer),
        FrontendKind::NodePort if is_kept => mask
            .with(SetKind::node_ports(protocol))
            .with(SetKind::local_node_ports(protocol))
            .with(SetKind::NodePortIps),
        FrontendKind::NodePort => mask.with(SetKind::node_ports(protocol)).with(SetKind::NodePortIps),
    }
}

/// Restricts a virtual server to these sources.
fn restrict(server: Server, sources: Vec<IpNet>) -> Server {
    let mut sets = server.sets.with(SetKind::LoadBalancerFirewall).with(SetKind::LoadBalancerSourceCidr);
    if !server.denies_node {
        // A connection of the node to one of its own addresses has that address as its source.
        sets = sets.with(SetKind::LoadBalancerSourceIp);
    }
    let mut networks: Vec<IpNet> = sources.into_iter().flat_map(storable).collect();
    networks.sort_unstable();
    networks.dedup();
    Server { sets, source_ranges: networks.into(), ..server }
}

/// Returns a network in a form that ipset can store: a network of all addresses becomes two halves. kube-proxy fails to
/// add such a network, and so denies all sources.
fn storable(net: IpNet) -> Vec<IpNet> {
    match net {
        IpNet::V4(net) if net.prefix_len() == 0 => {
            [[0, 0, 0, 0], [128, 0, 0, 0]].map(|half| Ipv4Net::new_assert(half.into(), 1).into()).into()
        }
        IpNet::V6(net) if net.prefix_len() == 0 => {
            [0, 1 << 127].map(|half: u128| Ipv6Net::new_assert(half.into(), 1).into()).into()
        }
        net => vec![net.trunc()],
    }
}
