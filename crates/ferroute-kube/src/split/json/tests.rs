use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Feeds text in pieces of the given sizes, in turn, and gives the objects.
fn split(splitter: &mut Splitter, text: &[u8], sizes: &[usize]) -> Result<Vec<Value>, SplitError> {
    let mut objects = Vec::new();
    let mut rest = text;
    for size in sizes.iter().cycle() {
        let (mut piece, tail) = rest.split_at((*size).min(rest.len()));
        while let Some(object) = splitter.next(&mut piece)? {
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
fn objects_of_a_stream_need_no_lines() {
    let objects = all(&mut Splitter::stream(), "{\"a\":1}{\"b\":\n[{}]}  \r\n{}").unwrap();
    assert_eq!(objects, [json!({"a": 1}), json!({"b": [{}]}), json!({})]);
}

#[test]
fn brackets_within_strings_are_text() {
    let text = r#"{"a":"}]\"}","b\\":"\\"}{"c":"{["}"#;
    assert_eq!(all(&mut Splitter::stream(), text).unwrap(), [json!({"a": "}]\"}", "b\\": "\\"}), json!({"c": "{["})]);
}

#[test]
fn only_the_items_of_a_list_are_objects_and_the_rest_is_kept() {
    let text = r#"{"kind":"List","other":[{"no":1}],"sub":{"items":[{"no":2}]},"items" : [ {"yes":1}, {"yes":{"items":[]}}
        ],"metadata":{"resourceVersion":"7"}} "#;
    let mut splitter = Splitter::list();
    assert_eq!(all(&mut splitter, text).unwrap(), [json!({"yes": 1}), json!({"yes": {"items": []}})]);
    let shell: Value = serde_json::from_slice(splitter.shell().unwrap()).unwrap();
    assert_eq!(
        shell,
        json!({"kind": "List", "other": [{"no": 1}], "sub": {"items": [{"no": 2}]}, "items": [],
               "metadata": {"resourceVersion": "7"}})
    );
}

#[test]
fn a_list_may_have_null_or_no_items() {
    for text in [r#"{"items":null}"#, r#"{"items":[]}"#, "{}"] {
        let mut splitter = Splitter::list();
        assert_eq!(all(&mut splitter, text).unwrap(), Vec::<Value>::new());
        assert_eq!(splitter.shell().unwrap(), text.as_bytes());
    }
}

#[test]
fn a_field_whose_name_only_ends_like_items_is_another_one() {
    let mut splitter = Splitter::list();
    assert_eq!(all(&mut splitter, r#"{"an\"items":[{"no":1}]}"#).unwrap(), Vec::<Value>::new());
}

#[test]
fn a_list_that_breaks_off_has_no_shell() {
    let mut splitter = Splitter::list();
    assert_eq!(all(&mut splitter, r#"{"items":[{"a":1},{"b""#).unwrap(), [json!({"a": 1})]);
    assert_eq!(splitter.shell(), None);
    assert!(splitter.is_within_object());
}

#[test]
fn text_that_is_no_object_is_an_error() {
    for text in ["<html>", "null", "\"{}\"", "}", "{}x", "{}]"] {
        assert_eq!(all(&mut Splitter::stream(), text), Err(SplitError::NotJson), "{text}");
        assert_eq!(all(&mut Splitter::list(), text), Err(SplitError::NotJson), "{text}");
    }
}

#[test]
fn an_object_without_an_end_is_an_error() {
    let mut splitter = Splitter::stream();
    let text = format!("{{\"a\":\"{}", "x".repeat(LONGEST));
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
    fn however_text_is_cut_into_pieces_the_objects_are_the_same(
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
        let shell: Value = serde_json::from_slice(splitter.shell().unwrap()).unwrap();
        prop_assert_eq!(shell, json!({"kind": "List", "items": [], "metadata": {"continue": "\"items\":["}}));
    }
}
