//! The objects of the cluster, and how edits change them.

use std::net::SocketAddr;

use ferroute_api::{EndpointSlice, Node, Service};
use ferroute_core::{
    NamespacedName,
    testing::{Cluster, Edit, ServiceBuilder, arbitrary, namespaced_name, pod, service, slice},
};

use crate::network::pod_address;

/// Returns the objects at the start: those of a generated cluster, the steady Service and the barrier.
pub(crate) fn initial(generated: &Cluster, steady: &Steady) -> Cluster {
    let mut cluster = Cluster { services: Vec::new(), slices: Vec::new(), ..Cluster::new(arbitrary::NODE) };
    let fixed = steady
        .edits(&cluster)
        .into_iter()
        .chain(barrier(0))
        .chain(Claimant::ALL.map(Claimant::slices).into_iter().flatten());
    for edit in fixed.chain(generated.edits().collect::<Vec<_>>()) {
        apply(&mut cluster, &edit);
    }
    cluster
}

/// Makes an edit. An endpoint that is in several slices of a Service gets the conditions and hints of the other slices:
/// the specification does not cover other cases.
pub(crate) fn apply(cluster: &mut Cluster, edit: &Edit) {
    let mut edit = edit.clone();
    if let Edit::SetSlice(changed) = &mut edit {
        let is_other = |slice: &&EndpointSlice| {
            slice.service_name() == changed.service_name()
                && slice.metadata.namespace == changed.metadata.namespace
                && slice.metadata.name != changed.metadata.name
        };
        let others: Vec<_> = cluster.slices.iter().filter(is_other).flat_map(|slice| &slice.endpoints).collect();
        for endpoint in &mut changed.endpoints {
            if let Some(other) = others.iter().find(|other| other.addresses == endpoint.addresses) {
                endpoint.conditions = other.conditions;
                endpoint.hints.clone_from(&other.hints);
            }
        }
    }
    cluster.apply(&edit);
}

/// A Service that always has endpoints, most of which stay the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Steady {
    /// Distinguishes the names of slices before and after a change.
    pub(crate) generation: usize,
    pub(crate) kind: SteadyKind,
    pub(crate) pods: Vec<usize>,
    /// The number of slices per family.
    pub(crate) parts: usize,
    /// Whether each endpoint is in two slices.
    pub(crate) duplicates: bool,
}

/// The properties of the steady Service besides its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SteadyKind {
    ClusterIp,
    NodePort { number: u16 },
    LoadBalancer { local: bool, affinity: bool },
}

impl Steady {
    /// Returns the edits that lead to this state. Slices are added before old ones are removed, so that there are
    /// always endpoints.
    pub(crate) fn edits(&self, cluster: &Cluster) -> Vec<Edit> {
        let mut edits = vec![Edit::SetService(Box::new(self.service().build()))];
        let slices = self.slices();
        edits.extend(slices.iter().cloned().map(Edit::SetSlice));
        let is_old = |slice: &&EndpointSlice| {
            slice.service_name().is_some_and(|name| name == STEADY)
                && slice.metadata.namespace == NAMESPACE
                && !slices.iter().any(|new| new.metadata.name == slice.metadata.name)
        };
        let old = cluster.slices.iter().filter(is_old);
        edits.extend(old.map(|slice| Edit::RemoveSlice(NamespacedName::from_metadata(&slice.metadata))));
        edits
    }

    fn service(&self) -> ServiceBuilder {
        let built = service(&format!("{NAMESPACE}/{STEADY}")).cluster_ip(STEADY_IPS[0]).cluster_ip(STEADY_IPS[1]);
        match self.kind {
            SteadyKind::ClusterIp => built.port("tcp", 80).udp("udp", 53),
            SteadyKind::NodePort { number } => built.port("tcp", 80).node_port(number).udp("udp", 53).node_port(number),
            SteadyKind::LoadBalancer { local, affinity } => {
                let built = built.port("tcp", 80).node_port(30_900).udp("udp", 53).node_port(30_901);
                let built = built.load_balancer("198.51.100.200").load_balancer("2001:db8:1b::200");
                let built = if local { built.external_local().health_check_node_port(31_900) } else { built };
                if affinity { built.affinity(10_800) } else { built }
            }
        }
    }

    fn slices(&self) -> Vec<EndpointSlice> {
        let mut slices = Vec::new();
        for (v4, family) in [(true, "v4"), (false, "v6")] {
            for part in 0..self.parts {
                let name = format!("{NAMESPACE}/{STEADY}-{}-{family}-{part}", self.generation);
                let mut built = slice(&name, STEADY).port("tcp", 8080).udp("udp", 9000);
                let is_in =
                    |index: usize| index % self.parts == part || (self.duplicates && (index + 1) % self.parts == part);
                for (_, number) in self.pods.iter().enumerate().filter(|(index, _)| is_in(*index)) {
                    let endpoint = pod(&pod_address(*number, v4).to_string());
                    built = built.pod(if number % 3 == 0 { endpoint.on(arbitrary::NODE) } else { endpoint });
                }
                // A slice without endpoints has no addresses to take its family from.
                slices.push(built.with(|slice| slice.address_type = if v4 { "IPv4" } else { "IPv6" }.into()).build());
            }
        }
        slices
    }
}

/// One of the Services that claim the same addresses, each with different endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimant {
    A,
    B,
    C,
}

/// The claim of a Service on the contested addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The day of January on which the Service was created.
    pub(crate) created: u8,
    /// As a load balancer IP, or as an external IP.
    pub(crate) load_balancer: bool,
}

impl Claimant {
    pub(crate) const ALL: [Self; 3] = [Self::A, Self::B, Self::C];

    fn name(self) -> &'static str {
        ["claimant-a", "claimant-b", "claimant-c"][self as usize]
    }

    /// Returns the edits after which the Service has this claim, or does not exist.
    pub(crate) fn edits(self, claim: Option<Claim>) -> Vec<Edit> {
        let name = format!("{NAMESPACE}/{}", self.name());
        let Some(Claim { created, load_balancer }) = claim else {
            return vec![Edit::RemoveService(namespaced_name(&name))];
        };
        let built = service(&name);
        let built = built.cluster_ip(&format!("10.96.1.1{}", self as usize));
        let built = built.cluster_ip(&format!("fd00:96::1:1{}", self as usize)).port("tcp", 80).udp("udp", 53);
        let built = CONTESTED_IPS.into_iter().fold(built, |built, ip| match load_balancer {
            true => built.load_balancer(ip),
            false => built.external_ip(ip),
        });
        let created = format!("2026-01-{created:02}T00:00:00Z");
        let mut service = built.build();
        service.metadata.creation_timestamp = Some(created);
        vec![Edit::SetService(Box::new(service))]
    }

    /// Returns the slices, which never change.
    fn slices(self) -> Vec<Edit> {
        let pods = [[1, 3], [2, 6], [4, 9]][self as usize];
        let families = [(true, "v4"), (false, "v6")].into_iter();
        let slices = families.map(|(v4, family)| {
            let built = slice(&format!("{NAMESPACE}/{}-{family}", self.name()), self.name());
            let built = built.port("tcp", 8080).udp("udp", 9000);
            let pods = pods.into_iter().map(|number| {
                let endpoint = pod(&pod_address(number, v4).to_string());
                if number % 3 == 0 { endpoint.on(arbitrary::NODE) } else { endpoint }
            });
            Edit::SetSlice(pods.fold(built, |built, pod| built.pod(pod)).build())
        });
        slices.collect()
    }
}

/// Returns the edits of the barrier: a Service whose port and endpoints depend on `number`, so that a connection to it
/// Returns the edits of the barrier: a Service whose port and endpoints depend on `number`. A connection to it shows
/// that the proxy has applied its Service and its slices, and therefore also all objects that were published earlier.
pub(crate) fn barrier(number: usize) -> Vec<Edit> {
    let built = service(&format!("{NAMESPACE}/barrier")).cluster_ip(BARRIER_IPS[0]).cluster_ip(BARRIER_IPS[1]);
    let mut edits = vec![Edit::SetService(Box::new(built.port("", barrier_port(number)).build()))];
    for (v4, family) in [(true, "v4"), (false, "v6")] {
        let endpoint = barrier_endpoint(number, v4);
        let built = slice(&format!("{NAMESPACE}/barrier-{family}"), "barrier").port("", endpoint.port());
        edits.push(Edit::SetSlice(built.pod(pod(&endpoint.ip().to_string())).build()));
    }
    edits
}

/// Returns the addresses of the barrier.
pub(crate) fn barrier_targets(number: usize) -> [SocketAddr; 2] {
    BARRIER_IPS.map(|ip| SocketAddr::new(ip.parse().expect("an IP address"), barrier_port(number)))
}

fn barrier_port(number: usize) -> u16 {
    1_000 + (number % 50) as u16
}

/// Returns the endpoint of the barrier in a family.
pub(crate) fn barrier_endpoint(number: usize, v4: bool) -> SocketAddr {
    SocketAddr::new(pod_address([1, 2, 4][number % 3], v4), [8080, 9000][number % 2])
}

/// Returns the addresses for connections that stay open.
pub(crate) fn steady_targets() -> Vec<SocketAddr> {
    STEADY_IPS.map(|ip| SocketAddr::new(ip.parse().expect("an IP address"), 80)).into()
}

/// Returns a table of many Services, which takes a while to sync.
pub(crate) fn bulk(services: usize) -> Cluster {
    let mut cluster = Cluster::uniform(services, 3);
    for (index, service) in cluster.services.iter_mut().enumerate() {
        // Apart from the cluster IPs of generated clusters.
        let address = format!("10.97.{}.{}", index >> 8, index & 0xff);
        service.spec.cluster_ip = Some(address.clone());
        service.spec.cluster_ips = vec![address];
    }
    cluster
}

/// Serializes objects as manifests, with `extra` items that need not be valid.
pub(crate) fn manifest(services: &[Service], slices: &[EndpointSlice], node: Option<&Node>, extra: &[&str]) -> String {
    let services = services.iter().map(|object| typed("v1", "Service", object));
    let slices = slices.iter().map(|object| typed("discovery.k8s.io/v1", "EndpointSlice", object));
    let node = node.iter().map(|object| typed("v1", "Node", object));
    let items: Vec<String> =
        services.chain(slices).chain(node).chain(extra.iter().map(|text| (*text).to_owned())).collect();
    format!("{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [\n{}\n]}}\n", items.join(",\n"))
}

/// Serializes an object with its type.
pub(crate) fn typed(version: &str, kind: &str, object: &impl serde::Serialize) -> String {
    let mut value = serde_json::to_value(object).expect("objects are serializable");
    value["apiVersion"] = version.into();
    value["kind"] = kind.into();
    value.to_string()
}

/// The namespace of the steady Service and the barrier.
const NAMESPACE: &str = "fixed";
const STEADY: &str = "steady";
const STEADY_IPS: [&str; 2] = ["10.96.1.1", "fd00:96::1:1"];
const BARRIER_IPS: [&str; 2] = ["10.96.1.2", "fd00:96::1:2"];
/// Addresses that several Services claim.
const CONTESTED_IPS: [&str; 2] = ["198.51.100.210", "2001:db8:1b::210"];
