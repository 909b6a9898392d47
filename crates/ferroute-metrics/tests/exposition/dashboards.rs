//! What people have drawn and set up for kube-proxy finds its series here, too.
//!
//! The table holds the selectors and groupings of the queries, not their functions: Prometheus does not care who counts,
//! as long as series with these labels are there. Two labels come from Prometheus itself (`instance`, `job`), and one,
//! `url`, has gone from Kubernetes' own metrics long before 1.36, though dashboards still group by it.

use ferroute_core::IpFamily;
use ferroute_metrics::{Engine, Sampled};

use super::{Family, eventful, metrics, parse};

/// A query's selector.
struct Query {
    /// Who asks.
    by: &'static str,
    series: &'static str,
    /// Labels, and what their values begin with.
    select: &'static [(&'static str, &'static str)],
    /// Labels that the query groups by or shows.
    group: &'static [&'static str],
}

const fn query(
    by: &'static str,
    series: &'static str,
    select: &'static [(&'static str, &'static str)],
    group: &'static [&'static str],
) -> Query {
    Query { by, series, select, group }
}

/// The proxy dashboard of kubernetes-mixin, which kube-prometheus ships.
const DASHBOARD: &[Query] = &[
    query("variable instance", "kubeproxy_network_programming_duration_seconds_bucket", &[], &[]),
    query("Rules Sync Rate", "kubeproxy_sync_proxy_rules_duration_seconds_count", &[], &[]),
    query("Rule Sync Latency", "kubeproxy_sync_proxy_rules_duration_seconds_bucket", &[], &["le"]),
    query("Network Programming Rate", "kubeproxy_network_programming_duration_seconds_count", &[], &[]),
    query("Network Programming Latency", "kubeproxy_network_programming_duration_seconds_bucket", &[], &["le"]),
    query("Kube API Request Rate 2xx", "rest_client_requests_total", &[("code", "2")], &[]),
    query("Kube API Request Rate 5xx", "rest_client_requests_total", &[("code", "5")], &[]),
    query("Post Request Latency", "rest_client_request_duration_seconds_bucket", &[("verb", "POST")], &["verb", "le"]),
    query("Get Request Latency", "rest_client_request_duration_seconds_bucket", &[("verb", "GET")], &["verb", "le"]),
    query("Memory", "process_resident_memory_bytes", &[], &[]),
    query("CPU usage", "process_cpu_seconds_total", &[], &[]),
    query("Goroutines", "go_goroutines", &[], &[]),
];

/// Alerts of kubernetes-mixin and of OpenShift, and what guides for operators of kube-proxy recommend.
const ALERTS: &[Query] = &[
    query("KubeClientErrors", "rest_client_requests_total", &[("code", "5")], &["code", "method", "host"]),
    query("KubeVersionMismatch", "kubernetes_build_info", &[("git_version", "v1.36")], &["git_version"]),
    query("NodeProxyApplySlow", "kubeproxy_sync_proxy_rules_duration_seconds_bucket", &[], &["le"]),
    query("NodeProxyApplyStale", "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", &[], &["ip_family"]),
    query("NodeProxyApplyStale", "kubeproxy_sync_proxy_rules_last_timestamp_seconds", &[], &["ip_family"]),
    query("changes that wait", "kubeproxy_sync_proxy_rules_endpoint_changes_pending", &[], &[]),
    query("changes that wait", "kubeproxy_sync_proxy_rules_service_changes_pending", &[], &[]),
    query("traffic that goes nowhere", "kubeproxy_sync_proxy_rules_no_local_endpoints_total", &[], &["traffic_policy"]),
    query("unhealthy", "kubeproxy_proxy_healthz_total", &[("code", "503")], &["code"]),
    query("threads", "go_threads", &[], &[]),
    query("open files", "process_open_fds", &[], &[]),
    query("restarts", "process_start_time_seconds", &[], &[]),
];

const OF_IPTABLES: &[Query] = &[
    query("rules", "kubeproxy_sync_proxy_rules_iptables_total", &[], &["table"]),
    query("failures", "kubeproxy_sync_proxy_rules_iptables_restore_failures_total", &[], &[]),
];

const OF_NFTABLES: &[Query] = &[query("failures", "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", &[], &[])];

impl Query {
    /// Whether there is a series that it selects, with each label that it groups by.
    fn finds(&self, families: &std::collections::BTreeMap<String, Family>) -> bool {
        let mut samples = families.values().flat_map(|family| &family.samples);
        samples.any(|(name, labels, _)| {
            let has = |label: &str, start: &str| labels.get(label).is_some_and(|value| value.starts_with(start));
            name == self.series
                && self.select.iter().all(|(label, start)| has(label, start))
                && self.group.iter().all(|label| has(label, ""))
        })
    }
}

#[test]
fn dashboards_and_alerts_for_kube_proxy_find_their_series() {
    for (engine, own) in [(Engine::Iptables, OF_IPTABLES), (Engine::Nftables, OF_NFTABLES)] {
        let families = parse(&eventful(engine, &IpFamily::BOTH));
        for query in [DASHBOARD, ALERTS, own].into_iter().flatten() {
            assert!(query.finds(&families), "{engine:?}: {} finds no {}", query.by, query.series);
        }
    }
}

/// An alert subtracts one from the other, which Prometheus does for equal labels only.
#[test]
fn when_syncs_were_asked_for_and_when_they_succeeded_have_the_same_labels() {
    let families = parse(&eventful(Engine::Nftables, &IpFamily::BOTH));
    let labels = |name: &str| families[name].samples.iter().map(|(_, labels, _)| labels.clone()).collect::<Vec<_>>();
    let queued = labels("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds");
    assert_eq!(queued.len(), 2);
    assert_eq!(queued, labels("kubeproxy_sync_proxy_rules_last_timestamp_seconds"));
}

/// The dashboard lists the instances by the first of these series, and shows nothing of those that have it not.
#[test]
fn a_proxy_that_has_just_begun_is_on_the_dashboard() {
    let metrics = metrics(Engine::Nftables);
    metrics.serve(&[IpFamily::V4]);
    let families = parse(&metrics.render(&Sampled { tasks: Some(1), ..Sampled::default() }));
    for query in DASHBOARD.iter().filter(|query| query.series.starts_with("kubeproxy_")) {
        assert!(query.finds(&families), "{} finds no {}", query.by, query.series);
    }
}
