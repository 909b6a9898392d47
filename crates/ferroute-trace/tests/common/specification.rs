//! An independent specification of Services: derived from the API objects and the Kubernetes documentation, without any code
//! of the proxy.
//!
//! - <https://kubernetes.io/docs/reference/networking/virtual-ips/>: frontends, policies, affinity, hints
//! - <https://kubernetes.io/docs/tutorials/services/source-ip/>: source addresses
//! - <https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/>: conditions
//!
//! Where these are silent, kube-proxy's behaviour in iptables mode is the reference, with a comment.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use ferroute_api::{EndpointSlice, HintRef, Node, Service, SliceEndpoint, labels};
use ferroute_core::{IpFamily, LocalTrafficDetector, NodePortAddresses, Protocol, testing::Cluster};
use ipnet::IpNet;

use super::world::{Client, World};

/// The required result of a connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// It reaches one of these endpoints, each with the same probability, with this source.
    OneOf(BTreeMap<SocketAddr, IpAddr>),
    /// It is rejected.
    Refused,
    /// It is dropped.
    Dropped,
    /// It is not translated.
    Untouched,
}

/// The kind of a Service's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frontend {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

/// One port of a Service in one family.
pub struct Port<'a> {
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
pub fn ports<'a>(cluster: &'a Cluster, world: &'a World, family: IpFamily) -> Vec<Port<'a>> {
    let handled = cluster.services.iter().filter(move |service| {
        let labels = &service.metadata.labels;
        let excluded = labels.contains_key(labels::SERVICE_PROXY_NAME) || labels.contains_key(labels::HEADLESS);
        !excluded && service.spec.type_.as_deref() != Some("ExternalName") && cluster_ip(service, family).is_some()
    });
    handled
        .flat_map(|service| {
            service.spec.ports.iter().map(move |port| Port {
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
    /// Returns the addresses of the port.
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
        };
        // A list without entries of an IP family does not restrict it.
        let within: Vec<IpNet> = within.into_iter().filter(|net| IpFamily::of(net.addr()) == self.family).collect();
        let localhost = settings.localhost_node_ports && self.family == IpFamily::V4;
        let family = self.family;
        self.world.addresses().into_iter().filter(move |ip| {
            IpFamily::of(*ip) == family
                && (within.is_empty() || within.iter().any(|net| net.contains(ip)))
                && (localhost || !ip.is_loopback())
        })
    }

    /// Returns the required result of a connection to a frontend.
    pub fn expected(&self, client: &Client, source: IpAddr, frontend: Frontend) -> Expected {
        let is_pod = self.is_detected_as_pod(client, source);
        // The external traffic policy does not apply to pods and the node itself.
        let from_cluster = is_pod == Some(true) || matches!(client, Client::Node);
        let local_only = match frontend {
            Frontend::ClusterIp => self.service.spec.internal_traffic_policy.as_deref() == Some("Local"),
            _ => self.is_external_local() && !from_cluster,
        };
        if self.usable_anywhere() == 0 {
            return self.refusal(client, frontend, Expected::Refused);
        }
        if frontend == Frontend::LoadBalancer && !self.is_in_source_ranges(source) {
            return Expected::Dropped;
        }
        let endpoints = if local_only { self.local_endpoints() } else { self.cluster_endpoints() };
        if endpoints.is_empty() {
            return Expected::Dropped;
        }
        let masquerade = match frontend {
            Frontend::ClusterIp => self.world.settings.masquerade_all || is_pod == Some(false),
            // Policy Local preserves the client's address. Pods' addresses are preserved because every node has a route to
            // them.
            _ if self.is_external_local() => matches!(client, Client::Node) && is_pod != Some(true),
            _ => true,
        };
        let with_source = |endpoint: &SocketAddr| {
            // Hairpin: replies must come from the Service's address.
            let masquerade = masquerade || source == endpoint.ip();
            (*endpoint, if masquerade { self.masqueraded(client, source, endpoint.ip()) } else { source })
        };
        Expected::OneOf(endpoints.iter().map(with_source).collect())
    }

    /// Returns the required result of a connection to the node port on an address on which it is not served. kube-proxy
    /// rejects and drops there as on the other addresses, and does not translate.
    pub fn expected_on_other_address(&self) -> Expected {
        if self.usable_anywhere() == 0 {
            return Expected::Refused;
        }
        if self.is_external_local() && self.local_endpoints().is_empty() {
            Expected::Dropped
        } else {
            Expected::Untouched
        }
    }

    /// kube-proxy does not reject packets from the node itself to an external address: they leave the node.
    fn refusal(&self, client: &Client, frontend: Frontend, refusal: Expected) -> Expected {
        match (client, frontend) {
            (Client::Node, Frontend::ExternalIp | Frontend::LoadBalancer) => Expected::Untouched,
            _ => refusal,
        }
    }

    /// Returns the source of a masqueraded packet. Packets are masqueraded in the postrouting hook, which forwarded and
    /// locally sent packets pass, but not received packets for the node itself.
    fn masqueraded(&self, client: &Client, source: IpAddr, endpoint: IpAddr) -> IpAddr {
        if self.world.owns(endpoint) && !matches!(client, Client::Node) {
            source
        } else {
            self.world.address_towards(endpoint)
        }
    }

    /// Reports whether the configured detection takes the client for a pod; `None` without detection.
    fn is_detected_as_pod(&self, client: &Client, source: IpAddr) -> Option<bool> {
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

    fn is_external_local(&self) -> bool {
        self.service.spec.external_traffic_policy.as_deref() == Some("Local")
    }

    /// Reports whether the source ranges allow a client. A list without entries of an IP family does not restrict it.
    fn is_in_source_ranges(&self, source: IpAddr) -> bool {
        let ranges = self.service.spec.load_balancer_source_ranges.iter();
        let mut ranges = ranges
            .map(|text| text.trim().parse::<IpNet>().unwrap())
            .filter(|net| IpFamily::of(net.addr()) == self.family)
            .peekable();
        ranges.peek().is_none() || ranges.any(|net| net.contains(&source))
    }

    fn own_address(&self) -> Option<IpAddr> {
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
            numbers.flat_map(|number| {
                slice
                    .endpoints
                    .iter()
                    .map(move |endpoint| (SocketAddr::new(endpoint.addresses[0].parse().unwrap(), number), endpoint))
            })
        })
    }

    fn usable_anywhere(&self) -> usize {
        self.all_endpoints().filter(|(_, endpoint)| is_ready(endpoint) || serves_while_terminating(endpoint)).count()
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
