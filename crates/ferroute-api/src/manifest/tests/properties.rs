use std::collections::BTreeMap;

use proptest::{collection::vec, option, prelude::*};
use serde_json::{Value, json};

use crate::manifest::{Parsed, documents, read};
use crate::{
    EndpointConditions, EndpointPort, EndpointSlice, LoadBalancerIngress, LoadBalancerStatus, Node, NodeSpec, Object,
    ObjectMeta, Service, ServicePort, ServiceSpec, ServiceStatus, SliceEndpoint, Taint, TargetRef,
};

fn name() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?"
}

/// Generates strings, including those that YAML could interpret as another type.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,12}",
        "[a-z0-9_+.:-]{0,6}",
        "[ \\tä€😀\\n#'\"\\\\|>&*!%@`{}\\[\\],?-]{0,8}",
        prop::sample::select(vec![
            "yes", "on", "n", "~", "null", "", "0x1", "0777", "1_0", "1e3", "123e4567", "<<", "---", "..."
        ])
        .prop_map(str::to_owned),
    ]
}

fn metadata() -> impl Strategy<Value = ObjectMeta> {
    let labels = || prop::collection::btree_map(text(), text(), 0..4);
    (name(), name(), labels(), labels()).prop_map(|(name, namespace, labels, annotations)| ObjectMeta {
        name,
        namespace,
        labels,
        annotations,
        ..ObjectMeta::default()
    })
}

fn service() -> impl Strategy<Value = Object> {
    let target = prop_oneof![any::<i32>().prop_map(|port| json!(port)), name().prop_map(|name| json!(name))];
    let port = (text(), option::of(text()), any::<i32>(), option::of(any::<i32>()), option::of(target)).prop_map(
        |(name, protocol, port, node_port, target_port)| ServicePort { name, protocol, port, node_port, target_port },
    );
    let ingress = (text(), option::of(text())).prop_map(|(ip, ip_mode)| LoadBalancerIngress { ip, ip_mode });
    let parts = (
        metadata(),
        option::of(text()),
        vec(text(), 0..3),
        vec(port, 0..3),
        option::of(any::<i32>()),
        vec(ingress, 0..3),
    );
    parts.prop_map(|(metadata, cluster_ip, external_ips, ports, health_check_node_port, ingress)| {
        let selector: BTreeMap<_, _> = metadata.labels.clone();
        let spec =
            ServiceSpec { cluster_ip, external_ips, ports, selector, health_check_node_port, ..ServiceSpec::default() };
        let status = ServiceStatus { load_balancer: LoadBalancerStatus { ingress } };
        Object::Service(Service { metadata, spec, status })
    })
}

fn slice() -> impl Strategy<Value = Object> {
    let port = (text(), option::of(any::<i32>())).prop_map(|(name, port)| EndpointPort { name, protocol: None, port });
    let flag = || option::of(any::<bool>());
    let endpoint = (vec(text(), 0..3), flag(), flag(), flag(), option::of(text()), option::of(text())).prop_map(
        |(addresses, ready, serving, terminating, node_name, pod)| SliceEndpoint {
            addresses,
            conditions: EndpointConditions { ready, serving, terminating },
            node_name,
            hints: None,
            zone: None,
            target_ref: pod.map(|name| TargetRef { kind: "Pod".to_owned(), name }),
        },
    );
    (metadata(), text(), vec(port, 0..3), vec(endpoint, 0..3)).prop_map(|(metadata, address_type, ports, endpoints)| {
        Object::EndpointSlice(EndpointSlice { metadata, address_type, ports, endpoints })
    })
}

fn node() -> impl Strategy<Value = Object> {
    (metadata(), option::of(text()), vec(text(), 0..3)).prop_map(|(mut metadata, pod_cidr, taints)| {
        metadata.namespace.clear();
        let taints = taints.into_iter().map(|key| Taint { key }).collect();
        Object::Node(Node { metadata, spec: NodeSpec { pod_cidr, taints, ..NodeSpec::default() }, ..Node::default() })
    })
}

fn objects() -> impl Strategy<Value = Vec<Object>> {
    vec(prop_oneof![service(), slice(), node()], 1..4)
}

/// Returns an object as the API serves it, with `kind` and `apiVersion`.
fn to_value(object: &Object) -> Value {
    let value = match object {
        Object::Service(object) => serde_json::to_value(object),
        Object::EndpointSlice(object) => serde_json::to_value(object),
        Object::Node(object) => serde_json::to_value(object),
        other => panic!("{} is not generated", other.kind()),
    };
    let mut value = value.unwrap();
    value["kind"] = object.kind().as_str().into();
    value["apiVersion"] = object.kind().api_version().into();
    value
}

fn read_objects(text: &str) -> Vec<Object> {
    let object = |parsed| match parsed {
        Ok(Parsed::Object(object)) => *object,
        other => panic!("{other:?} in {text}"),
    };
    read(text).into_iter().map(object).collect()
}

fn to_yaml(object: &Object) -> String {
    format!("---\n{}", serde_saphyr::to_string(&to_value(object)).unwrap())
}

/// Generates fragments that are likely to break the syntax of a text.
fn fragments() -> impl Strategy<Value = String> {
    let special = vec![
        "\n",
        "\r",
        "\t",
        " ",
        "  ",
        "-",
        "---\n",
        "...\n",
        ":",
        ": ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "&a ",
        "*a",
        "<<: *a",
        "!",
        "!!int ",
        "|\n",
        ">-\n",
        "%",
        "%YAML 1.2\n",
        "#",
        "\\",
        "\\u",
        "\u{feff}",
        "\0",
        "\u{7f}",
        "\u{85}",
        "é",
        "? ",
        ",",
        "~",
    ];
    prop_oneof![prop::sample::select(special).prop_map(str::to_owned), "\\PC{1,3}"]
}

proptest! {
    #[test]
    fn objects_written_as_yaml_documents_are_read_back(objects in objects()) {
        let text: String = objects.iter().map(to_yaml).collect();
        prop_assert_eq!(read_objects(&text), objects);
    }

    #[test]
    fn objects_written_as_json_are_read_back(objects in objects()) {
        let values: Vec<Value> = objects.iter().map(to_value).collect();
        let stream: String = values.iter().map(|value| serde_json::to_string_pretty(value).unwrap()).collect();
        prop_assert_eq!(read_objects(&stream), &objects[..]);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": values});
        prop_assert_eq!(read_objects(&list.to_string()), &objects[..]);
        // The comment makes the JSON a YAML document.
        prop_assert_eq!(read_objects(&format!("# a list\n{list}")), objects);
    }

    #[test]
    fn corrupted_texts_never_panic(
        objects in objects(),
        json in any::<bool>(),
        edits in vec((any::<prop::sample::Index>(), 0usize..4, fragments()), 1..6),
    ) {
        let mut text: String = if json {
            json!({"apiVersion": "v1", "kind": "List", "items": objects.iter().map(to_value).collect::<Vec<_>>()}).to_string()
        } else {
            objects.iter().map(to_yaml).collect()
        };
        for (index, removed, fragment) in edits {
            let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let first = index.index(ends.len());
            let last = (first + removed).min(ends.len() - 1);
            text.replace_range(ends[first]..ends[last], &fragment);
        }
        let lines = text.split(['\n', '\r']).count();
        let count = documents(&text).count();
        for parsed in read(&text) {
            if let Err(error) = parsed {
                prop_assert!(error.document >= count.min(1));
                prop_assert!(error.line.is_none_or(|line| (1..=lines + 1).contains(&line)), "{} in {}", error, text);
            }
        }
    }

    #[test]
    fn arbitrary_texts_never_panic_and_documents_start_at_their_lines(
        text in "(\\PC|[\\n\\t :{}\\[\\]&*'\"-]|\n---|\n\\.\\.\\.){0,80}"
    ) {
        let _ = read(&text);
        let body = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let mut number = 0;
        for document in documents(&text) {
            let start: usize = body.split_inclusive('\n').take(document.line - 1).map(str::len).sum();
            prop_assert!(body[start..].starts_with(document.text));
            prop_assert!(document.number > number);
            number = document.number;
        }
    }
}
