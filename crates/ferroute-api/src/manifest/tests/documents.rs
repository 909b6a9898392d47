use super::{named, service, summary};
use crate::manifest::{documents, documents_from};

/// Number, line and text of each document.
fn split(text: &str) -> Vec<(usize, usize, &str)> {
    documents(text).map(|document| (document.number, document.line, document.text)).collect()
}

#[test]
fn a_text_without_markers_is_one_document() {
    assert_eq!(split("a: 1\nb: 2"), [(1, 1, "a: 1\nb: 2")]);
}

#[test]
fn each_marker_begins_a_document_and_keeps_its_place() {
    assert_eq!(
        split("a: 1\n---\nb: 2\n--- # third\nc: 3\n"),
        [(1, 1, "a: 1\n"), (2, 2, "---\nb: 2\n"), (3, 4, "--- # third\nc: 3\n"),]
    );
}

#[test]
fn a_marker_at_the_beginning_does_not_make_an_empty_document_before_it() {
    assert_eq!(split("# hello\n%YAML 1.1\n---\na: 1\n"), [(1, 1, "# hello\n%YAML 1.1\n---\na: 1\n")]);
}

#[test]
fn empty_documents_are_counted_but_left_out() {
    assert_eq!(split("---\n---\n# nothing\n\n---\na: 1\n---\n"), [(3, 5, "---\na: 1\n")]);
    assert_eq!(split("...\n# nothing\n...\n---\na: 1\n"), [(1, 4, "---\na: 1\n")]);
    assert_eq!(split(""), []);
    assert_eq!(split("\n# only\n  # comments\n"), []);
}

#[test]
fn dots_end_a_document() {
    assert_eq!(
        split("a: 1\n...\n# between\n---\nb: 2\n...\n"),
        [(1, 1, "a: 1\n...\n"), (2, 3, "# between\n---\nb: 2\n...\n"),]
    );
    assert_eq!(
        summary(&format!("{}...\n{}...\n", named("a", ""), named("b", ""))),
        ["Service default/a", "Service default/b"]
    );
}

#[test]
fn content_may_stand_beside_the_marker() {
    assert_eq!(summary("--- {apiVersion: v1, kind: Service, metadata: {name: a}}\n"), ["Service default/a"]);
}

#[test]
fn what_only_looks_like_a_marker_is_text() {
    assert_eq!(split("---a: 1\n----\n ---\n....\n").len(), 1);
}

#[test]
fn a_marker_within_an_indented_block_text_is_part_of_it() {
    let text = named("a", "  annotations:\n    note: |\n      one\n      ---\n      two\n");
    assert_eq!(service(&text).metadata.annotations["note"], "one\n---\ntwo\n");
}

#[test]
fn line_ends_of_windows_and_a_byte_order_mark_are_read() {
    let text = format!("\u{feff}{}---\n{}", named("a", ""), named("b", "")).replace('\n', "\r\n");
    assert_eq!(summary(&text), ["Service default/a", "Service default/b"]);
}

#[test]
fn a_byte_order_mark_may_stand_before_any_document() {
    let text = format!("{}---\n\u{feff}# comment\n---\n{}", named("a", ""), named("b", ""));
    assert_eq!(summary(&text), ["Service default/a", "Service default/b"]);
}

#[test]
fn documents_put_together_are_the_text() {
    let text = "a: 1\n---\nb: |\n ---\n...\n%YAML 1.1\n---\nc: 3\n";
    assert_eq!(documents(text).map(|document| document.text).collect::<String>(), text);
}

#[test]
fn splitting_can_go_on_where_it_was_left() {
    let text = "\u{feff}a: 1\n---\n---\n# comment\nb: 2\n...\n---\nc: 3\n";
    let mut first = documents(text);
    let mut all = vec![first.next().unwrap()];
    all.extend(documents_from(first.rest(), first.position()));
    assert_eq!(all, documents(text).collect::<Vec<_>>());
}
