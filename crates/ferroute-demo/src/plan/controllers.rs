//! The objects that a cluster's controllers create: Nodes, Pods, and EndpointSlices of Services.

use std::collections::BTreeMap;

use ferroute_api::{
    EndpointConditions, EndpointPort, EndpointSlice, Node, NodeAddress, NodeSpec, NodeStatus, ObjectMeta, Pod, PodIp,
    PodSpec, PodStatus, Service, ServicePort, SliceEndpoint, labels,
};
use ferroute_core::{IpFamily, Protocol};

use super::{PlannedPod, services};
use crate::layout::NodeId;

/// Returns the Node object of a node.
pub(super) fn node(node: NodeId, ipv6: bool) -> Node {
    let name = node.name().to_owned();
    let networks = IpFamily::BOTH.into_iter().filter(|family| ipv6 || *family == IpFamily::V4);
    let networks: Vec<String> = networks.map(|family| node.pod_network(family)).collect();
    let internal = node.addresses(ipv6).iter().map(|ip| address("InternalIP", ip.to_string())).collect::<Vec<_>>();
    Node {
        metadata: ObjectMeta {
            labels: BTreeMap::from([("kubernetes.io/hostname".to_owned(), name.clone())]),
            name: name.clone(),
            ..ObjectMeta::default()
        },
        spec: NodeSpec { pod_cidr: networks.first().cloned(), pod_cidrs: networks, taints: Vec::new() },
        status: NodeStatus { addresses: internal.into_iter().chain([address("Hostname", name)]).collect() },
    }
}

/// Returns the Pod object of a pod. Proxies ignore it; commands read the names of pods that no Service selects.
pub(super) fn pod(pod: &PlannedPod) -> Pod {
    let addresses: Vec<String> = pod.addresses.iter().map(|ip| ip.to_string()).collect();
    Pod {
        metadata: ObjectMeta {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            labels: pod.labels.clone(),
            ..ObjectMeta::default()
        },
        spec: PodSpec {
            node_name: Some(pod.node.name().to_owned()),
            host_network: pod.host_network,
            ..PodSpec::default()
        },
        status: PodStatus {
            pod_ip: addresses.first().cloned(),
            pod_ips: addresses.into_iter().map(|ip| PodIp { ip }).collect(),
        },
    }
}

/// Returns the EndpointSlices of a Service; none without a selector, because the user then creates them.
///
/// Pods for which a named port has different numbers are in different slices. A pod without the named port is in no slice
/// for it.
pub(super) fn service_slices(
    service: &Service,
    pods: &[PlannedPod],
    is_ready: impl Fn(&PlannedPod) -> bool,
) -> Vec<EndpointSlice> {
    if service.spec.selector.is_empty() || service.spec.type_.as_deref() == Some("ExternalName") {
        return Vec::new();
    }
    let mut slices = Vec::new();
    for family in services::ip_families(service) {
        let mut groups: BTreeMap<Vec<(String, u16, Protocol)>, Vec<SliceEndpoint>> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| pod.is_selected_by(service)) {
            let ports: Vec<_> = service.spec.ports.iter().filter_map(|port| target_port(port, pod)).collect();
            let Some(address) = pod.addresses.get(family).filter(|_| !ports.is_empty()) else { continue };
            let ready = is_ready(pod);
            groups.entry(ports).or_default().push(SliceEndpoint {
                addresses: vec![address.to_string()],
                conditions: EndpointConditions { ready: Some(ready), serving: Some(ready), terminating: Some(false) },
                node_name: Some(pod.node.name().to_owned()),
                hints: None,
                zone: None,
                target_ref: None,
            });
        }
        let numbered = groups.into_iter().enumerate();
        slices.extend(numbered.map(|(n, (ports, endpoints))| slice(service, family, n, ports, endpoints)));
    }
    slices
}

/// Returns the name, target port and protocol of a Service's port on a pod.
pub(super) fn target_port(port: &ServicePort, pod: &PlannedPod) -> Option<(String, u16, Protocol)> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP").parse().ok()?;
    let number = match &port.target_port {
        None => u16::try_from(port.port).ok()?,
        Some(target) => match target.as_str() {
            Some("") => u16::try_from(port.port).ok()?,
            Some(name) => {
                let named = |candidate: &&super::PodPort| candidate.name == name && candidate.protocol == protocol;
                pod.ports.iter().find(named)?.number
            }
            None => u16::try_from(target.as_u64()?).ok()?,
        },
    };
    Some((port.name.clone(), number, protocol))
}

fn slice(
    service: &Service,
    family: IpFamily,
    number: usize,
    ports: Vec<(String, u16, Protocol)>,
    endpoints: Vec<SliceEndpoint>,
) -> EndpointSlice {
    let name = &service.metadata.name;
    let family = family.as_str();
    let suffix = if number == 0 { String::new() } else { format!("-{}", number + 1) };
    let mut labels = BTreeMap::from([(labels::SERVICE_NAME.to_owned(), name.clone())]);
    if services::is_headless(service) {
        labels.insert(labels::HEADLESS.to_owned(), String::new());
    }
    let port = |(name, number, protocol): (String, u16, Protocol)| EndpointPort {
        name,
        protocol: Some(protocol.as_str().to_uppercase()),
        port: Some(number.into()),
    };
    EndpointSlice {
        metadata: ObjectMeta {
            name: format!("{name}-{}{suffix}", family.to_lowercase()),
            namespace: service.metadata.namespace.clone(),
            labels,
            ..ObjectMeta::default()
        },
        address_type: family.to_owned(),
        ports: ports.into_iter().map(port).collect(),
        endpoints,
    }
}

fn address(type_: &str, address: String) -> NodeAddress {
    NodeAddress { type_: type_.to_owned(), address }
}
