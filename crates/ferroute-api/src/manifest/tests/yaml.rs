use super::{named, service, summary};

/// Returns the value of a label that is written as `yaml`.
#[track_caller]
fn label(yaml: &str) -> String {
    service(&named("a", &format!("  labels:\n    l: {yaml}\n"))).metadata.labels["l"].clone()
}

/// Returns the error for a label that is written as `yaml`.
#[track_caller]
fn bad_label(yaml: &str) -> String {
    let all = summary(&named("a", &format!("  labels:\n    l: {yaml}\n")));
    let prefix = "error: document 1, line 6: Service default/a: metadata.labels.l: ";
    all[0].strip_prefix(prefix).unwrap_or_else(|| panic!("{all:?}")).to_owned()
}

#[test]
fn yaml_1_1_booleans_are_not_strings() {
    for word in ["y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "n", "No", "off", "OFF", "False"] {
        assert_eq!(bad_label(word), format!("got boolean {word}, want a string (quote it: \"{word}\")"));
        assert_eq!(label(&format!("'{word}'")), word);
        assert_eq!(label(&format!("!!str {word}")), word);
    }
}

#[test]
fn numbers_are_not_strings() {
    for number in ["1", "-7", "+7", "1.5", ".5", "1e3", "0x1F", "0o17", "0b11", "0777", "08", "1_000", ".inf", ".NaN"] {
        assert_eq!(bad_label(number), format!("got number {number}, want a string (quote it: \"{number}\")"));
        assert_eq!(label(&format!("\"{number}\"")), number);
    }
}

#[test]
fn strings_similar_to_other_types_need_no_quotes() {
    for text in [
        "10.96.0.1",
        "fd00--1",
        "1.2.3",
        "v1",
        "123e4567",
        "1e400",
        "0o8",
        "0xyz",
        "12:30:45",
        "2026-11-21",
        "yEs",
        "oN",
        "-x",
        "+",
        ".",
        "e5",
        "inf",
        "nan",
        "=",
        "1.5.",
        "--1",
        "0x-1",
    ] {
        assert_eq!(label(text), text);
    }
}

#[test]
fn null_is_equivalent_to_an_omitted_field() {
    let text = "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: ~, labels: null}, \
                spec: {clusterIP: null, ports: , selector: {a: null}}, status: null}";
    let read = service(text);
    assert_eq!(read.metadata.namespace, "default");
    assert_eq!(read.spec.cluster_ip, None);
    assert_eq!(read.spec.ports, []);
    assert_eq!(read.spec.selector["a"], "");
}

#[test]
fn ports_are_accepted_in_all_number_formats() {
    for (text, port) in [("80", 80), ("0x50", 80), ("0120", 80), ("8_0", 80), ("80.0", 80), ("8e1", 80), ("-1", -1)] {
        assert_eq!(service(&named("a", &format!("spec: {{ports: [{{port: {text}}}]}}\n"))).spec.ports[0].port, port);
    }
}

#[test]
fn target_port_is_a_number_or_a_name() {
    let read = service(&named("a", "spec: {ports: [{port: 1, targetPort: 8080}, {port: 2, targetPort: http}]}\n"));
    let ports: Vec<_> = read.spec.ports.iter().map(|port| port.target_port.clone().unwrap()).collect();
    assert_eq!(ports, [serde_json::json!(8080), serde_json::json!("http")]);
}

#[test]
fn anchors_aliases_and_merge_keys_are_resolved() {
    let text = named(
        "a",
        "  labels: &labels {app: web, tier: front}\nspec:\n  selector: *labels\n  ports:\n  - &port {name: a, port: 1, \
         protocol: UDP}\n  - {<<: *port, name: b}\n  - <<: [{name: c}, *port]\n    port: 3\n",
    );
    let read = service(&text);
    assert_eq!(read.spec.selector, read.metadata.labels);
    let ports: Vec<_> = read.spec.ports.iter().map(|p| (&*p.name, p.port, p.protocol.as_deref().unwrap())).collect();
    assert_eq!(ports, [("a", 1, "UDP"), ("b", 1, "UDP"), ("c", 3, "UDP")]);
}

#[test]
fn quoted_merge_key_is_an_ordinary_key() {
    assert_eq!(service(&named("a", "  labels: {'<<': x}\n")).metadata.labels["<<"], "x");
}

#[test]
fn block_scalars_and_escapes_are_read() {
    let text =
        named("a", "  annotations:\n    b: |-\n      x\n       y\n    f: >\n      x\n      y\n    e: \"\\u00fc\\t\"\n");
    let annotations = service(&text).metadata.annotations;
    assert_eq!((&*annotations["b"], &*annotations["f"], &*annotations["e"]), ("x\n y", "x y\n", "ü\t"));
}

#[test]
fn numbers_and_booleans_are_valid_keys() {
    let labels = service(&named("a", "  labels: {1: a, on: b, ~: c}\n")).metadata.labels;
    assert_eq!(labels.keys().collect::<Vec<_>>(), ["1", "on", "~"]);
}

#[test]
fn exponential_aliases_are_an_error() {
    let mut text = named("a", "bomb:\n  l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let aliases = vec![format!("*l{}", level - 1); 10].join(", ");
        text.push_str(&format!("  l{level}: &l{level} [{aliases}]\n"));
    }
    assert_eq!(summary(&text), ["error: document 1, line 10: aliases expand to more than 100000 values"]);
}

#[test]
fn many_aliases_of_a_long_text_are_an_error() {
    let aliases = ["*long"; 1_000].join(", ");
    let text = named("a", &format!("long: &long {}\nspec:\n  externalIPs: [{aliases}]\n", "x".repeat(100_000)));
    assert_eq!(summary(&text), ["error: document 1, line 7: aliases expand to more than 100000 values"]);
}

#[test]
fn merging_takes_time_in_proportion_to_the_keys() {
    // Comparing each pair of keys would take minutes.
    let keys = |prefix: &str| (0..30_000).map(|i| format!("{prefix}{i}: 1")).collect::<Vec<_>>().join(", ");
    let text = named("a", &format!("from: &from {{{}}}\nto: {{<<: *from, {}}}\n", keys("a"), keys("b")));
    assert_eq!(service(&text).metadata.name, "a");
}

#[test]
fn recursive_alias_is_an_error() {
    assert_eq!(summary("a: &a [b, *a]\n"), ["error: document 1, line 1: alias refers to an anchor that contains it"]);
}

#[test]
fn objects_with_too_many_values_are_an_error() {
    let values = |count: usize| vec!["0"; count].join(",");
    let problem = "object has more than 500000 values";
    for text in [
        format!("a: [{}]", values(500_001)),
        format!("[{}]", values(500_001)),
        format!("{{\"a\": [{}]}}", values(500_001)),
        format!("{{\"items\": [{{\"a\": [{}]}}]}}", values(500_001)),
    ] {
        let all = summary(&text);
        assert!(all.len() == 1 && all[0].contains(problem), "{all:?}");
    }
    // A list may have more values than an object.
    let item = format!("{{\"a\": [{}]}}", values(300_000));
    let all = summary(&format!("{{\"kind\": \"List\", \"items\": [{item}, {item}]}}"));
    assert!(!all.is_empty() && all.iter().all(|line| !line.contains(problem)), "{all:?}");
}

#[test]
fn excessive_nesting_is_an_error() {
    let flow = format!("a: {}", "[".repeat(100_000));
    let block = format!("a:\n{}x", "- ".repeat(100));
    for text in [flow, block] {
        let all = summary(&text);
        assert!(all.len() == 1 && all[0].starts_with("error: document 1, line "), "{all:?}");
    }
}
