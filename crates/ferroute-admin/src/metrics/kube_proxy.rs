//! kube-proxy's metrics of syncs in all modes (`pkg/proxy/metrics` of 1.36): same names, types, labels and buckets.

use std::time::{Duration, SystemTime};

use ferroute_core::IpFamily;
use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounter, IntCounterVec};

use super::registrar::{FAMILY, Registrar, buckets, number, unix_seconds};
use crate::history::{ChangeKind, Synced};

pub(super) struct SyncMetrics {
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
    conntrack_duration: HistogramVec,
    conntrack_deleted: IntCounterVec,
}

impl SyncMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let durations = |name, help| registrar.histograms(name, help, buckets::sync(), FAMILY);
        Self {
            duration: durations("kubeproxy_sync_proxy_rules_duration_seconds", "Duration of syncs of one IP family."),
            full: durations(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "Duration of syncs that compared or wrote all rules.",
            ),
            partial: durations(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "Duration of syncs that wrote changes only.",
            ),
            last: registrar.gauges(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "Unix time of the last successful sync.",
                FAMILY,
            ),
            last_queued: registrar.gauges(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "Unix time at which a sync was last queued.",
                FAMILY,
            ),
            programming: registrar.histograms(
                "kubeproxy_network_programming_duration_seconds",
                "Time from a change of endpoints in the cluster to the applied rules.",
                buckets::programming(),
                FAMILY,
            ),
            endpoint_changes: registrar
                .counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Received changes of EndpointSlices."),
            endpoint_pending: registrar.gauge(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Changes of EndpointSlices that have not been applied yet.",
            ),
            service_changes: registrar
                .counter("kubeproxy_sync_proxy_rules_service_changes_total", "Received changes of Services."),
            service_pending: registrar.gauge(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Changes of Services that have not been applied yet.",
            ),
            no_local: registrar.gauges(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "Service ports with traffic policy Local and no endpoint on this node.",
                &["traffic_policy", "ip_family"],
            ),
            conntrack_duration: durations(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "Duration of searches for stale conntrack entries.",
            ),
            conntrack_deleted: registrar.counters(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Deleted stale conntrack entries.",
                FAMILY,
            ),
        }
    }

    /// Starts the family's counters and histograms at zero; dashboards list instances by such a series.
    pub(super) fn init(&self, family: IpFamily) {
        self.conntrack_deleted.with_label_values(&[family.as_str()]);
        for histograms in [&self.duration, &self.full, &self.partial, &self.programming] {
            histograms.with_label_values(&[family.as_str()]);
        }
    }

    pub(super) fn received(&self, kind: ChangeKind) {
        match kind {
            ChangeKind::ServiceApplied(_) | ChangeKind::ServiceDeleted => self.service_changes.inc(),
            ChangeKind::SliceApplied(_) | ChangeKind::SliceDeleted => self.endpoint_changes.inc(),
        }
    }

    pub(super) fn set_pending(&self, services: usize, slices: usize) {
        self.service_pending.set(number(services));
        self.endpoint_pending.set(number(slices));
    }

    pub(super) fn queued(&self, family: IpFamily, at: SystemTime) {
        self.last_queued.with_label_values(&[family.as_str()]).set(unix_seconds(at));
    }

    pub(super) fn synced(&self, family: IpFamily, sync: &Synced<'_>) {
        // A change of one family is no sync of the other.
        if sync.report.is_some() {
            self.took(family, sync.took, sync.full);
        }
        let family = family.as_str();
        self.last.with_label_values(&[family]).set(unix_seconds(sync.ended.wall));
        if let Some((took, deleted)) = sync.conntrack {
            self.conntrack_duration.with_label_values(&[family]).observe(took.as_secs_f64());
            self.conntrack_deleted.with_label_values(&[family]).inc_by(deleted as u64);
        }
        self.no_local.with_label_values(&["internal", family]).set(number(sync.counts.no_local_internal));
        self.no_local.with_label_values(&["external", family]).set(number(sync.counts.no_local_external));
    }

    pub(super) fn programmed(&self, family: IpFamily, took: Duration) {
        self.programming.with_label_values(&[family.as_str()]).observe(took.as_secs_f64());
    }

    /// Observes the duration of a sync, successful or not.
    pub(super) fn took(&self, family: IpFamily, took: Duration, full: bool) {
        let by_kind = if full { &self.full } else { &self.partial };
        for histograms in [&self.duration, by_kind] {
            histograms.with_label_values(&[family.as_str()]).observe(took.as_secs_f64());
        }
    }
}
