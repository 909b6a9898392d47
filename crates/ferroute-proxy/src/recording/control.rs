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
/// If no proxy listens, or it returns an error.
pub fn request() -> Result<impl Read, RequestError> {
    let connect = || StdStream::connect_addr(&name()?);
    let mut stream = connect().map_err(RequestError::Unavailable)?;
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
        Err(error) => {
            let reason = match error.kind() {
                io::ErrorKind::AddrInUse => "another Ferroute runs in this network namespace".to_owned(),
                _ => chain(&error),
            };
            return tracing::info!("`ferroute bundle` is unavailable: {reason}");
        }
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

fn listen() -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(&name()?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn name() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(NAME)
}

async fn respond(mut stream: UnixStream, requests: &BundleRequests, header: &BundleHeader) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    // Sockets in the abstract namespace have no permissions.
    if peer != 0 && peer != nix::unistd::geteuid().as_raw() {
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
    let response = tokio::task::spawn_blocking(move || {
        let mut response = b"ok\n".to_vec();
        let version = env!("CARGO_PKG_VERSION");
        let bundle =
            Bundle::new(contents.snapshot, version, SystemTime::now(), mode, configuration, contents.host_addresses);
        bundle.write(&mut response).map(|()| response)
    });
    stream.write_all(&response.await.map_err(io::Error::other)??).await
}

/// The name of the socket, without the zero byte that marks abstract names.
const NAME: &[u8] = b"ferroute";

const REQUEST: &[u8; 7] = b"bundle\n";

/// Time after which a response is abandoned.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Delay after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);
