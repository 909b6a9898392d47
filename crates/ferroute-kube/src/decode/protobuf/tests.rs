use std::collections::BTreeMap;

use ferroute_config::MediaType;
use ferroute_source::{Event, Resource};
use k8s_pb::{
    api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking},
    apimachinery::pkg::{apis::meta::v1 as meta, runtime::Unknown, util::intstr::IntOrString},
};
use prost::Message;
use serde_json::{Value, json};

use crate::{
    decode::{self, RawObject, Status},
    testing::encode,
};

mod properties;

/// Returns the event for an object.
fn event(resource: Resource, raw: RawObject<'_>) -> Event {
    decode::object(resource, raw).unwrap().event.unwrap()
}

/// Asserts that a message of a type generated from Kubernetes' own files is decoded as this JSON is.
fn assert_decoded_as(resource: Resource, message: &impl Message, json: &Value) {
    let (message, json) = (message.encode_to_vec(), json.to_string());
    let (message, json) = (event(resource, RawObject::Protobuf(&message)), event(resource, RawObject::Json(&json)));
    assert_eq!(format!("{message:#?}"), format!("{json:#?}"));
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

fn map(key: &str, value: &str) -> BTreeMap<String, String> {
    [(key.to_owned(), value.to_owned())].into()
}

const CHANGED: &str = "endpoints.kubernetes.io/last-change-trigger-time";

fn object_meta() -> meta::ObjectMeta {
    let time = |seconds| Some(meta::Time { seconds: Some(seconds), nanos: Some(0) });
    let written = |seconds| meta::ManagedFieldsEntry {
        manager: text("kubectl"),
        operation: text("Update"),
        time: time(seconds),
        fields_v1: Some(meta::FieldsV1 { raw: Some(b"{\"f:spec\":{}}".to_vec()) }),
        ..Default::default()
    };
    meta::ObjectMeta {
        name: text("web"),
        generate_name: text("generated"),
        namespace: text("shop"),
        self_link: text("link"),
        uid: text("uid"),
        resource_version: text("17"),
        generation: Some(3),
        creation_timestamp: time(1_700_000_000),
        deletion_timestamp: time(1_767_366_245),
        deletion_grace_period_seconds: Some(30),
        labels: map("app", "web"),
        annotations: map(CHANGED, "then"),
        managed_fields: vec![written(1_767_366_247), written(1_767_366_246)],
        ..Default::default()
    }
}

fn object_meta_in_json() -> Value {
    json!({
        "name": "web", "namespace": "shop", "resourceVersion": "17", "generation": 3, "labels": {"app": "web"},
        "creationTimestamp": "2023-11-14T22:13:20Z", "deletionTimestamp": "2026-01-02T15:04:05Z",
        "annotations": {CHANGED: "then"},
        "managedFields": [{"time": "2026-01-02T15:04:07Z"}, {"time": "2026-01-02T15:04:06Z"}],
    })
}

#[test]
fn services_have_the_fields_of_kubernetes() {
    let port = core::ServicePort {
        name: text("http"),
        protocol: text("TCP"),
        app_protocol: text("kubernetes.io/h2c"),
        port: Some(80),
        target_port: Some(IntOrString { r#type: Some(1), int_val: Some(0), str_val: text("web") }),
        node_port: Some(30080),
    };
    let affinity = core::SessionAffinityConfig { client_ip: Some(core::ClientIpConfig { timeout_seconds: Some(60) }) };
    let spec = core::ServiceSpec {
        ports: vec![port],
        selector: map("app", "shop"),
        cluster_ip: text("10.0.0.1"),
        cluster_ips: texts(["10.0.0.1", "fd00::1"]),
        r#type: text("LoadBalancer"),
        external_ips: texts(["192.0.2.1"]),
        session_affinity: text("ClientIP"),
        load_balancer_ip: text("192.0.2.9"),
        load_balancer_source_ranges: texts(["198.51.100.0/24"]),
        external_name: text("other"),
        external_traffic_policy: text("Local"),
        health_check_node_port: Some(30081),
        publish_not_ready_addresses: Some(true),
        session_affinity_config: Some(affinity),
        ip_families: texts(["IPv4", "IPv6"]),
        ip_family_policy: text("PreferDualStack"),
        allocate_load_balancer_node_ports: Some(true),
        load_balancer_class: text("class"),
        internal_traffic_policy: text("Cluster"),
        traffic_distribution: text("PreferClose"),
    };
    let ingress = core::LoadBalancerIngress {
        ip: text("192.0.2.2"),
        hostname: text("balancer"),
        ip_mode: text("Proxy"),
        ..Default::default()
    };
    let status = core::ServiceStatus {
        load_balancer: Some(core::LoadBalancerStatus { ingress: vec![ingress] }),
        ..Default::default()
    };
    let service = core::Service { metadata: Some(object_meta()), spec: Some(spec), status: Some(status) };
    let expected = json!({
        "metadata": object_meta_in_json(),
        "spec": {
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web", "nodePort": 30080}],
            "selector": {"app": "shop"}, "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
            "type": "LoadBalancer", "externalIPs": ["192.0.2.1"], "sessionAffinity": "ClientIP",
            "loadBalancerSourceRanges": ["198.51.100.0/24"], "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30081, "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack", "internalTrafficPolicy": "Cluster",
            "trafficDistribution": "PreferClose",
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.2", "ipMode": "Proxy"}]}},
    });
    assert_decoded_as(Resource::Services, &service, &expected);
}

#[test]
fn endpoint_slices_have_the_fields_of_kubernetes() {
    let target = core::ObjectReference {
        kind: text("Pod"),
        namespace: text("shop"),
        name: text("web-1"),
        uid: text("uid"),
        ..Default::default()
    };
    let hints = discovery::EndpointHints {
        for_zones: vec![discovery::ForZone { name: text("zone-a") }],
        for_nodes: vec![discovery::ForNode { name: text("node-1") }],
    };
    let endpoint = discovery::Endpoint {
        addresses: texts(["10.1.0.1", "10.1.0.2"]),
        conditions: Some(discovery::EndpointConditions {
            ready: Some(false),
            serving: Some(true),
            terminating: Some(true),
        }),
        hostname: text("host"),
        target_ref: Some(target),
        deprecated_topology: map("old", "zone"),
        node_name: text("node-2"),
        zone: text("zone-b"),
        hints: Some(hints),
    };
    let port = discovery::EndpointPort {
        name: text("http"),
        protocol: text("UDP"),
        port: Some(8080),
        app_protocol: text("other"),
    };
    let slice = discovery::EndpointSlice {
        metadata: Some(object_meta()),
        address_type: text("IPv4"),
        endpoints: vec![endpoint, discovery::Endpoint::default()],
        ports: vec![port, discovery::EndpointPort::default()],
    };
    let expected = json!({
        "metadata": object_meta_in_json(),
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "UDP", "port": 8080}, {}],
        "endpoints": [{
            "addresses": ["10.1.0.1", "10.1.0.2"],
            "conditions": {"ready": false, "serving": true, "terminating": true},
            "targetRef": {"kind": "Pod", "name": "web-1"}, "nodeName": "node-2", "zone": "zone-b",
            "hints": {"forZones": [{"name": "zone-a"}], "forNodes": [{"name": "node-1"}]},
        }, {}],
    });
    assert_decoded_as(Resource::EndpointSlices, &slice, &expected);
}

#[test]
fn nodes_and_service_cidrs_have_the_fields_of_kubernetes() {
    let taint =
        core::Taint { key: text("key"), value: text("value"), effect: text("NoSchedule"), ..Default::default() };
    let address = core::NodeAddress { r#type: text("InternalIP"), address: text("192.0.2.1") };
    let image = core::ContainerImage { names: texts(["registry/image"]), size_bytes: Some(1 << 40) };
    let node = core::Node {
        metadata: Some(object_meta()),
        spec: Some(core::NodeSpec {
            pod_cidr: text("10.2.0.0/24"),
            pod_cid_rs: texts(["10.2.0.0/24", "fd02::/64"]),
            provider_id: text("provider"),
            unschedulable: Some(true),
            taints: vec![taint],
            ..Default::default()
        }),
        status: Some(core::NodeStatus { addresses: vec![address], images: vec![image], ..Default::default() }),
    };
    let expected = json!({
        "metadata": object_meta_in_json(),
        "spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24", "fd02::/64"], "taints": [{"key": "key"}]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    });
    assert_decoded_as(Resource::Nodes, &node, &expected);

    let cidr = networking::ServiceCIDR {
        metadata: Some(object_meta()),
        spec: Some(networking::ServiceCIDRSpec { cidrs: texts(["10.0.0.0/16"]) }),
        ..Default::default()
    };
    let expected = json!({"metadata": object_meta_in_json(), "spec": {"cidrs": ["10.0.0.0/16"]}});
    assert_decoded_as(Resource::ServiceCidrs, &cidr, &expected);
}

#[test]
fn status_and_list_metadata_have_the_fields_of_kubernetes() {
    let status = meta::Status {
        status: text("Failure"),
        message: text("too old"),
        reason: text("Expired"),
        code: Some(410),
        ..Default::default()
    };
    let expected = Status { message: "too old".to_owned(), code: 410 };
    assert_eq!(super::status(&status.encode_to_vec()).unwrap(), expected);

    let list = meta::ListMeta {
        self_link: text("link"),
        resource_version: text("7"),
        r#continue: text("more"),
        remaining_item_count: Some(3),
    };
    let read = super::list_meta(&list.encode_to_vec()).unwrap();
    assert_eq!((read.resource_version.as_str(), read.r#continue.as_str()), ("7", "more"));
}

#[test]
fn watch_events_of_all_types_are_decoded() {
    let read = |kind, object| {
        let frame = encode::event(MediaType::Protobuf, Resource::Services, kind, &object);
        format!("{:?}", decode::watch_event(MediaType::Protobuf, &frame[4..]).unwrap())
    };
    let service = json!({"metadata": {"name": "a", "resourceVersion": "7"}});
    let raw = encode::object(Resource::Services, &service);
    assert_eq!(read("ADDED", service.clone()), format!("Applied(Protobuf({raw:?}))"));
    assert_eq!(read("MODIFIED", service.clone()), format!("Applied(Protobuf({raw:?}))"));
    assert_eq!(read("DELETED", service.clone()), format!("Deleted(Protobuf({raw:?}))"));
    assert_eq!(read("BOOKMARK", service), r#"Bookmark { version: "7", ends_list: false }"#);
    let end = json!({"metadata": {"resourceVersion": "8", "annotations": {"k8s.io/initial-events-end": "true"}}});
    assert_eq!(read("BOOKMARK", end), r#"Bookmark { version: "8", ends_list: true }"#);
    let status = json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410});
    assert_eq!(read("ERROR", status), r#"Error(Status { message: "too old", code: 410 })"#);
    assert_eq!(read("NEW", json!({})), r#"Unknown("NEW")"#);
}

#[test]
fn envelopes_are_those_of_kubernetes() {
    let service = json!({"metadata": {"name": "a"}});
    let frame = encode::event(MediaType::Protobuf, Resource::EndpointSlices, "ADDED", &service);
    let (length, event) = frame.split_at(4);
    assert_eq!(length, u32::try_from(event.len()).unwrap().to_be_bytes());
    let event = meta::WatchEvent::decode(event).unwrap();
    let object = event.object.unwrap().raw.unwrap();
    let unknown = Unknown::decode(object.strip_prefix(b"k8s\0").unwrap()).unwrap();
    let type_meta = unknown.type_meta.unwrap();
    assert_eq!(
        [event.r#type, type_meta.api_version, type_meta.kind],
        ["ADDED", "discovery.k8s.io/v1", "EndpointSlice"].map(text)
    );
    assert_eq!(unknown.raw.unwrap(), encode::object(Resource::EndpointSlices, &service));

    let list = encode::list(MediaType::Protobuf, Resource::EndpointSlices, &json!({"continue": "more"}), &[service]);
    let unknown = Unknown::decode(list.strip_prefix(b"k8s\0").unwrap()).unwrap();
    assert_eq!(unknown.type_meta.unwrap().kind, text("EndpointSliceList"));
    let list = discovery::EndpointSliceList::decode(&*unknown.raw.unwrap()).unwrap();
    assert_eq!(list.metadata.unwrap().r#continue, text("more"));
    assert_eq!(list.items[0].metadata.as_ref().unwrap().name, text("a"));
}

#[test]
fn truncated_watch_events_are_errors() {
    let whole = encode::event(MediaType::Protobuf, Resource::Services, "ADDED", &json!({"metadata": {"name": "a"}}));
    // Truncated anywhere after the length; and without the magic number of the inner envelope.
    for length in 0..whole.len() - 4 {
        assert!(decode::watch_event(MediaType::Protobuf, &whole[4..4 + length]).is_err(), "{length} bytes");
    }
    assert!(decode::watch_event(MediaType::Protobuf, b"\x0a\x05ADDED\x12\x06\x0a\x04k9s\0").is_err());
}

#[test]
fn errors_name_the_field_and_the_object() {
    let read = |object: Value| {
        let message = encode::object(Resource::Services, &object);
        let decoded = decode::object(Resource::Services, RawObject::Protobuf(&message)).unwrap();
        assert_eq!((decoded.name.to_string().as_str(), decoded.version.as_str()), ("n/a", "5"));
        decoded.event.unwrap_err().to_string()
    };
    let metadata = json!({"name": "a", "namespace": "n", "resourceVersion": "5"});
    let error = read(json!({"metadata": metadata, "spec": {"ports": [{"port": 80}, {"port": "http"}]}}));
    assert_eq!(error, "spec.ports.port: invalid wire type: LengthDelimited (expected Varint)");
    let error = read(json!({"metadata": metadata, "spec": "bad"}));
    assert!(error.starts_with("spec."), "{error}");
}

#[test]
fn objects_without_a_name_are_errors() {
    for metadata in [json!({}), json!({"name": ""}), json!({"name": 7}), json!("x")] {
        let message = encode::object(Resource::Services, &json!({"metadata": metadata}));
        let read = decode::object(Resource::Services, RawObject::Protobuf(&message));
        assert!(read.is_err(), "{metadata}");
    }
}
