//! Arbitrary objects in both encodings lead to the same events.

use std::collections::BTreeMap;

use ferroute_core::rfc3339;
use proptest::{collection::vec, option, prelude::*};

use super::*;

/// Text that is not empty: empty fields that are not pointers in Go are omitted in JSON.
fn non_empty() -> impl Strategy<Value = String> {
    "[a-z0-9./:é-]{1,12}"
}

/// An object with some of these fields.
fn fields<const N: usize>(fields: [(&'static str, BoxedStrategy<Option<Value>>); N]) -> BoxedStrategy<Value> {
    let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    let object = values.prop_map(move |values| {
        let fields = names.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
        Value::Object(fields.collect())
    });
    object.boxed()
}

fn maybe<T: Into<Value> + Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Option<Value>> {
    option::of(value.prop_map(Into::into)).boxed()
}

fn always(value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Option<Value>> {
    value.prop_map(Some).boxed()
}

/// Text that may be empty: a pointer in Go.
fn pointer() -> BoxedStrategy<Option<Value>> {
    maybe("[a-zA-Z]{0,8}")
}

fn set_text() -> BoxedStrategy<Option<Value>> {
    maybe(non_empty())
}

fn set_number() -> BoxedStrategy<Option<Value>> {
    maybe((1i32..i32::MAX).boxed().prop_union(prop_oneof![Just(-1), Just(i32::MIN)].boxed()))
}

fn list_of(item: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Option<Value>> {
    maybe(vec(item, 1..4))
}

fn list_of_texts() -> BoxedStrategy<Option<Value>> {
    list_of(non_empty().prop_map(Value::from))
}

fn labels() -> BoxedStrategy<Option<Value>> {
    let labels = prop::collection::btree_map(non_empty(), "[a-z]{0,8}", 0..3);
    let object = |labels: BTreeMap<String, String>| labels.into_iter().map(|(key, value)| (key, value.into()));
    option::of(labels.prop_map(move |labels| Value::Object(object(labels).collect()))).boxed()
}

/// A time as the API server formats it, in this millennium.
fn time() -> BoxedStrategy<Option<Value>> {
    let text = |seconds| {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        rfc3339::format(time, 0).unwrap()
    };
    maybe((946_684_800u64..32_503_680_000).prop_map(text))
}

fn metadata() -> BoxedStrategy<Option<Value>> {
    let name = always(non_empty().prop_map(Value::from));
    let managed = fields([("manager", set_text()), ("time", time())]);
    let annotations =
        always(prop_oneof![Just(json!({})), non_empty().prop_map(|time| json!({CHANGED: time, "other": "x"}))]);
    always(fields([
        ("name", name),
        ("namespace", set_text()),
        ("uid", set_text()),
        ("resourceVersion", set_text()),
        ("generation", maybe(1i64..)),
        ("creationTimestamp", time()),
        ("deletionTimestamp", time()),
        ("labels", labels()),
        ("annotations", annotations),
        ("managedFields", list_of(managed)),
        ("unknown", set_text()),
    ]))
}

fn service() -> BoxedStrategy<Value> {
    let target = prop_oneof![any::<i32>().prop_map(Value::from), non_empty().prop_map(Value::from)];
    let port = fields([
        ("name", set_text()),
        ("protocol", set_text()),
        ("port", always(any::<i32>().prop_map(Value::from))),
        ("targetPort", always(target)),
        ("nodePort", set_number()),
    ]);
    let client_ip = fields([("timeoutSeconds", maybe(any::<i32>()))]);
    let spec = fields([
        ("type", set_text()),
        ("clusterIP", set_text()),
        ("clusterIPs", list_of_texts()),
        ("ipFamilies", list_of_texts()),
        ("ipFamilyPolicy", pointer()),
        ("externalIPs", list_of_texts()),
        ("ports", list_of(port)),
        ("selector", labels()),
        ("sessionAffinity", set_text()),
        ("sessionAffinityConfig", maybe(fields([("clientIP", maybe(client_ip))]))),
        ("internalTrafficPolicy", pointer()),
        ("externalTrafficPolicy", set_text()),
        ("trafficDistribution", pointer()),
        ("healthCheckNodePort", set_number()),
        ("loadBalancerSourceRanges", list_of_texts()),
        ("unknown", list_of_texts()),
    ]);
    let ingress = fields([("ip", set_text()), ("hostname", set_text()), ("ipMode", pointer())]);
    let status = fields([("loadBalancer", maybe(fields([("ingress", list_of(ingress))])))]);
    fields([("metadata", metadata()), ("spec", maybe(spec)), ("status", maybe(status))])
}

fn slice() -> BoxedStrategy<Value> {
    let port = fields([("name", pointer()), ("protocol", pointer()), ("port", maybe(any::<i32>()))]);
    let condition = || maybe(any::<bool>());
    let conditions = fields([("ready", condition()), ("serving", condition()), ("terminating", condition())]);
    let named = || list_of(fields([("name", always(non_empty().prop_map(Value::from)))]));
    let endpoint = fields([
        ("addresses", list_of_texts()),
        ("conditions", maybe(conditions)),
        ("nodeName", pointer()),
        ("zone", pointer()),
        ("targetRef", maybe(fields([("kind", set_text()), ("name", set_text())]))),
        ("hints", maybe(fields([("forZones", named()), ("forNodes", named())]))),
    ]);
    fields([
        ("metadata", metadata()),
        ("addressType", set_text()),
        ("ports", list_of(port)),
        ("endpoints", list_of(endpoint)),
    ])
}

fn node() -> BoxedStrategy<Value> {
    let taint = fields([("key", set_text()), ("effect", set_text())]);
    let address = fields([("type", set_text()), ("address", set_text())]);
    let spec = fields([("podCIDR", set_text()), ("podCIDRs", list_of_texts()), ("taints", list_of(taint))]);
    let status = fields([("addresses", list_of(address)), ("images", list_of_texts())]);
    fields([("metadata", metadata()), ("spec", maybe(spec)), ("status", maybe(status))])
}

fn service_cidr() -> BoxedStrategy<Value> {
    fields([("metadata", metadata()), ("spec", maybe(fields([("cidrs", list_of_texts())])))])
}

fn object() -> impl Strategy<Value = (Resource, Value)> {
    prop_oneof![
        service().prop_map(|object| (Resource::Services, object)),
        slice().prop_map(|object| (Resource::EndpointSlices, object)),
        node().prop_map(|object| (Resource::Nodes, object)),
        service_cidr().prop_map(|object| (Resource::ServiceCidrs, object)),
    ]
}

proptest! {
    #[test]
    fn both_encodings_of_an_object_lead_to_the_same_event((resource, object) in object()) {
        let (text, message) = (object.to_string(), encode::object(resource, &object));
        let (json, protobuf) = (event(resource, RawObject::Json(&text)), event(resource, RawObject::Protobuf(&message)));
        prop_assert_eq!(format!("{json:#?}"), format!("{protobuf:#?}"));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..200)) {
        for resource in Resource::ALL {
            let _ = decode::object(resource, RawObject::Protobuf(&bytes));
        }
        let _ = decode::watch_event(MediaType::Protobuf, &bytes);
    }
}
