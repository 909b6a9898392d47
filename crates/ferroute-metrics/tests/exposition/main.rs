//! The text that Prometheus reads.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod dashboards;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant, SystemTime},
};

use ferroute_core::{IpFamily, SyncReport, TableReport, parse::ObjectVersion, testing::service_name};
use ferroute_metrics::{
    ApiRequest, Build, Connections, Engine, Failed, Failure, History, InForce, Metrics, Now, ObjectChange, Probe,
    Process, Progress, Sampled, Subject, Synced,
};
use proptest::prelude::*;

fn metrics(engine: Engine) -> Metrics {
    let build = Build { version: "0.0.1", minor: "36", git_version: "v1.36.0+test", platform: "linux/amd64" };
    Metrics::new(engine, &build)
}

fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_366_000 + seconds)
}

fn report(full: bool, written: usize) -> SyncReport {
    SyncReport {
        full,
        written,
        removed: 2,
        total: 120,
        tables: vec![
            TableReport { name: "filter", written: 1, total: 20 },
            TableReport { name: "nat", written: written - 1, total: 100 },
        ],
        refused_removals: 1,
        no_local_internal: 3,
        no_local_external: 4,
        kernel_time: Duration::from_millis(90),
    }
}

/// A history with one of everything.
fn eventful(engine: Engine, families: &[IpFamily]) -> String {
    let metrics = metrics(engine);
    metrics.serve(families);
    metrics.service_changed();
    metrics.endpoints_changed();
    metrics.endpoints_changed();
    metrics.pending(1, 2);
    for family in families {
        metrics.queued(*family, time(1));
        let failed = Failed { took: Duration::from_millis(30), full: true, failure: Failure::Write };
        metrics.failed(*family, &failed);
        metrics.failed(*family, &Failed { full: false, ..failed });
        metrics.failed(*family, &Failed { failure: Failure::Read, ..failed });
        for (full, written) in [(true, 120), (false, 5)] {
            let report = report(full, written);
            let flows = Some((Duration::from_micros(500), 7));
            let took = Duration::from_millis(100);
            metrics.synced(*family, &Synced { at: time(2), took, full, report: Some(&report), flows });
        }
    }
    metrics.pending(0, 0);
    slow_change(&metrics, families[0]);
    metrics.probed(Probe::Healthz, 200);
    metrics.probed(Probe::Livez, 503);
    let request = ApiRequest { host: "10.0.0.1:6443", method: "GET", code: Some(200), took: None };
    metrics.requested(&request);
    metrics.requested(&ApiRequest { code: None, took: Some(Duration::from_millis(20)), ..request });
    metrics.requested(&ApiRequest { method: "POST", code: Some(500), took: Some(Duration::from_millis(9)), ..request });
    let process = Process {
        cpu: Duration::from_millis(1500),
        resident_bytes: 8_000_000,
        virtual_bytes: 90_000_000,
        open_files: 17,
        max_files: Some(1024),
        threads: 4,
        started: time(0),
    };
    let progress = families.iter().map(|family| Progress { family: *family, done: 8_120, total: 44_125 }).collect();
    metrics.render(&Sampled {
        process: Some(process),
        tasks: Some(9),
        invalid_dropped: Some(11),
        localhost_accepted: Some(12),
        progress,
        connections: families.iter().map(|family| connections(*family)).collect(),
    })
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

/// A slice that changed two seconds before its rules were in force.
fn slow_change(metrics: &Metrics, family: IpFamily) {
    let (start, changed) = (Instant::now(), [service_name("shop/web")].into());
    let mut history = History::new(time(0));
    let at = |seconds| Now { instant: start + Duration::from_secs(seconds), wall: time(seconds) };
    history.changed(ObjectChange {
        subject: Subject::Slice(family),
        name: service_name("shop/web"),
        version: ObjectVersion::default(),
        received: at(4).instant,
        trigger: Some(time(3)),
        written: None,
    });
    history.begins(family, at(4).instant);
    let sync = InForce { now: at(5), full: false, changed: &changed, kernel: Duration::ZERO };
    history.in_force(family, &sync, |finished| metrics.finished(finished));
}

#[test]
fn the_text_of_a_known_history_is_known() {
    insta::assert_snapshot!(eventful(Engine::Iptables, &[IpFamily::V4]));
}

/// Every metric of kube-proxy 1.36 (`pkg/proxy/metrics`), its type, its labels, and the modes that have it.
const KUBE_PROXY: &[(&str, &str, &[&str], &[Engine])] = {
    use Engine::{Iptables, Ipvs, Nftables};
    const ALL: &[Engine] = &[Iptables, Ipvs, Nftables];
    const FAMILY: &[&str] = &["ip_family"];
    &[
        ("conntrack_reconciler_deleted_entries_total", "counter", FAMILY, ALL),
        ("conntrack_reconciler_sync_duration_seconds", "histogram", FAMILY, ALL),
        ("iptables_ct_state_invalid_dropped_packets_total", "counter", &[], &[Iptables]),
        ("iptables_localhost_nodeports_accepted_packets_total", "counter", &[], &[Iptables]),
        ("network_programming_duration_seconds", "histogram", FAMILY, ALL),
        ("proxy_healthz_total", "counter", &["code"], ALL),
        ("proxy_livez_total", "counter", &["code"], ALL),
        ("sync_full_proxy_rules_duration_seconds", "histogram", FAMILY, ALL),
        ("sync_partial_proxy_rules_duration_seconds", "histogram", FAMILY, ALL),
        ("sync_proxy_rules_duration_seconds", "histogram", FAMILY, ALL),
        ("sync_proxy_rules_endpoint_changes_pending", "gauge", &[], ALL),
        ("sync_proxy_rules_endpoint_changes_total", "counter", &[], ALL),
        ("sync_proxy_rules_iptables_last", "gauge", &["ip_family", "table"], &[Iptables]),
        ("sync_proxy_rules_iptables_partial_restore_failures_total", "counter", FAMILY, &[Iptables]),
        ("sync_proxy_rules_iptables_restore_failures_total", "counter", FAMILY, &[Iptables, Ipvs]),
        ("sync_proxy_rules_iptables_total", "gauge", &["ip_family", "table"], &[Iptables]),
        ("sync_proxy_rules_last_queued_timestamp_seconds", "gauge", FAMILY, ALL),
        ("sync_proxy_rules_last_timestamp_seconds", "gauge", FAMILY, ALL),
        ("sync_proxy_rules_nftables_cleanup_failures_total", "counter", FAMILY, &[Nftables]),
        ("sync_proxy_rules_nftables_sync_failures_total", "counter", FAMILY, &[Nftables]),
        ("sync_proxy_rules_no_local_endpoints_total", "gauge", &["ip_family", "traffic_policy"], ALL),
        ("sync_proxy_rules_service_changes_pending", "gauge", &[], ALL),
        ("sync_proxy_rules_service_changes_total", "counter", &[], ALL),
    ]
};

#[test]
fn every_mode_has_the_metrics_of_kube_proxy_with_their_types_and_labels() {
    for engine in [Engine::Iptables, Engine::Ipvs, Engine::Nftables] {
        let families = parse(&eventful(engine, &IpFamily::BOTH));
        let ours: Vec<_> = families
            .iter()
            .filter_map(|(name, family)| {
                let labels: Vec<&str> = family.labels().into_iter().collect();
                Some((name.strip_prefix("kubeproxy_")?, family.kind.as_str(), labels))
            })
            .collect();
        let theirs: Vec<_> = KUBE_PROXY
            .iter()
            .filter(|(_, _, _, engines)| engines.contains(&engine))
            .map(|(name, kind, labels, _)| (*name, *kind, labels.to_vec()))
            .collect();
        assert_eq!(ours, theirs, "{engine:?}");
    }
}

#[test]
fn the_docs_tell_of_every_metric_and_of_no_other() {
    let (theirs, own) = (include_str!("../../../../docs/compat.md"), include_str!("../../../../docs/metrics.md"));
    let mut names: BTreeSet<String> = KUBE_PROXY.iter().map(|(name, ..)| format!("kubeproxy_{name}")).collect();
    for engine in [Engine::Iptables, Engine::Ipvs, Engine::Nftables] {
        names.extend(parse(&eventful(engine, &IpFamily::BOTH)).into_keys());
    }
    let is_missing = |name: &&String| {
        let docs = if name.starts_with("ferroute_") { own } else { theirs };
        !docs.contains(&format!("| `{name}` "))
    };
    let missing: Vec<&String> = names.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "neither in docs/compat.md nor in docs/metrics.md: {missing:?}");
    let told = [theirs, own].into_iter().flat_map(str::lines);
    let told = told.filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let is_metric = |name: &&str| {
        ["ferroute_", "go_", "kubeproxy_", "kubernetes_", "process_", "rest_"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let unknown: Vec<&str> = told.filter(is_metric).filter(|name| !names.contains(*name)).collect();
    assert!(unknown.is_empty(), "there is no such metric: {unknown:?}");
}

#[test]
fn counters_of_failures_begin_at_zero() {
    let metrics = metrics(Engine::Nftables);
    metrics.serve(&[IpFamily::V6]);
    let text = metrics.render(&Sampled::default());
    for line in [
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv6\"} 0",
        "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv6\"} 0",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 0",
        "ferroute_in_force{ip_family=\"IPv6\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("IPv4"), "{text}");
}

#[test]
fn connections_of_services_that_are_gone_are_not_shown() {
    let metrics = metrics(Engine::Nftables);
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
fn what_cannot_be_looked_up_keeps_its_last_value() {
    let metrics = metrics(Engine::Iptables);
    metrics.render(&Sampled { invalid_dropped: Some(11), ..Sampled::default() });
    let text = metrics.render(&Sampled { localhost_accepted: Some(3), ..Sampled::default() });
    assert!(text.contains("kubeproxy_iptables_ct_state_invalid_dropped_packets_total 11\n"), "{text}");
    assert!(text.contains("kubeproxy_iptables_localhost_nodeports_accepted_packets_total 3\n"), "{text}");
}

/// One metric as it was read back.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    /// Name, labels and value.
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Family {
    /// Names of labels, but for that of buckets.
    fn labels(&self) -> BTreeSet<&str> {
        let names = self.samples.iter().flat_map(|(_, labels, _)| labels.keys());
        names.map(String::as_str).filter(|name| *name != "le").collect()
    }

    /// A histogram's buckets in order, by its other labels.
    fn buckets(&self) -> BTreeMap<BTreeMap<String, String>, Vec<f64>> {
        let mut series: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for (_, labels, value) in self.samples.iter().filter(|(name, ..)| name.ends_with("_bucket")) {
            let mut labels = labels.clone();
            labels.remove("le");
            series.entry(labels).or_default().push(*value);
        }
        series
    }

    /// The sum of all samples whose name ends so.
    fn sum(&self, suffix: &str) -> f64 {
        self.samples.iter().filter(|(name, ..)| name.ends_with(suffix)).map(|(_, _, value)| value).sum()
    }
}

/// Reads the text as Prometheus does: a metric's help and type come first, and all its samples together.
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
    /// Whatever happens: each sync counts once as a whole and once by its kind, buckets only grow, and the last one
    /// holds all.
    #[test]
    fn counts_add_up(syncs in prop::collection::vec((any::<bool>(), any::<bool>(), 0..40_000_u64), 0..40)) {
        let metrics = metrics(Engine::Iptables);
        metrics.serve(&IpFamily::BOTH);
        for (full, fails, milliseconds) in &syncs {
            let took = Duration::from_millis(*milliseconds);
            if *fails {
                metrics.failed(IpFamily::V4, &Failed { took, full: *full, failure: Failure::Write });
            } else {
                let report = report(*full, 3);
                let sync = Synced { at: time(1), took, full: *full, report: Some(&report), flows: None };
                metrics.synced(IpFamily::V4, &sync);
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
