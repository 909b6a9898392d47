use std::time::SystemTime;

use ferroute_kube::{ApiServer, ApiWriter, Regarding, Report, Severity, WriteError, testing::ApiDouble};
use ferroute_source::Resource;
use serde_json::{Value, json};

use crate::{NODE, connection, node, timing};

const KEY: &str = "example.com/not-ready";

async fn writer(double: &ApiDouble) -> ApiWriter {
    let server = ApiServer::new(&connection(), Some(&double.url()), NODE).await.unwrap();
    server.with_timing(timing()).writer()
}

/// A node with these taints.
async fn tainted(taints: Value) -> (ApiDouble, ApiWriter) {
    let double = ApiDouble::start().await;
    let mut node = node(NODE, "192.0.2.1");
    node["spec"] = json!({"podCIDR": "10.0.0.0/24", "taints": taints});
    double.apply(Resource::Nodes, node);
    let writer = writer(&double).await;
    (double, writer)
}

fn spec(double: &ApiDouble) -> Value {
    double.objects(Resource::Nodes)[0]["spec"].clone()
}

fn report() -> Report {
    Report {
        regarding: Regarding::service("shop", "web"),
        severity: Severity::Warning,
        reason: "InvalidObject",
        action: "Parse",
        note: "spec.clusterIP: invalid".to_owned(),
    }
}

#[tokio::test]
async fn a_taint_goes_and_all_else_stays() {
    let other =
        json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"});
    let effects = ["NoSchedule", "NoExecute"].map(|effect| json!({"key": KEY, "effect": effect}));
    let (double, writer) = tainted(json!([effects[0], other, effects[1]])).await;
    assert!(writer.remove_taint(KEY).await.unwrap());
    assert_eq!(spec(&double), json!({"podCIDR": "10.0.0.0/24", "taints": [other]}));
    assert!(!writer.remove_taint(KEY).await.unwrap());
    assert_eq!(double.writes().len(), 1, "where there is none nothing is written");
}

#[tokio::test]
async fn the_last_taint_leaves_no_empty_list() {
    let (double, writer) = tainted(json!([{"key": KEY, "effect": "NoSchedule"}])).await;
    assert!(writer.remove_taint(KEY).await.unwrap());
    assert_eq!(spec(&double), json!({"podCIDR": "10.0.0.0/24"}));
}

#[tokio::test]
async fn a_change_in_the_meantime_is_a_conflict_and_nothing_is_written() {
    let (double, writer) = tainted(json!([{"key": KEY, "effect": "NoSchedule"}])).await;
    double.behave(|behaviour| behaviour.refused_writes = vec![409]);
    let error = writer.remove_taint(KEY).await.unwrap_err();
    assert!(error.is_conflict() && error.may_pass(), "{error}");
    assert_eq!(spec(&double)["taints"][0]["key"], KEY);
    assert!(writer.remove_taint(KEY).await.unwrap());
    // The precondition is what makes the server tell.
    let version = &double.writes()[0].1["metadata"]["resourceVersion"];
    assert_eq!(version, "1");
}

#[tokio::test]
async fn what_is_not_allowed_names_the_rule_that_is_needed() {
    let (double, writer) = tainted(json!([{"key": KEY, "effect": "NoSchedule"}])).await;
    double.behave(|behaviour| behaviour.refused_writes = vec![403]);
    let error = writer.remove_taint(KEY).await.unwrap_err();
    assert!(!error.may_pass());
    assert_eq!(
        error.to_string(),
        "not allowed to patch nodes: the double says 403. A ClusterRole bound to this account needs the rule {apiGroups: \
         [\"\"], resources: [\"nodes\"], verbs: [\"patch\"]}"
    );
}

#[tokio::test]
async fn a_node_that_is_not_there_is_told() {
    let double = ApiDouble::start().await;
    let error = writer(&double).await.remove_taint(KEY).await.unwrap_err();
    assert!(error.is_not_found() && !error.may_pass(), "{error}");
}

#[tokio::test]
async fn an_event_is_written_once_and_then_counted() {
    let double = ApiDouble::start().await;
    let writer = writer(&double).await;
    let reported = writer.report(&report(), SystemTime::now()).await.unwrap();
    writer.report_again(&reported, 2, SystemTime::UNIX_EPOCH).await.unwrap();
    let [(created, event), (patched, series)] = <[_; 2]>::try_from(double.writes()).unwrap();
    let name = event["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web."), "{name}");
    assert_eq!(created, "POST /apis/events.k8s.io/v1/namespaces/shop/events");
    assert_eq!(patched, format!("PATCH /apis/events.k8s.io/v1/namespaces/shop/events/{name}"));
    assert_eq!(series, json!({"series": {"count": 2, "lastObservedTime": "1970-01-01T00:00:00.000000Z"}}));
}

#[tokio::test]
async fn a_server_that_is_away_is_worth_another_try() {
    let double = ApiDouble::start().await;
    let writer = writer(&double).await;
    double.behave(|behaviour| behaviour.away = true);
    let error = writer.report(&report(), SystemTime::now()).await.unwrap_err();
    assert!(matches!(error, WriteError::Trouble(_)) && error.may_pass(), "{error}");
    double.behave(|behaviour| behaviour.away = false);
    writer.report(&report(), SystemTime::now()).await.unwrap();
}
