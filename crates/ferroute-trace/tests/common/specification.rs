//! What Kubernetes promises to whoever calls a Service, said a second time: from the API objects and the words of
//! Kubernetes' documentation alone, and not from anything that the proxy makes of them.
//!
//! - <https://kubernetes.io/docs/reference/networking/virtual-ips/>: frontends, policies, affinity, hints
//! - <https://kubernetes.io/docs/tutorials/services/source-ip/>: who sees which source
//! - <https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/>: conditions
//!
//! Where these say nothing, kube-proxy's known behaviour in iptables mode counts, and a comment says so.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use ferroute_api::{EndpointSlice, HintRef, Node, Service, SliceEndpoint, labels};
use ferroute_core::{IpFamily, LocalTrafficDetector, NodePortAddresses, Protocol, testing::Cluster};
use ipnet::IpNet;

use super::world::{Client, World};

/// What must become of a connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// It ends at one of these, each as likely as the others, which see this source.
    OneOf(BTreeMap<SocketAddr, IpAddr>),
    /// The client is told that nobody is there.
    Refused,
    /// It vanishes.
    Dropped,
    /// No Service has to do with it.
    Untouched,
}

/// An address and port of a Service.
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

/// Every port of every Service that is this proxy's business.
pub fn ports<'a>(cluster: &'a Cluster, world: &'a World, family: IpFamily) -> Vec<Port<'a>> {
    let ours = cluster.services.iter().filter(move |service| {
        let labels = &service.metadata.labels;
        let foreign = labels.contains_key(labels::SERVICE_PROXY_NAME) || labels.contains_key(labels::HEADLESS);
        !foreign && service.spec.type_.as_deref() != Some("ExternalName") && cluster_ip(service, family).is_some()
    });
    ours.flat_map(|service| {
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
    /// Where it can be called.
    pub fn frontends(&self) -> Vec<(Frontend, SocketAddr)> {
        let at = |frontend, ip| (frontend, SocketAddr::new(ip, self.number));
        let spec = &self.service.spec;
        let mut all: Vec<_> =
            cluster_ip(self.service, self.family).map(|ip| at(Frontend::ClusterIp, ip)).into_iter().collect();
        all.extend(of_family(&spec.external_ips, self.family).map(|ip| at(Frontend::ExternalIp, ip)));
        // A balancer of mode Proxy delivers to nodes or pods itself; its address is no frontend.
        let vips = self.service.status.load_balancer.ingress.iter();
        let vips = vips.filter(|point| point.ip_mode.as_deref() != Some("Proxy")).map(|point| &point.ip);
        all.extend(of_family(vips, self.family).map(|ip| at(Frontend::LoadBalancer, ip)));
        if let Some(number) = self.node_port {
            all.extend(self.node_port_addresses().map(|ip| (Frontend::NodePort, SocketAddr::new(ip, number))));
        }
        all
    }

    /// The node's addresses that answer on node ports.
    pub fn node_port_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let settings = &self.world.settings;
        let primary: Vec<IpNet> = self.own_address().into_iter().map(IpNet::from).collect();
        let within: Vec<IpNet> = match &settings.node_port_addresses {
            NodePortAddresses::All => Vec::new(),
            NodePortAddresses::Primary => primary,
            NodePortAddresses::Within(networks) => networks.clone(),
        };
        // A list that has nothing for a family does not narrow that family.
        let within: Vec<IpNet> = within.into_iter().filter(|net| IpFamily::of(net.addr()) == self.family).collect();
        let localhost = settings.localhost_node_ports && self.family == IpFamily::V4;
        let family = self.family;
        self.world.addresses().into_iter().filter(move |ip| {
            IpFamily::of(*ip) == family
                && (within.is_empty() || within.iter().any(|net| net.contains(ip)))
                && (localhost || !ip.is_loopback())
        })
    }

    /// What becomes of a connection to a frontend.
    pub fn expected(&self, client: &Client, source: IpAddr, frontend: Frontend) -> Expected {
        let is_pod = self.looks_like_pod(client, source);
        // Pods and the node itself are not bound by the external policy: they are as good as behind a balancer.
        let from_cluster = is_pod == Some(true) || matches!(client, Client::Node);
        let local_only = match frontend {
            Frontend::ClusterIp => self.service.spec.internal_traffic_policy.as_deref() == Some("Local"),
            _ => self.is_external_local() && !from_cluster,
        };
        if self.usable_anywhere() == 0 {
            return self.refusal(client, frontend, Expected::Refused);
        }
        if frontend == Frontend::LoadBalancer && !self.may_use_balancer(source) {
            return Expected::Dropped;
        }
        let endpoints = if local_only { self.local_endpoints() } else { self.cluster_endpoints() };
        if endpoints.is_empty() {
            return Expected::Dropped;
        }
        let masquerade = match frontend {
            Frontend::ClusterIp => self.world.settings.masquerade_all || is_pod == Some(false),
            // The client's address is kept for policy Local, and for pods, whose address every node can answer to.
            _ if self.is_external_local() => matches!(client, Client::Node) && is_pod != Some(true),
            _ => true,
        };
        let seen = |endpoint: &SocketAddr| {
            // An endpoint that calls itself must hear the answer from the Service.
            let masquerade = masquerade || source == endpoint.ip();
            (*endpoint, if masquerade { self.masqueraded(client, source, endpoint.ip()) } else { source })
        };
        Expected::OneOf(endpoints.iter().map(seen).collect())
    }

    /// What becomes of a connection to the node port's number on an address of the node that is no frontend. kube-proxy
    /// refuses there as well what it refuses at the frontends; the rest is none of its business.
    pub fn expected_beside(&self) -> Expected {
        if self.usable_anywhere() == 0 {
            return Expected::Refused;
        }
        if self.is_external_local() && self.local_endpoints().is_empty() {
            Expected::Dropped
        } else {
            Expected::Untouched
        }
    }

    /// kube-proxy has no rule that refuses what the node itself sends to an external address: it leaves the node.
    fn refusal(&self, client: &Client, frontend: Frontend, refusal: Expected) -> Expected {
        match (client, frontend) {
            (Client::Node, Frontend::ExternalIp | Frontend::LoadBalancer) => Expected::Untouched,
            _ => refusal,
        }
    }

    /// A masqueraded packet has the node's address on the way to the endpoint. One that the node delivers to itself does
    /// not leave it, and only what leaves is masqueraded; what the node sends to itself does leave, into itself.
    fn masqueraded(&self, client: &Client, source: IpAddr, endpoint: IpAddr) -> IpAddr {
        if self.world.owns(endpoint) && !matches!(client, Client::Node) {
            source
        } else {
            self.world.address_towards(endpoint)
        }
    }

    /// What the operator's way to tell pods says; `None` if there is none.
    fn looks_like_pod(&self, client: &Client, source: IpAddr) -> Option<bool> {
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

    /// Whether the source ranges let a client use the balancer's addresses. A list that has nothing for a family says
    /// nothing about that family.
    fn may_use_balancer(&self, source: IpAddr) -> bool {
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
        self.ready_or_else(|endpoint| endpoint.node_name.as_deref() == Some(&self.cluster.node.metadata.name))
    }

    fn cluster_endpoints(&self) -> Vec<SocketAddr> {
        let ready: Vec<&SliceEndpoint> =
            self.all_endpoints().filter(|(_, endpoint)| is_ready(endpoint)).map(|(_, endpoint)| endpoint).collect();
        let node: &Node = &self.cluster.node;
        let by_node = obeyed(&ready, for_nodes, Some(&node.metadata.name));
        let by_zone = obeyed(&ready, for_zones, node.metadata.labels.get(labels::ZONE));
        self.ready_or_else(|endpoint| match (by_node, by_zone) {
            (Some(node), _) => !is_ready(endpoint) || for_nodes(endpoint).iter().any(|hint| hint.name == *node),
            (None, Some(zone)) => !is_ready(endpoint) || for_zones(endpoint).iter().any(|hint| hint.name == *zone),
            (None, None) => true,
        })
    }

    /// Ready endpoints; if there are none, those that still serve while they terminate.
    fn ready_or_else(&self, eligible: impl Fn(&SliceEndpoint) -> bool) -> Vec<SocketAddr> {
        let chosen = |wanted: fn(&SliceEndpoint) -> bool| -> Vec<SocketAddr> {
            let chosen = self.all_endpoints().filter(|(_, endpoint)| wanted(endpoint) && eligible(endpoint));
            chosen.map(|(socket, _)| socket).collect()
        };
        let ready = chosen(is_ready);
        if ready.is_empty() { chosen(serves_while_terminating) } else { ready }
    }
}

/// Hints count only if every ready endpoint has one, and one of them is for us.
fn obeyed<'a>(
    ready: &[&SliceEndpoint],
    hints: fn(&SliceEndpoint) -> &[HintRef],
    own: Option<&'a String>,
) -> Option<&'a String> {
    let own = own?;
    let all_have = ready.iter().all(|endpoint| !hints(endpoint).is_empty());
    let for_us = ready.iter().any(|endpoint| hints(endpoint).iter().any(|hint| hint.name == *own));
    (all_have && for_us).then_some(own)
}

fn for_nodes(endpoint: &SliceEndpoint) -> &[HintRef] {
    endpoint.hints.as_ref().map_or(&[], |hints| &hints.for_nodes)
}

fn for_zones(endpoint: &SliceEndpoint) -> &[HintRef] {
    endpoint.hints.as_ref().map_or(&[], |hints| &hints.for_zones)
}

/// What is not said counts as ready.
fn is_ready(endpoint: &SliceEndpoint) -> bool {
    endpoint.conditions.ready != Some(false)
}

/// What is not said counts as serving, and as not terminating.
fn serves_while_terminating(endpoint: &SliceEndpoint) -> bool {
    endpoint.conditions.serving != Some(false) && endpoint.conditions.terminating == Some(true)
}
