use std::net::IpAddr;

use ferroute_core::{EndpointSets, FrontendKind, ServicePortEntry, ServicePortName, ServiceTable};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    PlanContext, RealServers, Server, ServerKey,
    server::SetMask,
    sets::{Entry, SetKind},
};

/// The plan of a service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortPlan {
    /// The virtual servers, each key once.
    pub(super) servers: Vec<(ServerKey, Server)>,
    /// Other set entries.
    pub(super) entries: Vec<(SetKind, Entry)>,
}

impl PortPlan {
    /// Plans a service port.
    pub(super) fn new(
        name: &ServicePortName,
        entry: &ServicePortEntry,
        table: &ServiceTable,
        context: &PlanContext,
    ) -> Self {
        let service = &entry.service;
        let sets = table.endpoint_sets(entry);
        let mut plan = Self::default();
        for endpoint in entry.endpoints.iter().filter(|endpoint| endpoint.local) {
            let key = ServerKey { address: endpoint.address, port: endpoint.port, protocol: name.protocol };
            plan.entries.push((SetKind::LoopBack, Entry::ServiceAndAddress(key, endpoint.address)));
        }
        if let Some(port) = service.health_check_node_port {
            plan.entries.push((SetKind::HealthCheckNodePort, Entry::Port(port.get())));
        }
        let internal = real_servers(service.internal_local(), &sets);
        let external = match service.internal_local() == service.external_local() {
            true => internal.clone(),
            false => real_servers(service.external_local(), &sets),
        };
        let server = |kinds: &[SetKind], is_bound, real_servers: &RealServers| Server {
            owner: name.clone(),
            sets: kinds.iter().fold(SetMask::default(), |mask, kind| mask.with(*kind)),
            is_node_port: false,
            is_bound,
            denies_node: false,
            source_ranges: Box::default(),
            affinity: service.affinity.map(|affinity| affinity.timeout_seconds),
            real_servers: real_servers.clone(),
        };
        // An address of another device is the host's already.
        let is_bound = |address: IpAddr| !context.host_addresses.contains(&address);
        for (kind, frontend) in service.frontends(name.protocol) {
            let at = |address| ServerKey { address, port: frontend.port, protocol: frontend.protocol };
            match (kind, frontend.address) {
                (FrontendKind::ClusterIp, Some(address)) => {
                    plan.add(at(address), server(&[SetKind::ClusterIp], true, &internal));
                }
                (FrontendKind::ExternalIp, Some(address)) => {
                    let local = service.external_local();
                    let set = if local { SetKind::ExternalIpLocal } else { SetKind::ExternalIp };
                    plan.add(at(address), server(&[set], is_bound(address), &external));
                }
                (FrontendKind::LoadBalancer, Some(address)) => {
                    let mut server = server(&[SetKind::LoadBalancer], is_bound(address), &external);
                    if service.external_local() {
                        server.sets = server.sets.with(SetKind::LoadBalancerLocal);
                    }
                    restrict(&mut server, &service.load_balancer_source_ranges, context);
                    plan.add(at(address), server);
                }
                (FrontendKind::NodePort, _) => {
                    let mut kinds = vec![SetKind::node_ports(name.protocol)];
                    if service.external_local() {
                        kinds.push(SetKind::local_node_ports(name.protocol));
                    }
                    for address in &context.node_ports {
                        let server = Server { is_node_port: true, ..server(&kinds, false, &external) };
                        plan.add(at(*address), server);
                    }
                }
                (_, None) => {}
            }
        }
        plan
    }

    /// Adds a virtual server. If the Service lists its address twice, the first kind decides on real servers, and the rules
    /// of all kinds apply.
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

/// Returns the real servers of a frontend. As in kube-proxy, a frontend with policy Local and no usable endpoint on this
/// node has those of policy Cluster, if the service port has such traffic.
fn real_servers(local: bool, sets: &EndpointSets) -> RealServers {
    let endpoints = if local && !sets.local.is_empty() { &sets.local } else { &sets.cluster };
    RealServers::new(endpoints.iter().map(|endpoint| endpoint.socket()))
}

/// Restricts a frontend to source ranges, if there are any.
fn restrict(server: &mut Server, ranges: &[IpNet], context: &PlanContext) {
    if ranges.is_empty() {
        return;
    }
    server.sets = server.sets.with(SetKind::LoadBalancerFirewall).with(SetKind::LoadBalancerSourceCidr);
    let mut networks: Vec<IpNet> = ranges.iter().flat_map(|net| storable(*net)).collect();
    networks.sort_unstable();
    networks.dedup();
    server.source_ranges = networks.into();
    // A connection of the node to one of its own addresses has that address as its source.
    if context.node_ip.is_some_and(|node| ranges.iter().any(|net| net.contains(&node))) {
        server.sets = server.sets.with(SetKind::LoadBalancerSourceIp);
    } else {
        server.denies_node = true;
    }
}

/// Returns a network in the form that ipset can store: all addresses are two halves. kube-proxy fails to add them, and so
/// denies all.
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
