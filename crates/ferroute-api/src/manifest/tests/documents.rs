use super::{named, service, summary};
use crate::manifest::{documents, documents_at};

/// Returns number, line and text of each document.
fn split(text: &str) -> Vec<(usize, usize, &str)> {
    documents(text).map(|document| (document.number, document.line, document.text)).collect()
}

#[test]
fn text_without_markers_is_one_document() {
    assert_eq!(split("a: 1\nb: 2"), [(1, 1, "a: 1\nb: 2")]);
}

#[test]
fn each_marker_starts_a_document() {
    assert_eq!(
        split("a: 1\n---\nb: 2\n--- # third\nc: 3\n"),
        [(1, 1, "a: 1\n"), (2, 2, "---\nb: 2\n"), (3, 4, "--- # third\nc: 3\n"),]
    );
}

#[test]
fn marker_at_start_does_not_add_an_empty_document() {
    assert_eq!(split("# hello\n%YAML 1.1\n---\na: 1\n"), [(1, 1, "# hello\n%YAML 1.1\n---\na: 1\n")]);
}

#[test]
fn empty_documents_are_counted_but_skipped() {
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
fn content_may_follow_the_marker_on_its_line() {
    assert_eq!(summary("--- {apiVersion: v1, kind: Service, metadata: {name: a}}\n"), ["Service default/a"]);
}

#[test]
fn similar_lines_are_not_markers() {
    assert_eq!(split("---a: 1\n----\n ---\n....\n").len(), 1);
}

#[test]
fn indented_marker_in_block_scalar_is_content() {
    let text = named("a", "  annotations:\n    note: |\n      one\n      ---\n      two\n");
    assert_eq!(service(&text).metadata.annotations["note"], "one\n---\ntwo\n");
}

#[test]
fn crlf_and_byte_order_mark_are_accepted() {
    let text = format!("\u{feff}{}---\n{}", named("a", ""), named("b", "")).replace('\n', "\r\n");
    assert_eq!(summary(&text), ["Service default/a", "Service default/b"]);
}

#[test]
fn byte_order_mark_is_accepted_before_any_document() {
    let text = format!("{}---\n\u{feff}# comment\n---\n{}", named("a", ""), named("b", ""));
    assert_eq!(summary(&text), ["Service default/a", "Service default/b"]);
}

#[test]
fn concatenated_documents_are_the_whole_text() {
    let text = "a: 1\n---\nb: |\n ---\n...\n%YAML 1.1\n---\nc: 3\n";
    assert_eq!(documents(text).map(|document| document.text).collect::<String>(), text);
}

#[test]
fn splitting_resumes_at_a_position() {
    let text = "\u{feff}a: 1\n---\n---\n# comment\nb: 2\n...\n---\nc: 3\n";
    let mut first = documents(text);
    let mut all = vec![first.next().unwrap()];
    all.extend(documents_at(first.rest(), first.position()));
    assert_eq!(all, documents(text).collect::<Vec<_>>());
}
