//! The text of `/metrics`.

#![expect(clippy::unwrap_used, reason = "failing helpers fail the test")]

mod dashboards;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use ferroute_admin::{
    health::{Health, HealthzHandler},
    history::{ChangeKind, ChangeOrigin, History, ObjectChange, ServicePortCounts, Synced, UnappliedService},
    http::Handler,
    metrics::{
        ApiRequest, Connections, Draining, Ejected, IPTABLES_METRICS, IPVS_METRICS, Metrics, ModeMetric,
        NFTABLES_METRICS, RefusedConnections, RelayedPort, Sampled, Traffic, USERSPACE_METRICS, Usage,
    },
    version,
};
use ferroute_core::{
    DataplaneError, IpFamily, NamespacedName, NfacctCounters, Progress, Protocol, SyncReport, TableReport,
    parse::ObjectVersion, testing::namespaced_name,
};
use ferroute_host::{Moment, ProcessUsage};
use proptest::prelude::*;

fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_366_000 + seconds)
}

fn report(full: bool, written: usize) -> SyncReport {
    SyncReport {
        full,
        repaired: false,
        written,
        removed: 2,
        total: 120,
        tables: vec![
            TableReport { name: "filter", written: 1, total: 20 },
            TableReport { name: "nat", written: written - 1, total: 100 },
        ],
        rejected: Vec::new(),
        unserved: Default::default(),
        unsupported: Default::default(),
        refused_removals: 1,
        udp_frontends_before: Default::default(),
        kernel_time: Duration::from_millis(90),
    }
}

fn synced<'a>(report: Option<&'a SyncReport>, full: bool, changed: &'a BTreeSet<NamespacedName>) -> Synced<'a> {
    let ended = Moment { instant: Instant::now(), wall: time(2) };
    let conntrack = Some((Duration::from_micros(500), 7));
    let counts = ServicePortCounts { isolated: 2, limited: 1, no_local_internal: 3, no_local_external: 4 };
    Synced {
        ended,
        took: Duration::from_millis(100),
        full,
        report,
        counts,
        changed,
        unapplied: &NOTHING_REFUSED,
        limited: &NOTHING_LIMITED,
        conntrack,
    }
}

static NOTHING_REFUSED: BTreeMap<NamespacedName, UnappliedService> = BTreeMap::new();
static NOTHING_LIMITED: BTreeSet<NamespacedName> = BTreeSet::new();

fn write_error() -> DataplaneError {
    DataplaneError::Write { rules: "IPv4 rules".to_owned(), source: "rejected".into() }
}

fn read_error() -> DataplaneError {
    DataplaneError::Read { rules: "IPv4 rules".to_owned(), source: "not readable".into() }
}

/// Returns the text after one event of each kind.
fn sample_text(mode: &[ModeMetric], families: &[IpFamily]) -> String {
    let metrics = Arc::new(Metrics::new(mode));
    metrics.set_families(families);
    metrics.received(ChangeKind::ServiceDeleted);
    metrics.received(ChangeKind::SliceApplied(families[0]));
    metrics.received(ChangeKind::SliceDeleted);
    metrics.set_pending(1, 2);
    for family in families {
        metrics.queued(*family, time(1));
        let took = Duration::from_millis(30);
        metrics.failed(*family, took, true, &write_error());
        metrics.failed(*family, took, false, &write_error());
        metrics.failed(*family, took, true, &read_error());
        for (full, written) in [(true, 120), (false, 5)] {
            metrics.synced(*family, &synced(Some(&report(full, written)), full, &BTreeSet::new()));
        }
    }
    metrics.set_pending(0, 0);
    slow_change(&metrics, families[0]);
    probe(&metrics);
    let request = ApiRequest { host: "10.0.0.1:6443", method: "GET", code: Some(200), took: None };
    metrics.requested(&request);
    metrics.requested(&ApiRequest { code: None, took: Some(Duration::from_millis(20)), ..request });
    metrics.requested(&ApiRequest { method: "POST", code: Some(500), took: Some(Duration::from_millis(9)), ..request });
    let process = ProcessUsage {
        cpu: Duration::from_millis(1500),
        resident_bytes: 8_000_000,
        virtual_bytes: 90_000_000,
        open_files: 17,
        max_files: Some(1024),
        threads: 4,
        started: time(0),
    };
    let progress = Progress::default();
    progress.start(44_125);
    progress.advance(8_120);
    metrics.render(&Sampled {
        process: Some(process),
        tasks: Some(9),
        packets: vec![(NfacctCounters::INVALID_DROPPED, 11), (NfacctCounters::LOCALHOST_ACCEPTED, 12)],
        progress: families.iter().map(|family| (*family, progress.clone())).collect(),
        connections: families.iter().map(|family| connections(*family)).collect(),
        problems: vec![("other_proxy", true), ("contested_rules", false)],
        sync_silence: Duration::from_millis(250),
        dropped_log_lines: 13,
        draining: families.iter().map(|family| draining(*family)).collect(),
        refused: families
            .iter()
            .map(|family| RefusedConnections {
                family: *family,
                services: vec![("shop/web:http".to_owned(), "connections", 4)],
                others: 2,
            })
            .collect(),
        ejected: families.iter().map(|family| (*family, Ejected { endpoints: 1, total: 3 })).collect(),
        traffic: Some(Traffic {
            endpoints: vec![("shop/web:http".to_owned(), "10.0.0.1:8080".parse().unwrap(), usage(60))],
            others: usage(7),
        }),
        relayed: families.iter().map(|family| relayed(*family)).collect(),
    })
}

fn relayed(family: IpFamily) -> RelayedPort {
    RelayedPort {
        family,
        service_port: "shop/web:http".to_owned(),
        protocol: Protocol::Tcp,
        open: 2,
        connections: 9,
        failed_attempts: 3,
        refused: 1,
        limited: 4,
        bytes_to_endpoints: 500,
        bytes_to_clients: 70_000,
    }
}

fn usage(connections: u64) -> Usage {
    Usage { connections, packets: 10 * connections, bytes: 9_000 * connections }
}

fn draining(family: IpFamily) -> Draining {
    Draining { family, endpoints: 3, services: vec![("shop/web:http".to_owned(), 7)], other_services: 2 }
}

fn connections(family: IpFamily) -> Connections {
    let endpoint = "10.0.0.1:8080".parse().unwrap();
    Connections {
        family,
        services: vec![("shop/web:http".to_owned(), 70)],
        other_services: 5,
        endpoints: vec![("shop/web:http".to_owned(), endpoint, 60)],
        other_endpoints: 10,
    }
}

/// Applies a change of an EndpointSlice two seconds after its cause.
fn slow_change(metrics: &Metrics, family: IpFamily) {
    let (start, changed) = (Instant::now(), [namespaced_name("shop/web")].into());
    let history = History::new(time(0), false);
    let at = |seconds| Moment { instant: start + Duration::from_secs(seconds), wall: time(seconds) };
    let origin = ChangeOrigin {
        received: at(4).instant,
        version: ObjectVersion::default(),
        trigger: Some(time(3)),
        written: None,
    };
    let kind = ChangeKind::SliceApplied(family);
    let families = IpFamily::BOTH.map(|other| other == family);
    let slice = Some(namespaced_name("shop/web-1"));
    history.received(ObjectChange { kind, name: namespaced_name("shop/web"), families, slice, origin });
    history.sync_started(family, at(4).instant);
    let sync = Synced { ended: at(5), ..synced(None, false, &changed) };
    history.synced(family, &sync, |change| metrics.applied(change));
}

/// Answers `/healthz` with 200 and `/livez` with 503.
fn probe(metrics: &Arc<Metrics>) {
    let health = Arc::new(Health::new(Duration::ZERO));
    let handler = HealthzHandler::new(Arc::clone(&health), Arc::clone(metrics));
    let get = |path: &str| {
        let request = hyper::Request::builder().uri(path).body(()).unwrap();
        handler.answer(&request.into_parts().0).status().as_u16()
    };
    assert_eq!(get("/healthz"), 200);
    health.updated(IpFamily::V4);
    health.queued(IpFamily::V4);
    assert_eq!(get("/livez"), 503);
}

#[test]
fn iptables_mode_metrics_text() {
    let text = sample_text(IPTABLES_METRICS, &[IpFamily::V4]);
    let ours = format!("ferroute_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    let text =
        text.replace(&ours, "ferroute_build_info{version=\"0.0.1\"}").replace(version::GIT_VERSION, "v1.36.0+test");
    insta::assert_snapshot!(text.replace("linux/arm64", "linux/amd64"));
}

/// Every metric of kube-proxy 1.37 (`pkg/proxy/metrics`), with its type, labels and modes.
const KUBE_PROXY: &[(&str, &str, &[&str], &[&str])] = {
    const ALL: &[&str] = &["iptables", "ipvs", "nftables"];
    const FAMILY: &[&str] = &["ip_family"];
    &[
        ("conntrack_reconciler_deleted_entries_total", "counter", FAMILY, ALL),
        ("conntrack_reconciler_sync_duration_seconds", "histogram", FAMILY, ALL),
        ("iptables_ct_state_invalid_dropped_packets_total", "counter", &[], &["iptables"]),
        ("iptables_localhost_nodeports_accepted_packets_total", "counter", &[], &["iptables"]),
        ("network_programming_duration_seconds", "histogram", FAMILY, ALL),
        ("nftables_localhost_nodeport_listener_creation_failures_total", "counter", FAMILY, &["nftables"]),
        ("nftables_localhost_nodeport_listeners", "gauge", FAMILY, &["nftables"]),
        ("nftables_localhost_nodeport_rejected_packets_total", "counter", &["ip_family", "protocol"], &["nftables"]),
        ("proxy_healthz_total", "counter", &["code"], ALL),
        ("proxy_livez_total", "counter", &["code"], ALL),
        ("sync_full_proxy_rules_duration_seconds", "histogram", FAMILY, ALL),
        ("sync_partial_proxy_rules_duration_seconds", "histogram", FAMILY, ALL),
        ("sync_proxy_rules_duration_seconds", "histogram", FAMILY, ALL),
        ("sync_proxy_rules_endpoint_changes_pending", "gauge", &[], ALL),
        ("sync_proxy_rules_endpoint_changes_total", "counter", &[], ALL),
        ("sync_proxy_rules_iptables_last", "gauge", &["ip_family", "table"], &["iptables"]),
        ("sync_proxy_rules_iptables_partial_restore_failures_total", "counter", FAMILY, &["iptables"]),
        ("sync_proxy_rules_iptables_restore_failures_total", "counter", FAMILY, &["iptables", "ipvs"]),
        ("sync_proxy_rules_iptables_total", "gauge", &["ip_family", "table"], &["iptables"]),
        ("sync_proxy_rules_last_queued_timestamp_seconds", "gauge", FAMILY, ALL),
        ("sync_proxy_rules_last_timestamp_seconds", "gauge", FAMILY, ALL),
        ("sync_proxy_rules_nftables_cleanup_failures_total", "counter", FAMILY, &["nftables"]),
        ("sync_proxy_rules_nftables_sync_failures_total", "counter", FAMILY, &["nftables"]),
        ("sync_proxy_rules_no_local_endpoints_total", "gauge", &["ip_family", "traffic_policy"], ALL),
        ("sync_proxy_rules_service_changes_pending", "gauge", &[], ALL),
        ("sync_proxy_rules_service_changes_total", "counter", &[], ALL),
    ]
};

const MODES: [(&str, &[ModeMetric]); 3] =
    [("iptables", IPTABLES_METRICS), ("ipvs", IPVS_METRICS), ("nftables", NFTABLES_METRICS)];

#[test]
fn each_mode_has_the_metrics_of_kube_proxy() {
    for (mode, metrics) in MODES {
        let families = parse(&sample_text(metrics, &IpFamily::BOTH));
        let ours: Vec<_> = families
            .iter()
            .filter_map(|(name, family)| {
                let labels: Vec<&str> = family.labels().into_iter().collect();
                Some((name.strip_prefix("kubeproxy_")?, family.kind.as_str(), labels))
            })
            .collect();
        let theirs: Vec<_> = KUBE_PROXY
            .iter()
            .filter(|(_, _, _, modes)| modes.contains(&mode))
            .map(|(name, kind, labels, _)| (*name, *kind, labels.to_vec()))
            .collect();
        assert_eq!(ours, theirs, "{mode}");
    }
}

#[test]
fn docs_list_exactly_the_exposed_metrics() {
    let (compat, own) = (include_str!("../../../../docs/compat.md"), include_str!("../../../../docs/metrics.md"));
    let mut names: BTreeSet<String> = KUBE_PROXY.iter().map(|(name, ..)| format!("kubeproxy_{name}")).collect();
    for metrics in MODES.map(|(_, metrics)| metrics).into_iter().chain([USERSPACE_METRICS]) {
        names.extend(parse(&sample_text(metrics, &IpFamily::BOTH)).into_keys());
    }
    let is_missing = |name: &&String| {
        let docs = if name.starts_with("ferroute_") { own } else { compat };
        !docs.contains(&format!("| `{name}` "))
    };
    let missing: Vec<&String> = names.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "missing in docs/compat.md and docs/metrics.md: {missing:?}");
    let lines = [compat, own].into_iter().flat_map(str::lines);
    let listed = lines.filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let is_metric = |name: &&str| {
        ["ferroute_", "go_", "kubeproxy_", "kubernetes_", "process_", "rest_"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let unknown: Vec<&str> = listed.filter(is_metric).filter(|name| !names.contains(*name)).collect();
    assert!(unknown.is_empty(), "no such metric: {unknown:?}");
}

#[test]
fn failure_counters_start_at_zero() {
    let metrics = Metrics::new(NFTABLES_METRICS);
    metrics.set_families(&[IpFamily::V6]);
    let text = metrics.render(&Sampled::default());
    for line in [
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv6\"} 0",
        "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv6\"} 0",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 0",
        "ferroute_applied{ip_family=\"IPv6\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("IPv4"), "{text}");
}

#[test]
fn connections_of_deleted_services_are_removed() {
    let metrics = Metrics::new(NFTABLES_METRICS);
    let shown = |connections| {
        let text = metrics.render(&Sampled { connections, ..Sampled::default() });
        let lines = text.lines().filter(|line| line.starts_with("ferroute_connections_total"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let both = shown(vec![connections(IpFamily::V4)]);
    assert_eq!(both[1], "ferroute_connections_total{ip_family=\"IPv4\",service_port=\"shop/web:http\"} 70");
    let others = shown(vec![Connections { services: Vec::new(), ..connections(IpFamily::V4) }]);
    assert_eq!(others, ["ferroute_connections_total{ip_family=\"IPv4\",service_port=\"\"} 5"]);
    assert_eq!(shown(Vec::new()), [""; 0]);
}

#[test]
fn relayed_connections_are_shown_by_service_port_while_it_exists() {
    let metrics = Metrics::new(USERSPACE_METRICS);
    let shown = |relayed| {
        let text = metrics.render(&Sampled { relayed, ..Sampled::default() });
        let is_shown = |line: &&str| line.starts_with("ferroute_userspace_");
        text.lines().filter(is_shown).map(str::to_owned).collect::<Vec<_>>()
    };
    let labels = "ip_family=\"IPv6\",protocol=\"tcp\",service_port=\"shop/web:http\"";
    let expected = [
        format!("ferroute_userspace_bytes_total{{direction=\"to_client\",{labels}}} 70000"),
        format!("ferroute_userspace_bytes_total{{direction=\"to_endpoint\",{labels}}} 500"),
        format!("ferroute_userspace_connections_total{{{labels}}} 9"),
        format!("ferroute_userspace_failed_attempts_total{{{labels}}} 3"),
        format!("ferroute_userspace_limited_total{{{labels}}} 4"),
        format!("ferroute_userspace_open_connections{{{labels}}} 2"),
        format!("ferroute_userspace_refused_total{{{labels}}} 1"),
    ];
    assert_eq!(shown(vec![relayed(IpFamily::V6)]), expected);
    assert_eq!(shown(Vec::new()), [""; 0]);
    // Other modes do not have these metrics.
    let other = Metrics::new(IPTABLES_METRICS);
    let text = other.render(&Sampled { relayed: vec![relayed(IpFamily::V4)], ..Sampled::default() });
    assert!(!text.contains("ferroute_userspace_"), "{text}");
}

#[test]
fn service_ports_without_terminating_endpoints_have_no_count() {
    let metrics = Metrics::new(NFTABLES_METRICS);
    let shown = |draining| {
        let text = metrics.render(&Sampled { draining, ..Sampled::default() });
        let is_shown = |line: &&str| line.starts_with("ferroute_draining") || line.starts_with("ferroute_terminating");
        text.lines().filter(is_shown).map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = [
        "ferroute_draining_connections{ip_family=\"IPv4\",service_port=\"\"} 2",
        "ferroute_draining_connections{ip_family=\"IPv4\",service_port=\"shop/web:http\"} 7",
        "ferroute_terminating_endpoints{ip_family=\"IPv4\"} 3",
    ];
    assert_eq!(shown(vec![draining(IpFamily::V4)]), expected);
    assert_eq!(shown(Vec::new()), [""; 0]);
}

#[test]
fn unreadable_values_keep_their_last_state() {
    let metrics = Metrics::new(IPTABLES_METRICS);
    metrics.render(&Sampled { packets: vec![(NfacctCounters::INVALID_DROPPED, 11)], ..Sampled::default() });
    let text =
        metrics.render(&Sampled { packets: vec![(NfacctCounters::LOCALHOST_ACCEPTED, 3)], ..Sampled::default() });
    assert!(text.contains("kubeproxy_iptables_ct_state_invalid_dropped_packets_total 11\n"), "{text}");
    assert!(text.contains("kubeproxy_iptables_localhost_nodeports_accepted_packets_total 3\n"), "{text}");
}

/// A parsed metric.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    /// Name, labels and value.
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Family {
    /// Label names without `le`.
    fn labels(&self) -> BTreeSet<&str> {
        let names = self.samples.iter().flat_map(|(_, labels, _)| labels.keys());
        names.map(String::as_str).filter(|name| *name != "le").collect()
    }

    /// Buckets of a histogram in order, by its other labels.
    fn buckets(&self) -> BTreeMap<BTreeMap<String, String>, Vec<f64>> {
        let mut series: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for (_, labels, value) in self.samples.iter().filter(|(name, ..)| name.ends_with("_bucket")) {
            let mut labels = labels.clone();
            labels.remove("le");
            series.entry(labels).or_default().push(*value);
        }
        series
    }

    /// Sum of the samples whose name has this suffix.
    fn sum(&self, suffix: &str) -> f64 {
        self.samples.iter().filter(|(name, ..)| name.ends_with(suffix)).map(|(_, _, value)| value).sum()
    }
}

/// Parses the text as Prometheus does: the help and type of a metric precede its samples, which are consecutive.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty() && !families.contains_key(name), "{line}");
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, current, "{line}");
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else {
            let (head, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) =
                head.split_once('{').map_or((head, ""), |(name, rest)| (name, &rest[..rest.len() - 1]));
            assert!(name.starts_with(&current), "{line}");
            let labels = labels.split(',').filter_map(|label| label.split_once('='));
            let labels = labels.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect();
            let family = families.get_mut(&current).unwrap();
            family.samples.push((name.to_owned(), labels, value.parse().unwrap()));
        }
    }
    families
}

proptest! {
    /// Each sync counts once in total and once by its kind, buckets are cumulative, and the last one equals the count.
    #[test]
    fn sync_counts_are_consistent(syncs in prop::collection::vec((any::<bool>(), any::<bool>(), 0..40_000_u64), 0..40)) {
        let metrics = Metrics::new(IPTABLES_METRICS);
        metrics.set_families(&IpFamily::BOTH);
        for (full, fails, milliseconds) in &syncs {
            let took = Duration::from_millis(*milliseconds);
            if *fails {
                metrics.failed(IpFamily::V4, took, *full, &write_error());
            } else {
                let report = report(*full, 3);
                metrics.synced(IpFamily::V4, &Synced { took, ..synced(Some(&report), *full, &BTreeSet::new()) });
            }
        }
        let families = parse(&metrics.render(&Sampled::default()));
        let count = |name: &str, suffix: &str| families.get(name).map_or(0.0, |family| family.sum(suffix));
        let number = |is: &dyn Fn(&&(bool, bool, u64)) -> bool| syncs.iter().filter(is).count() as f64;
        let all = count("kubeproxy_sync_proxy_rules_duration_seconds", "_count");
        prop_assert_eq!(all, syncs.len() as f64);
        prop_assert_eq!(count("kubeproxy_sync_full_proxy_rules_duration_seconds", "_count"), number(&|(full, ..)| *full));
        prop_assert_eq!(count("kubeproxy_sync_partial_proxy_rules_duration_seconds", "_count"), number(&|(full, ..)| !*full));
        let failures = count("kubeproxy_sync_proxy_rules_iptables_restore_failures_total", "");
        prop_assert_eq!(failures, number(&|(_, fails, _)| *fails));
        let partial = count("kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total", "");
        prop_assert_eq!(partial, number(&|(full, fails, _)| *fails && !*full));
        prop_assert_eq!(count("ferroute_rules_written_total", ""), 3.0 * (all - failures));
        for family in families.values().filter(|family| family.kind == "histogram") {
            for (labels, buckets) in family.buckets() {
                prop_assert!(buckets.is_sorted(), "{:?}: {:?}", labels, family);
                let count = family.samples.iter().find(|(name, own, _)| name.ends_with("_count") && *own == labels);
                prop_assert_eq!(buckets.last(), count.map(|(_, _, value)| value));
            }
        }
    }
}
