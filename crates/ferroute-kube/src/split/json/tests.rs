use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Feeds text in chunks of these sizes, in turn, and returns the objects.
fn split(splitter: &mut Splitter, text: &[u8], sizes: &[usize]) -> Result<Vec<Value>, SplitError> {
    let mut objects = Vec::new();
    let mut rest = text;
    for size in sizes.iter().cycle() {
        let (mut chunk, tail) = rest.split_at((*size).min(rest.len()));
        while let Some(object) = splitter.next(&mut chunk)? {
            objects.push(serde_json::from_slice(object).unwrap());
        }
        if tail.is_empty() {
            return Ok(objects);
        }
        rest = tail;
    }
    unreachable!("sizes are never empty")
}

fn all(splitter: &mut Splitter, text: &str) -> Result<Vec<Value>, SplitError> {
    split(splitter, text.as_bytes(), &[usize::MAX])
}

#[test]
fn objects_need_no_line_breaks_between_them() {
    let objects = all(&mut Splitter::stream(), "{\"a\":1}{\"b\":\n[{}]}  \r\n{}").unwrap();
    assert_eq!(objects, [json!({"a": 1}), json!({"b": [{}]}), json!({})]);
}

#[test]
fn brackets_within_strings_are_ignored() {
    let text = r#"{"a":"}]\"}","b\\":"\\"}{"c":"{["}"#;
    assert_eq!(all(&mut Splitter::stream(), text).unwrap(), [json!({"a": "}]\"}", "b\\": "\\"}), json!({"c": "{["})]);
}

#[test]
fn only_items_are_objects_and_the_rest_is_the_envelope() {
    let text = r#"{"kind":"List","other":[{"no":1}],"sub":{"items":[{"no":2}]},"items" : [ {"yes":1}, {"yes":{"items":[]}}
        ],"metadata":{"resourceVersion":"7"}} "#;
    let mut splitter = Splitter::list();
    assert_eq!(all(&mut splitter, text).unwrap(), [json!({"yes": 1}), json!({"yes": {"items": []}})]);
    let envelope: Value = serde_json::from_slice(splitter.list_envelope().unwrap()).unwrap();
    assert_eq!(
        envelope,
        json!({"kind": "List", "other": [{"no": 1}], "sub": {"items": [{"no": 2}]}, "items": [],
               "metadata": {"resourceVersion": "7"}})
    );
}

#[test]
fn items_may_be_null_empty_or_missing() {
    for text in [r#"{"items":null}"#, r#"{"items":[]}"#, "{}"] {
        let mut splitter = Splitter::list();
        assert_eq!(all(&mut splitter, text).unwrap(), Vec::<Value>::new());
        assert_eq!(splitter.list_envelope().unwrap(), text.as_bytes());
    }
}

#[test]
fn field_whose_name_ends_with_items_is_not_items() {
    let mut splitter = Splitter::list();
    assert_eq!(all(&mut splitter, r#"{"an\"items":[{"no":1}]}"#).unwrap(), Vec::<Value>::new());
}

#[test]
fn truncated_list_has_no_envelope() {
    let mut splitter = Splitter::list();
    assert_eq!(all(&mut splitter, r#"{"items":[{"a":1},{"b""#).unwrap(), [json!({"a": 1})]);
    assert_eq!(splitter.list_envelope(), None);
    assert!(splitter.is_within_object());
}

#[test]
fn text_that_is_not_an_object_is_an_error() {
    for text in ["<html>", "null", "\"{}\"", "}", "{}x", "{}]"] {
        assert_eq!(all(&mut Splitter::stream(), text), Err(SplitError::NotJson), "{text}");
        assert_eq!(all(&mut Splitter::list(), text), Err(SplitError::NotJson), "{text}");
    }
}

#[test]
fn too_long_object_is_an_error() {
    let mut splitter = Splitter::stream();
    let text = format!("{{\"a\":\"{}", "x".repeat(MAX_OBJECT_BYTES));
    assert_eq!(all(&mut splitter, &text), Err(SplitError::TooLong));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        r#"[a-c{}\[\]"\\:,é ]{0,6}|items"#.prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(r#"[a-c{}"\\]{0,3}|items"#, inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-c]{1,3}|items", value(), 0..4)
        .prop_map(|fields| Value::Object(fields.into_iter().collect()))
}

proptest! {
    #[test]
    fn objects_do_not_depend_on_chunk_sizes(
        objects in prop::collection::vec(object(), 0..6),
        sizes in prop::collection::vec(1usize..40, 1..8),
        pretty: bool,
    ) {
        let print = if pretty { serde_json::to_string_pretty } else { serde_json::to_string };
        let text: String = objects.iter().map(|object| print(object).unwrap() + "\n").collect();
        prop_assert_eq!(&split(&mut Splitter::stream(), text.as_bytes(), &sizes).unwrap(), &objects);

        let list = print(&json!({"kind": "List", "items": objects, "metadata": {"continue": "\"items\":["}})).unwrap();
        let mut splitter = Splitter::list();
        prop_assert_eq!(&split(&mut splitter, list.as_bytes(), &sizes).unwrap(), &objects);
        let envelope: Value = serde_json::from_slice(splitter.list_envelope().unwrap()).unwrap();
        prop_assert_eq!(envelope, json!({"kind": "List", "items": [], "metadata": {"continue": "\"items\":["}}));
    }
}
