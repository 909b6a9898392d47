//! What operators ask of a running proxy over HTTP, on the address for metrics: kube-proxy's paths, and two of our own.
//!
//! ```text
//!   /metrics    numbers, as Prometheus reads them        /services  which version of each Service is in force
//!   /healthz    ok                                        /changes   the slowest changes of the last hour
//!   /proxyMode  the mode's name
//!   /configz    the configuration                         /statusz, /flagz  the program itself
//! ```
//!
//! Answers are made on the HTTP thread from what is at hand, so that no sync waits for a reader.

mod connections;
mod sample;

use std::{sync::Arc, time::Instant};

use ferroute_config::Resolved;
use ferroute_core::{Dataplane, IpFamily};
use ferroute_admin::{
    http::{Handler, Request, Response, json, not_found, text},
    status::{Pages, ZPage, healthz, no_profiles},
    version,
};
use ferroute_kube::{RequestCounter, RequestResult};
use ferroute_admin::metrics::{ApiRequest, Build, Engine, Filter, Metrics, Probe};
use tokio::runtime::Handle;

use self::sample::Sampler;
use crate::{
    metrics::{MetricsObserver, SharedHistory},
    modes::REGISTRY,
};

/// Everything that is told over HTTP, but for health.
pub(crate) struct Status {
    metrics: Arc<Metrics>,
    history: SharedHistory,
    handler: Arc<StatusHandler>,
}

struct StatusHandler {
    metrics: Arc<Metrics>,
    history: SharedHistory,
    sampler: Sampler,
    mode: &'static str,
    pages: Pages,
}

impl Status {
    /// Nothing has happened yet. The proxy will follow its source on the runtime `main`.
    pub(crate) fn new(resolved: &Resolved, pages: Pages, main: Handle) -> Self {
        let active = REGISTRY.active(resolved.mode);
        let (engine, mode) = (active.metrics(), active.name().as_str());
        let build = Build {
            version: env!("CARGO_PKG_VERSION"),
            minor: version::MINOR,
            git_version: version::GIT_VERSION,
            platform: &version::platform(),
        };
        let metrics = Arc::new(Metrics::new(engine, &build));
        let history = SharedHistory::new();
        let handler = StatusHandler {
            metrics: metrics.clone(),
            history: history.clone(),
            sampler: Sampler::new(engine, main),
            mode,
            pages,
        };
        Self { metrics, history, handler: Arc::new(handler) }
    }

    /// The metrics, for those who count by themselves.
    pub(crate) fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// Counts requests to the API server.
    pub(crate) fn request_counter(&self) -> Arc<dyn RequestCounter> {
        Arc::new(ApiRequests(self.metrics()))
    }

    /// These are the families and the modes; only now it is known who can say how far syncs are.
    pub(crate) fn dataplanes_open(&self, planes: &[(IpFamily, Box<dyn Dataplane>)], resolved: &Resolved) {
        let Sampler { progress, connections, .. } = &self.handler.sampler;
        progress
            .get_or_init(|| planes.iter().filter_map(|(family, plane)| Some((*family, plane.progress()?))).collect());
        let families: Vec<IpFamily> = planes.iter().map(|(family, _)| *family).collect();
        if let Some(most) = resolved.connection_counters.filter(|_| REGISTRY.active(resolved.mode).counts_connections())
            && let Err(error) = connections.start(&families, most)
        {
            tracing::warn!("connections are not counted: {error:#}");
        }
    }

    /// Tells the sync loop's progress.
    pub(crate) fn observer(&self) -> MetricsObserver {
        MetricsObserver::new(self.metrics.clone(), self.history.clone())
    }

    /// Answers questions.
    pub(crate) fn handler(&self) -> Arc<dyn Handler> {
        self.handler.clone()
    }
}

#[derive(Debug)]
struct ApiRequests(Arc<Metrics>);

impl RequestCounter for ApiRequests {
    fn record(&self, request: &RequestResult<'_>) {
        let RequestResult { host, method, status, took } = *request;
        let code = status.map(|status| status.as_u16());
        self.0.requested(&ApiRequest { host, method: method.as_str(), code, took });
    }
}

/// Counts the answers of a handler for health checks.
pub(crate) fn counted(handler: impl Handler, metrics: Arc<Metrics>) -> impl Handler {
    move |request: &Request| {
        let response = handler.answer(request);
        let probe = match request.uri.path() {
            "/healthz" => Some(Probe::Healthz),
            "/livez" => Some(Probe::Livez),
            _ => None,
        };
        probe.into_iter().for_each(|probe| metrics.probed(probe, response.status().as_u16()));
        response
    }
}

impl Handler for StatusHandler {
    fn answer(&self, request: &Request) -> Response {
        match request.uri.path() {
            "/metrics" => self.metrics(),
            "/healthz" | "/healthz/ping" => healthz(request),
            "/proxyMode" => text(hyper::StatusCode::OK, self.mode),
            "/configz" => json(hyper::StatusCode::OK, self.pages.configz.clone()),
            "/statusz" => self.pages.statusz().answer(request),
            "/flagz" => self.pages.flagz.answer(request),
            "/services" => {
                let filter = filter(request);
                let page = self.history.lock().receipts(&filter);
                json(hyper::StatusCode::OK, page.to_json())
            }
            "/changes" => {
                let page = self.history.lock().slow_changes(Instant::now());
                json(hyper::StatusCode::OK, page.to_json())
            }
            path if path.starts_with("/debug/") => no_profiles(),
            _ => not_found(),
        }
    }
}

impl StatusHandler {
    fn metrics(&self) -> Response {
        let mut response = text(hyper::StatusCode::OK, self.metrics.render(&self.sampler.sample()));
        let kind = hyper::header::HeaderValue::from_static(Metrics::CONTENT_TYPE);
        response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
        response
    }
}

/// `?namespace=…&name=…`
fn filter(request: &Request) -> Filter {
    let mut filter = Filter::default();
    for (key, value) in form_urlencoded::parse(request.uri.query().unwrap_or_default().as_bytes()) {
        match &*key {
            "namespace" => filter.namespace = Some(value.into_owned()),
            "name" => filter.name = Some(value.into_owned()),
            _ => {}
        }
    }
    filter
}
