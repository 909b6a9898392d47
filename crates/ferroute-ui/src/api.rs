//! API of the page.

use std::{num::NonZeroU16, sync::Arc};

use axum::{
    extract::{Path, Query, State},
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use ferroute_admin::version;
use ferroute_config::{ModeName, flags::DesiredArgs};
use ferroute_core::Protocol;
use ferroute_inspect::{
    diff::{Comparison, compare_settled, compare_with_kernel},
    doctor::{Diagnosis, diagnose, read_inputs},
    explain::explain_on_host,
    report::Versioned,
    trace::{Request, TraceNode, TraceReport, Unresolved, load, resolve},
};
use ferroute_modes::REGISTRY;
use serde::{Deserialize, Serialize};

use crate::{
    demo::DemoStatus,
    server::App,
    source::Source,
    timeline::Timeline,
    view::{Counts, View},
};

/// An answer that is not there, as a sentence for people.
pub(crate) struct Refusal {
    status: StatusCode,
    error: String,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, error: error.into() }
    }
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        // The page has no flags.
        let reason = error.downcast_ref().map(|error: &Unresolved| error.reason().to_owned());
        Self::new(StatusCode::BAD_REQUEST, reason.unwrap_or_else(|| format!("{error:#}")))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, axum::Json(ErrorBody { error: &self.error })).into_response()
    }
}

/// A response as JSON text.
pub(crate) struct JsonText(String);

impl JsonText {
    pub(crate) fn new(value: &impl Serialize) -> Result<Self, Refusal> {
        serde_json::to_string(value).map(Self).map_err(|error| anyhow::Error::new(error).into())
    }

    /// Adds a field, whose value is JSON, to an object with at least one field.
    fn with(mut self, field: &str, json: &str) -> Self {
        self.0.pop();
        self.0 += &format!(",\"{field}\":{json}}}");
        self
    }
}

impl IntoResponse for JsonText {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], self.0).into_response()
    }
}

/// An answer, or the reason why there is none.
#[derive(Serialize)]
struct Answer<T> {
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(flatten)]
    value: Option<T>,
}

impl<T> From<anyhow::Result<T>> for Answer<T> {
    fn from(result: anyhow::Result<T>) -> Self {
        match result {
            Ok(value) => Self { available: true, reason: None, value: Some(value) },
            Err(error) => Self { available: false, reason: Some(format!("{error:#}")), value: None },
        }
    }
}

/// The kinds of requests, by what they need: a page opens while others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// What is in memory.
    Memory,
    /// The kernel, or a simulation of it.
    Kernel,
    /// All rules of the kernel, which may take many seconds.
    Check,
}

/// Runs a request on another thread, a limited number of a kind at a time; others wait.
pub(crate) async fn answer<T: Send + 'static>(
    app: Arc<App>,
    kind: Work,
    work: impl FnOnce(&App) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let stopping = |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "stopping");
    let _permit = app.limit(kind).acquire().await.map_err(stopping)?;
    let worker = Arc::clone(&app);
    let done = tokio::task::spawn_blocking(move || work(&worker)).await;
    done.unwrap_or_else(|_| Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer failed: see the log")))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Overview<'a> {
    /// Version of the API. It changes when fields are removed or change their meaning.
    version: u32,
    program: &'static str,
    revision: u64,
    source: &'static str,
    origin: &'a str,
    node: &'a str,
    mode: &'static str,
    modes: Vec<&'static str>,
    kernel: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    demo: Option<DemoStatus>,
    counts: Counts,
    nodes: &'a [String],
}

impl<'a> Overview<'a> {
    fn of(app: &'a App, view: &'a View) -> anyhow::Result<Self> {
        let desired = &view.desired;
        Ok(Self {
            version: 1,
            program: version::GIT_VERSION,
            revision: view.revision,
            source: app.source().kind(),
            origin: &desired.origin,
            node: &desired.node().name,
            mode: REGISTRY.active(desired.resolved.mode).name().as_str(),
            modes: REGISTRY.names().into_iter().map(ModeName::as_str).collect(),
            kernel: app.source().has_kernel(),
            demo: app.source().demo().map(DemoStatus::of).transpose()?,
            counts: view.counts,
            nodes: &view.nodes,
        })
    }
}

/// `GET /overview`
pub(crate) async fn overview(State(app): State<Arc<App>>) -> Result<JsonText, Refusal> {
    answer(app, Work::Memory, |app| {
        let view = app.view();
        Ok(JsonText::new(&Overview::of(app, &view)?)?.with("machines", &view.machines.all()))
    })
    .await
}

/// `GET /services`
pub(crate) async fn services(State(app): State<Arc<App>>) -> JsonText {
    let view = app.view();
    JsonText(format!("{{\"revision\":{},\"services\":{}}}", view.revision, view.rows.all()))
}

/// The data that a page already has.
#[derive(Debug, Deserialize)]
pub(crate) struct ChangesQuery {
    since: u64,
}

/// `GET /changes`
pub(crate) async fn changes(
    State(app): State<Arc<App>>,
    Query(query): Query<ChangesQuery>,
) -> Result<JsonText, Refusal> {
    answer(app, Work::Memory, move |app| {
        let view = app.view();
        let known = [&view.rows, &view.machines].iter().all(|list| list.knows(query.since));
        // A page that is too far behind, or was opened before the server was started, gets all items.
        let is_difference = known && query.since <= view.revision;
        let since = if is_difference { query.since } else { 0 };
        let text = JsonText::new(&Overview::of(app, &view)?)?;
        let text = text.with("complete", if is_difference { "false" } else { "true" });
        Ok(text.with("services", &view.rows.since(since)).with("machines", &view.machines.since(since)))
    })
    .await
}

/// `GET /services/NAMESPACE/NAME`
pub(crate) async fn service(
    State(app): State<Arc<App>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<JsonText, Refusal> {
    answer(app, Work::Kernel, move |app| {
        let view = app.view();
        let explain = || explain_on_host(&view.desired, &format!("{namespace}/{name}"));
        let explanation = app.source().on_node(explain)?;
        let explanation = explanation.map_err(|error| Refusal::new(StatusCode::NOT_FOUND, format!("{error:#}")))?;
        JsonText::new(&Versioned::from(explanation))
    })
    .await
}

/// The parameters of a trace.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TraceQuery {
    from: String,
    to: String,
    #[serde(default)]
    proto: Option<String>,
    #[serde(default)]
    rules: RulesQuery,
    #[serde(default)]
    source_port: Option<NonZeroU16>,
}

/// The rules of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RulesQuery {
    #[default]
    Planned,
    Kernel,
}

impl TraceQuery {
    fn request(&self) -> anyhow::Result<Request> {
        let protocol = self.proto.as_deref().map(str::parse::<Protocol>).transpose()?;
        Ok(Request {
            from: Some(self.from.clone()),
            to: self.to.clone(),
            namespace: None,
            protocol,
            input: None,
            local: false,
            source_port: self.source_port.unwrap_or(SOURCE_PORT),
            desired: DesiredArgs::default(),
            kernel: self.rules == RulesQuery::Kernel,
            rules: Vec::new(),
            routes: None,
        })
    }
}

/// Source port of packets; few rules match on it.
const SOURCE_PORT: NonZeroU16 = NonZeroU16::new(50_000).expect("this is not zero");

/// `GET /trace`
pub(crate) async fn trace(State(app): State<Arc<App>>, Query(query): Query<TraceQuery>) -> Result<JsonText, Refusal> {
    answer(app, Work::Kernel, move |app| {
        let request = query.request()?;
        if request.kernel && !app.source().has_kernel() {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, NO_KERNEL));
        }
        let desired = Arc::clone(&app.view().desired);
        let trace = || -> anyhow::Result<String> {
            let node = TraceNode::new(desired, request.kernel)?;
            let (packet, _) = resolve(&request, &node)?;
            let rules = load(&request, &node, packet.family())?;
            let trace = rules.trace(&node.host, &packet);
            Ok(serde_json::to_string(&Versioned::from(TraceReport::new(&node, &packet, &rules, &trace)))?)
        };
        Ok(JsonText(app.source().on_node(trace)??))
    })
    .await
}

/// `GET /doctor`
pub(crate) async fn doctor(State(app): State<Arc<App>>) -> Result<JsonText, Refusal> {
    #[derive(Serialize)]
    struct Body {
        diagnosis: Diagnosis,
    }
    answer(app, Work::Check, |app| JsonText::new(&Answer::from(diagnosis(app).map(|diagnosis| Body { diagnosis }))))
        .await
}

fn diagnosis(app: &App) -> anyhow::Result<Diagnosis> {
    anyhow::ensure!(app.source().has_kernel(), NO_KERNEL);
    let desired = Arc::clone(&app.view().desired);
    // Endpoints in manifests may be anywhere.
    let connect = matches!(app.source(), Source::Node(_) | Source::Demo(_));
    app.source().on_node(|| diagnose(&read_inputs(&desired, connect)))
}

/// `GET /diff`
pub(crate) async fn diff(State(app): State<Arc<App>>) -> Result<JsonText, Refusal> {
    #[derive(Serialize)]
    struct Body {
        report: Comparison,
    }
    answer(app, Work::Check, |app| JsonText::new(&Answer::from(comparison(app).map(|report| Body { report })))).await
}

fn comparison(app: &App) -> anyhow::Result<Comparison> {
    anyhow::ensure!(app.source().has_kernel(), NO_KERNEL);
    let load = || Ok(Arc::clone(&app.view().desired));
    Ok(compare_settled(load, |desired| app.source().on_node(|| compare_with_kernel(desired))?)?.1)
}

/// `GET /history`
pub(crate) async fn history(State(app): State<Arc<App>>) -> Result<JsonText, Refusal> {
    answer(app, Work::Memory, |app| JsonText::new(&*app.history())).await
}

/// `GET /timeline`
pub(crate) async fn timeline(State(app): State<Arc<App>>) -> Result<JsonText, Refusal> {
    answer(app, Work::Kernel, |app| {
        let timeline = match app.source().recording() {
            Ok(Some(bundle)) => Timeline::new(&bundle),
            Ok(None) => Timeline::unavailable(NO_PROXY.to_owned()),
            Err(error) => Timeline::unavailable(format!("{error:#}")),
        };
        JsonText::new(&timeline)
    })
    .await
}

const NO_KERNEL: &str = "the rules in the kernel can only be read by root, on the node itself";
const NO_PROXY: &str =
    "the syncs are known for a running proxy, a bundle and the demo; these objects come from elsewhere";
