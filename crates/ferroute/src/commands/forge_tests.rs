//! Checks the files below `.github`, which only a forge executes: actions by commit, scripts, targets and files that exist, and
//! issue forms that ask for valid commands.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

use super::{
    examples_tests::{code_spans, commands, error_of, error_with, misnamed},
    pages_tests::{files, read},
};

/// Returns the workflows with their names.
fn workflows() -> Vec<(String, Value)> {
    let paths = files(&[".github/workflows"]);
    let workflow = |path: &std::path::Path| {
        let value = serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.file_name().expect("a name").to_string_lossy().into_owned(), value)
    };
    let workflows: Vec<_> = paths.iter().map(|path| workflow(path)).collect();
    assert!(workflows.len() > 2, "{paths:?}");
    workflows
}

/// Returns the jobs of a workflow with their names.
fn jobs(workflow: &Value) -> impl Iterator<Item = (&String, &Value)> {
    workflow["jobs"].as_object().expect("jobs").iter()
}

fn steps(job: &Value) -> &[Value] {
    job["steps"].as_array().expect("steps")
}

/// A tag can be moved to other code, which would run with the rights of the job.
#[test]
fn actions_are_named_by_one_commit_each() {
    let mut commits = BTreeMap::new();
    for (name, workflow) in workflows() {
        for action in jobs(&workflow).flat_map(|(_, job)| steps(job)).filter_map(|step| step["uses"].as_str()) {
            let (action, commit) = action.split_once('@').expect("an action with a version");
            assert!(commit.len() == 40 && commit.bytes().all(|c| c.is_ascii_hexdigit()), "{name}: {action}@{commit}");
            let known = commits.entry(action.to_owned()).or_insert_with(|| commit.to_owned());
            assert_eq!(known, commit, "{name}: another version of {action}");
        }
    }
    assert!(commits.len() > 5, "{commits:?}");
}

#[test]
fn jobs_have_few_rights_an_end_and_what_they_refer_to() {
    for (name, workflow) in workflows() {
        assert_eq!(workflow["permissions"], serde_json::json!({"contents": "read"}), "{name}");
        for (job_name, job) in jobs(&workflow) {
            let at = format!("{name}: {job_name}");
            assert!(job["timeout-minutes"].is_u64(), "{at} may take six hours");
            let needs: Vec<&str> = match &job["needs"] {
                Value::Null => Vec::new(),
                Value::String(one) => vec![one],
                several => {
                    several.as_array().expect("a list").iter().map(|need| need.as_str().expect("a name")).collect()
                }
            };
            for need in &needs {
                assert!(workflow["jobs"][need].is_object(), "{at} needs {need}");
            }
            let text = job.to_string();
            for reference in text.split("needs.").skip(1) {
                let words: Vec<&str> = reference.split(|c: char| !(c.is_alphanumeric() || c == '-')).take(3).collect();
                let [other, "outputs", output] = words[..] else { panic!("{at}: {words:?}") };
                assert!(needs.contains(&other), "{at} does not need {other}");
                assert!(workflow["jobs"][other]["outputs"][output].is_string(), "{at}: {other} has no output {output}");
            }
            let ids: Vec<&str> = steps(job).iter().filter_map(|step| step["id"].as_str()).collect();
            for reference in text.split(" steps.").skip(1) {
                let id = reference.split('.').next().expect("an id");
                assert!(ids.contains(&id), "{at}: no step {id}");
            }
        }
    }
}

/// Replaces what the forge inserts by a word.
fn without_expressions(script: &str) -> String {
    let (first, rest) = script.split_once("${{").unwrap_or((script, ""));
    if rest.is_empty() {
        first.to_owned()
    } else {
        format!("{first}X{}", without_expressions(rest.split_once("}}").expect("an end").1))
    }
}

#[test]
fn scripts_of_workflows_are_valid_and_run_what_exists() {
    let mut count = 0;
    for (name, workflow) in workflows() {
        for (job_name, job) in jobs(&workflow) {
            for script in steps(job).iter().filter_map(|step| step["run"].as_str()) {
                let targets = job["strategy"]["matrix"]["target"].as_array().cloned().unwrap_or_default();
                let scripts: Vec<String> = match script.contains("${{ matrix.target }}") {
                    true => targets.iter().map(|target| format!("make {}", target.as_str().expect("a name"))).collect(),
                    false => vec![without_expressions(script)],
                };
                for script in scripts {
                    let at = format!("{name}: {job_name}: {script}");
                    let shell = Command::new("bash").args(["-n", "-c", &script]).output().expect("bash");
                    assert!(shell.status.success(), "{at}: {}", String::from_utf8_lossy(&shell.stderr));
                    let joined = script.replace("\\\n", " ");
                    // Commands in substitutions and conditions as well.
                    let substituted = joined.split("$(").skip(1).filter_map(|rest| rest.split(')').next());
                    for line in joined.lines().chain(substituted) {
                        for words in commands(line) {
                            let words: Vec<String> = words
                                .into_iter()
                                .skip_while(|word| ["sudo", "test", "if", "then"].contains(&word.as_str()))
                                .filter(|word| !["-s"].contains(&word.as_str()))
                                .collect();
                            count += usize::from(words.first().is_some_and(|word| word == "make"));
                            assert_eq!(error_of(&words), None, "{at}");
                        }
                    }
                }
            }
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn issue_forms_have_the_fields_of_the_forge_and_ask_for_valid_commands() {
    let mut named = String::new();
    let forms = files(&[".github/ISSUE_TEMPLATE"]).into_iter().filter(|path| !path.ends_with("config.yml"));
    for path in forms {
        let at = path.display();
        let form: Value = serde_saphyr::from_str(&read(&path)).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(form["name"].is_string() && form["description"].is_string(), "{at}");
        let mut ids = std::collections::BTreeSet::new();
        for field in form["body"].as_array().expect("a body") {
            let attributes = &field["attributes"];
            let texts = match field["type"].as_str().expect("a type") {
                "markdown" => vec![&attributes["value"]],
                "textarea" | "input" => {
                    assert!(ids.insert(field["id"].as_str().expect("an id").to_owned()), "{at}: {field}");
                    assert!(attributes["label"].is_string(), "{at}: {field}");
                    vec![&attributes["label"], &attributes["description"]]
                }
                other => panic!("{at}: {other}"),
            };
            for text in texts.into_iter().filter_map(Value::as_str) {
                named += text;
                for words in code_spans(text).iter().flat_map(|span| commands(span)) {
                    assert_eq!(error_with(&words, &misnamed), None, "{at}: {text}");
                }
            }
        }
    }
    for command in ["ferroute bundle", "ferroute doctor", "ferroute --version", "ferroute trace"] {
        assert!(named.contains(command), "no form asks for {command}");
    }
}
