//! Both ends of the socket: the client sends the line `bundle`, the proxy responds with a line that is `ok` or an error, and
//! after `ok` the bundle.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream},
    },
    time::{Duration, SystemTime},
};

use ferroute_config::settings::Settings;
use ferroute_host::run_blocking;
use nix::{
    sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials},
    unistd::geteuid,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};

use super::{Bundle, BundleRequests};
use crate::{logging::chain, modes::Registry};

/// The fields of a bundle that are the same for the lifetime of the proxy.
#[derive(Clone, Debug)]
pub(crate) struct BundleHeader {
    /// The active mode.
    mode: &'static str,
    /// The active configuration, as YAML.
    configuration: String,
}

impl BundleHeader {
    /// Returns the fields for a proxy with these settings.
    pub(crate) fn new(registry: &Registry, settings: &Settings) -> Self {
        let mode = registry.active(settings.resolved.mode).name().as_str();
        Self { mode, configuration: settings.config.to_yaml() }
    }
}

/// Why a bundle cannot be obtained from the running proxy.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No proxy listens on the socket.
    #[error("no Ferroute runs in this network namespace, or its socket is unavailable")]
    Unavailable(#[source] io::Error),
    /// A process of another user listens on the socket. Names in the abstract namespace have no owner, so every process
    /// of the network namespace can bind one that is free.
    #[error(
        "process {pid} of user {user} listens on @ferroute, which is neither root nor the user of this command; if it is \
         Ferroute, run this command as that user"
    )]
    Untrusted {
        /// The process, as it was when it started to listen.
        pid: i32,
        /// Its user.
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
pub fn request() -> Result<impl Read, RequestError> {
    let connect = || {
        let stream = StdStream::connect_addr(&name()?)?;
        let peer = getsockopt(&stream, PeerCredentials)?;
        Ok((stream, peer))
    };
    let (mut stream, peer) = connect().map_err(RequestError::Unavailable)?;
    if !is_trusted(peer.uid()) {
        return Err(RequestError::Untrusted { pid: peer.pid(), user: peer.uid() });
    }
    stream.write_all(REQUEST).map_err(RequestError::Interrupted)?;
    let mut response = BufReader::new(stream);
    let mut status = String::new();
    response.read_line(&mut status).map_err(RequestError::Interrupted)?;
    match status.trim_end() {
        "ok" => Ok(response),
        "" => Err(RequestError::Interrupted(io::ErrorKind::UnexpectedEof.into())),
        error => Err(RequestError::Rejected(error.to_owned())),
    }
}

/// Serves bundles until the task is aborted. An unavailable socket does not affect the proxy otherwise.
pub(crate) async fn serve(requests: BundleRequests, header: BundleHeader) {
    let listener = match listen() {
        Ok(listener) => listener,
        Err(error) => return log_unavailable(&error),
    };
    loop {
        match listener.accept().await {
            // One at a time, to limit memory use.
            Ok((stream, _)) => {
                let response = tokio::time::timeout(RESPONSE_TIMEOUT, respond(stream, &requests, &header)).await;
                if let Ok(Err(error)) = response {
                    tracing::debug!("cannot send a bundle: {}", chain(&error));
                }
            }
            Err(error) => {
                tracing::debug!("cannot accept a connection: {}", chain(&error));
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Logs why the socket cannot be served: an intruder is worth a warning, another Ferroute is not.
fn log_unavailable(error: &io::Error) {
    if error.kind() != io::ErrorKind::AddrInUse {
        return tracing::info!("`ferroute bundle` is unavailable: {}", chain(error));
    }
    match holder() {
        Ok(holder) if !is_trusted(holder.uid()) => tracing::warn!(
            pid = holder.pid(),
            user = holder.uid(),
            "`ferroute bundle` is unavailable: a process of another user holds the socket @ferroute"
        ),
        _ => tracing::info!("`ferroute bundle` is unavailable: another Ferroute runs in this network namespace"),
    }
}

/// Returns the credentials of the process that listens on the socket.
fn holder() -> io::Result<UnixCredentials> {
    Ok(getsockopt(&StdStream::connect_addr(&name()?)?, PeerCredentials)?)
}

/// Reports whether a peer may be on the other end: root, or the user of this process. Sockets in the abstract namespace
/// have no permissions.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

fn listen() -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(&name()?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn name() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(NAME)
}

async fn respond(mut stream: UnixStream, requests: &BundleRequests, header: &BundleHeader) -> io::Result<()> {
    if !is_trusted(stream.peer_cred()?.uid()) {
        return stream
            .write_all(b"permission denied: only root and the user of the proxy may request a bundle\n")
            .await;
    }
    let mut request = [0; REQUEST.len()];
    stream.read_exact(&mut request).await?;
    if request != *REQUEST {
        return stream.write_all(b"unknown request: the versions of the programs may differ\n").await;
    }
    let Ok(contents) = requests.send().await else {
        return stream.write_all(b"the sync loop has ended\n").await;
    };
    let BundleHeader { mode, configuration } = header.clone();
    // A bundle of a large cluster takes a while, which must not delay the source.
    let response = run_blocking("bundle", move || {
        let mut response = b"ok\n".to_vec();
        let version = env!("CARGO_PKG_VERSION");
        let bundle =
            Bundle::new(contents.snapshot, version, SystemTime::now(), mode, configuration, contents.host_addresses);
        bundle.write(&mut response).map(|()| response)
    });
    stream.write_all(&response.await??).await
}

/// The name of the socket, without the zero byte that marks abstract names.
const NAME: &[u8] = b"ferroute";

const REQUEST: &[u8; 7] = b"bundle\n";

/// Time after which a response is abandoned.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Delay after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);
