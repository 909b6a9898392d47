//! The page has texts for the contents of the reports, in both languages.

#![expect(clippy::unwrap_used, reason = "missing files fail the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use ferroute_core::{Method, ModeTrait};
use ferroute_modes::REGISTRY;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn script(file: &str) -> String {
    fs::read_to_string(format!("{}/web/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Returns the texts of all files below a directory, with strings over several lines joined.
fn sources(directory: &Path, all: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let mut parts = text.split("\\\n");
            let first = parts.next().unwrap_or_default().to_owned();
            all.push(parts.fold(first, |text, part| text + part.trim_start()));
        }
    }
}

/// Returns the text between two marks, at each occurrence.
fn between<'a>(text: &'a str, start: &str, end: char) -> Vec<&'a str> {
    text.match_indices(start)
        .filter_map(|(at, _)| text[at + start.len()..].split_once(end))
        .map(|(name, _)| name)
        .collect()
}

/// Returns the parameters of a text: `{name}`.
fn parameters(text: &str) -> BTreeSet<&str> {
    between(text, "{", '}').into_iter().collect()
}

/// The findings about a cluster.
fn cluster_findings() -> String {
    fs::read_to_string(crates().join("ferroute-kubectl/src/kube_proxy.rs")).unwrap()
}

/// Returns the names of the checks, and of their kinds of findings.
fn checks() -> (BTreeSet<String>, BTreeSet<String>) {
    let directory = crates().join("ferroute-inspect/src/doctor");
    let mut files = Vec::new();
    sources(&directory, &mut files);
    let names = files.iter().flat_map(|text| between(text, "Check { name: \"", '"'));
    let kinds = files.iter().flat_map(|text| between(text, ".kind(\"", '"'));
    let cluster = cluster_findings();
    let (name, more_kinds) = (between(&cluster, "CHECK: &str = \"", '"'), between(&cluster, "\"kube-proxy.", '"'));
    (names.chain(name).map(str::to_owned).collect(), kinds.chain(more_kinds).map(str::to_owned).collect())
}

#[test]
fn findings_of_all_checks_have_chinese_texts() {
    let text = script("findings.js");
    let codes: BTreeSet<&str> = between(&text, "\n  \"", '"').into_iter().filter(|code| !code.contains(' ')).collect();
    let (names, kinds) = checks();
    assert!(names.len() > 10 && kinds.len() > 5, "{names:?} {kinds:?}");
    for name in &names {
        let has = codes.iter().any(|code| code == name || code.starts_with(&format!("{name}.")));
        assert!(has, "the check {name} has no text");
    }
    // Checks that are named by a condition instead of a literal.
    let others = ["ahead", "behind", "refused", "silent", "unreachable", "off", "missing", "pods", "node", "others"];
    for kind in kinds.iter().map(String::as_str).chain(others) {
        assert!(codes.iter().any(|code| code.ends_with(&format!(".{kind}"))), "the kind {kind} has no text");
    }
    for code in codes {
        let (name, kind) = code.split_once('.').map_or((code, None), |(name, kind)| (name, Some(kind)));
        assert!(names.contains(name), "{code}: there is no such check");
        assert!(
            kind.is_none_or(|kind| kinds.contains(kind) || others.contains(&kind)),
            "{code}: there is no such kind"
        );
    }
}

#[test]
fn texts_of_findings_have_values_that_findings_have() {
    let mut files = Vec::new();
    sources(&crates().join("ferroute-inspect/src/doctor/checks"), &mut files);
    let cluster = cluster_findings();
    let values =
        files.iter().flat_map(|text| between(text, ".with(\"", '"')).chain(between(&cluster, "values: [(\"", '"'));
    let values: BTreeSet<&str> = values.collect();
    let text = script("findings.js");
    let texts = text.split_once("export const FINDINGS").unwrap().1.split_once("\n};").unwrap().0;
    let unknown: Vec<_> = parameters(&texts[texts.find('{').unwrap() + 1..]).difference(&values).copied().collect();
    assert_eq!(unknown, Vec::<&str>::new());
}

#[test]
fn every_text_that_a_script_names_exists() {
    let texts = script("i18n.js");
    let keys: BTreeSet<&str> = between(&texts, "\n  \"", '"').into_iter().collect();
    let mut missing = BTreeMap::new();
    for entry in fs::read_dir(format!("{}/web", env!("CARGO_MANIFEST_DIR"))).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "js") {
            continue;
        }
        let script = fs::read_to_string(&path).unwrap();
        for key in between(&script, " t(\"", '"').into_iter().chain(between(&script, "(t(\"", '"')) {
            if !keys.contains(key) {
                missing.insert(key.to_owned(), path.clone());
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn traits_of_modes_have_chinese_texts() {
    let script = script("texts.js");
    let sentences: BTreeSet<&str> = between(&script, "\n  [\"", '"').into_iter().collect();
    let values = REGISTRY.names().into_iter().flat_map(|mode| {
        let traits = REGISTRY.active(mode).traits();
        ModeTrait::ALL.iter().flat_map(|it| [it.title.to_owned(), it.value(traits)])
    });
    // Names and numbers are the same in both languages.
    let is_name = |word: &str| {
        word.starts_with('`')
            || Method::ALL.iter().any(|method| method.as_str() == word)
            || word.chars().all(|character| !character.is_ascii_lowercase())
    };
    let unknown: BTreeSet<String> = values
        .filter(|text| !sentences.contains(text.as_str()) && !text.split([',', ';']).all(|word| is_name(word.trim())))
        .collect();
    assert_eq!(unknown, BTreeSet::new());
}
