//! The page reads fields that the reports have, and has texts for the values of their enums.

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
            // Other names are imports, and objects that the script creates.
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
        // In other scripts, this name is an event of the browser.
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

/// Enums whose values are part of the names of texts: the start of the name, the file with the enum, its name, and the
/// values without such a text.
const ENUMS: [(&str, &str, &str, &[&str]); 23] = [
    ("answer.", "inspect/src/explain/explanation.rs", "Outcome", &[]),
    ("clients.", "inspect/src/explain/explanation.rs", "Clients", &[]),
    ("diff.", "inspect/src/diff/report.rs", "Answer", &[]),
    ("diff.client.", "inspect/src/diff/clients.rs", "Client", &[]),
    ("diff.conclusion.", "inspect/src/diff/report.rs", "Conclusion", &[]),
    ("diff.from.", "inspect/src/diff/report.rs", "SourceAddress", &[]),
    ("effect.", "trace/src/event.rs", "Effect", &[]),
    ("eligibility.", "core/src/eligibility.rs", "Eligibility", &[]),
    ("endpoint.", "inspect/src/explain/explanation.rs", "EndpointState", &[]),
    ("frontend.", "core/src/frontend.rs", "FrontendKind", &[]),
    ("outcome.", "proxy/src/recording/bundle.rs", "Outcome", &[]),
    // The page has no line for Services that eject no endpoints.
    ("policy.ejection-", "core/src/balancing.rs", "Ejection", &["off"]),
    ("policy.limits-", "core/src/connection_limits.rs", "OverLimit", &[]),
    ("reason.", "inspect/src/explain/explanation.rs", "Reason", &[]),
    ("reserved.", "core/src/reservation.rs", "Reservation", &[]),
    // The page does not trace rules of files.
    ("rules.", "inspect/src/trace/report.rs", "RulesSource", &["files"]),
    ("severity.", "inspect/src/doctor/diagnosis.rs", "Severity", &[]),
    ("skip.", "core/src/parse/service.rs", "SkipReason", &[]),
    ("source.sees.", "inspect/src/explain/explanation.rs", "Source", &[]),
    ("state.", "inspect/src/explain/explanation.rs", "Handling", &[]),
    ("state.", "ui/src/view.rs", "Handling", &[]),
    ("verdict.", "trace/src/event.rs", "Verdict", &[]),
    ("verdict.frontend.", "core/src/frontend.rs", "FrontendKind", &[]),
];

/// Starts of names that continue with other names: of the page itself, or of a text of the server.
const OTHER_NAMES: [&str; 18] = [
    "view.",
    "filter.",
    "flow.",
    "flow.lost.",
    "header.",
    "machine.",
    "map.",
    "packet.",
    "place.",
    "placeNote.",
    "policy.",
    "policy.means",
    "problem.",
    "problem.node.",
    "slice.",
    "source.",
    "sync.",
    "theme.",
];

/// Returns the values of an enum as they are serialized in camel case, or as `rename` says.
fn values(file: &str, name: &str) -> Vec<String> {
    let path = format!("{}/../ferroute-{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let body = text.split_once(&format!("enum {name} {{\n")).unwrap().1.split_once("\n}\n").unwrap().0;
    let (mut values, mut renamed) = (Vec::new(), None);
    for line in body.lines().filter_map(|line| line.strip_prefix("    ")) {
        if let Some(rename) = line.strip_prefix("#[serde(rename = \"") {
            renamed = rename.split('"').next().map(str::to_owned);
        } else if line.starts_with(|letter: char| letter.is_ascii_uppercase()) {
            let variant = identifier(line);
            let camel_case = format!("{}{}", variant[..1].to_lowercase(), &variant[1..]);
            values.push(renamed.take().unwrap_or(camel_case));
        }
    }
    assert!(values.len() > 1, "{name}: {values:?}");
    values
}

#[test]
fn every_value_of_an_enum_that_the_page_prints_has_a_text() {
    let texts = script("i18n.js");
    for (start, file, name, others) in ENUMS {
        for value in values(file, name).iter().filter(|value| !others.contains(&value.as_str())) {
            let key = format!("\n  \"{start}{value}\": [");
            assert!(texts.contains(&key), "{name} has the value {value}, and the page has no text {start}{value}");
        }
    }
}

#[test]
fn everything_that_is_missing_among_flows_has_a_text() {
    let lost = serde_json::to_value(ferroute_inspect::flows::Losses::default()).unwrap();
    let texts = script("i18n.js");
    for kind in lost.as_object().unwrap().keys().map(String::as_str).chain(["omitted"]) {
        assert!(texts.contains(&format!("\n  \"flow.lost.{kind}\": [")), "{kind}");
    }
    for event in ["flows-start", "flows-lost", "flows-summary", "flows-unavailable"] {
        assert!(script("flows.js").contains(&format!("receive(\"{event}\"")), "{event}");
    }
}

#[test]
fn names_of_texts_that_end_with_a_value_are_those_of_an_enum_or_of_the_page() {
    let directory = format!("{}/web", env!("CARGO_MANIFEST_DIR"));
    let mut starts = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "js") {
            let text = std::fs::read_to_string(path).unwrap();
            let names = text.split("t(`").skip(1).filter_map(|rest| rest.split_once("${"));
            starts.extend(names.map(|(start, _)| start.to_owned()).filter(|start| start.contains('.')));
        }
    }
    let known: BTreeSet<&str> = ENUMS.iter().map(|(start, ..)| *start).chain(OTHER_NAMES).collect();
    let unknown: Vec<_> = starts.iter().filter(|start| !known.contains(start.as_str())).collect();
    assert!(starts.len() > 20 && unknown.is_empty(), "neither in ENUMS nor in OTHER_NAMES: {unknown:?}");
}
