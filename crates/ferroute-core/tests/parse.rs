//! Property tests of the parser: every object results in a value or in errors that name its invalid fields.

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

/// Generates any text, often one that is valid in some field.
fn text() -> impl Strategy<Value = String> {
    let valid = vec![
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
    prop_oneof![6 => select(valid).prop_map(str::to_owned), 1 => any::<String>(), 1 => "[0-9a-f:./]{0,20}"]
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
            zone: None,
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

/// Asserts that each error has a field and a problem, and that the display of the object's error contains them.
fn check_errors<T>(result: Result<T, InvalidObject>, kind: &str) -> Result<(), TestCaseError> {
    let Err(error) = result else { return Ok(()) };
    prop_assert_eq!(error.kind, kind);
    prop_assert!(!error.errors.is_empty());
    for field_error in &error.errors {
        let roots = ["metadata.", "spec.", "status.", "addressType", "ports[", "endpoints["];
        prop_assert!(roots.iter().any(|root| field_error.field.starts_with(root)), "{}", field_error.field);
        prop_assert!(!field_error.problem.is_empty());
        prop_assert!(error.to_string().contains(&field_error.to_string()));
    }
    Ok(())
}

/// A field of an object, with its setter.
type Field<T> = (&'static str, fn(&mut T, String));

const SERVICE_FIELDS: [Field<Service>; 13] = [
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

const SLICE_FIELDS: [Field<EndpointSlice>; 5] = [
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

/// Text that is not valid in any field.
fn invalid_text() -> impl Strategy<Value = String> {
    prop_oneof!["[A-Z]{2,10}!", "[ \"'\n;|$]{1,5}", "[a-z]{1,5}[ \"\n][a-z]{1,5}"]
}

proptest! {
    #[test]
    fn any_service_is_parsed_or_rejected_with_its_fields(service in any_service()) {
        check_errors(parse_service(&service), "Service")?;
    }

    #[test]
    fn any_slice_is_parsed_or_rejected_with_its_fields(slice in any_slice(), node in text()) {
        check_errors(parse_slice(&slice, &node), "EndpointSlice")?;
    }

    #[test]
    fn any_node_is_parsed_or_rejected_with_its_fields(node in any_node()) {
        check_errors(parse_node(&node), "Node")?;
    }

    #[test]
    fn service_with_one_invalid_field_is_rejected_for_that_field(
        service in arbitrary::service().prop_filter("a Service for this proxy", |service| {
            parse_service(service).is_ok_and(|view| view.is_some())
        }),
        (field, set) in select(SERVICE_FIELDS.to_vec()),
        text in invalid_text(),
    ) {
        let mut invalid = service;
        set(&mut invalid, text);
        let error = parse_service(&invalid).expect_err("an invalid field");
        prop_assert_eq!(&error.errors[0].field, field, "{}", error);
    }

    #[test]
    fn slice_with_one_invalid_field_is_rejected_for_that_field(
        slice in arbitrary::slice(),
        (field, set) in select(SLICE_FIELDS.to_vec()),
        text in invalid_text(),
    ) {
        let mut invalid = slice;
        set(&mut invalid, text);
        let error = parse_slice(&invalid, arbitrary::NODE).expect_err("an invalid field");
        let fields: Vec<&str> = error.errors.iter().map(|error| error.field.as_str()).collect();
        prop_assert_eq!(fields, [field], "{}", error);
    }

    #[test]
    fn parsed_addresses_and_networks_are_unchanged_by_formatting_and_parsing(text in text()) {
        if let Ok(address) = parse_ip(&text) {
            prop_assert_eq!(parse_ip(&address.to_string()), Ok(address));
        }
        if let Ok(network) = parse_network(&text) {
            prop_assert_eq!(network, network.trunc());
            prop_assert_eq!(parse_network(&network.to_string()), Ok(network));
        }
    }
}
