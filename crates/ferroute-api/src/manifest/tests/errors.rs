use super::{named, summary};

#[test]
fn a_bad_document_does_not_take_the_good_ones_with_it() {
    let text = format!("{}---\na: [\n---\n{}---\nkind: Service\n", named("a", ""), named("b", ""));
    let all = summary(&text);
    assert_eq!((&*all[0], &*all[2]), ("Service default/a", "Service default/b"));
    assert!(all[1].starts_with("error: document 2, line "), "{all:?}");
    assert_eq!(all[3], "error: document 4, line 13: Service: apiVersion: missing");
    assert_eq!(all.len(), 4);
}

#[test]
fn faults_name_document_line_object_and_field() {
    let text = format!(
        "{}---\n{}",
        named("a", ""),
        named("b", "  namespace: shop\nspec:\n  ports:\n  - name: one\n    port: 80\n  - name: two\n    port: http\n")
    );
    assert_eq!(
        summary(&text),
        [
            "Service default/a",
            "error: document 2, line 16: Service shop/b: spec.ports[1].port: got the text \"http\", want a number"
        ]
    );
}

#[test]
fn each_type_of_value_is_asked_for_in_words() {
    for (rest, error) in [
        ("spec: 5\n", "line 5: Service default/a: spec: got the number 5, want a mapping"),
        ("spec: {ports: {port: 80}}\n", "line 5: Service default/a: spec.ports: got a mapping, want a list"),
        ("spec: {ports: [80]}\n", "line 5: Service default/a: spec.ports[0]: got the number 80, want a mapping"),
        (
            "spec: {ports: [{port: 80.5}]}\n",
            "line 5: Service default/a: spec.ports[0].port: got the number 80.5, want a whole number from -2147483648 to 2147483647",
        ),
        (
            "spec: {ports: [{port: 3000000000}]}\n",
            "line 5: Service default/a: spec.ports[0].port: got the number 3000000000, want a whole number from -2147483648 to 2147483647",
        ),
        ("spec: {type: [x]}\n", "line 5: Service default/a: spec.type: got a list, want text"),
        (
            "spec: {externalIPs: [1]}\n",
            "line 5: Service default/a: spec.externalIPs[0]: got the number 1, want text (in quotes: \"1\")",
        ),
        (
            "  labels: {app.kubernetes.io/name: 1}\n",
            "line 5: Service default/a: metadata.labels[\"app.kubernetes.io/name\"]: got the number 1, want text (in quotes: \"1\")",
        ),
    ] {
        assert_eq!(summary(&named("a", rest)), [format!("error: document 1, {error}")]);
    }
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostNetwork: 'yes'}}";
    assert_eq!(
        summary(pod),
        ["error: document 1, line 1: Pod default/a: spec.hostNetwork: got the text \"yes\", want true or false"]
    );
}

#[test]
fn what_an_object_is_must_be_said() {
    for (text, error) in [
        ("metadata: {name: a}", "line 1: a: kind: missing"),
        ("{kind: Service, metadata: {name: a}}", "line 1: Service a: apiVersion: missing"),
        ("{kind: 5, apiVersion: v1}", "line 1: kind: got the number 5, want text"),
        ("{kind: Service, apiVersion: 1}", "line 1: Service: apiVersion: got the number 1, want text"),
        ("{kind: '', apiVersion: v1}", "line 1: kind: missing"),
        ("{kind: Service, apiVersion: v1}", "line 1: Service: metadata.name: missing"),
        ("kind: Service\napiVersion: v1\nmetadata: {name: ''}\n", "line 3: Service: metadata.name: missing"),
        ("hello", "line 1: got the text \"hello\", want an object"),
        ("- a\n- b", "line 1: got a list, want an object"),
    ] {
        assert_eq!(summary(text), [format!("error: document 1, {error}")]);
    }
}

#[test]
fn versions_that_are_not_served_are_errors_and_kinds_of_others_are_not() {
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
fn keys_that_are_there_twice_are_errors_of_the_text() {
    assert_eq!(
        summary(&named("a", "spec:\n  type: ClusterIP\n  ports: []\n  type: NodePort\n")),
        ["error: document 1, line 8: the key \"type\" is there twice"]
    );
    let many = (0..40).map(|i| format!("k{}: v\n", i % 39)).collect::<String>();
    assert_eq!(summary(&many), ["error: document 1, line 40: the key \"k0\" is there twice"]);
}

#[test]
fn templates_that_nobody_filled_in_are_errors() {
    assert_eq!(
        summary(&named("a", "spec:\n  type: {{ .Values.type }}\n")),
        ["error: document 1, line 6: the key of a mapping is not text"]
    );
}

#[test]
fn tabs_for_indentation_are_errors_with_a_line() {
    let all = summary(&named("a", "spec:\n\ttype: NodePort\n"));
    assert!(all.len() == 1 && all[0].starts_with("error: document 1, line 6: not valid YAML: "), "{all:?}");
}

#[test]
fn unknown_fields_are_passed_over() {
    let text = named("a", "  uid: x\n  managedFields: [{f: [1]}]\nspec: {allocateLoadBalancerNodePorts: 5}\nmore: ~\n");
    assert_eq!(summary(&text), ["Service default/a"]);
}

#[test]
fn the_namespace_of_nodes_is_nothing() {
    assert_eq!(summary("{apiVersion: v1, kind: Node, metadata: {name: a, namespace: x}}"), ["Node a"]);
}
