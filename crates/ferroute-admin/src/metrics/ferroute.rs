//! Metrics that kube-proxy does not have.

use std::{net::SocketAddr, time::Duration};

use ferroute_core::{IpFamily, Progress};
use prometheus::{GaugeVec, HistogramVec, IntCounterVec};

use super::registrar::{FAMILY, Registrar, buckets, number};
use crate::{
    history::{AppliedChange, Synced},
    version,
};

/// Connections of one family since counting started. The reader of the counters limits the number of service ports with
/// separate counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// IP family.
    pub family: IpFamily,
    /// Connections by service port name (`shop/web:http`).
    pub services: Vec<(String, u64)>,
    /// Connections to all other service ports.
    pub other_services: u64,
    /// Connections by service port name and endpoint.
    pub endpoints: Vec<(String, SocketAddr, u64)>,
    /// Connections to all other endpoints.
    pub other_endpoints: u64,
}

/// Traffic of Services since counting started. The reader limits the number of endpoints with separate counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// By service port name (`shop/web:http`) and endpoint.
    pub endpoints: Vec<(String, SocketAddr, Usage)>,
    /// Traffic of all other endpoints.
    pub others: Usage,
}

/// Connections, and their packets and bytes of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connections.
    pub connections: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Open connections of one family to terminating endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draining {
    /// IP family.
    pub family: IpFamily,
    /// Terminating endpoints of all service ports.
    pub endpoints: u64,
    /// Connections by service port name (`shop/web:http`), for a limited number of service ports.
    pub services: Vec<(String, u64)>,
    /// Connections of all other service ports.
    pub other_services: u64,
}

/// Endpoints of one family that did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ejected {
    /// Endpoints that currently get no connections.
    pub endpoints: u64,
    /// Number of ejections of endpoints since the start.
    pub total: u64,
}

/// Connections of one family beyond a limit of their Service, or outside of its source ranges, since counting started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedConnections {
    /// IP family.
    pub family: IpFamily,
    /// Connections by service port name (`shop/web:http`) and limit, for a limited number of them.
    pub services: Vec<(String, &'static str, u64)>,
    /// Connections of all other service ports and limits.
    pub others: u64,
}

pub(super) struct FerrouteMetrics {
    rules: GaugeVec,
    written: IntCounterVec,
    removed: IntCounterVec,
    isolated: GaugeVec,
    limited: GaugeVec,
    kernel: HistogramVec,
    stages: HistogramVec,
    progress: GaugeVec,
    progress_total: GaugeVec,
    has_synced: GaugeVec,
    problems: GaugeVec,
    sync_silence: GaugeVec,
    dropped_log_lines: IntCounterVec,
    services: IntCounterVec,
    endpoints: IntCounterVec,
    terminating: GaugeVec,
    draining: GaugeVec,
    ejected: GaugeVec,
    ejections: IntCounterVec,
    refused: IntCounterVec,
    /// Connections, packets and bytes.
    traffic: [IntCounterVec; 3],
}

impl FerrouteMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        registrar
            .gauges("ferroute_build_info", "Always 1; the label is Ferroute's version.", &["version"])
            .with_label_values(&[version::FERROUTE])
            .set(1.0);
        Self {
            rules: registrar.gauges("ferroute_rules", "Active rules, or elements of nftables sets and maps.", FAMILY),
            written: registrar.counters("ferroute_rules_written_total", "Written rules or elements.", FAMILY),
            removed: registrar.counters("ferroute_rules_removed_total", "Removed chains or elements.", FAMILY),
            isolated: registrar.gauges(
                "ferroute_rejected_service_ports",
                "Service ports that are not up to date because the kernel refused their rules.",
                FAMILY,
            ),
            limited: registrar.gauges(
                "ferroute_limited_service_ports",
                "Service ports that are not served, or not with all of their endpoints, because a limit was exceeded.",
                FAMILY,
            ),
            kernel: registrar.histograms(
                "ferroute_kernel_duration_seconds",
                "Time of a sync spent in the kernel, or in programs that write rules to it.",
                buckets::sync(),
                FAMILY,
            ),
            stages: registrar.histograms(
                "ferroute_change_duration_seconds",
                "Time of changes by stage: controllers until the API server's write (api), delivery (watch), wait for the sync (queue), sync.",
                buckets::sync(),
                &["stage", "ip_family"],
            ),
            progress: registrar.gauges(
                "ferroute_sync_progress_service_ports",
                "Applied service ports of the current or last sync, out of ferroute_sync_progress_service_ports_wanted.",
                FAMILY,
            ),
            progress_total: registrar.gauges(
                "ferroute_sync_progress_service_ports_wanted",
                "Service ports in the current or last sync.",
                FAMILY,
            ),
            has_synced: registrar.gauges(
                "ferroute_applied",
                "1 after the first successful sync since the start, else 0.",
                FAMILY,
            ),
            problems: registrar.gauges(
                "ferroute_problems",
                "1 for each kind of problem of the node that the proxy cannot solve, such as another service proxy, else 0.",
                &["kind"],
            ),
            sync_silence: registrar.gauges(
                "ferroute_sync_heartbeat_age_seconds",
                "Time since the sync thread last made progress; about a second at most, unless a sync takes long or hangs.",
                &[],
            ),
            dropped_log_lines: registrar.counters(
                "ferroute_log_lines_dropped_total",
                "Log messages that were dropped because standard error was blocked.",
                &[],
            ),
            services: registrar.counters(
                "ferroute_connections_total",
                "New connections by service port; the name is empty for service ports without a count of their own.",
                &["service_port", "ip_family"],
            ),
            endpoints: registrar.counters(
                "ferroute_endpoint_connections_total",
                "New connections by service port and endpoint.",
                &["service_port", "endpoint", "ip_family"],
            ),
            terminating: registrar.gauges("ferroute_terminating_endpoints", "Terminating endpoints.", FAMILY),
            draining: registrar.gauges(
                "ferroute_draining_connections",
                "Open connections to terminating endpoints by service port; the name is empty for those beyond the first 100.",
                &["service_port", "ip_family"],
            ),
            ejected: registrar.gauges(
                "ferroute_ejected_endpoints",
                "Endpoints that get no connections because connections to them failed.",
                FAMILY,
            ),
            ejections: registrar.counters(
                "ferroute_endpoint_ejections_total",
                "Endpoints to which connections failed, each time that one was ejected.",
                FAMILY,
            ),
            refused: registrar.counters(
                "ferroute_refused_connections_total",
                "Connections beyond a limit of their Service, or outside of its source ranges, by service port and limit; both are empty \
                 for those without a count of their own.",
                &["service_port", "limit", "ip_family"],
            ),
            traffic: [
                ("ferroute_traffic_connections_total", "Connections by service port and endpoint, with --count-traffic."),
                ("ferroute_traffic_packets_total", "Packets of both directions by service port and endpoint, with --count-traffic."),
                ("ferroute_traffic_bytes_total", "Bytes of both directions by service port and endpoint, with --count-traffic."),
            ]
            .map(|(name, help)| registrar.counters(name, help, &["service_port", "endpoint"])),
        }
    }

    /// Starts the family's counters at zero.
    pub(super) fn init(&self, family: IpFamily) {
        self.has_synced.with_label_values(&[family.as_str()]).set(0.0);
        for counters in [&self.written, &self.removed] {
            counters.with_label_values(&[family.as_str()]);
        }
    }

    pub(super) fn synced(&self, family: IpFamily, sync: &Synced<'_>) {
        let label = &[family.as_str()];
        self.has_synced.with_label_values(label).set(1.0);
        self.isolated.with_label_values(label).set(number(sync.counts.isolated));
        self.limited.with_label_values(label).set(number(sync.counts.limited));
        let Some(report) = sync.report else { return };
        self.rules.with_label_values(label).set(number(report.total));
        self.written.with_label_values(label).inc_by(report.written as u64);
        self.removed.with_label_values(label).inc_by(report.removed as u64);
        self.kernel.with_label_values(label).observe(report.kernel_time.as_secs_f64());
    }

    pub(super) fn applied(&self, change: &AppliedChange) {
        let family = change.family.as_str();
        let observe = |stage, took: Duration| {
            self.stages.with_label_values(&[stage, family]).observe(took.as_secs_f64());
        };
        change.api().into_iter().for_each(|took| observe("api", took));
        change.watch().into_iter().for_each(|took| observe("watch", took));
        observe("queue", change.queue());
        observe("sync", change.sync());
    }

    pub(super) fn set_progress(&self, family: IpFamily, progress: &Progress) {
        let label = &[family.as_str()];
        let (done, total) = progress.get();
        self.progress.with_label_values(label).set(number(done));
        self.progress_total.with_label_values(label).set(number(total));
    }

    pub(super) fn set_problems(&self, problems: &[(&str, bool)]) {
        for (kind, is_present) in problems {
            self.problems.with_label_values(&[kind]).set(f64::from(u8::from(*is_present)));
        }
    }

    /// Sets the time since the last progress of the sync thread, and the number of dropped log messages.
    pub(super) fn set_process(&self, sync_silence: Duration, dropped_log_lines: u64) {
        self.sync_silence.with_label_values(&[] as &[&str]).set(sync_silence.as_secs_f64());
        self.dropped_log_lines.reset();
        self.dropped_log_lines.with_label_values(&[] as &[&str]).inc_by(dropped_log_lines);
    }

    /// Replaces all counts, so that deleted Services disappear.
    pub(super) fn set_connections(&self, connections: &[Connections]) {
        self.services.reset();
        self.endpoints.reset();
        for connections in connections {
            let family = connections.family.as_str();
            for (name, count) in &connections.services {
                self.services.with_label_values(&[name, family]).inc_by(*count);
            }
            self.services.with_label_values(&["", family]).inc_by(connections.other_services);
            for (name, endpoint, count) in &connections.endpoints {
                self.endpoints.with_label_values(&[name, &*endpoint.to_string(), family]).inc_by(*count);
            }
            self.endpoints.with_label_values(&["", "", family]).inc_by(connections.other_endpoints);
        }
    }

    /// Replaces all counts, so that families without Services that request ejection disappear.
    pub(super) fn set_ejected(&self, ejected: &[(IpFamily, Ejected)]) {
        self.ejected.reset();
        self.ejections.reset();
        for (family, Ejected { endpoints, total }) in ejected {
            self.ejected.with_label_values(&[family.as_str()]).set(*endpoints as f64);
            self.ejections.with_label_values(&[family.as_str()]).inc_by(*total);
        }
    }

    /// Replaces all counts, so that endpoints that were moved to the others disappear.
    pub(super) fn set_traffic(&self, traffic: Option<&Traffic>) {
        self.traffic.iter().for_each(IntCounterVec::reset);
        let Some(Traffic { endpoints, others }) = traffic else { return };
        let set = |labels: [&str; 2], Usage { connections, packets, bytes }: Usage| {
            for (counter, count) in self.traffic.iter().zip([connections, packets, bytes]) {
                counter.with_label_values(&labels).inc_by(count);
            }
        };
        for (name, endpoint, usage) in endpoints {
            set([name, &endpoint.to_string()], *usage);
        }
        set(["", ""], *others);
    }

    /// Replaces all counts, so that service ports without limits disappear.
    pub(super) fn set_refused(&self, refused: &[RefusedConnections]) {
        self.refused.reset();
        for RefusedConnections { family, services, others } in refused {
            for (name, limit, count) in services {
                self.refused.with_label_values(&[name, *limit, family.as_str()]).inc_by(*count);
            }
            if *others > 0 {
                self.refused.with_label_values(&["", "", family.as_str()]).inc_by(*others);
            }
        }
    }

    /// Replaces all counts, so that service ports without terminating endpoints disappear.
    pub(super) fn set_draining(&self, draining: &[Draining]) {
        self.terminating.reset();
        self.draining.reset();
        for draining in draining {
            let family = draining.family.as_str();
            self.terminating.with_label_values(&[family]).set(draining.endpoints as f64);
            for (name, count) in &draining.services {
                self.draining.with_label_values(&[&**name, family]).set(*count as f64);
            }
            if draining.other_services > 0 {
                self.draining.with_label_values(&["", family]).set(draining.other_services as f64);
            }
        }
    }
}
