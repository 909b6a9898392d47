//! Events of `events.k8s.io/v1`, as kube-proxy's recorder creates them; `kubectl describe` shows them with their object.

use std::time::SystemTime;

use ferroute_api::Kind;
use ferroute_core::rfc3339;
use serde_json::{Value, json};

use super::{ApiWriter, WriteError};
use crate::Permission;

/// An Event to create.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KubeEvent {
    /// Object that the Event refers to.
    pub regarding: ObjectReference,
    /// Type.
    pub event_type: EventType,
    /// The reason, in one word for programs: `FailedToStartServiceHealthcheck`.
    pub reason: &'static str,
    /// The action that was taken or failed, in one word: `Listen`.
    pub action: &'static str,
    /// The description. It is cut off where it is too long for the API server.
    pub note: String,
}

/// A reference to an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectReference {
    /// Kind.
    pub kind: &'static str,
    /// Its API version.
    pub api_version: &'static str,
    /// Namespace; empty for Nodes.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The type of a [`KubeEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Information.
    Normal,
    /// A problem.
    Warning,
}

/// Handle to a created Event, to count further occurrences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventHandle {
    path: String,
}

impl ObjectReference {
    /// Returns a reference to an object of a kind that Ferroute reads.
    pub fn new(kind: &'static str, namespace: &str, name: &str) -> Self {
        let known = Kind::ALL.into_iter().find(|known| known.as_str() == kind);
        let api_version = known.map_or("v1", Kind::api_version);
        Self { kind, api_version, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns a reference to a Node.
    pub fn node(name: &str) -> Self {
        Self::new(Kind::Node.as_str(), "", name)
    }

    /// Returns a reference to a Service.
    pub fn service(namespace: &str, name: &str) -> Self {
        Self::new(Kind::Service.as_str(), namespace, name)
    }

    /// Returns the namespace of its Events: those of objects without a namespace are in `default`, as in Kubernetes.
    fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl ApiWriter {
    /// Creates an Event.
    ///
    /// # Errors
    ///
    /// The server does not accept it.
    pub async fn create_event(&self, event: &KubeEvent, at: SystemTime) -> Result<EventHandle, WriteError> {
        let (name, object) = encode(event, &self.node, at);
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", event.regarding.event_namespace());
        let _: Value = self.request(Permission::events("create"), &path, Some(&object)).await?;
        Ok(EventHandle { path: format!("{path}/{name}") })
    }

    /// Updates the `series` of an Event: it has occurred `count` times.
    ///
    /// # Errors
    ///
    /// The server does not accept it. Events are kept for only an hour, so the Event may not exist any more.
    pub async fn update_series(&self, event: &EventHandle, count: u32, at: SystemTime) -> Result<(), WriteError> {
        let series = json!({"series": {"count": count, "lastObservedTime": micro_time(at)}});
        let _: Value = self.request(Permission::events("patch"), &event.path, Some(&series)).await?;
        Ok(())
    }
}

/// Returns the name of an Event and its object.
fn encode(event: &KubeEvent, node: &str, at: SystemTime) -> (String, Value) {
    let KubeEvent { regarding, event_type, reason, action, note } = event;
    let nanoseconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let name = format!("{}.{nanoseconds:x}", truncate(&regarding.name, MAX_NAME_PREFIX).trim_end_matches(['.', '-']));
    let mut reference = json!({
        "kind": regarding.kind, "apiVersion": regarding.api_version, "namespace": regarding.namespace,
        "name": regarding.name,
    });
    if regarding.kind == Kind::Node.as_str() {
        // As the kubelet and kube-proxy do; `kubectl describe node` selects Events by it.
        reference["uid"] = regarding.name.as_str().into();
    }
    let object = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": regarding.event_namespace()},
        "eventTime": micro_time(at),
        "reportingController": CONTROLLER,
        "reportingInstance": truncate(&format!("{CONTROLLER}-{node}"), MAX_INSTANCE),
        "action": action,
        "reason": reason,
        "regarding": reference,
        "note": truncate(note, MAX_NOTE),
        "type": event_type.as_str(),
    });
    (name, object)
}

/// Formats a `MicroTime`.
fn micro_time(at: SystemTime) -> String {
    rfc3339::format(at, 6).unwrap_or_default()
}

/// Returns at most `max` bytes of a text, without splitting a character.
fn truncate(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// kube-proxy's name, so that filters for its Events match.
const CONTROLLER: &str = "kube-proxy";

// Limits of the API server in bytes (`pkg/apis/core/validation/events.go`); a time is appended to the name.
const MAX_NAME_PREFIX: usize = 230;
const MAX_INSTANCE: usize = 128;
const MAX_NOTE: usize = 1024;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789)
    }

    #[test]
    fn events_have_the_fields_of_kube_proxy() {
        let event = KubeEvent {
            regarding: ObjectReference::node("node-1"),
            event_type: EventType::Normal,
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
        let (_, mut object) = encode(&event, "node-1", at());
        object["metadata"]["name"] = expected["metadata"]["name"].clone();
        assert_eq!(object, expected);
    }

    #[test]
    fn fields_are_truncated_to_the_limits_of_the_server() {
        let event = KubeEvent {
            regarding: ObjectReference::service("shop", &"a".repeat(253)),
            event_type: EventType::Warning,
            reason: "InvalidObject",
            action: "Parse",
            note: "ä".repeat(1000),
        };
        let (name, object) = encode(&event, &"n".repeat(253), at());
        assert!(name.len() <= 253, "{name}");
        assert_eq!(object["metadata"]["namespace"], "shop");
        assert_eq!(object["note"].as_str().unwrap().len(), 1024);
        assert_eq!(object["reportingInstance"].as_str().unwrap().len(), 128);
    }

    #[test]
    fn references_have_the_api_version_of_the_kind() {
        let version = |kind| ObjectReference::new(kind, "", "a").api_version;
        assert_eq!(
            ["Service", "EndpointSlice", "ServiceCIDR", "Node"].map(version),
            ["v1", "discovery.k8s.io/v1", "networking.k8s.io/v1", "v1"]
        );
    }
}
