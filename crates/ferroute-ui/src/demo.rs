//! The actions of the demo. Each requires the token.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::Arc,
};

use anyhow::{Context, bail};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use ferroute_core::Protocol;
use ferroute_demo::{
    cluster::{Cluster, DeploymentStatus, PodStatus},
    layout::NodeId,
};
use serde::{Deserialize, Serialize};

use crate::{
    api::{JsonText, Refusal, Work, answer},
    server::App,
};

/// Objects that the page can act on.
#[derive(Serialize)]
pub(crate) struct DemoStatus {
    actions: bool,
    deployments: Vec<DeploymentStatus>,
    pods: Vec<PodStatus>,
    clients: Vec<String>,
}

impl DemoStatus {
    pub(crate) fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        let (deployments, pods, clients) = (cluster.deployments()?, cluster.pods()?, cluster.clients()?);
        Ok(Self { actions: true, deployments, pods, clients })
    }
}

/// Works on an action that the token permits.
async fn act<T: Serialize>(
    app: Arc<App>,
    headers: &HeaderMap,
    work: impl FnOnce(&Cluster) -> anyhow::Result<T> + Send + 'static,
) -> Result<JsonText, Refusal> {
    if !app.token().is_some_and(|token| token.is_in(headers)) {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "open the URL that `ferroute demo --ui` printed"));
    }
    answer(app, Work::Kernel, |app| match app.source().demo() {
        Some(cluster) => JsonText::new(&work(cluster)?),
        None => Err(Refusal::new(StatusCode::NOT_FOUND, "this is not a demo")),
    })
    .await
}

#[derive(Deserialize)]
pub(crate) struct Connect {
    from: String,
    to: SocketAddr,
    #[serde(default)]
    protocol: Option<String>,
    #[serde(default)]
    count: Option<usize>,
}

#[derive(Serialize)]
struct Connected {
    results: Vec<PodConnections>,
    failed: Vec<Failure>,
    source: Vec<IpAddr>,
}

#[derive(Serialize)]
struct PodConnections {
    pod: String,
    connections: usize,
}

#[derive(Serialize)]
struct Failure {
    error: String,
    connections: usize,
}

/// `POST /demo/connect`
pub(crate) async fn connect(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Json(body): Json<Connect>,
) -> Result<JsonText, Refusal> {
    act(app, &headers, move |cluster| {
        let protocol: Protocol = body.protocol.as_deref().unwrap_or("tcp").parse()?;
        let made = cluster.connect(&body.from, body.to, protocol, body.count.unwrap_or(1))?;
        let results = made.pods.into_iter().map(|(pod, connections)| PodConnections { pod, connections });
        let failed = made.failures.into_iter().map(|(error, connections)| Failure { error, connections });
        let source = made.sources.into_keys().collect();
        Ok(Connected { results: results.collect(), failed: failed.collect(), source })
    })
    .await
}

#[derive(Deserialize)]
pub(crate) struct Scale {
    deployment: String,
    replicas: i32,
}

/// The answer of an action without a result.
type Done = BTreeMap<&'static str, String>;

/// `POST /demo/scale`
pub(crate) async fn scale(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Json(body): Json<Scale>,
) -> Result<JsonText, Refusal> {
    act(app, &headers, move |cluster| cluster.scale(&body.deployment, body.replicas).map(|()| Done::new())).await
}

#[derive(Deserialize)]
pub(crate) struct Ready {
    pod: String,
    ready: bool,
}

/// `POST /demo/ready`
pub(crate) async fn ready(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Json(body): Json<Ready>,
) -> Result<JsonText, Refusal> {
    act(app, &headers, move |cluster| cluster.set_ready(&body.pod, body.ready).map(|()| Done::new())).await
}

#[derive(Deserialize)]
pub(crate) struct Kill {
    pod: String,
}

/// `POST /demo/kill`
pub(crate) async fn kill(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Json(body): Json<Kill>,
) -> Result<JsonText, Refusal> {
    act(app, &headers, move |cluster| cluster.kill(&body.pod).map(|()| Done::new())).await
}

/// `POST /demo/break`
pub(crate) async fn break_rules(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<JsonText, Refusal> {
    act(app, &headers, |cluster| cluster.on_node(NodeId::Node, break_here)?.map(|what| Done::from([("what", what)])))
        .await
}

/// Deletes rules as an administrator might do by mistake, with the first of these commands that succeeds: each is for
/// another mode.
fn break_here() -> anyhow::Result<String> {
    let mut errors = Vec::new();
    for command in COMMANDS {
        let words: Vec<&str> = command.split(' ').collect();
        let output = Command::new(words[0]).args(&words[1..]).output();
        match output.with_context(|| format!("cannot run {}", words[0])) {
            Ok(output) if output.status.success() => return Ok(command.to_owned()),
            Ok(output) => errors.push(format!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim())),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    bail!("no command works here: {}", errors.join("; "))
}

/// Commands that delete rules. Those of `nft` for chains of iptables are for hosts without the iptables programs.
const COMMANDS: [&str; 5] = [
    "nft delete table ip ferroute",
    "iptables -w -t nat -F KUBE-SERVICES",
    "iptables -w -t nat -F KUBE-PORTALS-CONTAINER",
    "nft flush chain ip nat KUBE-SERVICES",
    "nft flush chain ip nat KUBE-PORTALS-CONTAINER",
];
