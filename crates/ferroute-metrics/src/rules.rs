//! kube-proxy's metrics about rules (`pkg/proxy/metrics` of 1.36): same names, types, labels and buckets.

use std::time::{Duration, SystemTime};

use ferroute_core::{IpFamily, SyncReport};
use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounter, IntCounterVec};

use crate::{
    Engine, buckets,
    make::{Maker, number},
};

/// A sync of one family that has succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Synced<'a> {
    /// When it ended.
    pub at: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// It has compared or written everything, not only what had changed.
    pub full: bool,
    /// What it has written; `None` if nothing had changed.
    pub report: Option<&'a SyncReport>,
    /// How long looking for stale flows took, and how many were removed; `None` where nothing was to be looked for.
    pub flows: Option<(Duration, usize)>,
}

/// A sync of one family that has failed.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    /// How long it took.
    pub took: Duration,
    /// See [`Synced::full`].
    pub full: bool,
    /// What it was that failed.
    pub failure: Failure,
}

/// At what a sync has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Reading what is in force, or finding out what to write.
    Read,
    /// Writing.
    Write,
}

/// See the module's text.
pub(crate) struct Rules {
    duration: HistogramVec,
    full: HistogramVec,
    partial: HistogramVec,
    last: GaugeVec,
    last_queued: GaugeVec,
    programming: HistogramVec,
    endpoint_changes: IntCounter,
    endpoint_pending: Gauge,
    service_changes: IntCounter,
    service_pending: Gauge,
    no_local: GaugeVec,
    flows_duration: HistogramVec,
    flows_deleted: IntCounterVec,
    mode: OfMode,
}

/// What only one mode has.
enum OfMode {
    Iptables { total: GaugeVec, last: GaugeVec, failures: IntCounterVec, partial_failures: IntCounterVec },
    Nftables { failures: IntCounterVec, cleanup_failures: IntCounterVec },
    Ipvs { failures: IntCounterVec },
}

const FAMILY: &[&str] = &["ip_family"];

impl Rules {
    pub(crate) fn new(make: &Maker<'_>, engine: Engine) -> Self {
        let sync = |name, help| make.histograms(name, help, buckets::sync(), FAMILY);
        Self {
            duration: sync("kubeproxy_sync_proxy_rules_duration_seconds", "Time that a sync of one IP family took."),
            full: sync(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "Time that a sync took which compared or wrote all rules.",
            ),
            partial: sync(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "Time that a sync took which wrote changes only.",
            ),
            last: make.gauges(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "When a sync last succeeded, as Unix time.",
                FAMILY,
            ),
            last_queued: make.gauges(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "When a sync was last asked for, as Unix time.",
                FAMILY,
            ),
            programming: make.histograms(
                "kubeproxy_network_programming_duration_seconds",
                "Time from a change of endpoints in the cluster until its rules were in force here.",
                buckets::programming(),
                FAMILY,
            ),
            endpoint_changes: make.counter(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "Changes of endpoint slices that were received.",
            ),
            endpoint_pending: make.gauge(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Changes of endpoint slices that are not in force yet.",
            ),
            service_changes: make
                .counter("kubeproxy_sync_proxy_rules_service_changes_total", "Changes of Services that were received."),
            service_pending: make.gauge(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Changes of Services that are not in force yet.",
            ),
            no_local: make.gauges(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "Service ports whose traffic policy is Local and that have no endpoint on this node.",
                &["traffic_policy", "ip_family"],
            ),
            flows_duration: sync(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "Time that it took to look for stale flows in the kernel's connection table.",
            ),
            flows_deleted: make.counters(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Stale flows that were removed from the kernel's connection table.",
                FAMILY,
            ),
            mode: OfMode::new(make, engine),
        }
    }

    pub(crate) fn serve(&self, families: &[IpFamily]) {
        for family in families.iter().map(|family| family.as_str()) {
            self.flows_deleted.with_label_values(&[family]);
            // Dashboards list their instances by such a series.
            for histograms in [&self.duration, &self.full, &self.partial, &self.programming] {
                histograms.with_label_values(&[family]);
            }
            self.mode.failures().for_each(|counters| drop(counters.with_label_values(&[family])));
        }
    }

    pub(crate) fn service_changed(&self) {
        self.service_changes.inc();
    }

    pub(crate) fn endpoints_changed(&self) {
        self.endpoint_changes.inc();
    }

    pub(crate) fn pending(&self, services: usize, slices: usize) {
        self.service_pending.set(number(services));
        self.endpoint_pending.set(number(slices));
    }

    pub(crate) fn queued(&self, family: IpFamily, at: SystemTime) {
        self.last_queued.with_label_values(&[family.as_str()]).set(unix_seconds(at));
    }

    pub(crate) fn synced(&self, family: IpFamily, sync: &Synced<'_>) {
        let label = family.as_str();
        self.took(label, sync.took, sync.full);
        self.last.with_label_values(&[label]).set(unix_seconds(sync.at));
        if let Some((took, removed)) = sync.flows {
            self.flows_duration.with_label_values(&[label]).observe(took.as_secs_f64());
            self.flows_deleted.with_label_values(&[label]).inc_by(removed as u64);
        }
        let Some(report) = sync.report else { return };
        if let OfMode::Nftables { cleanup_failures, .. } = &self.mode {
            cleanup_failures.with_label_values(&[label]).inc_by(report.refused_removals as u64);
        }
        self.no_local.with_label_values(&["internal", label]).set(number(report.no_local_internal));
        self.no_local.with_label_values(&["external", label]).set(number(report.no_local_external));
        if let OfMode::Iptables { total, last, .. } = &self.mode {
            for table in &report.tables {
                total.with_label_values(&[table.name, label]).set(number(table.total));
                last.with_label_values(&[table.name, label]).set(number(table.written));
            }
        }
    }

    pub(crate) fn failed(&self, family: IpFamily, failed: &Failed) {
        let label = &[family.as_str()];
        self.took(label[0], failed.took, failed.full);
        if failed.failure == Failure::Read {
            return;
        }
        match &self.mode {
            OfMode::Iptables { failures, partial_failures, .. } => {
                failures.with_label_values(label).inc();
                if !failed.full {
                    partial_failures.with_label_values(label).inc();
                }
            }
            OfMode::Nftables { failures, .. } | OfMode::Ipvs { failures } => failures.with_label_values(label).inc(),
        }
    }

    pub(crate) fn programmed(&self, family: IpFamily, took: Duration) {
        self.programming.with_label_values(&[family.as_str()]).observe(took.as_secs_f64());
    }

    fn took(&self, family: &str, took: Duration, full: bool) {
        let kind = if full { &self.full } else { &self.partial };
        for histograms in [&self.duration, kind] {
            histograms.with_label_values(&[family]).observe(took.as_secs_f64());
        }
    }
}

impl OfMode {
    fn new(make: &Maker<'_>, engine: Engine) -> Self {
        let restore_failures = || {
            make.counters(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                "Syncs that iptables-restore has failed at.",
                FAMILY,
            )
        };
        match engine {
            Engine::Iptables => Self::Iptables {
                total: make.gauges(
                    "kubeproxy_sync_proxy_rules_iptables_total",
                    "Rules that are in force, by table.",
                    &["table", "ip_family"],
                ),
                last: make.gauges(
                    "kubeproxy_sync_proxy_rules_iptables_last",
                    "Rules that the last sync wrote, by table.",
                    &["table", "ip_family"],
                ),
                failures: restore_failures(),
                partial_failures: make.counters(
                    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
                    "Syncs of changes only that iptables-restore has failed at; one of everything follows.",
                    FAMILY,
                ),
            },
            Engine::Nftables => Self::Nftables {
                failures: make.counters(
                    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                    "Syncs that the kernel has refused.",
                    FAMILY,
                ),
                cleanup_failures: make.counters(
                    "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
                    "Removals of unused chains that the kernel has refused.",
                    FAMILY,
                ),
            },
            Engine::Ipvs => Self::Ipvs { failures: restore_failures() },
        }
    }

    fn failures(&self) -> impl Iterator<Item = &IntCounterVec> {
        let (first, second) = match self {
            Self::Iptables { failures, partial_failures, .. } => (failures, Some(partial_failures)),
            Self::Nftables { failures, cleanup_failures } => (failures, Some(cleanup_failures)),
            Self::Ipvs { failures } => (failures, None),
        };
        std::iter::once(first).chain(second)
    }
}

/// Before 1970, which is a clock that is not set, it is 0.
pub(crate) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
