//! Converts views to Kubernetes objects: the inverse of `ferroute_core::parse`.
//!
//! The objects contain only fields that a proxy reads: a `LoadBalancer` Service without properties of this type becomes
//! a `ClusterIP` Service. Parsing an object returns the view that it was created from.

use std::collections::BTreeMap;

use ferroute_api::{
    ClientIpConfig, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, HintRef, LoadBalancerIngress, Node,
    NodeAddress, ObjectMeta, Service, ServiceCidr, ServiceCidrSpec, ServicePort, ServiceSpec, SessionAffinityConfig,
    SliceEndpoint, Taint, labels,
};
use ferroute_core::{
    Balancing, ConnectionLimits, Endpoint, Hints, IpFamily, NamespacedName, NodeView, OverLimit, TableSize,
    TrafficPolicy,
    tracker::{EndpointView, NamedPort, SliceView},
};
use ipnet::IpNet;

/// Returns a Service with this name and these ports by [`IpFamily::index`]. Without ports, it has no cluster IPs either.
pub fn service(name: &NamespacedName, ports: [&[NamedPort]; 2]) -> Service {
    let mut service = Service { metadata: metadata(name), ..Service::default() };
    let spec = &mut service.spec;
    for (family, ports) in IpFamily::BOTH.into_iter().zip(ports) {
        let Some(port) = ports.first() else { continue };
        let common = &port.port;
        // An ignored address is replaced by another ignored address.
        let unspecified = ["0.0.0.0", "::"][family.index()];
        spec.cluster_ips.push(common.cluster_ip.map_or(unspecified.to_owned(), |address| address.to_string()));
        spec.external_ips.extend(common.external_ips.iter().map(ToString::to_string));
        spec.load_balancer_source_ranges.extend(common.load_balancer_source_ranges.iter().map(ToString::to_string));
        let vips = common.load_balancer_vips.iter();
        service
            .status
            .load_balancer
            .ingress
            .extend(vips.map(|ip| LoadBalancerIngress { ip: ip.to_string(), ..LoadBalancerIngress::default() }));
    }
    spec.cluster_ip = spec.cluster_ips.first().cloned();
    // The IP families differ in addresses only.
    let Some(either) = ports.iter().find(|ports| !ports.is_empty()) else { return service };
    spec.ports = either.iter().map(service_port).collect();
    let common = &either[0].port;
    service.metadata.annotations = annotations(&common.balancing);
    service.metadata.annotations.extend(common.limits.iter().flat_map(|limits| limit_annotations(limits)));
    let scope = common.source_ranges_scope.names().collect::<Vec<_>>().join(", ");
    service.metadata.annotations.extend((!scope.is_empty()).then(|| (labels::SOURCE_RANGES_SCOPE.to_owned(), scope)));
    service.metadata.creation_timestamp = common.created.to_rfc3339();
    spec.health_check_node_port = common.health_check_node_port.map(|port| port.get().into());
    spec.internal_traffic_policy = policy(common.internal_policy);
    spec.external_traffic_policy = policy(common.external_policy);
    if let Some(affinity) = common.affinity {
        let timeout_seconds = i32::try_from(affinity.timeout_seconds).ok();
        spec.session_affinity = Some("ClientIP".to_owned());
        spec.session_affinity_config =
            Some(SessionAffinityConfig { client_ip: Some(ClientIpConfig { timeout_seconds }) });
    }
    spec.type_ = Some(service_type(spec, !service.status.load_balancer.ingress.is_empty()).to_owned());
    service
}

/// Returns the annotations that request this way to share connections.
fn annotations(balancing: &Balancing) -> BTreeMap<String, String> {
    let Balancing { method, table_size, passive_ejection, slow_start, zone_weight, drain_timeout } = *balancing;
    let method = method.map(|method| (labels::LOAD_BALANCING.to_owned(), method.to_string()));
    let table_size =
        (table_size != TableSize::default()).then(|| (labels::HASH_TABLE_SIZE.to_owned(), table_size.to_string()));
    let ejection = passive_ejection.map(|value| (labels::PASSIVE_EJECTION.to_owned(), value.as_str().to_owned()));
    let start = slow_start.map(|seconds| (labels::SLOW_START.to_owned(), format!("{seconds}s")));
    let zone = zone_weight.map(|weight| (labels::ZONE_WEIGHT.to_owned(), weight.to_string()));
    let drain = drain_timeout.map(|seconds| (labels::DRAIN_TIMEOUT.to_owned(), format!("{seconds}s")));
    [method, table_size, ejection, start, zone, drain].into_iter().flatten().collect()
}

/// Returns the annotations that request these limits.
fn limit_annotations(limits: &ConnectionLimits) -> impl Iterator<Item = (String, String)> + use<> {
    let ConnectionLimits { connections, client_connections, rate, client_rate, over_limit } = *limits;
    let annotations = [
        (labels::MAX_CONNECTIONS, connections.map(|max| max.to_string())),
        (labels::MAX_CONNECTIONS_PER_CLIENT, client_connections.map(|max| max.to_string())),
        (labels::MAX_NEW_CONNECTIONS, rate.map(|rate| rate.to_string())),
        (labels::MAX_NEW_CONNECTIONS_PER_CLIENT, client_rate.map(|rate| rate.to_string())),
        (labels::OVER_LIMIT, (over_limit != OverLimit::default()).then(|| over_limit.to_string())),
    ];
    annotations.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)))
}

/// Returns the simplest type that permits all properties of the Service.
fn service_type(spec: &ServiceSpec, has_vips: bool) -> &'static str {
    let has_node_ports = spec.ports.iter().any(|port| port.node_port.is_some());
    // The API server resets the external policy of types without external traffic.
    let keeps_policy = spec.external_traffic_policy.is_none() || !spec.external_ips.is_empty() || has_node_ports;
    match (has_vips || spec.health_check_node_port.is_some() || !keeps_policy, has_node_ports) {
        (true, _) => "LoadBalancer",
        (false, true) => "NodePort",
        (false, false) => "ClusterIP",
    }
}

fn service_port(named: &NamedPort) -> ServicePort {
    ServicePort {
        name: named.name.to_string(),
        protocol: Some(named.protocol.as_str().to_uppercase()),
        port: named.port.port.into(),
        node_port: named.port.node_port.map(|port| port.get().into()),
        ..ServicePort::default()
    }
}

/// Returns the policy, or `None` for the default.
fn policy(policy: TrafficPolicy) -> Option<String> {
    (policy == TrafficPolicy::Local).then(|| "Local".to_owned())
}

/// Returns an endpoint slice. Local endpoints are on `node`; the names of other nodes are not known.
pub fn slice(view: &SliceView, node: &str) -> EndpointSlice {
    let ports = view.ports.iter().map(|port| EndpointPort {
        name: port.name.to_string(),
        protocol: Some(port.protocol.as_str().to_uppercase()),
        port: Some(port.port.into()),
    });
    let service_name = (labels::SERVICE_NAME.to_owned(), view.service.name().to_owned());
    EndpointSlice {
        metadata: ObjectMeta {
            labels: BTreeMap::from([service_name]),
            annotations: weights(&view.endpoints),
            ..metadata(&view.name)
        },
        address_type: match view.family {
            IpFamily::V4 => "IPv4".to_owned(),
            IpFamily::V6 => "IPv6".to_owned(),
        },
        ports: ports.collect(),
        endpoints: view.endpoints.iter().map(|candidate| endpoint(candidate, node)).collect(),
    }
}

/// Returns the annotation with the weights of endpoints; none if all have the default weight.
fn weights(endpoints: &[EndpointView]) -> BTreeMap<String, String> {
    let weighted = endpoints.iter().filter(|endpoint| endpoint.weight != Endpoint::DEFAULT_WEIGHT);
    let text: Vec<String> = weighted.map(|endpoint| format!("{}={}", endpoint.address, endpoint.weight)).collect();
    if text.is_empty() { BTreeMap::new() } else { BTreeMap::from([(labels::WEIGHT.to_owned(), text.join(" "))]) }
}

/// Name of nodes other than the proxy's, whose names the proxy does not keep. No node can have this name.
pub const OTHER_NODE: &str = "-";

fn endpoint(candidate: &EndpointView, node: &str) -> SliceEndpoint {
    SliceEndpoint {
        addresses: vec![candidate.address.to_string()],
        conditions: EndpointConditions {
            ready: Some(candidate.ready),
            serving: Some(candidate.serving),
            terminating: Some(candidate.terminating),
        },
        node_name: match candidate {
            EndpointView { local: true, .. } => Some(node.to_owned()),
            EndpointView { node_unknown: true, .. } => None,
            _ => Some(OTHER_NODE.to_owned()),
        },
        zone: candidate.zone.as_deref().map(str::to_owned),
        hints: candidate.hints.as_deref().map(hints),
        target_ref: None,
    }
}

fn hints(hints: &Hints) -> EndpointHints {
    let refs = |names: &[Box<str>]| names.iter().map(|name| HintRef { name: name.to_string() }).collect();
    EndpointHints { for_zones: refs(&hints.zones), for_nodes: refs(&hints.nodes) }
}

/// Returns a Node.
pub fn node(view: &NodeView) -> Node {
    let mut node =
        Node { metadata: ObjectMeta { name: view.name.clone(), ..ObjectMeta::default() }, ..Node::default() };
    if let Some(zone) = &view.zone {
        node.metadata.labels.insert(labels::ZONE.to_owned(), zone.clone());
    }
    node.spec.pod_cidrs = view.pod_cidrs.iter().map(ToString::to_string).collect();
    if view.to_be_deleted {
        node.spec.taints.push(Taint { key: labels::TO_BE_DELETED_TAINT.to_owned() });
    }
    let addresses = view.addresses.iter();
    node.status.addresses =
        addresses.map(|address| NodeAddress { type_: "InternalIP".to_owned(), address: address.to_string() }).collect();
    node
}

/// Returns one ServiceCIDR for each network.
pub fn service_cidrs(networks: impl IntoIterator<Item = IpNet>) -> Vec<ServiceCidr> {
    let object = |(i, network): (usize, IpNet)| ServiceCidr {
        metadata: ObjectMeta { name: format!("service-cidr-{}", i + 1), ..ObjectMeta::default() },
        spec: ServiceCidrSpec { cidrs: vec![network.to_string()] },
    };
    networks.into_iter().enumerate().map(object).collect()
}

fn metadata(name: &NamespacedName) -> ObjectMeta {
    ObjectMeta { namespace: name.namespace().to_owned(), name: name.name().to_owned(), ..ObjectMeta::default() }
}

#[cfg(test)]
mod tests {
    use ferroute_core::{
        parse::{parse_node, parse_service, parse_slice},
        testing::{self, arbitrary},
        tracker::ServiceView,
    };
    use proptest::prelude::*;

    use super::*;

    fn to_object(view: &ServiceView) -> Service {
        service(&view.name, view.ports.each_ref().map(Vec::as_slice))
    }

    proptest! {
        #[test]
        fn service_views_survive_round_trip(object in arbitrary::service()) {
            if let Ok(Some(view)) = parse_service(&object) {
                // A recording has the fields that the proxy uses.
                let used = |view: ServiceView| ServiceView { ignored: Box::default(), ..view };
                let parsed = parse_service(&to_object(&view)).map(|view| view.map(used));
                prop_assert_eq!(parsed, Ok(Some(used(view))));
            }
        }

        #[test]
        fn slice_views_survive_round_trip(object in arbitrary::slice(), local in any::<bool>()) {
            let on = object.endpoints.iter().find_map(|endpoint| endpoint.node_name.clone());
            let here = on.filter(|_| local).unwrap_or_else(|| "another-node".to_owned());
            if let Ok(Some(view)) = parse_slice(&object, &here) {
                prop_assert_eq!(parse_slice(&slice(&view, &here), &here), Ok(Some(view)));
            }
        }

        #[test]
        fn node_views_survive_round_trip(object in arbitrary::node()) {
            if let Ok(view) = parse_node(&object) {
                prop_assert_eq!(parse_node(&node(&view)), Ok(view));
            }
        }
    }

    #[test]
    fn type_preserves_external_policy_without_external_addresses() {
        let object = testing::service("shop/web")
            .cluster_ip("10.96.0.1")
            .port("http", 80)
            .external_local()
            .with(|service| service.spec.type_ = Some("LoadBalancer".to_owned()));
        let view = parse_service(&object.build()).unwrap().unwrap();
        assert_eq!(view.ports[0][0].port.external_policy, TrafficPolicy::Local);
        assert_eq!(parse_service(&to_object(&view)), Ok(Some(view)));
    }
}
