//! An independent specification of Services: derived from the API objects and the Kubernetes documentation, without any code
//! of the proxy.
//!
//! - <https://kubernetes.io/docs/reference/networking/virtual-ips/>: frontends, policies, affinity, hints
//! - <https://kubernetes.io/docs/tutorials/services/source-ip/>: source addresses
//! - <https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/>: conditions
//!
//! If these do not define the behaviour, kube-proxy's iptables mode is the reference, with a comment. [`Differences`]
//! states the differences of other modes.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use ferroute_api::{EndpointSlice, HintRef, Node, Service, SliceEndpoint, labels};
use ferroute_config::ModeName;
use ferroute_core::{IpFamily, LocalTrafficDetector, NodePortAddresses, Protocol, testing::Cluster};
use ipnet::IpNet;

use super::world::{Client, World};

/// The required result of a connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// Reaches one of these endpoints, each with the same probability, with this source.
    OneOf(BTreeMap<SocketAddr, IpAddr>),
    /// Rejected.
    Refused,
    /// Dropped.
    Dropped,
    /// Not translated.
    Untouched,
    /// Keeps its destination, and has this source.
    Masqueraded(IpAddr),
}

/// The kind of a Service's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frontend {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

/// Differences of a mode from iptables mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Differences {
    /// Whether policy Local is a preference: kube-proxy's ipvs mode uses the endpoints of the cluster if no endpoint is
    /// on the node, and applies the external policy to pods and the node as well.
    local_is_a_preference: bool,
    /// Whether addresses of Services are addresses of the node. They are then the source of its own connections, to
    /// which endpoints on other hosts would send replies. Other ports of these addresses are closed.
    has_service_addresses: bool,
    /// A process of the node connects to endpoints and supports TCP and UDP.
    relays: bool,
    /// Whether connections of endpoints on other nodes to themselves are not masqueraded, because they return through
    /// their own node.
    ignores_hairpin_of_other_nodes: bool,
    /// Whether the node's own connections to external addresses of a Service without endpoints are rejected too.
    rejects_own_external_connections: bool,
    /// Whether source ranges are checked before anything else, and for every load balancer IP, even if it is also an
    /// external IP.
    checks_source_ranges_first: bool,
    /// Whether other ports of cluster IPs are closed.
    rejects_unknown_ports: bool,
    /// Addresses without a Service in the networks of cluster IPs are unreachable.
    drops_unassigned_addresses: bool,
    /// Node ports are not closed at addresses that do not serve them.
    serves_node_ports_only_where_configured: bool,
    /// Node ports are not served at loopback addresses.
    excludes_localhost: bool,
    /// Node ports may be served at `::1`.
    includes_ipv6_localhost: bool,
    /// Annotations choose the method by which endpoints share connections.
    has_methods: bool,
    /// Whether an annotation applies source ranges to addresses other than those of load balancers.
    has_source_ranges_scope: bool,
}

impl Differences {
    /// Returns the differences of a mode.
    pub fn new(mode: ModeName) -> Self {
        match mode.as_str() {
            "iptables" => Self::default(),
            "nftables" => Self {
                ignores_hairpin_of_other_nodes: true,
                rejects_own_external_connections: true,
                checks_source_ranges_first: true,
                rejects_unknown_ports: true,
                drops_unassigned_addresses: true,
                serves_node_ports_only_where_configured: true,
                includes_ipv6_localhost: true,
                has_methods: true,
                has_source_ranges_scope: true,
                ..Self::default()
            },
            "ipvs" => Self {
                local_is_a_preference: true,
                has_service_addresses: true,
                ignores_hairpin_of_other_nodes: true,
                rejects_own_external_connections: true,
                checks_source_ranges_first: true,
                rejects_unknown_ports: true,
                serves_node_ports_only_where_configured: true,
                excludes_localhost: true,
                has_methods: true,
                ..Self::default()
            },
            "userspace" => Self { relays: true, ..Self::default() },
            other => panic!("state here what {other} mode does differently"),
        }
    }

    /// Reports whether connections of a client to an address of a Service have that address as their source.
    pub fn has_service_source(self, client: &Client, frontend: Frontend) -> bool {
        self.has_service_addresses && frontend != Frontend::NodePort && matches!(client, Client::Node)
    }

    /// Returns the required result of a connection to a port that no Service has, at an address of a Service.
    pub fn expected_on_unknown_port(self, frontend: Frontend) -> Expected {
        match frontend {
            Frontend::ClusterIp if self.rejects_unknown_ports => Expected::Refused,
            Frontend::ExternalIp | Frontend::LoadBalancer if self.has_service_addresses => Expected::Refused,
            _ => Expected::Untouched,
        }
    }

    /// Returns the required result of a connection to an address in the networks of cluster IPs that no Service has.
    pub fn expected_on_unassigned_address(self, has_service_cidrs: bool) -> Expected {
        if self.drops_unassigned_addresses && has_service_cidrs { Expected::Dropped } else { Expected::Untouched }
    }
}

/// One port of a Service in one family.
pub struct Port<'a> {
    pub differences: Differences,
    pub cluster: &'a Cluster,
    pub world: &'a World,
    pub family: IpFamily,
    pub service: &'a Service,
    pub name: &'a str,
    pub protocol: Protocol,
    pub number: u16,
    pub node_port: Option<u16>,
}

/// Returns every port of every Service that the proxy handles.
pub fn ports<'a>(cluster: &'a Cluster, world: &'a World, family: IpFamily, differences: Differences) -> Vec<Port<'a>> {
    let handled = cluster.services.iter().filter(move |service| {
        let labels = &service.metadata.labels;
        let excluded = labels.contains_key(labels::SERVICE_PROXY_NAME);
        !excluded && service.spec.type_.as_deref() != Some("ExternalName") && cluster_ip(service, family).is_some()
    });
    handled
        .flat_map(|service| {
            service.spec.ports.iter().map(move |port| Port {
                differences,
                cluster,
                world,
                family,
                service,
                name: &port.name,
                protocol: port.protocol.as_deref().unwrap_or("TCP").parse().unwrap(),
                number: u16::try_from(port.port).unwrap(),
                node_port: port.node_port.filter(|number| *number != 0).map(|number| u16::try_from(number).unwrap()),
            })
        })
        .collect()
}

fn cluster_ip(service: &Service, family: IpFamily) -> Option<IpAddr> {
    of_family(&service.spec.cluster_ips, family).next()
}

fn of_family<'a>(texts: impl IntoIterator<Item = &'a String>, family: IpFamily) -> impl Iterator<Item = IpAddr> {
    texts.into_iter().filter_map(|text| text.parse().ok()).filter(move |ip| IpFamily::of(*ip) == family)
}

impl Port<'_> {
    /// Returns the addresses of the port. An address that is both an external IP and a load balancer IP occurs as both.
    pub fn frontends(&self) -> Vec<(Frontend, SocketAddr)> {
        let at = |frontend, ip| (frontend, SocketAddr::new(ip, self.number));
        let spec = &self.service.spec;
        let mut all: Vec<_> =
            cluster_ip(self.service, self.family).map(|ip| at(Frontend::ClusterIp, ip)).into_iter().collect();
        all.extend(of_family(&spec.external_ips, self.family).map(|ip| at(Frontend::ExternalIp, ip)));
        // A load balancer with ipMode Proxy delivers to nodes or pods itself.
        let vips = self.service.status.load_balancer.ingress.iter();
        let vips = vips.filter(|point| point.ip_mode.as_deref() != Some("Proxy")).map(|point| &point.ip);
        all.extend(of_family(vips, self.family).map(|ip| at(Frontend::LoadBalancer, ip)));
        if let Some(number) = self.node_port {
            all.extend(self.node_port_addresses().map(|ip| (Frontend::NodePort, SocketAddr::new(ip, number))));
        }
        all
    }

    /// Returns the node's addresses on which node ports are served.
    pub fn node_port_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let settings = &self.world.settings;
        let primary: Vec<IpNet> = self.own_address().into_iter().map(IpNet::from).collect();
        let within: Vec<IpNet> = match &settings.node_port_addresses {
            NodePortAddresses::All => Vec::new(),
            NodePortAddresses::Primary => primary,
            NodePortAddresses::Within(networks) => networks.clone(),
            NodePortAddresses::PrimaryAnd(networks) => primary.into_iter().chain(networks.clone()).collect(),
        };
        // A list without entries of an IP family does not restrict it.
        let within: Vec<IpNet> = within.into_iter().filter(|net| IpFamily::of(net.addr()) == self.family).collect();
        let localhost = match self.family {
            IpFamily::V4 => settings.localhost_node_ports && !self.differences.excludes_localhost,
            IpFamily::V6 => settings.ipv6_localhost_node_ports && self.differences.includes_ipv6_localhost,
        };
        let family = self.family;
        self.world.addresses().into_iter().filter(move |ip| {
            IpFamily::of(*ip) == family
                && (within.is_empty() || within.iter().any(|net| net.contains(ip)))
                && (localhost || !ip.is_loopback())
        })
    }

    /// Returns the share of an endpoint, relative to the others.
    pub fn share(&self, endpoint: SocketAddr) -> f64 {
        let mut slices = self.cluster.slices.iter().filter(|slice| {
            slice.endpoints.iter().any(|candidate| candidate.addresses[0].parse() == Ok(endpoint.ip()))
        });
        let weight =
            slices.next().map_or(1.0, |slice| weight(slice, endpoint.ip()) * self.zone_weight(slice, endpoint.ip()));
        if self.differences.has_methods { weight } else { 1.0 }
    }

    /// Returns the factor that the Service states for endpoints in the zone of the node.
    fn zone_weight(&self, slice: &EndpointSlice, address: IpAddr) -> f64 {
        let zone = self.cluster.node.metadata.labels.get(labels::ZONE);
        let endpoint = slice.endpoints.iter().find(|candidate| candidate.addresses[0].parse() == Ok(address));
        let factor = self.service.metadata.annotations.get("ferroute.io/zone-weight");
        match factor.filter(|_| zone.is_some() && endpoint.is_some_and(|endpoint| endpoint.zone.as_ref() == zone)) {
            Some(factor) => factor.parse().unwrap(),
            None => 1.0,
        }
    }

    /// Reports whether the source of a connection decides on its endpoint.
    pub fn is_hashed(&self) -> bool {
        let method = self.service.metadata.annotations.get("ferroute.io/load-balancing");
        self.differences.has_methods && method.is_some_and(|method| method.contains("hash"))
    }

    /// Returns the required result of a connection to a frontend.
    pub fn expected(&self, client: &Client, source: IpAddr, (frontend, address): (Frontend, SocketAddr)) -> Expected {
        let differences = self.differences;
        let is_pod = self.is_detected_as_pod(client, source);
        // The external traffic policy does not apply to pods and the node itself.
        let from_cluster = is_pod == Some(true) || matches!(client, Client::Node);
        let local_only = match frontend {
            Frontend::ClusterIp => self.is_internal_local(),
            _ => self.is_external_local() && (!from_cluster || differences.local_is_a_preference),
        };
        let is_excluded = self.is_restricted(frontend, address) && !self.is_in_source_ranges(source, address);
        // In ipvs mode, the node's own connections reach the virtual server before the filter table.
        let is_scheduled_first = differences.has_service_addresses && matches!(client, Client::Node);
        if is_excluded && differences.checks_source_ranges_first && !is_scheduled_first {
            return Expected::Dropped;
        }
        if self.usable_anywhere() == 0 {
            return self.refusal(client, frontend, Expected::Refused);
        }
        if differences.relays && self.protocol == Protocol::Sctp {
            return Expected::Refused;
        }
        if is_excluded {
            return Expected::Dropped;
        }
        let mut endpoints = if local_only { self.local_endpoints() } else { self.cluster_endpoints() };
        let is_remote = differences.local_is_a_preference && endpoints.is_empty() && self.has_cluster_traffic();
        if is_remote {
            endpoints = self.cluster_endpoints();
        }
        if endpoints.is_empty() {
            // A virtual server without real servers rejects.
            return if differences.local_is_a_preference { Expected::Refused } else { Expected::Dropped };
        }
        let is_node = matches!(client, Client::Node);
        let masquerade = match frontend {
            Frontend::ClusterIp => {
                let has_service_source = differences.has_service_addresses && is_node && is_pod.is_none();
                self.world.settings.masquerade_all || is_pod == Some(false) || has_service_source
            }
            // Policy Local preserves the client's address. Addresses of pods are preserved because every node has a
            // route to them.
            _ if self.is_external_local() && differences.local_is_a_preference => is_node && is_remote,
            _ if self.is_external_local() => is_node && is_pod != Some(true),
            _ => true,
        };
        let with_source = |endpoint: &SocketAddr| {
            let keeps_sources = self.world.settings.no_masquerade_cidrs.iter().any(|net| net.contains(&endpoint.ip()));
            // Hairpin: replies must come from the Service's address.
            let is_hairpin = source == endpoint.ip()
                && (!differences.ignores_hairpin_of_other_nodes
                    || keeps_sources
                    || self.may_be_on_this_node(*endpoint));
            // The node may have the Service's address, and localhost would be the endpoint itself.
            let needs_another_source = differences.has_service_addresses && is_node || source.is_loopback();
            let masquerade = masquerade && (!keeps_sources || needs_another_source);
            let from = match masquerade || is_hairpin || differences.relays {
                true => self.masqueraded(client, source, endpoint.ip()),
                false => source,
            };
            (*endpoint, from)
        };
        Expected::OneOf(endpoints.iter().map(with_source).collect())
    }

    /// Returns the required result of a connection to the node port on an address on which it is not served. kube-proxy
    /// rejects and drops there as at the other addresses, but does not translate.
    pub fn expected_on_other_address(&self) -> Expected {
        if self.differences.serves_node_ports_only_where_configured {
            return Expected::Untouched;
        }
        if self.usable_anywhere() == 0 || (self.differences.relays && self.protocol == Protocol::Sctp) {
            return Expected::Refused;
        }
        if self.is_external_local() && self.local_endpoints().is_empty() {
            Expected::Dropped
        } else {
            Expected::Untouched
        }
    }

    /// Returns the required refusal. kube-proxy does not reject packets from the node itself to an external address:
    /// they leave the node.
    fn refusal(&self, client: &Client, frontend: Frontend, refusal: Expected) -> Expected {
        match (client, frontend) {
            (Client::Node, Frontend::ExternalIp | Frontend::LoadBalancer)
                if !self.differences.rejects_own_external_connections =>
            {
                Expected::Untouched
            }
            _ => refusal,
        }
    }

    /// Returns the source of a masqueraded packet. Packets are masqueraded in the postrouting hook, which forwarded and
    /// locally sent packets pass, but not received packets for the node itself.
    pub fn masqueraded(&self, client: &Client, source: IpAddr, endpoint: IpAddr) -> IpAddr {
        match self.world.owns(endpoint) {
            // The process connects from the address to which it connects.
            true if self.differences.relays => endpoint,
            true if !matches!(client, Client::Node) => source,
            _ => self.world.address_towards(endpoint),
        }
    }

    /// Reports whether the configured detection considers the client a pod; `None` without detection.
    pub fn is_detected_as_pod(&self, client: &Client, source: IpAddr) -> Option<bool> {
        let by_address = |networks: Vec<IpNet>| {
            networks.iter().find(|net| IpFamily::of(net.addr()) == self.family).map(|net| net.contains(&source))
        };
        let interface = match client {
            Client::Pod(_) => self.world.pods,
            Client::Elsewhere(_) => "eth0",
            Client::Node => "",
        };
        match &self.world.settings.detector {
            LocalTrafficDetector::None => None,
            LocalTrafficDetector::ClusterCidr(networks) => by_address(networks.clone()),
            LocalTrafficDetector::NodeCidr => {
                by_address(self.cluster.node.spec.pod_cidrs.iter().map(|net| net.parse().unwrap()).collect())
            }
            LocalTrafficDetector::BridgeInterface(name) => Some(interface == name),
            LocalTrafficDetector::InterfaceNamePrefix(prefix) => Some(interface.starts_with(prefix.as_str())),
        }
    }

    fn is_internal_local(&self) -> bool {
        self.service.spec.internal_traffic_policy.as_deref() == Some("Local")
    }

    /// Reports whether a policy allows endpoints on other nodes to some clients.
    fn has_cluster_traffic(&self) -> bool {
        let has_external = self.frontends().iter().any(|(frontend, _)| *frontend != Frontend::ClusterIp);
        !self.is_internal_local() || has_external || self.node_port.is_some()
    }

    fn is_external_local(&self) -> bool {
        self.service.spec.external_traffic_policy.as_deref() == Some("Local")
    }

    /// Reports whether source ranges apply to an address. In iptables mode, an external IP accepts everyone.
    fn is_restricted(&self, frontend: Frontend, address: SocketAddr) -> bool {
        let is = |kind| kind == frontend || self.frontends().contains(&(kind, address));
        let scope = self.service.metadata.annotations.get("ferroute.io/source-ranges-scope");
        let kind = match frontend {
            Frontend::ClusterIp => "cluster-ip",
            Frontend::ExternalIp => "external-ips",
            Frontend::LoadBalancer => "load-balancer",
            Frontend::NodePort => "node-ports",
        };
        if self.differences.has_source_ranges_scope && scope.is_some_and(|scope| scope.contains(kind)) {
            return true;
        }
        let is_external = matches!(frontend, Frontend::ExternalIp | Frontend::LoadBalancer);
        is_external
            && is(Frontend::LoadBalancer)
            && (self.differences.checks_source_ranges_first || !is(Frontend::ExternalIp))
    }

    /// Reports whether the source ranges allow a client. A list without entries of an IP family does not restrict it.
    /// The node may use a load balancer if they allow its own address, regardless of the source of its packets.
    fn is_in_source_ranges(&self, source: IpAddr, address: SocketAddr) -> bool {
        let source = match self.own_address() {
            Some(own) if self.differences.has_service_addresses && source == address.ip() => own,
            _ => source,
        };
        let ranges = self.service.spec.load_balancer_source_ranges.iter();
        let mut ranges = ranges
            .map(|text| text.trim().parse::<IpNet>().unwrap())
            .filter(|net| IpFamily::of(net.addr()) == self.family)
            .peekable();
        let policy = self.service.metadata.annotations.get("service.cilium.io/src-ranges-policy");
        match policy.map(String::as_str) {
            Some("deny") => !ranges.any(|net| net.contains(&source)),
            _ => ranges.peek().is_none() || ranges.any(|net| net.contains(&source)),
        }
    }

    pub fn own_address(&self) -> Option<IpAddr> {
        let addresses = self.cluster.node.status.addresses.iter();
        let internal = addresses.filter(|address| address.type_ == "InternalIP").map(|address| &address.address);
        of_family(internal, self.family).next()
    }

    // === endpoints ===

    fn all_endpoints(&self) -> impl Iterator<Item = (SocketAddr, &SliceEndpoint)> {
        let of_service = |slice: &&EndpointSlice| {
            slice.metadata.namespace == self.service.metadata.namespace
                && slice.service_name() == Some(&self.service.metadata.name)
                && slice.address_type == self.family.as_str()
        };
        self.cluster.slices.iter().filter(of_service).flat_map(|slice| {
            let same = slice.ports.iter().filter(|port| {
                let protocol = port.protocol.as_deref().unwrap_or("TCP");
                port.name == self.name && protocol.parse() == Ok(self.protocol)
            });
            let numbers = same.filter_map(|port| port.port).map(|number| u16::try_from(number).unwrap());
            numbers.flat_map(move |number| {
                slice
                    .endpoints
                    .iter()
                    .map(move |endpoint| (SocketAddr::new(endpoint.addresses[0].parse().unwrap(), number), endpoint))
                    .filter(move |(socket, _)| weight(slice, socket.ip()) > 0.0)
            })
        })
    }

    /// Returns the endpoints that serve. Flows may stay at them, whatever new connections use.
    pub fn serving_endpoints(&self) -> impl Iterator<Item = SocketAddr> {
        let serving = self.all_endpoints().filter(|(_, endpoint)| endpoint.conditions.serving != Some(false));
        serving.map(|(socket, _)| socket)
    }

    fn usable_anywhere(&self) -> usize {
        self.all_endpoints().filter(|(_, endpoint)| is_ready(endpoint) || serves_while_terminating(endpoint)).count()
    }

    /// An endpoint without a node name may be on any node.
    fn may_be_on_this_node(&self, socket: SocketAddr) -> bool {
        let this = &self.cluster.node.metadata.name;
        self.all_endpoints()
            .any(|(other, endpoint)| other == socket && endpoint.node_name.as_ref().is_none_or(|name| name == this))
    }

    fn local_endpoints(&self) -> Vec<SocketAddr> {
        self.ready_or_terminating(|endpoint| endpoint.node_name.as_deref() == Some(&self.cluster.node.metadata.name))
    }

    fn cluster_endpoints(&self) -> Vec<SocketAddr> {
        let ready: Vec<&SliceEndpoint> =
            self.all_endpoints().filter(|(_, endpoint)| is_ready(endpoint)).map(|(_, endpoint)| endpoint).collect();
        let node: &Node = &self.cluster.node;
        let by_node = applicable_hint(&ready, for_nodes, Some(&node.metadata.name));
        let by_zone = applicable_hint(&ready, for_zones, node.metadata.labels.get(labels::ZONE));
        self.ready_or_terminating(|endpoint| match (by_node, by_zone) {
            (Some(node), _) => !is_ready(endpoint) || for_nodes(endpoint).iter().any(|hint| hint.name == *node),
            (None, Some(zone)) => !is_ready(endpoint) || for_zones(endpoint).iter().any(|hint| hint.name == *zone),
            (None, None) => true,
        })
    }

    /// Returns the ready endpoints or, if there are none, those that serve while terminating.
    fn ready_or_terminating(&self, eligible: impl Fn(&SliceEndpoint) -> bool) -> Vec<SocketAddr> {
        let chosen = |wanted: fn(&SliceEndpoint) -> bool| -> Vec<SocketAddr> {
            let chosen = self.all_endpoints().filter(|(_, endpoint)| wanted(endpoint) && eligible(endpoint));
            chosen.map(|(socket, _)| socket).collect()
        };
        let ready = chosen(is_ready);
        if ready.is_empty() { chosen(serves_while_terminating) } else { ready }
    }
}

/// Returns the weight of an endpoint in the annotation of a slice, or 1. Endpoints of weight 0 get no connections.
fn weight(slice: &EndpointSlice, address: IpAddr) -> f64 {
    let text = slice.metadata.annotations.get("ferroute.io/weight").map(String::as_str).unwrap_or_default();
    let of_address = text.split(' ').find_map(|part| part.strip_prefix(&format!("{address}=")));
    of_address.map_or(1.0, |weight| weight.parse().unwrap())
}

/// Returns the node or zone if hints apply: every ready endpoint has one, and one of them is for this node or zone.
fn applicable_hint<'a>(
    ready: &[&SliceEndpoint],
    hints: fn(&SliceEndpoint) -> &[HintRef],
    own: Option<&'a String>,
) -> Option<&'a String> {
    let own = own?;
    let all_have = ready.iter().all(|endpoint| !hints(endpoint).is_empty());
    let any_matches = ready.iter().any(|endpoint| hints(endpoint).iter().any(|hint| hint.name == *own));
    (all_have && any_matches).then_some(own)
}

fn for_nodes(endpoint: &SliceEndpoint) -> &[HintRef] {
    endpoint.hints.as_ref().map_or(&[], |hints| &hints.for_nodes)
}

fn for_zones(endpoint: &SliceEndpoint) -> &[HintRef] {
    endpoint.hints.as_ref().map_or(&[], |hints| &hints.for_zones)
}

/// A missing condition means ready.
fn is_ready(endpoint: &SliceEndpoint) -> bool {
    endpoint.conditions.ready != Some(false)
}

/// Missing conditions mean serving and not terminating.
fn serves_while_terminating(endpoint: &SliceEndpoint) -> bool {
    endpoint.conditions.serving != Some(false) && endpoint.conditions.terminating == Some(true)
}
