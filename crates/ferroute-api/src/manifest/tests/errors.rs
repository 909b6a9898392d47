use super::{named, summary};

#[test]
fn invalid_document_does_not_affect_the_others() {
    let text = format!("{}---\na: [\n---\n{}---\nkind: Service\n", named("a", ""), named("b", ""));
    let all = summary(&text);
    assert_eq!((&*all[0], &*all[2]), ("Service default/a", "Service default/b"));
    assert!(all[1].starts_with("error: document 2, line "), "{all:?}");
    assert_eq!(all[3], "error: document 4, line 13: Service: apiVersion: missing");
    assert_eq!(all.len(), 4);
}

#[test]
fn errors_name_document_line_object_and_field() {
    let text = format!(
        "{}---\n{}",
        named("a", ""),
        named("b", "  namespace: shop\nspec:\n  ports:\n  - name: one\n    port: 80\n  - name: two\n    port: http\n")
    );
    assert_eq!(
        summary(&text),
        [
            "Service default/a",
            "error: document 2, line 16: Service shop/b: spec.ports[1].port: got string \"http\", want a number"
        ]
    );
}

#[test]
fn type_errors_describe_value_and_expected_type() {
    for (rest, error) in [
        ("spec: 5\n", "line 5: Service default/a: spec: got number 5, want a mapping"),
        ("spec: {ports: {port: 80}}\n", "line 5: Service default/a: spec.ports: got a mapping, want a list"),
        ("spec: {ports: [80]}\n", "line 5: Service default/a: spec.ports[0]: got number 80, want a mapping"),
        (
            "spec: {ports: [{port: 80.5}]}\n",
            "line 5: Service default/a: spec.ports[0].port: got number 80.5, want an integer from -2147483648 to 2147483647",
        ),
        (
            "spec: {ports: [{port: 3000000000}]}\n",
            "line 5: Service default/a: spec.ports[0].port: got number 3000000000, want an integer from -2147483648 to 2147483647",
        ),
        ("spec: {type: [x]}\n", "line 5: Service default/a: spec.type: got a list, want a string"),
        (
            "spec: {externalIPs: [1]}\n",
            "line 5: Service default/a: spec.externalIPs[0]: got number 1, want a string (quote it: \"1\")",
        ),
        (
            "  labels: {app.kubernetes.io/name: 1}\n",
            "line 5: Service default/a: metadata.labels[\"app.kubernetes.io/name\"]: got number 1, want a string (quote it: \"1\")",
        ),
    ] {
        assert_eq!(summary(&named("a", rest)), [format!("error: document 1, {error}")]);
    }
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostNetwork: 'yes'}}";
    assert_eq!(
        summary(pod),
        ["error: document 1, line 1: Pod default/a: spec.hostNetwork: got string \"yes\", want true or false"]
    );
}

#[test]
fn kind_version_and_name_are_required() {
    for (text, error) in [
        ("metadata: {name: a}", "line 1: a: kind: missing"),
        ("{kind: Service, metadata: {name: a}}", "line 1: Service a: apiVersion: missing"),
        ("{kind: 5, apiVersion: v1}", "line 1: kind: got number 5, want a string"),
        ("{kind: Service, apiVersion: 1}", "line 1: Service: apiVersion: got number 1, want a string"),
        ("{kind: '', apiVersion: v1}", "line 1: kind: missing"),
        ("{kind: Service, apiVersion: v1}", "line 1: Service: metadata.name: missing"),
        ("kind: Service\napiVersion: v1\nmetadata: {name: ''}\n", "line 3: Service: metadata.name: missing"),
        ("hello", "line 1: got string \"hello\", want an object"),
        ("- a\n- b", "line 1: got a list, want an object"),
    ] {
        assert_eq!(summary(text), [format!("error: document 1, {error}")]);
    }
}

#[test]
fn unsupported_versions_are_errors_and_foreign_kinds_are_ignored() {
    let object = |version: &str, kind: &str| format!("{{apiVersion: {version}, kind: {kind}, metadata: {{name: a}}}}");
    for (version, kind, outcome) in [
        (
            "apps/v1",
            "Service",
            "error: document 1, line 1: Service default/a: apiVersion: got \"apps/v1\", want \"v1\" for this kind",
        ),
        (
            "discovery.k8s.io/v1beta1",
            "EndpointSlice",
            "error: document 1, line 1: EndpointSlice default/a: apiVersion: got \"discovery.k8s.io/v1beta1\", want \"discovery.k8s.io/v1\" for this kind",
        ),
        (
            "v1",
            "Deployment",
            "error: document 1, line 1: Deployment default/a: apiVersion: got \"v1\", want \"apps/v1\" for this kind",
        ),
        ("serving.knative.dev/v1", "Service", "ignored serving.knative.dev/v1 Service a"),
        ("v1", "ConfigMap", "ignored v1 ConfigMap a"),
        ("v1", "Service", "Service default/a"),
        ("v1", "Node", "Node a"),
    ] {
        assert_eq!(summary(&object(version, kind)), [outcome]);
    }
}

#[test]
fn duplicate_keys_are_syntax_errors() {
    assert_eq!(
        summary(&named("a", "spec:\n  type: ClusterIP\n  ports: []\n  type: NodePort\n")),
        ["error: document 1, line 8: duplicate key \"type\""]
    );
    let many = (0..40).map(|i| format!("k{}: v\n", i % 39)).collect::<String>();
    assert_eq!(summary(&many), ["error: document 1, line 40: duplicate key \"k0\""]);
}

#[test]
fn unrendered_templates_are_errors() {
    assert_eq!(
        summary(&named("a", "spec:\n  type: {{ .Values.type }}\n")),
        ["error: document 1, line 6: key of a mapping is not a string"]
    );
}

#[test]
fn tabs_for_indentation_are_errors() {
    let all = summary(&named("a", "spec:\n\ttype: NodePort\n"));
    assert!(all.len() == 1 && all[0].starts_with("error: document 1, line 6: invalid YAML: "), "{all:?}");
}

#[test]
fn unknown_fields_are_ignored() {
    let text = named("a", "  uid: x\n  managedFields: [{f: [1]}]\nspec: {allocateLoadBalancerNodePorts: 5}\nmore: ~\n");
    assert_eq!(summary(&text), ["Service default/a"]);
}

#[test]
fn namespace_of_nodes_is_cleared() {
    assert_eq!(summary("{apiVersion: v1, kind: Node, metadata: {name: a, namespace: x}}"), ["Node a"]);
}
