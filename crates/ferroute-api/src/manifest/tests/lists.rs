use super::summary;

#[test]
fn items_of_a_list_are_read() {
    let text = "
apiVersion: v1
items:
- {apiVersion: v1, kind: Service, metadata: {name: a}}
- {apiVersion: v1, kind: Secret, metadata: {name: s, namespace: shop}}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1}, addressType: IPv4}
kind: List
";
    assert_eq!(summary(text), ["Service default/a", "ignored v1 Secret shop/s", "EndpointSlice default/a-1"]);
}

#[test]
fn items_of_typed_lists_inherit_their_type() {
    for text in [
        "{apiVersion: v1, kind: ServiceList, items: [{metadata: {name: a}}, {metadata: {name: b}}]}",
        "{items: [{metadata: {name: a}}, {metadata: {name: b}}], kind: ServiceList, apiVersion: v1}",
        r#"{"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]}"#,
        r#"{"items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}], "kind": "ServiceList", "apiVersion": "v1"}"#,
    ] {
        assert_eq!(summary(text), ["Service default/a", "Service default/b"]);
    }
    assert_eq!(
        summary("{kind: EndpointSliceList, apiVersion: discovery.k8s.io/v1, items: [{metadata: {name: a}}]}"),
        ["EndpointSlice default/a"]
    );
}

#[test]
fn invalid_item_does_not_affect_the_others() {
    for text in [
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n\
         - apiVersion: v1\n  kind: Service\n  metadata: {name: b}\n  spec: {ports: [{port: x}]}\n\
         - {apiVersion: v1, kind: Node, metadata: {name: c}}\n",
        r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}},
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b"}, "spec": {"ports": [{"port": "x"}]}},
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "c"}}]}"#,
    ] {
        let line = if text.starts_with('{') { "" } else { ", line 8" };
        assert_eq!(
            summary(text),
            [
                "Service default/a".to_owned(),
                format!(
                    "error: document 1{line}: Service default/b: items[1].spec.ports[0].port: got string \"x\", want a number"
                ),
                "Node c".to_owned(),
            ]
        );
    }
}

#[test]
fn untyped_items_of_untyped_lists_are_errors() {
    assert_eq!(
        summary("apiVersion: v1\nkind: List\nitems:\n- metadata: {name: a}\n"),
        ["error: document 1, line 4: a: items[0].kind: missing"]
    );
}

#[test]
fn lists_in_lists_are_read_at_any_depth() {
    let inner = "{kind: ServiceList, apiVersion: v1, items: [{metadata: {name: a}}, {metadata: {name: b}, spec: 1}]}";
    let middle = format!(
        "{{apiVersion: v1, kind: List, items: [{inner}, {{apiVersion: v1, kind: Node, metadata: {{name: node}}}}]}}"
    );
    let item = "items[1].items[0].items[1].spec";
    for outer in ["apiVersion: v1\nkind: List\nitems:\n- null\n- ", "items:\n- null\n- "] {
        assert_eq!(
            summary(&format!("{outer}{middle}\n- {inner}\n")),
            [
                "Service default/a".to_owned(),
                format!(
                    "error: document 1, line {}: Service default/b: {item}: got number 1, want a mapping",
                    outer.lines().count()
                ),
                "Node node".to_owned(),
                "Service default/a".to_owned(),
                format!(
                    "error: document 1, line {}: Service default/b: items[2].items[1].spec: got number 1, want a mapping",
                    outer.lines().count() + 1
                ),
            ]
        );
    }
}

#[test]
fn depth_of_lists_in_lists_is_limited() {
    let nested = |levels| {
        let list = r#"{"apiVersion": "v1", "kind": "List", "items": ["#;
        format!("{}{}", list.repeat(levels), "]}".repeat(levels))
    };
    assert_eq!(summary(&nested(30)), [""; 0]);
    assert!(summary(&nested(10_000))[0].contains("recursion limit exceeded"));
    let yaml = nested(10_000).replace('"', "");
    assert!(summary(&yaml)[0].ends_with("nested more than 64 levels deep"));
}

#[test]
fn list_with_invalid_syntax_has_no_items() {
    let text = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n- {\n";
    let all = summary(text);
    assert!(all.len() == 1 && all[0].starts_with("error: document 1, line "), "{all:?}");
}

#[test]
fn empty_lists_and_items_are_ignored() {
    assert_eq!(summary("{apiVersion: v1, kind: List, items: []}"), [""; 0]);
    assert_eq!(summary("{apiVersion: v1, kind: List, items: [null]}"), [""; 0]);
    assert_eq!(summary("{apiVersion: v1, kind: ServiceList, items: null}"), [""; 0]);
}

#[test]
fn list_in_an_alias_is_a_list() {
    let item = "[{apiVersion: v1, kind: Service, metadata: {name: a}}]";
    assert_eq!(summary(&format!("x: &x {item}\nitems: *x\nkind: List\napiVersion: v1\n")), ["Service default/a"]);
    assert_eq!(
        summary(&format!("x: &x {{items: {item}}}\n<<: *x\nkind: List\napiVersion: v1\n")),
        ["Service default/a"]
    );
}

#[test]
fn kind_ending_in_list_without_items_is_not_a_list() {
    assert_eq!(
        summary("{apiVersion: example.com/v1, kind: AllowList, metadata: {name: a}}"),
        ["ignored example.com/v1 AllowList a"]
    );
}
