use ferroute_config::MediaType;
use ferroute_source::{Event, Resource};
use serde_json::json;

use crate::decode::{Decoded, MissingName, RawObject, list_meta, object, status, watch_event};

fn read(resource: Resource, json: &serde_json::Value) -> Result<Decoded, MissingName> {
    object(resource, RawObject::Json(&json.to_string()))
}

fn error_of(resource: Resource, json: &serde_json::Value) -> String {
    read(resource, json).unwrap().event.unwrap_err().to_string()
}

#[test]
fn watch_events_of_all_types_are_decoded() {
    let kind = |text: &str| format!("{:?}", watch_event(MediaType::Json, text.as_bytes()).unwrap());
    assert_eq!(kind(r#"{"type":"ADDED","object":{"a":1}}"#), r#"Applied(Json("{\"a\":1}"))"#);
    assert_eq!(kind(r#"{"object":{},"type":"MODIFIED"}"#), r#"Applied(Json("{}"))"#);
    assert_eq!(kind(r#"{"type":"DELETED","object":{}}"#), r#"Deleted(Json("{}"))"#);
    assert_eq!(
        kind(r#"{"type":"BOOKMARK","object":{"kind":"Service","metadata":{"resourceVersion":"7"}}}"#),
        r#"Bookmark { version: "7", ends_list: false }"#
    );
    assert_eq!(
        kind(
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8",
                "annotations":{"k8s.io/initial-events-end":"true"}}}}"#
        ),
        r#"Bookmark { version: "8", ends_list: true }"#
    );
    assert_eq!(
        kind(r#"{"type":"ERROR","object":{"kind":"Status","message":"too old","reason":"Expired","code":410}}"#),
        r#"Error(Status { message: "too old", code: 410 })"#
    );
    assert_eq!(kind(r#"{"type":"NEW","object":{}}"#), r#"Unknown("NEW")"#);
}

#[test]
fn invalid_watch_events_are_errors() {
    for text in [r#"{"kind":"Status","code":500}"#, r#"{"type":"ADDED"}"#, r#"{"type":1,"object":{}}"#, "{"] {
        assert!(watch_event(MediaType::Json, text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn other_annotations_are_dropped() {
    let key = "endpoints.kubernetes.io/last-change-trigger-time";
    let slice = json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "5",
        "annotations": {key: "now", "kubectl.kubernetes.io/last-applied-configuration": "{}"}}});
    let decoded = read(Resource::EndpointSlices, &slice).unwrap();
    assert_eq!((decoded.name.to_string().as_str(), decoded.version.as_str()), ("n/a", "5"));
    let Ok(Event::SliceApplied(slice)) = decoded.event else { panic!("the slice is valid") };
    assert_eq!(slice.metadata.annotations, [(key.to_owned(), "now".to_owned())].into());
}

#[test]
fn errors_name_the_field_and_the_object() {
    let service = json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "5"},
        "spec": {"clusterIPs": ["10.0.0.1", 7]}});
    let decoded = read(Resource::Services, &service).unwrap();
    assert_eq!((decoded.name.to_string().as_str(), decoded.version.as_str()), ("n/a", "5"));
    let error = "spec.clusterIPs[1]: invalid type: integer `7`, expected a string";
    assert_eq!(error_of(Resource::Services, &service), error);
    let node = json!({"metadata": {"name": "a"}, "status": {"addresses": {}}});
    assert_eq!(error_of(Resource::Nodes, &node), "status.addresses: invalid type: map, expected a sequence");
}

#[test]
fn objects_without_a_name_are_errors() {
    for metadata in [json!({}), json!({"name": ""}), json!({"name": null}), json!([])] {
        assert!(read(Resource::Services, &json!({"metadata": metadata})).is_err(), "{metadata}");
    }
    assert!(read(Resource::Services, &json!({"spec": {}})).is_err());
}

#[test]
fn arrays_are_not_objects_whose_fields_have_positions() {
    for resource in Resource::ALL {
        assert!(read(resource, &json!([{"name": "a"}, {}, {}])).is_err(), "{resource:?}");
        assert!(read(resource, &json!([{"name": "a"}])).is_err(), "{resource:?}");
    }
    assert!(watch_event(MediaType::Json, br#"["ADDED",{}]"#).is_err());
    assert!(list_meta(MediaType::Json, br#"[{"resourceVersion":"7"}]"#).is_err());
    assert!(status(MediaType::Json, br#"["too old",410]"#).is_err());
}
