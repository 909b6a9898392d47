use super::{service, summary};
use crate::Object;
use crate::manifest::{Parsed, read};

#[test]
fn json_and_yaml_give_equal_objects() {
    let text = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "labels": null},
        "spec": {"ports": [{"port": 80, "name": "h\u0074tp", "targetPort": "http"}], "clusterIP": "10.0.0.1"}}"#;
    let read = service(text);
    assert_eq!((&*read.spec.ports[0].name, read.spec.ports[0].port), ("http", 80));
    assert_eq!(read, service(&text.replace("\\u0074", "t").replace('"', "'")));
}

#[test]
fn consecutive_json_values_are_read() {
    let one = |name| format!(r#"{{"apiVersion": "v1", "kind": "Service", "metadata": {{"name": "{name}"}}}}"#);
    assert_eq!(
        summary(&format!("{}\n{}\n---\n{}", one("a"), one("b"), one("c"))),
        ["Service default/a", "Service default/b", "Service default/c"]
    );
}

#[test]
fn json_syntax_errors_are_reported_as_json() {
    for (text, error) in [
        ("{\"kind\": \"Service\",\n \"metadata\": {\"name\" 1}}", "line 2: invalid JSON: expected `:`"),
        ("\n{\"kind\": \"Service\",", "line 2: invalid JSON: EOF while parsing a value"),
        ("{\"a\": 1,\n \"a\": 2}", "line 2: invalid JSON: duplicate key \"a\""),
        ("{\"items\": [], \"items\": []}", "line 1: invalid JSON: duplicate key \"items\""),
    ] {
        assert_eq!(summary(text), [format!("error: document 1, {error}")]);
    }
}

#[test]
fn lines_in_json_errors_are_lines_of_the_whole_text() {
    assert_eq!(summary("---\n---\n\n{\"kind\": ]}\n"), ["error: document 2, line 4: invalid JSON: expected value"]);
}

#[test]
fn field_errors_contain_the_path() {
    let text =
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": "80"}]}}"#;
    assert_eq!(
        summary(text),
        ["error: document 1: Service default/a: spec.ports[0].port: got string \"80\", want a number"]
    );
}

#[test]
fn yaml_in_flow_style_is_not_mistaken_for_json() {
    for text in [
        "{apiVersion: v1, kind: Service, metadata: {name: a}}",
        "---\n{ # so\n  'apiVersion': v1, kind: Service, metadata: {name: a},}",
    ] {
        assert_eq!(summary(text), ["Service default/a"]);
    }
    assert_eq!(summary("{}"), ["error: document 1: kind: missing"]);
    assert_eq!(summary("[]"), ["error: document 1, line 1: invalid JSON: invalid type: sequence, expected an object"]);
}

#[test]
fn deeply_nested_json_is_an_error() {
    let all = summary(&format!("{{\"a\": {}", "[".repeat(100_000)));
    assert!(all.len() == 1 && all[0].starts_with("error: document 1, line 1: "), "{all:?}");
}

#[test]
fn all_fields_of_a_slice_survive_a_round_trip() {
    let text = r#"{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "a-1", "namespace": "n", "labels": {"kubernetes.io/service-name": "a"}},
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true, "terminating": false},
            "nodeName": "n1", "hints": {"forZones": [{"name": "z"}]}}]}"#;
    let [Ok(Parsed::Object(object))] = &read(text)[..] else { panic!("{:?}", summary(text)) };
    let Object::EndpointSlice(slice) = &**object else { panic!("{object:?}") };
    assert_eq!(slice.service_name(), Some("a"));
    let mut again = serde_json::to_value(slice).unwrap();
    again["apiVersion"] = object.kind().api_version().into();
    again["kind"] = object.kind().as_str().into();
    assert_eq!(again, serde_json::from_str::<serde_json::Value>(text).unwrap());
}
