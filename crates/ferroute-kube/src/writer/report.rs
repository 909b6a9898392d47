//! Events of `events.k8s.io/v1`, as kube-proxy's recorder writes them: `kubectl describe` shows them with their object.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::{ApiWriter, WriteError};
use crate::Permission;

/// Something that happened and that a person should know.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// The object that it is about.
    pub regarding: Regarding,
    /// How bad it is.
    pub severity: Severity,
    /// Why, in one word for programs: `FailedToStartServiceHealthcheck`.
    pub reason: &'static str,
    /// What was attempted, in one word: `Listen`.
    pub action: &'static str,
    /// What happened, for people. What is too long for the API server is cut off.
    pub note: String,
}

/// The object of a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// Its kind.
    pub kind: &'static str,
    /// The version that it is of.
    pub api_version: &'static str,
    /// Its namespace; empty for Nodes.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// How bad a [`Report`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Things are as they should be.
    Normal,
    /// Somebody should look.
    Warning,
}

/// An Event that has been written, to be written on when it happens again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    path: String,
}

impl Regarding {
    /// A node's Node.
    pub fn node(name: &str) -> Self {
        Self { kind: "Node", api_version: "v1", namespace: String::new(), name: name.to_owned() }
    }

    /// A Service.
    pub fn service(namespace: &str, name: &str) -> Self {
        Self { kind: "Service", api_version: "v1", namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Where Events about it are. Those of objects without a namespace are in `default`, as everybody's are.
    fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl ApiWriter {
    /// Writes an Event.
    ///
    /// # Errors
    ///
    /// The server does not take it.
    pub async fn report(&self, report: &Report, at: SystemTime) -> Result<Reported, WriteError> {
        let (name, event) = event(report, &self.node, at);
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", report.regarding.event_namespace());
        let _: Value = self.exchange(Permission::on_events("create"), &path, Some(&event)).await?;
        Ok(Reported { path: format!("{path}/{name}") })
    }

    /// Writes that what an Event tells has happened so many times by now.
    ///
    /// # Errors
    ///
    /// The server does not take it. It keeps Events for an hour only, so that this one may not be there any more.
    pub async fn report_again(&self, reported: &Reported, count: u32, at: SystemTime) -> Result<(), WriteError> {
        let series = json!({"series": {"count": count, "lastObservedTime": micro_time(at)}});
        let _: Value = self.exchange(Permission::on_events("patch"), &reported.path, Some(&series)).await?;
        Ok(())
    }
}

/// The Event's name, and itself.
fn event(report: &Report, node: &str, at: SystemTime) -> (String, Value) {
    let Report { regarding, severity, reason, action, note } = report;
    let nanoseconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let name = format!("{}.{nanoseconds:x}", cut(&regarding.name, LONGEST_NAME).trim_end_matches(['.', '-']));
    let mut object = json!({
        "kind": regarding.kind, "apiVersion": regarding.api_version, "namespace": regarding.namespace,
        "name": regarding.name,
    });
    if regarding.kind == "Node" {
        // As the kubelet and kube-proxy write it, so that `kubectl describe node` finds it.
        object["uid"] = regarding.name.as_str().into();
    }
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": regarding.event_namespace()},
        "eventTime": micro_time(at),
        "reportingController": CONTROLLER,
        "reportingInstance": cut(&format!("{CONTROLLER}-{node}"), LONGEST_INSTANCE),
        "action": action,
        "reason": reason,
        "regarding": object,
        "note": cut(note, LONGEST_NOTE),
        "type": severity.as_str(),
    });
    (name, event)
}

fn micro_time(at: SystemTime) -> String {
    humantime::format_rfc3339_micros(at).to_string()
}

/// At most so many bytes of a text, without half a character.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// kube-proxy's name: who filters Events by it shall see these too.
const CONTROLLER: &str = "kube-proxy";

// What the API server takes at most, in bytes (`pkg/apis/core/validation/events.go`); of the name a time has to follow.
const LONGEST_NAME: usize = 230;
const LONGEST_INSTANCE: usize = 128;
const LONGEST_NOTE: usize = 1024;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789)
    }

    #[test]
    fn an_event_is_as_kube_proxy_writes_it() {
        let report = Report {
            regarding: Regarding::node("node-1"),
            severity: Severity::Normal,
            reason: "Starting",
            action: "StartKubeProxy",
            note: String::new(),
        };
        let expected = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "node-1.1797ada5a5d9cd15", "namespace": "default"},
            "eventTime": "2023-11-14T22:13:20.123456Z", "reportingController": "kube-proxy",
            "reportingInstance": "kube-proxy-node-1", "action": "StartKubeProxy", "reason": "Starting",
            "regarding": {"kind": "Node", "apiVersion": "v1", "namespace": "", "name": "node-1", "uid": "node-1"},
            "note": "", "type": "Normal",
        });
        let (_, mut event) = event(&report, "node-1", at());
        event["metadata"]["name"] = expected["metadata"]["name"].clone();
        assert_eq!(event, expected);
    }

    #[test]
    fn nothing_is_longer_than_the_server_takes() {
        let report = Report {
            regarding: Regarding::service("shop", &"a".repeat(253)),
            severity: Severity::Warning,
            reason: "InvalidObject",
            action: "Parse",
            note: "ä".repeat(1000),
        };
        let (name, event) = event(&report, &"n".repeat(253), at());
        assert!(name.len() <= 253, "{name}");
        assert_eq!(event["metadata"]["namespace"], "shop");
        assert_eq!(event["note"].as_str().unwrap().len(), 1024);
        assert_eq!(event["reportingInstance"].as_str().unwrap().len(), 128);
    }
}
