use ferroute_config::MediaType;
use ferroute_source::{Event, Resource};
use serde_json::json;

use crate::{
    decode::{Nameless, Raw, Sent, message, object},
    known::Known,
};

fn read(resource: Resource, json: &serde_json::Value) -> Result<Sent, Nameless> {
    object(resource, Raw::Json(&json.to_string()), &mut Known::default())
}

fn error_of(resource: Resource, json: &serde_json::Value) -> String {
    read(resource, json).unwrap().applied.unwrap_err().to_string()
}

#[test]
fn messages_of_all_types_are_read() {
    let kind = |text: &str| format!("{:?}", message(MediaType::Json, text.as_bytes()).unwrap());
    assert_eq!(kind(r#"{"type":"ADDED","object":{"a":1}}"#), r#"Applied(Json("{\"a\":1}"))"#);
    assert_eq!(kind(r#"{"object":{},"type":"MODIFIED"}"#), r#"Applied(Json("{}"))"#);
    assert_eq!(kind(r#"{"type":"DELETED","object":{}}"#), r#"Deleted(Json("{}"))"#);
    assert_eq!(
        kind(r#"{"type":"BOOKMARK","object":{"kind":"Service","metadata":{"resourceVersion":"7"}}}"#),
        r#"Bookmark { version: "7", ends_listing: false }"#
    );
    assert_eq!(
        kind(
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8",
                "annotations":{"k8s.io/initial-events-end":"true"}}}}"#
        ),
        r#"Bookmark { version: "8", ends_listing: true }"#
    );
    assert_eq!(
        kind(r#"{"type":"ERROR","object":{"kind":"Status","message":"too old","reason":"Expired","code":410}}"#),
        r#"Error(Status { message: "too old", code: 410 })"#
    );
    assert_eq!(kind(r#"{"type":"NEW","object":{}}"#), r#"Unknown("NEW")"#);
}

#[test]
fn what_is_no_message_is_an_error() {
    for text in [r#"{"kind":"Status","code":500}"#, r#"{"type":"ADDED"}"#, r#"{"type":1,"object":{}}"#, "{"] {
        assert!(message(MediaType::Json, text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn annotations_that_no_proxy_reads_are_dropped() {
    let key = "endpoints.kubernetes.io/last-change-trigger-time";
    let slice = json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "5",
        "annotations": {key: "now", "kubectl.kubernetes.io/last-applied-configuration": "{}"}}});
    let sent = read(Resource::EndpointSlices, &slice).unwrap();
    assert_eq!((sent.name.to_string().as_str(), sent.version.as_str()), ("n/a", "5"));
    let Ok(Event::SliceApplied(slice)) = sent.applied else { panic!("it is good") };
    assert_eq!(slice.metadata.annotations, [(key.to_owned(), "now".to_owned())].into());
}

#[test]
fn a_bad_field_is_named_and_so_is_the_object() {
    let service = json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "5"},
        "spec": {"clusterIPs": ["10.0.0.1", 7]}});
    let sent = read(Resource::Services, &service).unwrap();
    assert_eq!((sent.name.to_string().as_str(), sent.version.as_str()), ("n/a", "5"));
    let error = "spec.clusterIPs[1]: invalid type: integer `7`, expected a string";
    assert_eq!(error_of(Resource::Services, &service), error);
    let node = json!({"metadata": {"name": "a"}, "status": {"addresses": {}}});
    assert_eq!(error_of(Resource::Nodes, &node), "status.addresses: invalid type: map, expected a sequence");
}

#[test]
fn objects_without_a_name_are_told_apart() {
    for metadata in [json!({}), json!({"name": ""}), json!({"name": null}), json!([])] {
        assert!(read(Resource::Services, &json!({"metadata": metadata})).is_err(), "{metadata}");
    }
    assert!(read(Resource::Services, &json!({"spec": {}})).is_err());
}
