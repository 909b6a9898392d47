//! Whatever an object holds, reading it gives a value or names the fields that are wrong.

use ferroute_api::{
    ClientIpConfig, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, HintRef, LoadBalancerIngress,
    LoadBalancerStatus, Node, NodeAddress, NodeSpec, NodeStatus, ObjectMeta, Service, ServicePort, ServiceSpec,
    ServiceStatus, SessionAffinityConfig, SliceEndpoint, Taint, labels,
};
use ferroute_core::{
    parse::{InvalidObject, parse_ip, parse_network, parse_node, parse_service, parse_slice},
    testing::arbitrary,
};
use proptest::{collection::vec, option, prelude::*, sample::select};

/// Anything at all, but often something that is right in one field or another.
fn text() -> impl Strategy<Value = String> {
    let known = vec![
        "",
        "None",
        "ClusterIP",
        "NodePort",
        "LoadBalancer",
        "ExternalName",
        "ClientIP",
        "Cluster",
        "Local",
        "TCP",
        "UDP",
        "SCTP",
        "VIP",
        "Proxy",
        "IPv4",
        "IPv6",
        "FQDN",
        "InternalIP",
        "ExternalIP",
        "10.96.0.1",
        "010.0.0.1",
        "fd00::1",
        "::ffff:10.0.0.1",
        "10.0.0.0/8",
        "::/0",
        "0.0.0.0/0",
        "a",
        "web",
        "node-1",
    ];
    prop_oneof![6 => select(known).prop_map(str::to_owned), 1 => any::<String>(), 1 => "[0-9a-f:./]{0,20}"]
}

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![4 => 0..100_000, 1 => any::<i32>()]
}

fn maybe<T: Strategy>(value: T) -> impl Strategy<Value = Option<T::Value>> {
    option::weighted(0.7, value)
}

fn metadata() -> impl Strategy<Value = ObjectMeta> {
    let key = prop_oneof![Just(labels::SERVICE_NAME.to_owned()), Just(labels::ZONE.to_owned()), text(),];
    let labels = prop::collection::btree_map(key, text(), 0..3);
    (text(), text(), labels).prop_map(|(name, namespace, labels)| ObjectMeta {
        name,
        namespace,
        labels,
        ..ObjectMeta::default()
    })
}

fn service_port() -> impl Strategy<Value = ServicePort> {
    (text(), maybe(text()), number(), maybe(number())).prop_map(|(name, protocol, port, node_port)| ServicePort {
        name,
        protocol,
        port,
        node_port,
        target_port: None,
    })
}

fn spec() -> impl Strategy<Value = ServiceSpec> {
    let texts = || vec(text(), 0..3);
    let affinity = maybe(maybe(maybe(number())));
    (
        (maybe(text()), maybe(text()), texts(), texts(), vec(service_port(), 0..3)),
        (maybe(text()), affinity, maybe(text()), maybe(text()), maybe(number()), texts()),
    )
        .prop_map(|((type_, cluster_ip, cluster_ips, external_ips, ports), rest)| {
            let (session_affinity, config, internal, external, health_check_node_port, ranges) = rest;
            let client_ip = |timeout: Option<_>| timeout.map(|timeout_seconds| ClientIpConfig { timeout_seconds });
            ServiceSpec {
                type_,
                cluster_ip,
                cluster_ips,
                external_ips,
                ports,
                session_affinity,
                session_affinity_config: config.map(|config| SessionAffinityConfig { client_ip: client_ip(config) }),
                internal_traffic_policy: internal,
                external_traffic_policy: external,
                health_check_node_port,
                load_balancer_source_ranges: ranges,
                ..ServiceSpec::default()
            }
        })
}

fn any_service() -> impl Strategy<Value = Service> {
    let ingress = (text(), maybe(text())).prop_map(|(ip, ip_mode)| LoadBalancerIngress { ip, ip_mode });
    (metadata(), spec(), vec(ingress, 0..3)).prop_map(|(metadata, spec, ingress)| Service {
        metadata,
        spec,
        status: ServiceStatus { load_balancer: LoadBalancerStatus { ingress } },
    })
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let port = (text(), maybe(text()), maybe(number())).prop_map(|(name, protocol, port)| EndpointPort {
        name,
        protocol,
        port,
    });
    let names = || vec(text().prop_map(|name| HintRef { name }), 0..3);
    let hints = (names(), names()).prop_map(|(for_zones, for_nodes)| EndpointHints { for_zones, for_nodes });
    let conditions = any::<[Option<bool>; 3]>();
    let endpoint = (vec(text(), 0..3), conditions, maybe(text()), maybe(hints)).prop_map(
        |(addresses, [ready, serving, terminating], node_name, hints)| SliceEndpoint {
            addresses,
            conditions: EndpointConditions { ready, serving, terminating },
            node_name,
            hints,
            target_ref: None,
        },
    );
    (metadata(), text(), vec(port, 0..3), vec(endpoint, 0..4)).prop_map(|(metadata, address_type, ports, endpoints)| {
        EndpointSlice { metadata, address_type, ports, endpoints }
    })
}

fn any_node() -> impl Strategy<Value = Node> {
    let address = (text(), text()).prop_map(|(type_, address)| NodeAddress { type_, address });
    let taint = text().prop_map(|key| Taint { key });
    (metadata(), maybe(text()), vec(text(), 0..3), vec(taint, 0..2), vec(address, 0..4)).prop_map(
        |(metadata, pod_cidr, pod_cidrs, taints, addresses)| Node {
            metadata,
            spec: NodeSpec { pod_cidr, pod_cidrs, taints },
            status: NodeStatus { addresses },
        },
    )
}

/// Every fault says where it is and what it is, and the error repeats each.
fn assert_named<T>(result: Result<T, InvalidObject>, kind: &str) -> Result<(), TestCaseError> {
    let Err(error) = result else { return Ok(()) };
    prop_assert_eq!(error.kind, kind);
    prop_assert!(!error.faults.is_empty());
    for fault in &error.faults {
        let roots = ["metadata.", "spec.", "status.", "addressType", "ports[", "endpoints["];
        prop_assert!(roots.iter().any(|root| fault.field.starts_with(root)), "{}", fault.field);
        prop_assert!(!fault.problem.is_empty());
        prop_assert!(error.to_string().contains(&fault.to_string()));
    }
    Ok(())
}

/// A way to spoil a Service: the field, and what puts a text into it.
type Spoil<T> = (&'static str, fn(&mut T, String));

const SERVICE_FIELDS: [Spoil<Service>; 14] = [
    ("metadata.name", |service, text| service.metadata.name = text),
    ("metadata.namespace", |service, text| service.metadata.namespace = text),
    ("spec.type", |service, text| service.spec.type_ = Some(text)),
    ("spec.clusterIPs[0]", |service, text| {
        service.spec.cluster_ip = Some(text.clone());
        service.spec.cluster_ips[0] = text;
    }),
    ("spec.clusterIP", |service, text| {
        service.spec.cluster_ip = Some(text);
        service.spec.cluster_ips.clear();
    }),
    ("spec.externalIPs[0]", |service, text| service.spec.external_ips.insert(0, text)),
    ("spec.ports[0].name", |service, text| service.spec.ports[0].name = text),
    ("spec.ports[0].protocol", |service, text| service.spec.ports[0].protocol = Some(text)),
    ("spec.sessionAffinity", |service, text| service.spec.session_affinity = Some(text)),
    ("spec.internalTrafficPolicy", |service, text| service.spec.internal_traffic_policy = Some(text)),
    ("spec.externalTrafficPolicy", |service, text| service.spec.external_traffic_policy = Some(text)),
    ("spec.loadBalancerSourceRanges[0]", |service, text| service.spec.load_balancer_source_ranges.insert(0, text)),
    ("status.loadBalancer.ingress[0].ip", |service, ip| {
        service.spec.type_ = Some("LoadBalancer".into());
        service.status.load_balancer.ingress.insert(0, LoadBalancerIngress { ip, ip_mode: None });
    }),
    ("status.loadBalancer.ingress[0].ipMode", |service, text| {
        service.spec.type_ = Some("LoadBalancer".into());
        let ingress = LoadBalancerIngress { ip: "198.51.100.200".into(), ip_mode: Some(text) };
        service.status.load_balancer.ingress.insert(0, ingress);
    }),
];

const SLICE_FIELDS: [Spoil<EndpointSlice>; 5] = [
    ("metadata.name", |slice, text| slice.metadata.name = text),
    ("metadata.namespace", |slice, text| slice.metadata.namespace = text),
    ("addressType", |slice, text| slice.address_type = text),
    ("ports[0].protocol", |slice, text| {
        slice.ports.insert(0, EndpointPort { name: "x".into(), protocol: Some(text), port: Some(1) });
    }),
    ("endpoints[0].addresses[0]", |slice, text| {
        slice.endpoints.insert(0, SliceEndpoint { addresses: vec![text], ..SliceEndpoint::default() });
    }),
];

/// No field has a right value that looks like this.
fn nonsense() -> impl Strategy<Value = String> {
    prop_oneof!["[A-Z]{2,10}!", "[ \"'\n;|$]{1,5}", "[a-z]{1,5}[ \"\n][a-z]{1,5}"]
}

proptest! {
    #[test]
    fn reading_any_service_never_panics_and_names_what_is_wrong(service in any_service()) {
        assert_named(parse_service(&service), "Service")?;
    }

    #[test]
    fn reading_any_slice_never_panics_and_names_what_is_wrong(slice in any_slice(), node in text()) {
        assert_named(parse_slice(&slice, &node), "EndpointSlice")?;
    }

    #[test]
    fn reading_any_node_never_panics_and_names_what_is_wrong(node in any_node()) {
        assert_named(parse_node(&node), "Node")?;
    }

    #[test]
    fn a_good_service_that_is_spoilt_in_one_field_is_refused_for_that_field(
        service in arbitrary::service().prop_filter("one that is ours", |service| {
            parse_service(service).is_ok_and(|read| read.is_some())
        }),
        (field, spoil) in select(SERVICE_FIELDS.to_vec()),
        nonsense in nonsense(),
    ) {
        let mut spoilt = service;
        spoil(&mut spoilt, nonsense);
        let error = parse_service(&spoilt).expect_err("nonsense is refused");
        prop_assert_eq!(&error.faults[0].field, field, "{}", error);
    }

    #[test]
    fn a_good_slice_that_is_spoilt_in_one_field_is_refused_for_that_field(
        slice in arbitrary::slice(),
        (field, spoil) in select(SLICE_FIELDS.to_vec()),
        nonsense in nonsense(),
    ) {
        let mut spoilt = slice;
        spoil(&mut spoilt, nonsense);
        let error = parse_slice(&spoilt, arbitrary::NODE).expect_err("nonsense is refused");
        let fields: Vec<&str> = error.faults.iter().map(|fault| fault.field.as_str()).collect();
        prop_assert_eq!(fields, [field], "{}", error);
    }

    #[test]
    fn what_is_read_as_an_address_or_network_is_written_in_a_form_that_reads_the_same(text in text()) {
        if let Ok(address) = parse_ip(&text) {
            prop_assert_eq!(parse_ip(&address.to_string()), Ok(address));
        }
        if let Ok(network) = parse_network(&text) {
            prop_assert_eq!(network, network.trunc());
            prop_assert_eq!(parse_network(&network.to_string()), Ok(network));
        }
    }
}
