use std::time::SystemTime;

use ferroute_kube::{ApiServer, ApiWriter, EventType, KubeEvent, ObjectReference, WriteError, testing::FakeApiServer};
use ferroute_source::Resource;
use serde_json::{Value, json};

use crate::{NODE, connection, node, timing};

const KEY: &str = "example.com/not-ready";

async fn writer(fake: &FakeApiServer) -> ApiWriter {
    let server = ApiServer::new(&connection(), Some(&fake.url()), NODE).await.unwrap();
    server.with_timing(timing()).writer()
}

/// Starts a server with a node with these taints.
async fn tainted(taints: Value) -> (FakeApiServer, ApiWriter) {
    let fake = FakeApiServer::start().await;
    let mut node = node(NODE, "192.0.2.1");
    node["spec"] = json!({"podCIDR": "10.0.0.0/24", "taints": taints});
    fake.apply(Resource::Nodes, node);
    let writer = writer(&fake).await;
    (fake, writer)
}

fn spec(fake: &FakeApiServer) -> Value {
    fake.objects(Resource::Nodes)[0]["spec"].clone()
}

fn event() -> KubeEvent {
    KubeEvent {
        regarding: ObjectReference::service("shop", "web"),
        event_type: EventType::Warning,
        reason: "InvalidObject",
        action: "Parse",
        note: "spec.clusterIP: invalid".to_owned(),
    }
}

#[tokio::test]
async fn taint_is_removed_and_other_fields_are_kept() {
    let other =
        json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"});
    let effects = ["NoSchedule", "NoExecute"].map(|effect| json!({"key": KEY, "effect": effect}));
    let (fake, writer) = tainted(json!([effects[0], other, effects[1]])).await;
    assert!(writer.remove_taint(KEY).await.unwrap());
    assert_eq!(spec(&fake), json!({"podCIDR": "10.0.0.0/24", "taints": [other]}));
    assert!(!writer.remove_taint(KEY).await.unwrap());
    assert_eq!(fake.writes().len(), 1, "nothing is written without the taint");
}

#[tokio::test]
async fn last_taint_leaves_no_empty_list() {
    let (fake, writer) = tainted(json!([{"key": KEY, "effect": "NoSchedule"}])).await;
    assert!(writer.remove_taint(KEY).await.unwrap());
    assert_eq!(spec(&fake), json!({"podCIDR": "10.0.0.0/24"}));
}

#[tokio::test]
async fn concurrent_change_is_a_conflict_and_nothing_is_written() {
    let (fake, writer) = tainted(json!([{"key": KEY, "effect": "NoSchedule"}])).await;
    fake.behave(|behaviour| behaviour.failed_writes = vec![409]);
    let error = writer.remove_taint(KEY).await.unwrap_err();
    assert!(error.is_conflict() && error.is_transient(), "{error}");
    assert_eq!(spec(&fake)["taints"][0]["key"], KEY);
    assert!(writer.remove_taint(KEY).await.unwrap());
    // The version lets the server detect the conflict.
    let version = &fake.writes()[0].1["metadata"]["resourceVersion"];
    assert_eq!(version, "1");
}

#[tokio::test]
async fn forbidden_writes_name_the_required_rule() {
    let (fake, writer) = tainted(json!([{"key": KEY, "effect": "NoSchedule"}])).await;
    fake.behave(|behaviour| behaviour.failed_writes = vec![403]);
    let error = writer.remove_taint(KEY).await.unwrap_err();
    assert!(!error.is_transient());
    assert_eq!(
        error.to_string(),
        "not allowed to patch nodes: fake error 403. A ClusterRole bound to this account needs the rule {apiGroups: \
         [\"\"], resources: [\"nodes\"], verbs: [\"patch\"]}"
    );
}

#[tokio::test]
async fn missing_node_is_an_error() {
    let fake = FakeApiServer::start().await;
    let error = writer(&fake).await.remove_taint(KEY).await.unwrap_err();
    assert!(error.is_not_found() && !error.is_transient(), "{error}");
}

#[tokio::test]
async fn event_is_created_once_and_then_counted() {
    let fake = FakeApiServer::start().await;
    let writer = writer(&fake).await;
    let handle = writer.create_event(&event(), SystemTime::now()).await.unwrap();
    writer.update_series(&handle, 2, SystemTime::UNIX_EPOCH).await.unwrap();
    let [(created, event), (patched, series)] = <[_; 2]>::try_from(fake.writes()).unwrap();
    let name = event["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web."), "{name}");
    assert_eq!(created, "POST /apis/events.k8s.io/v1/namespaces/shop/events");
    assert_eq!(patched, format!("PATCH /apis/events.k8s.io/v1/namespaces/shop/events/{name}"));
    assert_eq!(series, json!({"series": {"count": 2, "lastObservedTime": "1970-01-01T00:00:00.000000Z"}}));
}

#[tokio::test]
async fn unreachable_server_is_a_transient_error() {
    let fake = FakeApiServer::start().await;
    let writer = writer(&fake).await;
    fake.behave(|behaviour| behaviour.down = true);
    let error = writer.create_event(&event(), SystemTime::now()).await.unwrap_err();
    assert!(matches!(error, WriteError::Api(_)) && error.is_transient(), "{error}");
    fake.behave(|behaviour| behaviour.down = false);
    writer.create_event(&event(), SystemTime::now()).await.unwrap();
}
