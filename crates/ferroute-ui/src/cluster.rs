//! The page of a whole cluster: the page of each node, the problems of all nodes, and their flows together.
//!
//! ```text
//!   browser ──► /api/v1/nodes/NODE/…        ──► the API of that node's page, in the pod of its proxy
//!          ├──► /api/v1/cluster/problems    ──► status, diff and doctor on all nodes
//!          └──► /api/v1/cluster/flows/events ─► the summaries of all nodes, merged
//! ```

use std::{convert::Infallible, net::SocketAddr, net::TcpListener, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Router,
    body::Body,
    extract::{Path, RawQuery, State},
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    middleware,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::get,
};
use ferroute_inspect::flows::{FlowEvent, FlowStart, FlowSummary, Labels, Losses};
use ferroute_kubectl::{NodePages, NodeReport, Selection, kube_proxy_beside, pod_labels, statuses};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    api::{JsonText, Refusal},
    compression::compressed,
    security::url,
    server::{asset, guard},
};

/// State of the page of a cluster.
#[derive(Debug)]
pub struct ClusterPage {
    pages: NodePages,
    selection: Selection,
}

/// A node that can be chosen.
#[derive(Serialize)]
struct Node<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a str>,
}

#[derive(Serialize)]
struct Nodes<'a> {
    nodes: Vec<Node<'a>>,
}

/// The problems of all nodes, in the form of `kubectl ferroute status -o json`.
#[derive(Serialize)]
struct Problems {
    nodes: Vec<NodeReport>,
    findings: Vec<ferroute_inspect::doctor::Finding>,
}

impl ClusterPage {
    /// Creates the page of these nodes.
    pub fn new(pages: NodePages, selection: Selection) -> Self {
        Self { pages, selection }
    }

    /// Serves the page until the process ends. `announce` gets its URL once connections are accepted.
    ///
    /// # Errors
    /// If the address cannot be used.
    pub async fn serve(self, listen: SocketAddr, announce: impl FnOnce(&str)) -> anyhow::Result<()> {
        let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        listener.set_nonblocking(true)?;
        let url = url(listener.local_addr()?, None);
        let listener = tokio::net::TcpListener::from_std(listener)?;
        announce(&url);
        axum::serve(listener, router(Arc::new(self))).await.context("the server failed")
    }
}

fn router(page: Arc<ClusterPage>) -> Router {
    let api = Router::new()
        .route("/cluster", get(nodes))
        .route("/cluster/problems", get(problems))
        .route("/cluster/flows/events", get(flow_events))
        .route("/nodes/{node}/{*path}", get(of_node));
    Router::new()
        .route("/", get(index))
        .route("/web/{name}", get(async |Path(name): Path<String>| asset(&name)))
        .nest("/api/v1", api)
        .fallback(async || StatusCode::NOT_FOUND)
        .layer(middleware::from_fn(compressed))
        .layer(middleware::from_fn(guard))
        .with_state(page)
}

/// The page, which recognises by an attribute that it shows a cluster.
async fn index() -> Response {
    let Some((kind, content)) = crate::assets::find("index.html") else { return StatusCode::NOT_FOUND.into_response() };
    let text = String::from_utf8_lossy(&content).replacen("<html ", "<html data-cluster ", 1);
    ([(CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response()
}

/// `GET /cluster`
async fn nodes(State(page): State<Arc<ClusterPage>>) -> Result<JsonText, Refusal> {
    let nodes = page.pages.proxies().iter();
    let nodes = nodes.map(|proxy| Node { name: &proxy.node, problem: proxy.problem.as_deref() }).collect();
    JsonText::new(&Nodes { nodes })
}

/// `GET /cluster/problems`
async fn problems(State(page): State<Arc<ClusterPage>>) -> Result<JsonText, Refusal> {
    let (fleet, proxies) = (page.pages.fleet(), page.pages.proxies());
    let nodes = statuses(fleet, proxies, true).await;
    let findings = kube_proxy_beside(&fleet.cluster, &page.selection, proxies).await;
    JsonText::new(&Problems { nodes, findings })
}

/// `GET /nodes/NODE/…`
async fn of_node(
    State(page): State<Arc<ClusterPage>>,
    Path((node, path)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let path: Vec<String> = path.split('/').map(encoded).collect();
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let answer = page.pages.get(&node, &format!("/{}{query}", path.join("/"))).await;
    let (head, body) =
        answer.map_err(|error| Refusal::new(StatusCode::BAD_GATEWAY, format!("node {node}: {error}")))?;
    let text = stream::unfold(body, async |mut body| Some((Ok::<_, Infallible>(body.next().await?), body)));
    let mut response = Response::new(Body::from_stream(text));
    *response.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
    // The page trusts it as it trusts the node.
    if let Ok(media_type) = HeaderValue::from_str(&head.media_type) {
        response.headers_mut().insert(CONTENT_TYPE, media_type);
    }
    Ok(response)
}

/// Encodes a part of a path, which was decoded.
fn encoded(part: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    part.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// `GET /cluster/flows/events`: the same events as a node's, with the sum of all nodes.
async fn flow_events(State(page): State<Arc<ClusterPage>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(merge_flows(page, sender));
    let events = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    Sse::new(events.map(Ok)).keep_alive(KeepAlive::default())
}

/// Sends the sum of all nodes' summaries until the page is closed. Nodes without an answer are not included.
async fn merge_flows(page: Arc<ClusterPage>, events: mpsc::Sender<Event>) {
    let (labels, _) = pod_labels(page.pages.fleet()).await;
    let (summaries, mut received) = mpsc::channel(QUEUE);
    let mut readers = JoinSet::new();
    for (index, proxy) in page.pages.proxies().iter().enumerate() {
        let (page, node, summaries) = (Arc::clone(&page), proxy.node.clone(), summaries.clone());
        readers.spawn(async move { follow_flows(&page, &node, index, &summaries).await });
    }
    drop(summaries);
    let mut latest: Vec<Option<FlowSummary>> = page.pages.proxies().iter().map(|_| None).collect();
    let mut lost = vec![Losses::default(); latest.len()];
    let mut starts = vec![FlowStart::default(); latest.len()];
    // The sum has no times that their node could not measure, whatever the others can.
    let start = FlowStart { timestamps: true, ..FlowStart::default() };
    let first = serde_json::json!({ "available": true, "start": start, "lost": Losses::default() });
    if events.send(Event::default().event("flows-start").data(first.to_string())).await.is_err() {
        return;
    }
    let mut interval = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            news = received.recv() => match news {
                Some((index, NodeNews::Start { start, lost: losses })) => {
                    lost[index] = losses;
                    starts[index] = start.unwrap_or_default();
                }
                Some((index, NodeNews::Summary(summary))) => latest[index] = Some(summary.measured(&starts[index])),
                Some((index, NodeNews::Lost(losses))) => lost[index] = losses,
                None => {
                    let reason = serde_json::json!({ "reason": "no node gives flows" });
                    let _ = events.send(Event::default().event("flows-unavailable").data(reason.to_string())).await;
                    return;
                }
            },
            _ = interval.tick() => {
                if latest.iter().any(Option::is_some) {
                    let summary = merged(&labels, latest.iter().flatten().cloned());
                    let Ok(text) = serde_json::to_string(&summary) else { return };
                    if events.send(Event::default().event("flows-summary").data(text)).await.is_err() {
                        return;
                    }
                    let lost = lost.iter().fold(Losses::default(), Losses::plus);
                    let Ok(text) = serde_json::to_string(&lost) else { return };
                    if !lost.is_empty() && events.send(Event::default().event("flows-lost").data(text)).await.is_err() {
                        return;
                    }
                }
            }
            () = events.closed() => return,
        }
    }
}

fn merged(labels: &Labels, summaries: impl Iterator<Item = FlowSummary>) -> FlowSummary {
    let named = summaries.map(|summary| {
        let mut event = FlowEvent::Summary(summary);
        labels.apply(&mut event);
        match event {
            FlowEvent::Summary(summary) => summary,
            _ => FlowSummary::default(),
        }
    });
    FlowSummary::merged(named)
}

/// Receives the flows of a node as its page would.
async fn follow_flows(page: &ClusterPage, node: &str, index: usize, news: &mpsc::Sender<(usize, NodeNews)>) {
    let Ok((_, mut body)) = page.pages.get(node, "/flows/events").await else { return };
    let mut text = String::new();
    while let Some(more) = body.next().await {
        text.push_str(&more);
        while let Some(end) = text.find("\n\n") {
            let rest = text.split_off(end + 2);
            let event = std::mem::replace(&mut text, rest);
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_start);
            if let Some(one) = field("event:").zip(field("data:")).and_then(|(event, data)| NodeNews::read(event, data))
                && news.send((index, one)).await.is_err()
            {
                return;
            }
        }
    }
}

/// Changes of a node's flows.
enum NodeNews {
    Start { start: Option<FlowStart>, lost: Losses },
    Summary(FlowSummary),
    Lost(Losses),
}

impl NodeNews {
    fn read(event: &str, data: &str) -> Option<Self> {
        /// The part of a page's first event that is used.
        #[derive(serde::Deserialize)]
        struct Start {
            start: Option<FlowStart>,
            lost: Losses,
        }
        match event {
            "flows-summary" => serde_json::from_str(data).ok().map(Self::Summary),
            "flows-lost" => serde_json::from_str(data).ok().map(Self::Lost),
            "flows-start" => serde_json::from_str(data).ok().map(|Start { start, lost }| Self::Start { start, lost }),
            _ => None,
        }
    }
}

/// The interval of summaries.
const INTERVAL: Duration = Duration::from_secs(2);
/// Summaries that wait.
const QUEUE: usize = 16;
