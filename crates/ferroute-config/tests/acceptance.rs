//! Every field of the configuration with every value of a list, and whole configurations and command lines of distributions, compared
//! with a recording of kube-proxy 1.36.2.
//!
//! `conformance/configuration/record.py` created the recordings, and describes their lines.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
};

use clap::Parser;
use ferroute_config::{KubeProxyConfiguration, ModeName, flags::KubeProxy, settings::load_proxy};
use serde_json::{Value, json};

const MODES: [ModeName; 4] = [ModeName::IPTABLES, ModeName::IPVS, ModeName::NFTABLES, ModeName::USERSPACE];
const RECORDED: &str = include_str!("../../../conformance/configuration/recorded.tsv");

/// Returns the value that is written for a field of a configuration, which may follow a mode and a slash; `None` if the configuration
/// is rejected.
fn written(field: &str, value: &Value) -> Option<Value> {
    let mut config = json!({"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"});
    let (mode, field) = field.split_once('/').unwrap_or(("", field));
    config["mode"] = mode.into();
    let (parents, last) = field.rsplit_once('.').unwrap_or(("", field));
    let parent = parents.split('.').filter(|name| !name.is_empty()).fold(&mut config, |at, name| &mut at[name]);
    parent[last] = value.clone();
    let config = KubeProxyConfiguration::from_text(&config.to_string()).ok()?.config.defaulted();
    config.resolve_with(&MODES).ok()?;
    let written: Value = serde_saphyr::from_str(&config.platform_defaulted().to_yaml()).expect("valid YAML");
    Some(written.pointer(&format!("/{}", field.replace('.', "/"))).cloned().unwrap_or(Value::Null))
}

/// Reports whether a difference is intended.
fn is_intended(field: &str, value: &Value, written: Option<&Value>, recorded: Option<&Value>) -> bool {
    let (mode, name) = field.split_once('/').unwrap_or(("", field));
    match (written, recorded) {
        // Values that kube-proxy accepts are not rejected, and Ferroute does not read values that kube-proxy ignores.
        (None, _) => false,
        (Some(_), None) => match name {
            // Null counts as unset everywhere. kube-proxy rejects it for durations.
            _ if value.is_null() => true,
            // The mode that Kubernetes 1.26 removed.
            "mode" => value == "userspace",
            "nodePortAddresses" => has_keyword(value),
            // Of the versions 1.35, 1.36 and 1.37, kube-proxy 1.36 supports only the first.
            "showHiddenMetricsForVersion" => value == "1.36" || value == "1.37",
            _ => false,
        },
        (Some(_), Some(recorded)) => match name {
            // Fields that kube-proxy reads and drops before it writes: removed ones, and those for a feature gate,
            // another mode or Windows.
            "portRange" | "udpIdleTimeout" | "logging.options.json.splitStream" => true,
            "ipvs"
            | "ipvs.minSyncPeriod"
            | "ipvs.syncPeriod"
            | "nftables"
            | "nftables.masqueradeAll"
            | "nftables.minSyncPeriod"
            | "nftables.syncPeriod" => mode.is_empty(),
            _ if name.starts_with("win") => true,
            // kube-proxy keeps a number of 32 bits.
            "clientConnection.qps" => value.as_f64() > Some(1e9),
            _ => *recorded == json!([]),
        },
    }
}

/// Reports whether a list has keywords of `nodePortAddresses` in Kubernetes 1.37.
fn has_keyword(list: &Value) -> bool {
    let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.into_iter().any(|text| ["primary", "localhost", "all"].contains(&text))
}

#[test]
fn configuration_is_accepted_and_read_as_by_kube_proxy() {
    let mut differences = BTreeMap::<&str, String>::new();
    let mut count = 0;
    for line in RECORDED.lines() {
        let [field, result, values] = line.split('\t').collect::<Vec<_>>().try_into().expect("three columns");
        for value in serde_json::from_str::<Vec<Value>>(values).expect("a list in JSON") {
            let recorded = match result {
                "error" => None,
                "=" => Some(value.clone()),
                written => Some(serde_json::from_str(written).expect("JSON")),
            };
            let written = written(field, &value);
            if written != recorded && !is_intended(field, &value, written.as_ref(), recorded.as_ref()) {
                let show = |result: &Option<Value>| result.as_ref().map_or("rejected".to_owned(), Value::to_string);
                let list = differences.entry(field).or_default();
                write!(list, "\n    {value}: {} (want {})", show(&written), show(&recorded))
                    .expect("strings accept everything");
            }
            count += 1;
        }
    }
    assert!(count > 1000, "{count} lines");
    let text: String = differences.into_iter().map(|(field, list)| format!("\n{field}:{list}")).collect();
    assert!(text.is_empty(), "{text}");
}

const FORMS: &str = include_str!("../../../conformance/configuration/forms.json");
const RECORDED_FORMS: &str = include_str!("../../../conformance/configuration/forms.tsv");

/// Returns the configuration that is written for a form: a configuration file, or flags.
fn written_form(form: &Value) -> anyhow::Result<Value> {
    let file = tempfile::NamedTempFile::new()?;
    let mut arguments = vec!["kube-proxy".to_owned()];
    if let Some(fields) = form["config"].as_object() {
        let mut config = json!({"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"});
        config.as_object_mut().expect("an object").extend(fields.clone());
        std::fs::write(file.path(), config.to_string())?;
        arguments.push(format!("--config={}", file.path().display()));
    }
    let given = form["args"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    arguments.extend(given);
    written_for(&arguments)
}

/// Returns the configuration that is written for a command line.
fn written_for(arguments: &[String]) -> anyhow::Result<Value> {
    let settings = load_proxy(&KubeProxy::try_parse_from(arguments)?.run, &MODES)?;
    Ok(serde_json::to_value(settings.config.platform_defaulted())?)
}

/// Removes parts that kube-proxy writes in another way: empty values, and the periods that depend on the mode.
fn comparable(mut config: Value) -> Value {
    for section in ["iptables", "ipvs", "nftables"] {
        for period in ["minSyncPeriod", "syncPeriod"] {
            config[section].as_object_mut().expect("a section").remove(period);
        }
    }
    let is_empty = |value: &Value| matches!(value, Value::Null) || *value == json!([]) || *value == json!({});
    // kube-proxy no longer has `udpIdleTimeout`.
    config.as_object_mut().expect("an object").retain(|name, value| !is_empty(value) && name != "udpIdleTimeout");
    config["ipvs"].as_object_mut().expect("a section").retain(|_, value| !is_empty(value));
    config
}

#[test]
fn configurations_of_distributions_are_read_as_by_kube_proxy() {
    let forms: BTreeMap<String, Value> = serde_json::from_str(FORMS).expect("JSON");
    let recorded: BTreeMap<&str, Value> = RECORDED_FORMS
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, written)| (name, serde_json::from_str(written).expect("JSON")))
        .collect();
    assert!(forms.keys().eq(recorded.keys()), "the recording is of other forms");
    for (name, form) in &forms {
        let written = written_form(form).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert_eq!(comparable(written), comparable(recorded[name.as_str()].clone()), "{name}");
    }
}

const RECORDED_FLAGS: &str = include_str!("../../../conformance/configuration/flags.tsv");

/// Collects the fields that differ, by their paths.
fn changes(path: &str, before: &Value, after: &Value, found: &mut Changes) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                changes(&path, &before[name], &after[name], found);
            }
        }
        _ if before == after => {}
        _ => {
            found.insert(path.to_owned(), after.clone());
        }
    }
}

/// The fields that a flag changes.
type Changes = BTreeMap<String, Value>;

/// Reports whether a difference is intended.
fn is_intended_for(argument: &str, changed: Option<&Changes>, recorded: Option<&Changes>) -> bool {
    let (flag, value) = argument.split_once('=').unwrap_or((argument, ""));
    match (changed, recorded) {
        // A size without digits is 0 in Go.
        (None, _) => flag.ends_with("-info-buffer-size") && value == "T",
        (Some(_), None) => match flag {
            // kube-proxy adds ports only where it does not write its configuration.
            "--healthz-bind-address" | "--metrics-bind-address" => value.parse::<IpAddr>().is_ok(),
            // These flags have no effect, or their empty value has none.
            "--log-flush-frequency" | "--log-json-split-stream" | "--log-text-split-stream" => true,
            "--cluster-cidr" | "--logging-format" => value.is_empty(),
            // As in later versions.
            "--show-hidden-metrics-for-version" => value == "1.36",
            _ => false,
        },
        (Some(changed), Some(recorded)) => match flag {
            // Ferroute converts the name to lower case when it reads it, and an empty address disables the server.
            "--hostname-override" => lower_case(changed) == lower_case(recorded),
            "--healthz-bind-address" | "--metrics-bind-address" => value.is_empty(),
            "--kube-api-qps" => changed.keys().eq(recorded.keys()),
            _ => effective(changed) == effective(recorded),
        },
    }
}

fn lower_case(changes: &Changes) -> Vec<String> {
    changes.values().map(|value| value.to_string().trim_matches(['"', ' ']).to_lowercase()).collect()
}

/// Leaves out empty lists, fields that kube-proxy does not write for other modes, and periods, whose defaults differ.
fn effective(changes: &Changes) -> Vec<(&String, &Value)> {
    let is_effective = |(name, value): &(&String, &Value)| {
        **value != json!([]) && !name.ends_with("yncPeriod") && *name != "nftables.masqueradeAll"
    };
    changes.iter().filter(is_effective).collect()
}

#[test]
fn flags_change_the_fields_that_they_change_in_kube_proxy() {
    let defaults = written_for(&["kube-proxy".to_owned()]).expect("the defaults");
    let mut differences = String::new();
    for line in RECORDED_FLAGS.lines() {
        let (result, arguments) = line.split_once('\t').expect("two columns");
        let recorded: Option<Changes> = (result != "error").then(|| serde_json::from_str(result).expect("JSON"));
        for argument in serde_json::from_str::<Vec<String>>(arguments).expect("a list in JSON") {
            let changed = written_for(&["kube-proxy".to_owned(), argument.clone()]).ok().map(|written| {
                let mut found = Changes::new();
                changes("", &defaults, &written, &mut found);
                found
            });
            if changed != recorded && !is_intended_for(&argument, changed.as_ref(), recorded.as_ref()) {
                writeln!(differences, "{argument}: {changed:?} (want {recorded:?})")
                    .expect("strings accept everything");
            }
        }
    }
    assert!(differences.is_empty(), "\n{differences}");
}
