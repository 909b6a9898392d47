//! The page has texts for the contents of the reports, in both languages.

#![expect(clippy::unwrap_used, reason = "missing files fail the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use ferroute_api::{
    Object,
    manifest::{self, Parsed},
};
use ferroute_core::{
    Method, ModeTrait, ModeTraits,
    parse::{parse_service, parse_slice},
};
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

/// Reports whether a text has the form of a sentence: `{name}` stands for any text.
fn has_form(text: &str, sentence: &str) -> bool {
    let mut parts = sentence.split(['{', '}']).step_by(2);
    let Some(mut rest) = parts.next().and_then(|start| text.strip_prefix(start)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, inner)) = parts.split_last() else { return rest.is_empty() };
    for part in inner {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn ignored_settings_have_chinese_texts() {
    const OBJECTS: &str = "
{apiVersion: v1, kind: Service, metadata: {name: web, annotations: {
  ferroute.io/load-balancing: fastest, ferroute.io/slow-start: soon, ferroute.io/zone-weight: much, ferroute.io/drain-timeout: 0s,
  ferroute.io/max-connections: none, ferroute.io/over-limit: drop, ferroute.io/source-ranges-policy: deny,
  ferroute.io/source-ranges-scope: cluster-ip, ferroute.io/weight: '2', ferroute.io/load-balancin: random, ferroute.io/other: '1'}},
 spec: {clusterIP: 10.96.0.1, externalIPs: [127.0.0.1], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: sctp, annotations: {
  ferroute.io/passive-ejection: 'true', ferroute.io/drain-timeout: 5s}}, spec: {clusterIP: 10.96.0.2, ports: [{port: 80, protocol: SCTP}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: all, annotations: {
  ferroute.io/load-balancing: round-robin, ferroute.io/slow-start: 5s, ferroute.io/zone-weight: '5', ferroute.io/drain-timeout: 5s,
  ferroute.io/max-connections: '5', ferroute.io/source-ranges: 10.0.0.0/8, ferroute.io/source-ranges-scope: external-ips}},
 spec: {clusterIP: 10.96.0.3, clusterIPs: [10.96.0.3, 'fd00::3'], ipFamilies: [IPv4, IPv6], externalIPs: ['2001:db8::1'], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: unused},
 spec: {clusterIP: 10.96.0.4, loadBalancerSourceRanges: [10.0.0.0/8], ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a, labels: {kubernetes.io/service-name: web},
  annotations: {ferroute.io/weight: '2 3'}}, addressType: IPv4, endpoints: [{addresses: [169.254.0.1]}], ports: [{port: 80}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: b, labels: {kubernetes.io/service-name: web},
  annotations: {ferroute.io/weight: '5'}}, addressType: IPv4, endpoints: [{addresses: [10.244.0.1]}], ports: [{port: 80}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: c, labels: {kubernetes.io/service-name: web},
  annotations: {ferroute.io/weight: heavy}}, addressType: IPv4, endpoints: [], ports: [{port: 80}]}
";
    let script = script("texts.js");
    let mut sentences = between(&script, "\n  [\"", '"');
    // They are about packets.
    sentences.retain(|sentence| !sentence.starts_with("{subject}"));
    let mut found = BTreeSet::new();
    for object in manifest::read(OBJECTS) {
        let Ok(Parsed::Object(object)) = object else { panic!("{object:?}") };
        let ignored = match *object {
            Object::Service(service) => {
                let mut view = parse_service(&service).unwrap().unwrap();
                view.ignore_unsupported(&ModeTraits::USERSPACE);
                view.ignored
            }
            Object::EndpointSlice(slice) => {
                let mut view = parse_slice(&slice, "node-1").unwrap().unwrap();
                view.ignore_unsupported(&ModeTraits::IPTABLES);
                view.ignored
            }
            other => panic!("{other:?}"),
        };
        assert!(!ignored.is_empty(), "each object has a setting that is ignored");
        found.extend(ignored.iter().map(ToString::to_string));
    }
    let unknown: Vec<_> =
        found.iter().filter(|text| !sentences.iter().any(|sentence| has_form(text, sentence))).collect();
    assert_eq!(unknown, Vec::<&String>::new(), "of {}", found.len());
}
