//! Metrics that only Ferroute has.

use std::time::Duration;

use ferroute_core::{IpFamily, SyncReport};
use prometheus::{GaugeVec, HistogramVec, IntCounterVec};

use crate::{
    Build, buckets,
    history::Finished,
    make::{Maker, number},
};

/// How far the sync of a family is that runs or ran last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The family.
    pub family: IpFamily,
    /// Service ports that are in force.
    pub done: usize,
    /// Service ports that shall be.
    pub total: usize,
}

/// See the module's text.
pub(crate) struct Own {
    rules: GaugeVec,
    written: IntCounterVec,
    removed: IntCounterVec,
    kernel: HistogramVec,
    stages: HistogramVec,
    progress: GaugeVec,
    progress_total: GaugeVec,
    in_force: GaugeVec,
}

const FAMILY: &[&str] = &["ip_family"];

impl Own {
    pub(crate) fn new(make: &Maker<'_>, build: &Build<'_>) -> Self {
        make.gauges("ferroute_build_info", "Always 1; the label tells the version.", &["version"])
            .with_label_values(&[build.version])
            .set(1.0);
        Self {
            rules: make.gauges("ferroute_rules", "Rules, or elements of nftables sets, that are in force.", FAMILY),
            written: make.counters("ferroute_rules_written_total", "Rules or elements that were written.", FAMILY),
            removed: make.counters("ferroute_rules_removed_total", "Chains or elements that were removed.", FAMILY),
            kernel: make.histograms(
                "ferroute_kernel_duration_seconds",
                "Time of a sync that the kernel took, or the programs that talk to it.",
                buckets::sync(),
                FAMILY,
            ),
            stages: make.histograms(
                "ferroute_change_duration_seconds",
                "Where the time of changes goes: until the API server has it (api), to be told of it (watch), until its sync begins (queue), the sync.",
                buckets::sync(),
                &["stage", "ip_family"],
            ),
            progress: make.gauges(
                "ferroute_sync_progress_service_ports",
                "Service ports that are in force, of those of ferroute_sync_progress_service_ports_wanted.",
                FAMILY,
            ),
            progress_total: make.gauges(
                "ferroute_sync_progress_service_ports_wanted",
                "Service ports that the sync is about which runs or ran last.",
                FAMILY,
            ),
            in_force: make.gauges(
                "ferroute_in_force",
                "1 once rules have been written since the start; before that 0.",
                FAMILY,
            ),
        }
    }

    pub(crate) fn serve(&self, families: &[IpFamily]) {
        for family in families.iter().map(|family| family.as_str()) {
            self.in_force.with_label_values(&[family]).set(0.0);
            for counters in [&self.written, &self.removed] {
                counters.with_label_values(&[family]);
            }
        }
    }

    pub(crate) fn synced(&self, family: IpFamily, report: Option<&SyncReport>) {
        let label = &[family.as_str()];
        self.in_force.with_label_values(label).set(1.0);
        let Some(report) = report else { return };
        self.rules.with_label_values(label).set(number(report.total));
        self.written.with_label_values(label).inc_by(report.written as u64);
        self.removed.with_label_values(label).inc_by(report.removed as u64);
        self.kernel.with_label_values(label).observe(report.kernel_time.as_secs_f64());
    }

    pub(crate) fn finished(&self, finished: &Finished) {
        let family = finished.family.as_str();
        let observe = |stage, took: Duration| {
            self.stages.with_label_values(&[stage, family]).observe(took.as_secs_f64());
        };
        finished.api().into_iter().for_each(|took| observe("api", took));
        finished.watch().into_iter().for_each(|took| observe("watch", took));
        observe("queue", finished.queue());
        observe("sync", finished.sync());
    }

    pub(crate) fn progress(&self, progress: &Progress) {
        let label = &[progress.family.as_str()];
        self.progress.with_label_values(label).set(number(progress.done));
        self.progress_total.with_label_values(label).set(number(progress.total));
    }
}
