use super::summary;

#[test]
fn a_list_gives_its_items() {
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
fn items_of_a_typed_list_need_not_say_what_they_are() {
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
fn a_bad_item_does_not_take_the_good_ones_with_it() {
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
                    "error: document 1{line}: Service default/b: items[1].spec.ports[0].port: got the text \"x\", want a number"
                ),
                "Node c".to_owned(),
            ]
        );
    }
}

#[test]
fn items_that_say_nothing_in_a_list_that_says_nothing_are_errors() {
    assert_eq!(
        summary("apiVersion: v1\nkind: List\nitems:\n- metadata: {name: a}\n"),
        ["error: document 1, line 4: a: items[0].kind: missing"]
    );
}

#[test]
fn a_list_with_a_fault_in_its_text_gives_nothing() {
    let text = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n- {\n";
    let all = summary(text);
    assert!(all.len() == 1 && all[0].starts_with("error: document 1, line "), "{all:?}");
}

#[test]
fn empty_lists_and_empty_items_are_nothing() {
    assert_eq!(summary("{apiVersion: v1, kind: List, items: []}"), [""; 0]);
    assert_eq!(summary("{apiVersion: v1, kind: List, items: [null]}"), [""; 0]);
}

#[test]
fn a_list_behind_an_alias_is_a_list() {
    let item = "[{apiVersion: v1, kind: Service, metadata: {name: a}}]";
    assert_eq!(summary(&format!("x: &x {item}\nitems: *x\nkind: List\napiVersion: v1\n")), ["Service default/a"]);
    assert_eq!(
        summary(&format!("x: &x {{items: {item}}}\n<<: *x\nkind: List\napiVersion: v1\n")),
        ["Service default/a"]
    );
}

#[test]
fn kinds_that_only_end_like_a_list_are_no_lists() {
    assert_eq!(
        summary("{apiVersion: example.com/v1, kind: AllowList, metadata: {name: a}}"),
        ["ignored example.com/v1 AllowList a"]
    );
}
