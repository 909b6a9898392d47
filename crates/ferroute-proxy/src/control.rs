//! Client and server of the socket `@ferroute`, by which commands on this node query the running proxy.
//!
//! The client sends one line: `bundle`, `status`, `proxy`, `traffic`, `service NAMESPACE/NAME`, or `flows` with a [`FlowRequest`] as JSON. The
//! proxy responds with a line that is `ok` or an error, and after `ok` the bundle, a [`NodeStatus`], a [`ProxyInfo`], a list of
//! [`EndpointTraffic`], a [`ServiceVersions`] as JSON, or a [`FlowEvent`](ferroute_flows::FlowEvent) per line until the client closes the connection.
//!
//! The socket has a name in the abstract namespace, which exists per network namespace, like the proxy, and leaves no
//! file behind. If a process of another user holds the name, the proxy uses another one that begins with it; commands
//! find both. Only root and the user of the proxy get responses.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream as UnixStreamBlocking,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ferroute_admin::{
    health::Health,
    history::{ChangeDelays, History},
};
use ferroute_config::{FlagSettings, SyncPeriods};
use ferroute_core::{NamespacedName, error_chain, rfc3339};
use ferroute_flows::{FlowReceiver, FlowRequest};
use ferroute_host::{
    LocalPeer, LocalPeers, is_trusted_user, listen_locally, listen_locally_beside, local_peers, run_blocking,
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use crate::{
    observers::{
        applied::{ServiceVersions, VersionRequests},
        flows::Flows,
        observed::Observed,
        problems::Problems,
        traffic::TrafficSampler,
    },
    recording::{Bundle, BundleRequests, SharedUnused},
};

pub use crate::observers::{
    observed::ObservedEndpoint,
    traffic::{EndpointTraffic, TrafficCounts},
};

/// State that responses are built from.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    /// The active mode.
    pub(crate) mode: &'static str,
    /// The active configuration, as YAML.
    pub(crate) configuration: String,
    /// The settings of flags that are no fields of the configuration.
    pub(crate) flags: FlagSettings,
    /// The periods of syncs.
    pub(crate) sync: SyncPeriods,
    /// Source of the objects.
    pub(crate) source: SourceInfo,
    /// The name of the node.
    pub(crate) node: String,
    pub(crate) health: Arc<Health>,
    pub(crate) problems: Problems,
    pub(crate) history: Arc<History>,
    pub(crate) bundles: BundleRequests,
    pub(crate) unused: SharedUnused,
    pub(crate) versions: VersionRequests,
    pub(crate) flows: Flows,
    pub(crate) observed: Observed,
    pub(crate) traffic: TrafficSampler,
}

/// The state of the proxy on one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// The name of the node.
    pub node: String,
    /// The version of Ferroute.
    pub version: String,
    /// The active mode.
    pub mode: String,
    /// Whether rules of all IP families were applied since the start, no change has waited for too long (see
    /// `/healthz`), and all IP families of the node are served.
    pub ready: bool,
    /// Whether load balancers may send new connections to the node.
    pub eligible: bool,
    /// Time of the last successful sync, in RFC 3339; `None` before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<String>,
    /// Number of Services with received changes that are not applied; before the first sync, the number of changes.
    pub pending: usize,
    /// Seconds for which the oldest of these changes has waited.
    pub lag_seconds: f64,
    /// Minimum intervals of syncs.
    pub pacing: Pacing,
    /// Waiting times of the last changes; `None` if there were none since the first sync.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delays: Option<ChangeDelays>,
    /// Problems of the node that the proxy cannot solve, such as another service proxy or rules that the kernel refuses, one
    /// sentence for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Endpoints that get fewer connections than their full weight, according to the proxy's observations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<ObservedEndpoint>,
}

/// When the next sync may start after another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pacing {
    /// The seconds between two syncs.
    pub min_sync_period_seconds: f64,
    /// Whether the configuration has no `minSyncPeriod`, so that the interval applies only while syncs take much of the
    /// time.
    pub by_cost: bool,
}

/// Inputs of the running proxy's rules, apart from the objects themselves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyInfo {
    /// The name of the node.
    pub node: String,
    /// The version of Ferroute.
    pub version: String,
    /// The active mode.
    pub mode: String,
    /// The active configuration: a `KubeProxyConfiguration` as YAML.
    pub configuration: String,
    /// The settings of flags that are no fields of the configuration.
    #[serde(default)]
    pub flags: FlagSettings,
    /// The source of the objects.
    pub source: SourceInfo,
}

/// The source of the running proxy's objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceInfo {
    /// Manifests at this absolute path.
    Manifests(PathBuf),
    /// The API server of the configuration, at this address if it is not empty.
    ApiServer(String),
}

impl Control {
    fn info(&self) -> ProxyInfo {
        ProxyInfo {
            node: self.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: self.mode.to_owned(),
            configuration: self.configuration.clone(),
            flags: self.flags.clone(),
            source: self.source.clone(),
        }
    }

    fn status(&self) -> NodeStatus {
        let health = self.health.summary();
        let unapplied = self.history.unapplied();
        let more = unapplied.len().saturating_sub(MAX_UNAPPLIED);
        let more = (more > 0).then(|| format!("the rules of {more} more service ports are not applied"));
        let unapplied = unapplied.iter().take(MAX_UNAPPLIED).map(ToString::to_string);
        NodeStatus {
            node: self.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: self.mode.to_owned(),
            ready: health.healthy && !health.is_starting && !self.problems.has_fatal(),
            eligible: health.node_eligible,
            last_sync: health.last_updated.and_then(|time| rfc3339::format(time, 0)),
            pending: self.history.pending(),
            lag_seconds: health.waiting.as_secs_f64(),
            pacing: Pacing { min_sync_period_seconds: self.sync.min_period.as_secs_f64(), by_cost: self.sync.by_cost },
            delays: self.history.delays(),
            problems: self.problems.texts().into_iter().chain(unapplied).chain(more).collect(),
            endpoints: self.observed.get(),
        }
    }
}

/// Reason why the running proxy gives no response.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No proxy listens on the socket.
    #[error("no Ferroute runs in this network namespace, or its socket is unavailable")]
    Unavailable(#[source] io::Error),
    /// A process of another user listens on the socket. Names in the abstract namespace have no owner, so every process
    /// of the network namespace can bind an unused name.
    #[error(
        "process {pid} of user {user} listens on @ferroute, which is neither root nor the user of this command; if it is \
         Ferroute, run this command as that user"
    )]
    Untrusted {
        /// The process, as it was when it started to listen.
        pid: i32,
        /// User.
        user: u32,
    },
    /// The connection was closed or failed.
    #[error("the running Ferroute closed the connection early")]
    Interrupted(#[source] io::Error),
    /// The proxy returned an error.
    #[error("the running Ferroute returned an error: {0}")]
    Rejected(String),
}

/// Requests a bundle from the proxy that runs in this network namespace.
///
/// # Errors
/// If no proxy listens, a process of another user does, or the proxy returns an error.
pub fn request_bundle() -> Result<impl Read, RequestError> {
    request(BUNDLE)
}

/// Requests the status of the proxy that runs in this network namespace.
///
/// # Errors
/// If no proxy listens, a process of another user does, or the proxy returns an error.
pub fn request_status() -> Result<NodeStatus, RequestError> {
    decode(request(STATUS)?)
}

/// Requests the status of all proxies that run in this network namespace, of which there should be only one.
///
/// # Errors
/// If no proxy listens, a process of another user does, or a proxy returns an error.
pub fn request_statuses() -> Result<Vec<NodeStatus>, RequestError> {
    peers()?.into_iter().map(|peer| decode(request_of(peer, STATUS)?)).collect()
}

/// Requests the inputs of the rules from the proxy that runs in this network namespace.
///
/// # Errors
/// If no proxy listens, a process of another user does, or the proxy returns an error.
pub fn request_info() -> Result<ProxyInfo, RequestError> {
    decode(request(INFO)?)
}

/// Requests the counted traffic from the proxy that runs in this network namespace; empty if it does not count traffic.
///
/// # Errors
/// If no proxy listens, a process of another user does, or the proxy returns an error, as earlier versions do.
pub fn request_traffic() -> Result<Vec<EndpointTraffic>, RequestError> {
    decode(request(TRAFFIC)?)
}

/// Requests the applied versions of a Service from the proxy that runs in this network namespace.
///
/// # Errors
/// If no proxy listens, a process of another user does, or the proxy returns an error.
pub fn request_versions(service: &NamespacedName) -> Result<ServiceVersions, RequestError> {
    decode(request(&format!("{SERVICE}{service}"))?)
}

/// Requests connections through Services from the proxy that runs in this network namespace. Returns a [`FlowEvent`](ferroute_flows::FlowEvent) as JSON per
/// line, as they occur; reads wait without a limit.
///
/// # Errors
/// If no proxy listens, a process of another user does, or the proxy returns an error.
pub fn request_flows(request: &FlowRequest) -> Result<BufReader<UnixStreamBlocking>, RequestError> {
    let json = serde_json::to_string(request).map_err(|error| RequestError::Interrupted(error.into()))?;
    let response = self::request(&format!("{FLOWS}{json}"))?;
    // The kernel may have nothing to report for hours.
    response.get_ref().set_read_timeout(None).map_err(RequestError::Interrupted)?;
    Ok(response)
}

fn decode<T: serde::de::DeserializeOwned>(response: impl Read) -> Result<T, RequestError> {
    serde_json::from_reader(response).map_err(|error| RequestError::Interrupted(error.into()))
}

fn request(line: &str) -> Result<BufReader<UnixStreamBlocking>, RequestError> {
    let mut peers = peers()?;
    request_of(peers.swap_remove(0), line)
}

/// Returns the proxies, at least one; the one with the usual name of the socket comes first.
fn peers() -> Result<Vec<LocalPeer>, RequestError> {
    let LocalPeers { trusted, others } =
        local_peers(NAME, SEARCH_TIMEOUT, REQUEST_TIMEOUT).map_err(RequestError::Unavailable)?;
    match (trusted.is_empty(), others.first()) {
        (false, _) => Ok(trusted),
        (true, Some(&(pid, user))) => Err(RequestError::Untrusted { pid, user }),
        (true, None) => Err(RequestError::Unavailable(io::ErrorKind::ConnectionRefused.into())),
    }
}

fn request_of(peer: LocalPeer, line: &str) -> Result<BufReader<UnixStreamBlocking>, RequestError> {
    let mut stream = peer.stream;
    writeln!(stream, "{line}").map_err(RequestError::Interrupted)?;
    let mut response = BufReader::new(stream);
    let mut status = String::new();
    response.read_line(&mut status).map_err(RequestError::Interrupted)?;
    match status.trim_end() {
        "ok" => Ok(response),
        "" => Err(RequestError::Interrupted(io::ErrorKind::UnexpectedEof.into())),
        error => Err(RequestError::Rejected(error.to_owned())),
    }
}

/// Serves requests until the task is aborted. An unavailable socket does not affect the proxy otherwise.
pub(crate) async fn serve(control: Control) {
    let listener = match listen() {
        Ok(listener) => listener,
        Err(error) => {
            return tracing::info!("`ferroute bundle` and `ferroute status` are unavailable: {}", error_chain(&error));
        }
    };
    loop {
        match listener.accept().await {
            // One at a time, to limit memory use.
            Ok((stream, _)) => {
                let response = tokio::time::timeout(RESPONSE_TIMEOUT, respond(stream, &control)).await;
                if let Ok(Err(error)) = response {
                    tracing::debug!("cannot respond on @ferroute: {}", error_chain(&error));
                }
            }
            Err(error) => {
                tracing::debug!("cannot accept a connection: {}", error_chain(&error));
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Opens the socket, with another name if another process holds the usual one.
fn listen() -> io::Result<UnixListener> {
    let listener = match listen_locally(NAME) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let LocalPeers { trusted, others } = local_peers(NAME, SEARCH_TIMEOUT, REQUEST_TIMEOUT)?;
            let (listener, name) = listen_locally_beside(NAME)?;
            let (pid, user) = others.first().copied().unzip();
            if trusted.is_empty() {
                tracing::warn!(pid, user, "a process of another user holds the socket @{NAME}; listening on @{name}");
            } else {
                // It is reported if it does not end; see `other_proxies`.
                tracing::info!("another Ferroute holds the socket @{NAME}; listening on @{name}");
            }
            listener
        }
        result => result?,
    };
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn respond(stream: UnixStream, control: &Control) -> io::Result<()> {
    let is_trusted = is_trusted_user(stream.peer_cred()?.uid());
    let (reader, mut writer) = stream.into_split();
    if !is_trusted {
        return writer.write_all(b"permission denied: only root and the user of the proxy get responses\n").await;
    }
    let (mut line, mut reader) = (String::new(), tokio::io::BufReader::new(reader.take(MAX_REQUEST)));
    reader.read_line(&mut line).await?;
    if let Some(request) = line.strip_prefix(FLOWS) {
        return flows(request, reader.into_inner().into_inner(), writer, control).await;
    }
    let response = match line.trim_end() {
        BUNDLE => bundle(control).await?,
        STATUS => json(&control.status()),
        INFO => json(&control.info()),
        TRAFFIC => json(&control.traffic.endpoints()),
        line => match line.strip_prefix(SERVICE).and_then(|name| name.split_once('/')) {
            Some((namespace, name)) => {
                let name = NamespacedName::new(namespace, name);
                match control.versions.send(name.clone()).await {
                    Ok(mut versions) => {
                        if let Some(reason) = control.unused.reason(&name) {
                            versions.set_unused(reason);
                        }
                        json(&versions)
                    }
                    Err(_) => LOOP_ENDED.to_vec(),
                }
            }
            None => b"unknown request: the versions of the programs may differ\n".to_vec(),
        },
    };
    writer.write_all(&response).await
}

/// Responds with flows, on a separate task.
async fn flows(request: &str, reader: OwnedReadHalf, mut writer: OwnedWriteHalf, control: &Control) -> io::Result<()> {
    let Ok(request) = serde_json::from_str(request) else {
        return writer.write_all(b"invalid request: the versions of the programs may differ\n").await;
    };
    let flows = match tokio::time::timeout(LOOP_TIMEOUT, control.flows.subscribe(request)).await {
        Ok(Ok(flows)) => flows,
        Ok(Err(error)) => return writer.write_all(format!("{}\n", error_chain(&error)).as_bytes()).await,
        Err(_) => return writer.write_all(LOOP_BUSY).await,
    };
    tokio::spawn(async move {
        if let Err(error) = stream_flows(flows, reader, writer).await {
            tracing::debug!("cannot send flows on @ferroute: {}", error_chain(&error));
        }
    });
    Ok(())
}

/// Sends flows until the client closes the connection.
async fn stream_flows(
    mut flows: FlowReceiver,
    mut reader: OwnedReadHalf,
    mut writer: OwnedWriteHalf,
) -> io::Result<()> {
    let (mut is_first, mut byte) = (true, [0]);
    loop {
        let lines = tokio::select! {
            // The client sends nothing more, so this is the end.
            _ = reader.read(&mut byte) => return Ok(()),
            lines = flows.next() => match lines {
                Some(Ok(lines)) => lines,
                Some(Err(reason)) if is_first => format!("{}\n", reason.replace('\n', " ")).into_bytes(),
                // Readers notice the early end.
                Some(Err(reason)) => return Err(io::Error::other(reason)),
                None => return Ok(()),
            },
        };
        let start = if is_first && lines.first() == Some(&b'{') { OK } else { b"" };
        is_first = false;
        let write = async {
            writer.write_all(start).await?;
            writer.write_all(&lines).await
        };
        tokio::time::timeout(RESPONSE_TIMEOUT, write).await.map_err(io::Error::from)??;
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    let mut response = OK.to_vec();
    serde_json::to_writer(&mut response, value).expect("text and numbers under text keys are always JSON");
    response
}

async fn bundle(control: &Control) -> io::Result<Vec<u8>> {
    let contents = match tokio::time::timeout(LOOP_TIMEOUT, control.bundles.send(())).await {
        Ok(Ok(contents)) => contents,
        Ok(Err(_)) => return Ok(LOOP_ENDED.to_vec()),
        Err(_) => return Ok(LOOP_BUSY.to_vec()),
    };
    let (mode, configuration, flags) = (control.mode, control.configuration.clone(), control.flags.clone());
    let (unused, unapplied) = (control.unused.get(), control.history.unapplied());
    let source_problems = control.problems.texts_of_source();
    // A bundle of a large cluster takes a while, which must not delay the source.
    let response = run_blocking("bundle", move || {
        let mut response = OK.to_vec();
        let version = env!("CARGO_PKG_VERSION");
        let bundle =
            Bundle::new(contents.snapshot, version, SystemTime::now(), mode, configuration, contents.host_addresses)
                .with_flags(flags)
                .with_unused(unused)
                .with_source_problems(source_problems)
                .with_unapplied(unapplied);
        bundle.write(&mut response).map(|()| response)
    });
    response.await?
}

/// The name of the socket, without the zero byte that marks abstract names.
pub(crate) const NAME: &str = "ferroute";

const BUNDLE: &str = "bundle";
const STATUS: &str = "status";
const INFO: &str = "proxy";
const TRAFFIC: &str = "traffic";
const SERVICE: &str = "service ";
const FLOWS: &str = "flows ";
const OK: &[u8] = b"ok\n";
const LOOP_ENDED: &[u8] = b"the sync loop has ended\n";
const LOOP_BUSY: &[u8] =
    b"the sync loop does not respond: it waits for its first objects, or for the kernel (see `ferroute status`)\n";

/// Maximum number of service ports whose refused rules are reported one by one.
const MAX_UNAPPLIED: usize = 20;

/// Maximum length of a request, which is longer than any.
const MAX_REQUEST: u64 = 16 << 10;

/// Time after which a response is abandoned.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time after which the state of the sync loop is not waited for any longer. Large syncs take seconds.
const LOOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Time that a client waits for the next part of a response, which is longer than the proxy's own limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(70);

/// Maximum time of a search for proxies, which is reached only if a socket accepts no connection. On a busy node,
/// milliseconds would be too short: commands would report that no proxy runs.
pub(crate) const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);
