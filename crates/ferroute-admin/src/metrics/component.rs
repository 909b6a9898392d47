//! Metrics of every Kubernetes component: the process, the build, requests to the API server.
//!
//! Among the metrics of Go programs, only `go_goroutines` and `go_threads` are exposed: they have a counterpart in
//! Ferroute, and dashboards show them. The others describe Go's memory allocator, garbage collector and scheduler.

use std::time::Duration;

use ferroute_host::ProcessUsage;
use prometheus::{Counter, Gauge, HistogramVec, IntCounterVec};

use super::registrar::{Registrar, buckets, unix_seconds};
use crate::version;

/// A completed or failed request to the API server.
#[derive(Clone, Copy, Debug)]
pub struct ApiRequest<'a> {
    /// Host and port of the API server.
    pub host: &'a str,
    /// HTTP method (`GET`).
    pub method: &'a str,
    /// HTTP status; `None` if there was no response.
    pub code: Option<u16>,
    /// Duration; `None` for watches.
    pub took: Option<Duration>,
}

pub(super) struct ComponentMetrics {
    cpu: Counter,
    resident_memory: Gauge,
    virtual_memory: Gauge,
    open_files: Gauge,
    max_files: Gauge,
    threads: Gauge,
    go_threads: Gauge,
    goroutines: Gauge,
    started: Gauge,
    requests: IntCounterVec,
    request_duration: HistogramVec,
}

impl ComponentMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let build = registrar.gauges(
            "kubernetes_build_info",
            "Always 1; the labels are the compatible Kubernetes release and Ferroute's version.",
            &[
                "major",
                "minor",
                "git_version",
                "git_commit",
                "git_tree_state",
                "build_date",
                "go_version",
                "compiler",
                "platform",
            ],
        );
        let platform = version::platform();
        build
            .with_label_values(&["1", version::MINOR, version::GIT_VERSION, "", "", "", "", "rustc", &platform])
            .set(1.0);
        Self {
            cpu: registrar
                .float_counter("process_cpu_seconds_total", "CPU time of the process in user and kernel mode."),
            resident_memory: registrar.gauge("process_resident_memory_bytes", "Resident memory of the process."),
            virtual_memory: registrar.gauge("process_virtual_memory_bytes", "Virtual memory of the process."),
            open_files: registrar.gauge("process_open_fds", "Open file descriptors of the process."),
            max_files: registrar.gauge("process_max_fds", "Maximum number of open file descriptors."),
            threads: registrar.gauge("process_threads", "Threads of the process."),
            go_threads: registrar.gauge("go_threads", "Threads of the process, by the name that Go programs use."),
            goroutines: registrar
                .gauge("go_goroutines", "Live tasks of the asynchronous runtimes, the counterpart of goroutines."),
            started: registrar.gauge("process_start_time_seconds", "Unix time of the start of the process."),
            requests: registrar.counters(
                "rest_client_requests_total",
                "Requests to the API server by status; <error> without a response.",
                &["code", "method", "host"],
            ),
            request_duration: registrar.histograms(
                "rest_client_request_duration_seconds",
                "Duration of requests to the API server, without watches.",
                buckets::requests(),
                &["verb", "host"],
            ),
        }
    }

    pub(super) fn set_process(&self, process: &ProcessUsage) {
        self.cpu.reset();
        self.cpu.inc_by(process.cpu.as_secs_f64());
        self.resident_memory.set(number(process.resident_bytes));
        self.virtual_memory.set(number(process.virtual_bytes));
        self.open_files.set(number(process.open_files));
        self.max_files.set(process.max_files.map_or(f64::INFINITY, number));
        [&self.threads, &self.go_threads].iter().for_each(|gauge| gauge.set(number(process.threads)));
        self.started.set(unix_seconds(process.started));
    }

    pub(super) fn set_tasks(&self, count: u64) {
        self.goroutines.set(number(count));
    }

    pub(super) fn requested(&self, request: &ApiRequest<'_>) {
        let code = request.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.requests.with_label_values(&[&*code, request.method, request.host]).inc();
        if let Some(took) = request.took {
            self.request_duration.with_label_values(&[request.method, request.host]).observe(took.as_secs_f64());
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "precision beyond 2^53 bytes does not matter")]
fn number(count: u64) -> f64 {
    count as f64
}
