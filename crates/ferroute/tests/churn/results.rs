//! The results of connections that one combination of versions of the desired state allows, from the specification.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ferroute_api::{EndpointSlice, Node, Service};
use ferroute_core::{IpFamily, Protocol, ProxySettings, testing::Cluster};

use crate::{
    clients::Outcome,
    specification::{Differences, Expected, Frontend, ports},
    world::{Client, World},
};

/// Shared objects that are compared by their identity, for a key in a map. They exist as long as the key.
#[derive(Debug)]
pub(crate) struct Shared<T>(pub(crate) Arc<T>);

/// Everything that determines the result of a connection.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Case {
    pub(crate) service: Shared<Service>,
    pub(crate) slices: Vec<Shared<EndpointSlice>>,
    pub(crate) node: Shared<Node>,
    pub(crate) host: Shared<Vec<IpAddr>>,
    pub(crate) client: Client,
    pub(crate) protocol: Protocol,
    pub(crate) target: SocketAddr,
}

/// The results that one combination of versions allows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Allowed {
    pub(crate) results: BTreeSet<Class>,
    /// The endpoints of the service port, whatever the policies.
    pub(crate) reachable: BTreeSet<SocketAddr>,
    /// The rules drop packets that are not translated.
    pub(crate) drops: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Endpoint(SocketAddr),
    Refused,
    Dropped,
    /// Not translated.
    Unreachable,
}

impl Allowed {
    /// Returns the results of a packet that no rule translates.
    pub(crate) fn untouched(is_own: bool, target: SocketAddr) -> Self {
        let result = if is_own { Class::Refused } else { Class::Unreachable };
        let mut results = BTreeSet::from([result]);
        if ["10.96.", "fd00:96::"].iter().any(|prefix| target.ip().to_string().starts_with(prefix)) {
            // nftables mode rejects packets to unused ports of cluster IPs.
            results.insert(Class::Refused);
        }
        Self { results, reachable: BTreeSet::new(), drops: false }
    }

    pub(crate) fn allows(&self, outcome: &Outcome) -> bool {
        let class = match outcome {
            Outcome::Endpoint(endpoint) => Class::Endpoint(*endpoint),
            Outcome::Refused => Class::Refused,
            Outcome::Timeout => Class::Dropped,
            Outcome::Unreachable => Class::Unreachable,
            Outcome::Broken(_) => return false,
        };
        self.results.contains(&class)
    }
}

fn frontend(cluster: &Cluster, world: &World, protocol: Protocol, target: SocketAddr) -> Option<(usize, Frontend)> {
    let ports = ports(cluster, world, IpFamily::of(target.ip()), Differences::default());
    ports.iter().enumerate().filter(|(_, port)| port.protocol == protocol).find_map(|(index, port)| {
        let found = port.frontends().into_iter().find(|(_, address)| *address == target)?;
        Some((index, found.0))
    })
}

/// Returns the addresses of Services that clients can connect to.
pub(crate) fn addresses(
    settings: &ProxySettings,
    services: &[Arc<Service>],
    node: &Node,
    host: &[IpAddr],
) -> Vec<(Protocol, SocketAddr)> {
    let world = world(settings, &Client::Node, host);
    let services = services.iter().map(|service| Service::clone(service)).collect();
    let cluster = Cluster { node: node.clone(), services, slices: Vec::new() };
    let mut all = Vec::new();
    for family in IpFamily::BOTH {
        for port in ports(&cluster, &world, family, Differences::default())
            .iter()
            .filter(|port| port.protocol != Protocol::Sctp)
        {
            let addresses = port.frontends().into_iter().map(|(_, address)| address);
            all.extend(addresses.filter(|to| !to.ip().is_loopback()).map(|to| (port.protocol, to)));
        }
    }
    all
}

/// Returns the results that a case allows.
pub(crate) fn allowed(case: &Case, settings: &ProxySettings) -> Allowed {
    let Case { service, slices, node, host, client, protocol, target } = case;
    let world = &world(settings, client, &host.0);
    let cluster = Cluster {
        node: Node::clone(&node.0),
        services: vec![Service::clone(&service.0)],
        slices: slices.iter().map(|slice| EndpointSlice::clone(&slice.0)).collect(),
    };
    let family = IpFamily::of(target.ip());
    // The differences of other modes are below.
    let ports = ports(&cluster, world, family, Differences::default());
    let (index, frontend) = frontend(&cluster, world, *protocol, *target).expect("the Service has this frontend");
    let port = &ports[index];
    let source = match client {
        Client::Pod(address) | Client::Elsewhere(address) => *address,
        Client::Node if world.owns(target.ip()) => target.ip(),
        Client::Node => NODE_SOURCES[family.index()].parse().expect("an IP address"),
    };
    let reachable = [Client::Node, client.clone()].into_iter().flat_map(|client| {
        [Frontend::ClusterIp, Frontend::NodePort].map(|frontend| port.expected(&client, source, (frontend, *target)))
    });
    let reachable = reachable.filter_map(|expected| match expected {
        Expected::OneOf(endpoints) => Some(endpoints.into_keys()),
        _ => None,
    });
    let reachable = reachable.flatten().collect();
    let results = match port.expected(client, source, (frontend, *target)) {
        Expected::OneOf(endpoints) => endpoints.into_keys().map(Class::Endpoint).collect(),
        // nftables mode checks source ranges first.
        Expected::Refused
            if frontend == Frontend::LoadBalancer && !service.0.spec.load_balancer_source_ranges.is_empty() =>
        {
            BTreeSet::from([Class::Refused, Class::Dropped])
        }
        Expected::Refused => BTreeSet::from([Class::Refused]),
        Expected::Dropped => BTreeSet::from([Class::Dropped]),
        // Only the rules of iptables mode let these packets pass; those of nftables mode reject them.
        Expected::Untouched | Expected::Masqueraded(_) => BTreeSet::from([Class::Unreachable, Class::Refused]),
    };
    let Service { spec, .. } = &*service.0;
    let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    let drops = is_local(&spec.external_traffic_policy)
        || is_local(&spec.internal_traffic_policy)
        || !spec.load_balancer_source_ranges.is_empty();
    Allowed { results, reachable, drops }
}

fn world(settings: &ProxySettings, client: &Client, host: &[IpAddr]) -> World {
    let pods = match client {
        Client::Pod(address) if address.to_string().ends_with('3') => "veth3",
        _ => "veth6",
    };
    World { settings: settings.clone(), pods, host: host.to_vec() }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Eq for Shared<T> {}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// The node's addresses towards its default gateway, which are the sources of its packets to addresses of Services.
const NODE_SOURCES: [&str; 2] = ["192.168.7.1", "fd00:7::1"];
