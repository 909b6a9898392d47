//! The page reads fields that the reports have.

#![expect(clippy::unwrap_used, reason = "missing files fail the test")]

use std::collections::BTreeSet;

use ferroute_inspect::report::samples;
use serde_json::Value;

fn sample(command: &str) -> Value {
    samples::all().into_iter().find(|sample| sample.command == command).unwrap().json
}

fn script(file: &str) -> String {
    std::fs::read_to_string(format!("{}/web/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Returns the identifier at the start of a text.
fn identifier(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Returns the fields of a variable that a script reads: `variable.field` and `variable?.field`.
fn fields<'a>(script: &'a str, variable: &str) -> BTreeSet<&'a str> {
    let mut fields = BTreeSet::new();
    for access in [format!("{variable}."), format!("{variable}?.")] {
        for (start, _) in script.match_indices(&access) {
            let is_other = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '/' | '"');
            if !script[..start].ends_with(is_other) {
                fields.insert(identifier(&script[start + access.len()..]));
            }
        }
    }
    fields.remove("");
    fields
}

/// Returns the fields that a script takes out of objects: `{ field, field: name }` as a parameter or before `=`.
fn destructured(script: &str) -> BTreeSet<&str> {
    let mut fields = BTreeSet::new();
    for start in ["({ ", "const { "] {
        for (at, _) in script.match_indices(start) {
            let Some((pattern, rest)) = script[at + start.len()..].split_once(" }") else { continue };
            // Others are objects that the script makes, and imports.
            if rest.starts_with(") =>") || rest.starts_with(") {") || rest.starts_with(" =") {
                fields.extend(pattern.split(", ").map(identifier));
            }
        }
    }
    fields
}

#[track_caller]
fn assert_known(file: &str, used: &BTreeSet<&str>, known: &BTreeSet<&str>) {
    assert!(!used.is_empty(), "{file}: nothing found");
    let unknown: Vec<_> = used.difference(known).collect();
    assert!(unknown.is_empty(), "{file} reads {unknown:?}; the report has {known:?}");
}

#[test]
fn packets_are_shown_with_the_fields_of_a_trace() {
    let trace = sample("ferroute trace");
    let of = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<String>>();
    let of_all = |values: &Value| values.as_array().unwrap().iter().flat_map(of).collect::<BTreeSet<String>>();
    let branch = of_all(&trace["branches"]);
    let variables = [
        ("trace", of(&trace)),
        ("trace.packet", of(&trace["packet"])),
        ("packet", of(&trace["packet"])),
        ("frontend", of(&trace["frontend"])),
        ("way", branch.clone()),
        ("way()", branch),
        ("event", of_all(&trace["branches"][0]["events"])),
    ];
    let files = ["packet.js", "path.js", "walk.js", "words.js", "export.js", "steps.js"];
    let scripts = files.map(|file| (file, script(file)));
    for (variable, known) in variables {
        let known: BTreeSet<&str> = known.iter().map(String::as_str).collect();
        // In other scripts, it is an event of the browser.
        let scripts = scripts.iter().filter(|(file, _)| variable != "event" || *file == "walk.js");
        let used = scripts.map(|(file, script)| (file, fields(script, variable)));
        let used: Vec<_> = used.filter(|(_, fields)| !fields.is_empty()).collect();
        assert!(!used.is_empty(), "{variable} is not used");
        used.iter().for_each(|(file, fields)| assert_known(&format!("{variable} in {file}"), fields, &known));
    }
}

#[test]
fn differences_are_shown_with_the_fields_of_a_comparison() {
    let comparison = sample("ferroute diff");
    let script = script("diff.js");
    let known = samples::keys(&comparison);
    assert_known("diff.js", &destructured(&script), &known);
    for variable in ["finding", "coverage"] {
        assert_known("diff.js", &fields(&script, variable), &known);
    }
}

#[test]
fn findings_are_shown_with_the_fields_of_a_diagnosis() {
    let diagnosis = sample("ferroute doctor");
    let mut known = samples::keys(&diagnosis);
    // The responses that contain the reports and the syncs.
    known.extend(["available", "reason", "diagnosis", "report", "applied", "syncs"]);
    assert_known("changes.js", &destructured(&script("changes.js")), &known);
}

#[test]
fn services_are_shown_with_the_fields_of_an_explanation() {
    let explanation = sample("ferroute explain service");
    let not_served = samples::not_served().map(|explanation| serde_json::to_value(explanation).unwrap());
    let top = [&explanation].into_iter().chain(&not_served).flat_map(|json| json.as_object().unwrap().keys());
    let top: BTreeSet<&str> = top.map(String::as_str).collect();
    let script = script("service.js");
    assert_known("service.js", &fields(&script, "explanation"), &top);
    let port = &explanation["ports"][0];
    for (variable, value) in [
        ("port", port),
        ("endpoint", &port["endpoints"][0]),
        ("use", &port["endpoints"][0]["cluster"]),
        ("rule", &port["applied"]["rules"][0]),
        ("flow", &port["applied"]["connections"][0]),
    ] {
        let known: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_known(&format!("{variable} in service.js"), &fields(&script, variable), &known);
    }
}
