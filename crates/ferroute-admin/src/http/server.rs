//! A small HTTP/1.1 server: short responses from memory, for clients that may be slow, broken or hostile.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Method,
    body::{Body as _, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::budget::{ConnectionPermit, OpenSockets};
use crate::http::{PutBody, Request, Response};

/// Answers requests. It runs on the server's single thread, so it must not block.
pub trait Handler: Send + Sync + 'static {
    /// Returns the response to a request.
    fn answer(&self, request: &Request) -> Response;
}

impl<F: Fn(&Request) -> Response + Send + Sync + 'static> Handler for F {
    fn answer(&self, request: &Request) -> Response {
        self(request)
    }
}

/// Limits for the clients of one listener. The number of connections is limited by the [`Budget`](super::Budget) of all
/// listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time for the head of a request, and idle time between two requests.
    pub head: Duration,
    /// Size of the head of a request in bytes.
    pub head_bytes: usize,
    /// Time after which a connection accepts no further request.
    pub lifetime: Duration,
    /// Time to finish the last request after `lifetime`.
    pub grace: Duration,
    /// Pause after an accept error such as too many open files.
    pub accept_pause: Duration,
}

impl Default for Limits {
    /// Limits for load balancers that keep connections open between checks, which come every ten seconds or so.
    fn default() -> Self {
        Self {
            head: Duration::from_secs(30),
            head_bytes: 16 * 1024,
            lifetime: Duration::from_secs(300),
            grace: Duration::from_secs(10),
            accept_pause: Duration::from_millis(100),
        }
    }
}

/// Accepts connections. Tests replace [`TcpListener`] to produce accept errors.
pub(super) trait Accept: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Polls for the next connection and the address of its peer.
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(Self::Stream, IpAddr)>>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(TcpStream, IpAddr)>> {
        Self::poll_accept(self, context).map_ok(|(stream, peer)| (stream, peer.ip()))
    }
}

/// Serves until the future is dropped, which closes the listener and all its connections.
pub(super) async fn serve(
    mut listener: impl Accept,
    handler: Arc<dyn Handler>,
    limits: Limits,
    sockets: Arc<OpenSockets>,
) -> Infallible {
    let mut tasks = JoinSet::new();
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = poll_fn(|context| listener.poll_accept(context)) => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                failing = false;
                let permit = sockets.open_connection(peer);
                let number = permit.number();
                let task = tasks.spawn(connection(stream, Arc::clone(&handler), limits, permit));
                sockets.started(number, task);
            }
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                // Usually too many open files.
                if !failing {
                    warn!(%error, "cannot accept connections");
                }
                failing = true;
                sockets.evict_one();
                sleep(limits.accept_pause).await;
            }
        }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    handler: Arc<dyn Handler>,
    limits: Limits,
    permit: ConnectionPermit,
) {
    let service = service_fn(|request: hyper::Request<_>| {
        let (handler, permit) = (&handler, &permit);
        async move {
            let (mut head, body): (Request, Incoming) = request.into_parts();
            // While the client sends, its connection is idle: it may be closed in favour of others.
            if head.method == Method::PUT {
                head.extensions.insert(PutBody(start_of(body).await));
            }
            permit.begin_request();
            let response = handler.answer(&head);
            permit.end_request();
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(limits.head_bytes)
        // Go's spelling, for clients that compare names case-sensitively.
        .title_case_headers(true)
        // Clients may shut down their sending side after the request.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = match timeout(limits.lifetime, connection.as_mut()).await {
        Ok(result) => result,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            timeout(limits.grace, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        debug!(%error, "HTTP connection failed");
    }
}

/// The longest body of a PUT request that is read: a number.
const MAX_BODY: usize = 64;

/// Reads the start of a body: somewhat more than `MAX_BODY` bytes of one that is too long.
async fn start_of(mut body: Incoming) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() <= MAX_BODY
        && let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
    {
        bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    bytes
}

/// Reports whether a connection failed before it was accepted; the listener itself works.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests;
