//! Metrics that every Kubernetes program has: the process, the build, requests to the API server.
//!
//! Of those that Go adds to each of its programs there are the two that have a meaning here and that dashboards draw:
//! `go_goroutines` and `go_threads`. All others tell about Go's memory manager and scheduler; a number made up for them
//! would mislead, so they are *not* here.

use std::time::{Duration, SystemTime};

use prometheus::{Counter, Gauge, HistogramVec, IntCounterVec, Opts, Registry};

use crate::{buckets, make::Maker, rules::unix_seconds};

/// What the process uses, as somebody has just read it from the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    /// Time that it has run on a CPU, in user mode and in the kernel.
    pub cpu: Duration,
    /// Memory that is resident, in bytes.
    pub resident_bytes: u64,
    /// Address space, in bytes.
    pub virtual_bytes: u64,
    /// File descriptors that are open.
    pub open_files: u64,
    /// File descriptors that may be open; `None` for no limit.
    pub max_files: Option<u64>,
    /// Threads.
    pub threads: u64,
    /// When it was started.
    pub started: SystemTime,
}

/// What was built.
#[derive(Clone, Copy, Debug)]
pub struct Build<'a> {
    /// Ferroute's own version.
    pub version: &'a str,
    /// The minor release of Kubernetes 1 that it behaves like.
    pub minor: &'a str,
    /// That release first, since alerts compare it with the one of other programs in the cluster: `v1.36.0+own-part`.
    pub git_version: &'a str,
    /// Operating system and architecture as Go calls them: `linux/amd64`.
    pub platform: &'a str,
}

/// A request to the API server that has been answered, or has failed.
#[derive(Clone, Copy, Debug)]
pub struct ApiRequest<'a> {
    /// Host and port that it went to.
    pub host: &'a str,
    /// Its method (`GET`).
    pub method: &'a str,
    /// The status of the answer; `None` if there was no answer.
    pub code: Option<u16>,
    /// How long it took; `None` for a watch, which ends when it ends.
    pub took: Option<Duration>,
}

/// See the module's text.
pub(crate) struct Platform {
    cpu: Counter,
    resident: Gauge,
    virtual_: Gauge,
    open_files: Gauge,
    max_files: Gauge,
    threads: Gauge,
    go_threads: Gauge,
    goroutines: Gauge,
    started: Gauge,
    requests: IntCounterVec,
    request_duration: HistogramVec,
}

impl Platform {
    pub(crate) fn new(make: &Maker<'_>, is: &Build<'_>) -> Self {
        let build = make.gauges(
            "kubernetes_build_info",
            "Always 1; the labels tell which release of Kubernetes this program behaves like, and its own.",
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
        build.with_label_values(&["1", is.minor, is.git_version, "", "", "", "", "rustc", is.platform]).set(1.0);
        Self {
            cpu: cpu(make.0),
            resident: make.gauge("process_resident_memory_bytes", "Memory of the process that is resident."),
            virtual_: make.gauge("process_virtual_memory_bytes", "Address space of the process."),
            open_files: make.gauge("process_open_fds", "Open file descriptors of the process."),
            max_files: make.gauge("process_max_fds", "File descriptors that the process may have open."),
            threads: make.gauge("process_threads", "Threads of the process."),
            go_threads: make.gauge("go_threads", "Threads of the process, under the name that Go programs have for them."),
            goroutines: make.gauge(
                "go_goroutines",
                "Tasks of the asynchronous runtimes that are alive: what goroutines are in a Go program, which this is not.",
            ),
            started: make.gauge("process_start_time_seconds", "When the process was started, as Unix time."),
            requests: make.counters(
                "rest_client_requests_total",
                "Requests to the API server, by the status of the answer; <error> where there was none.",
                &["code", "method", "host"],
            ),
            request_duration: make.histograms(
                "rest_client_request_duration_seconds",
                "Time from a request to the API server to its answer; watches do not count.",
                buckets::requests(),
                &["verb", "host"],
            ),
        }
    }

    pub(crate) fn process(&self, process: &Process) {
        self.cpu.reset();
        self.cpu.inc_by(process.cpu.as_secs_f64());
        self.resident.set(bytes(process.resident_bytes));
        self.virtual_.set(bytes(process.virtual_bytes));
        self.open_files.set(bytes(process.open_files));
        self.max_files.set(process.max_files.map_or(f64::INFINITY, bytes));
        [&self.threads, &self.go_threads].iter().for_each(|gauge| gauge.set(bytes(process.threads)));
        self.started.set(unix_seconds(process.started));
    }

    pub(crate) fn tasks(&self, alive: u64) {
        self.goroutines.set(bytes(alive));
    }

    pub(crate) fn request(&self, request: &ApiRequest<'_>) {
        let code = request.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.requests.with_label_values(&[&*code, request.method, request.host]).inc();
        if let Some(took) = request.took {
            self.request_duration.with_label_values(&[request.method, request.host]).observe(took.as_secs_f64());
        }
    }
}

fn cpu(registry: &Registry) -> Counter {
    let help = "Time that the process has run on a CPU, in user mode and in the kernel.";
    let valid = "bug: the name is a constant, registered once";
    let counter = Counter::with_opts(Opts::new("process_cpu_seconds_total", help)).expect(valid);
    registry.register(Box::new(counter.clone())).expect(valid);
    counter
}

#[expect(clippy::cast_precision_loss, reason = "beyond 2^53 bytes the last digits do not matter")]
fn bytes(count: u64) -> f64 {
    count as f64
}
