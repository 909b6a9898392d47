//! Metrics: those of kube-proxy 1.36 with their names, types, labels and buckets, and Ferroute's additional ones.
//!
//! ```text
//!   sync loop ──► Metrics ──► text for Prometheus  /metrics
//!                   ▲
//!                Sampled: values read for each request
//! ```
//!
//! The metrics that only some modes expose are data ([`ModeMetric`]), so that a new mode needs no change to this
//! module.
//!
//! This module neither serves HTTP nor reads numbers of the kernel or the process.

mod component;
mod ferroute;
mod kube_proxy;
mod mode;
mod registrar;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use ferroute_core::{DataplaneError, IpFamily, Progress};
use ferroute_host::ProcessUsage;
use prometheus::{IntCounterVec, Registry, TextEncoder};

pub use self::{
    component::ApiRequest,
    ferroute::{Connections, Draining, Ejected, RefusedConnections, Traffic, Usage},
    mode::{IPTABLES_METRICS, IPVS_METRICS, ModeMetric, ModeValue, NFTABLES_METRICS, RelayedPort, USERSPACE_METRICS},
};
use self::{
    component::ComponentMetrics, ferroute::FerrouteMetrics, kube_proxy::SyncMetrics, mode::ModeMetrics,
    registrar::Registrar,
};
use crate::history::{AppliedChange, ChangeKind, Synced};

/// All metrics. They can be updated from any thread without waiting for readers.
pub struct Metrics {
    registry: Registry,
    sync: SyncMetrics,
    mode: ModeMetrics,
    component: ComponentMetrics,
    ferroute: FerrouteMetrics,
    pub(crate) healthz: IntCounterVec,
    pub(crate) livez: IntCounterVec,
}

/// Values that are read for each request of `/metrics`. A value that cannot be read keeps its last state.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// Resources used by the process.
    pub process: Option<ProcessUsage>,
    /// Number of live tasks of the asynchronous runtimes.
    pub tasks: Option<u64>,
    /// Packets by nfacct counter, for [`ModeValue::Packets`].
    pub packets: Vec<(&'static str, u64)>,
    /// Progress of the current or last sync, for each family whose dataplane reports it.
    pub progress: Vec<(IpFamily, Progress)>,
    /// Connections of each family, if they are counted.
    pub connections: Vec<Connections>,
    /// Kinds of problems that the proxy cannot solve, and whether there is a problem of each kind.
    pub problems: Vec<(&'static str, bool)>,
    /// Time since the sync thread last made progress.
    pub sync_silence: Duration,
    /// Number of log messages that were dropped so far.
    pub dropped_log_lines: u64,
    /// Open connections to terminating endpoints, for each family with such endpoints.
    pub draining: Vec<Draining>,
    /// Ejected endpoints, for each family with Services that request ejection.
    pub ejected: Vec<(IpFamily, Ejected)>,
    /// Connections beyond limits, by family.
    pub refused: Vec<RefusedConnections>,
    /// Traffic of Services, if it is counted.
    pub traffic: Option<Traffic>,
    /// Connections that a process relays, in modes with such a process.
    pub relayed: Vec<RelayedPort>,
}

impl Metrics {
    /// Registers the metrics of a proxy whose mode has these additional metrics.
    pub fn new(mode: &[ModeMetric]) -> Self {
        let registry = Registry::new();
        let registrar = Registrar(&registry);
        let healthz =
            registrar.counters("kubeproxy_proxy_healthz_total", "Responses of /healthz by status.", &["code"]);
        let livez = registrar.counters("kubeproxy_proxy_livez_total", "Responses of /livez by status.", &["code"]);
        for counters in [&healthz, &livez] {
            ["200", "503"].iter().for_each(|code| drop(counters.with_label_values(&[code])));
        }
        Self {
            sync: SyncMetrics::new(&registrar),
            mode: ModeMetrics::new(&registrar, mode),
            component: ComponentMetrics::new(&registrar),
            ferroute: FerrouteMetrics::new(&registrar),
            healthz,
            livez,
            registry,
        }
    }

    /// Sets the served families. Their counters are exposed from now on, so that rates include the first increment.
    pub fn set_families(&self, families: &[IpFamily]) {
        for family in families {
            self.sync.init(*family);
            self.mode.init(*family);
            self.ferroute.init(*family);
        }
    }

    /// Counts a received change.
    pub fn received(&self, kind: ChangeKind) {
        self.sync.received(kind);
    }

    /// Sets the numbers of Service and EndpointSlice changes that have not been applied yet.
    pub fn set_pending(&self, services: usize, slices: usize) {
        self.sync.set_pending(services, slices);
    }

    /// Records that a sync of a family was queued.
    pub fn queued(&self, family: IpFamily, at: SystemTime) {
        self.sync.queued(family, at);
    }

    /// Records a successful sync of a family.
    pub fn synced(&self, family: IpFamily, sync: &Synced<'_>) {
        self.sync.synced(family, sync);
        if let Some(report) = sync.report {
            self.mode.synced(family, report);
        }
        self.ferroute.synced(family, sync);
    }

    /// Records a failed sync of a family.
    pub fn failed(&self, family: IpFamily, took: Duration, full: bool, error: &DataplaneError) {
        self.sync.took(family, took, full);
        self.mode.failed(family, full, error);
    }

    /// Records that a change has been applied.
    pub fn applied(&self, change: &AppliedChange) {
        if let Some(took) = change.programming() {
            self.sync.programmed(change.family, took);
        }
        self.ferroute.applied(change);
    }

    /// Sets the number of node ports of a family that are served on localhost.
    pub fn set_localhost_node_ports(&self, family: IpFamily, count: usize) {
        self.mode.set_localhost_node_ports(family, count);
    }

    /// Records that node ports of a family could not be served on localhost.
    pub fn localhost_node_ports_failed(&self, family: IpFamily) {
        self.mode.localhost_node_ports_failed(family);
    }

    /// Records a request to the API server.
    pub fn requested(&self, request: &ApiRequest<'_>) {
        self.component.requested(request);
    }

    /// Returns all metrics in the classic text format of Prometheus, media type [`Metrics::CONTENT_TYPE`].
    pub fn render(&self, sampled: &Sampled) -> String {
        sampled.process.iter().for_each(|process| self.component.set_process(process));
        sampled.tasks.iter().for_each(|tasks| self.component.set_tasks(*tasks));
        sampled.progress.iter().for_each(|(family, progress)| self.ferroute.set_progress(*family, progress));
        self.ferroute.set_connections(&sampled.connections);
        self.ferroute.set_process(sampled.sync_silence, sampled.dropped_log_lines);
        self.ferroute.set_problems(&sampled.problems);
        self.ferroute.set_draining(&sampled.draining);
        self.ferroute.set_ejected(&sampled.ejected);
        self.ferroute.set_refused(&sampled.refused);
        self.ferroute.set_traffic(sampled.traffic.as_ref());
        self.mode.set_packets(&sampled.packets);
        self.mode.set_relayed(&sampled.relayed);
        let families = self.registry.gather();
        TextEncoder::new().encode_to_string(&families).expect("bug: an invalid metric was registered")
    }

    /// Media type of [`Metrics::render`]'s text.
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
