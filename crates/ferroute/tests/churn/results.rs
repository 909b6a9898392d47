//! The results of connections that one combination of versions of the desired state allows, from the specification.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{Hash, Hasher},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ferroute_api::{EndpointSlice, Node, Service};
use ferroute_config::ModeName;
use ferroute_core::{IpFamily, Protocol, ProxySettings, testing::Cluster};

use crate::{
    clients::{Outcome, Reply},
    network::node_address_towards,
    specification::{Differences, Expected, Frontend, Port, ports},
    world::{Client, World},
};

/// Shared objects that are compared by their identity, for a key in a map. They exist as long as the key.
#[derive(Debug)]
pub(crate) struct Shared<T>(pub(crate) Arc<T>);

/// All objects that determine the result of a connection.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Case {
    pub(crate) service: Shared<Service>,
    pub(crate) slices: Vec<Shared<EndpointSlice>>,
    pub(crate) node: Shared<Node>,
    pub(crate) host: Shared<Vec<IpAddr>>,
    pub(crate) mode: ModeName,
    pub(crate) client: Client,
    pub(crate) protocol: Protocol,
    pub(crate) target: SocketAddr,
}

/// The results that one combination of versions allows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Allowed {
    /// The name of the service port; empty if there is none.
    pub(crate) port: String,
    pub(crate) results: BTreeSet<Class>,
    /// Endpoints of the service port, regardless of policies.
    pub(crate) reachable: BTreeSet<SocketAddr>,
    /// The rules drop packets that are not translated.
    pub(crate) drops: bool,
    /// The rules reject packets that are not translated.
    pub(crate) rejects: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// This endpoint, which sees this source.
    Endpoint(SocketAddr, IpAddr),
    Refused,
    Dropped,
    /// Not translated.
    Unreachable,
}

impl Allowed {
    /// Returns the results of a packet to an address and port of no Service.
    pub(crate) fn untouched(is_own: bool, is_cluster_ip: bool, mode: ModeName) -> Self {
        let differences = Differences::new(mode);
        let rejects = is_cluster_ip && differences.expected_on_unknown_port(Frontend::ClusterIp) == Expected::Refused;
        let result = if is_own || rejects { Class::Refused } else { Class::Unreachable };
        Self {
            port: String::new(),
            results: BTreeSet::from([result]),
            reachable: BTreeSet::new(),
            drops: false,
            rejects,
        }
    }

    pub(crate) fn allows(&self, outcome: &Outcome) -> bool {
        let class = match outcome {
            Outcome::Endpoint(Reply { endpoint, source }) => Class::Endpoint(*endpoint, *source),
            Outcome::Refused => Class::Refused,
            Outcome::Timeout => Class::Dropped,
            Outcome::Unreachable => Class::Unreachable,
            Outcome::Broken(_) => return false,
        };
        self.results.contains(&class)
    }

    /// Returns the endpoints that the rules choose from.
    pub(crate) fn endpoints(&self) -> BTreeSet<SocketAddr> {
        self.results
            .iter()
            .filter_map(|class| match class {
                Class::Endpoint(endpoint, _) => Some(*endpoint),
                _ => None,
            })
            .collect()
    }

    /// Reports whether every packet is delivered to an endpoint.
    pub(crate) fn always_delivers(&self) -> bool {
        self.results.iter().all(|class| matches!(class, Class::Endpoint(..)))
    }
}

/// The addresses of a Service.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// Frontends that clients can connect to, each with the kind that takes precedence.
    pub(crate) frontends: BTreeMap<(Protocol, SocketAddr), Frontend>,
    pub(crate) cluster_ips: BTreeSet<IpAddr>,
}

impl Addresses {
    pub(crate) fn new(settings: &ProxySettings, service: &Arc<Service>, node: &Node, host: &[IpAddr]) -> Self {
        let world = world(settings, &Client::Node, host);
        let cluster = Cluster { node: node.clone(), services: vec![Service::clone(service)], slices: Vec::new() };
        let mut all = Self::default();
        for family in IpFamily::BOTH {
            for port in ports(&cluster, &world, family, Differences::default()) {
                for (frontend, address) in port.frontends() {
                    if frontend == Frontend::ClusterIp {
                        all.cluster_ips.insert(address.ip());
                    }
                    if port.protocol != Protocol::Sctp && !address.ip().is_loopback() {
                        let kind = all.frontends.entry((port.protocol, address)).or_insert(frontend);
                        *kind = if rank(frontend) < rank(*kind) { frontend } else { *kind };
                    }
                }
            }
        }
        all
    }
}

/// Cluster IPs and node ports come before load balancer IPs, and these before external IPs (`docs/compat.md`).
pub(crate) fn rank(frontend: Frontend) -> u8 {
    match frontend {
        Frontend::ClusterIp | Frontend::NodePort => 0,
        Frontend::LoadBalancer => 1,
        Frontend::ExternalIp => 2,
    }
}

/// Returns the source address of a client's packets to an address of a Service.
pub(crate) fn source_of(
    client: &Client,
    target: SocketAddr,
    frontend: Frontend,
    host: &[IpAddr],
    mode: ModeName,
) -> IpAddr {
    match client {
        Client::Pod(address) | Client::Elsewhere(address) => *address,
        Client::Node if host.contains(&target.ip()) => target.ip(),
        Client::Node if Differences::new(mode).has_service_source(client, frontend) => target.ip(),
        Client::Node => node_address_towards(target.ip()),
    }
}

/// Returns the index of the port that has an address, and the kind of the address.
fn frontend(ports: &[Port<'_>], protocol: Protocol, target: SocketAddr) -> Option<(usize, Frontend)> {
    ports.iter().enumerate().filter(|(_, port)| port.protocol == protocol).find_map(|(index, port)| {
        let found = port.frontends().into_iter().find(|(_, address)| *address == target)?;
        Some((index, found.0))
    })
}

/// Returns the results that a case allows.
pub(crate) fn allowed(case: &Case, settings: &ProxySettings) -> Allowed {
    let Case { service, slices, node, host, mode, client, protocol, target } = case;
    let world = &world(settings, client, &host.0);
    let cluster = Cluster {
        node: Node::clone(&node.0),
        services: vec![Service::clone(&service.0)],
        slices: slices.iter().map(|slice| EndpointSlice::clone(&slice.0)).collect(),
    };
    let family = IpFamily::of(target.ip());
    let ports = ports(&cluster, world, family, Differences::new(*mode));
    let (index, frontend) = frontend(&ports, *protocol, *target).expect("the Service has this frontend");
    let port = &ports[index];
    let source = source_of(client, *target, frontend, &host.0, *mode);
    let reachable = [Client::Node, client.clone()].into_iter().flat_map(|client| {
        [Frontend::ClusterIp, Frontend::NodePort].map(|frontend| port.expected(&client, source, (frontend, *target)))
    });
    let reachable = reachable.filter_map(|expected| match expected {
        Expected::OneOf(endpoints) => Some(endpoints.into_keys()),
        _ => None,
    });
    let reachable = reachable.flatten().chain(port.serving_endpoints()).collect();
    let results = match port.expected(client, source, (frontend, *target)) {
        Expected::OneOf(endpoints) => {
            endpoints.into_iter().map(|(endpoint, source)| Class::Endpoint(endpoint, source)).collect()
        }
        Expected::Refused => BTreeSet::from([Class::Refused]),
        Expected::Dropped => BTreeSet::from([Class::Dropped]),
        Expected::Untouched | Expected::Masqueraded(_) => {
            Allowed::untouched(world.owns(target.ip()), false, *mode).results
        }
    };
    let rejects = Differences::new(*mode).expected_on_unknown_port(frontend) == Expected::Refused;
    let Service { spec, .. } = &*service.0;
    let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    let drops = is_local(&spec.external_traffic_policy)
        || is_local(&spec.internal_traffic_policy)
        || !spec.load_balancer_source_ranges.is_empty();
    Allowed { port: port.name.to_owned(), results, reachable, drops, rejects }
}

/// Returns the addresses of all endpoints of Services.
pub(crate) fn endpoints(
    services: &[Arc<Service>],
    slices: &[Arc<EndpointSlice>],
    node: &Node,
    settings: &ProxySettings,
) -> HashSet<IpAddr> {
    let cluster = Cluster {
        node: node.clone(),
        services: services.iter().map(|service| Service::clone(service)).collect(),
        slices: slices.iter().map(|slice| EndpointSlice::clone(slice)).collect(),
    };
    let world = world(settings, &Client::Node, &[]);
    let ports = |family| ports(&cluster, &world, family, Differences::new(ModeName::NFTABLES));
    let of_family = |family| Vec::from_iter(ports(family).iter().flat_map(|port| port.serving_endpoints()));
    IpFamily::BOTH.into_iter().flat_map(of_family).map(|endpoint| endpoint.ip()).collect()
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
