//! Queries of dashboards and alerts for kube-proxy find their series in Ferroute's metrics.
//!
//! The tables hold the selectors and groupings of the queries without functions. The labels `instance` and `job`, which
//! Prometheus adds, and `url`, which Kubernetes dropped long before 1.36 although dashboards still group by it, are
//! omitted.

use ferroute_admin::metrics::{IPTABLES_METRICS, Metrics, NFTABLES_METRICS, Sampled};
use ferroute_core::IpFamily;

use super::{Family, parse, sample_text};

/// A query's selector.
struct Query {
    /// Name of the panel or alert.
    panel: &'static str,
    series: &'static str,
    /// Labels and prefixes of their values.
    select: &'static [(&'static str, &'static str)],
    /// Labels that the query groups by or displays.
    group: &'static [&'static str],
}

const fn query(
    panel: &'static str,
    series: &'static str,
    select: &'static [(&'static str, &'static str)],
    group: &'static [&'static str],
) -> Query {
    Query { panel, series, select, group }
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

/// Alerts of kubernetes-mixin and of OpenShift, and queries recommended by kube-proxy operation guides.
const ALERTS: &[Query] = &[
    query("KubeClientErrors", "rest_client_requests_total", &[("code", "5")], &["code", "method", "host"]),
    query("KubeVersionMismatch", "kubernetes_build_info", &[("git_version", "v1.36")], &["git_version"]),
    query("NodeProxyApplySlow", "kubeproxy_sync_proxy_rules_duration_seconds_bucket", &[], &["le"]),
    query("NodeProxyApplyStale", "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", &[], &["ip_family"]),
    query("NodeProxyApplyStale", "kubeproxy_sync_proxy_rules_last_timestamp_seconds", &[], &["ip_family"]),
    query("pending changes", "kubeproxy_sync_proxy_rules_endpoint_changes_pending", &[], &[]),
    query("pending changes", "kubeproxy_sync_proxy_rules_service_changes_pending", &[], &[]),
    query("no local endpoints", "kubeproxy_sync_proxy_rules_no_local_endpoints_total", &[], &["traffic_policy"]),
    query("unhealthy", "kubeproxy_proxy_healthz_total", &[("code", "503")], &["code"]),
    query("threads", "go_threads", &[], &[]),
    query("open files", "process_open_fds", &[], &[]),
    query("restarts", "process_start_time_seconds", &[], &[]),
];

const IPTABLES_QUERIES: &[Query] = &[
    query("rules", "kubeproxy_sync_proxy_rules_iptables_total", &[], &["table"]),
    query("failures", "kubeproxy_sync_proxy_rules_iptables_restore_failures_total", &[], &[]),
];

const NFTABLES_QUERIES: &[Query] =
    &[query("failures", "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", &[], &[])];

impl Query {
    /// Reports whether the query selects a series that has every label it groups by.
    fn matches(&self, families: &std::collections::BTreeMap<String, Family>) -> bool {
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
fn dashboard_and_alert_queries_for_kube_proxy_find_series() {
    for (mode, queries) in [(IPTABLES_METRICS, IPTABLES_QUERIES), (NFTABLES_METRICS, NFTABLES_QUERIES)] {
        let families = parse(&sample_text(mode, &IpFamily::BOTH));
        for query in [DASHBOARD, ALERTS, queries].into_iter().flatten() {
            assert!(query.matches(&families), "{}: no series {}", query.panel, query.series);
        }
    }
}

/// An alert subtracts one from the other, which requires equal labels.
#[test]
fn queued_and_last_sync_timestamps_have_equal_labels() {
    let families = parse(&sample_text(NFTABLES_METRICS, &IpFamily::BOTH));
    let labels = |name: &str| families[name].samples.iter().map(|(_, labels, _)| labels.clone()).collect::<Vec<_>>();
    let queued = labels("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds");
    assert_eq!(queued.len(), 2);
    assert_eq!(queued, labels("kubeproxy_sync_proxy_rules_last_timestamp_seconds"));
}

/// The dashboard lists instances by the first of these series and ignores all others.
#[test]
fn starting_proxy_is_on_the_dashboard() {
    let metrics = Metrics::new(NFTABLES_METRICS);
    metrics.set_families(&[IpFamily::V4]);
    let families = parse(&metrics.render(&Sampled { tasks: Some(1), ..Sampled::default() }));
    for query in DASHBOARD.iter().filter(|query| query.series.starts_with("kubeproxy_")) {
        assert!(query.matches(&families), "{}: no series {}", query.panel, query.series);
    }
}
