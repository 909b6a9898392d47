//! A small HTTP/1.1 server: short responses from memory, for clients that may be slow, broken or hostile.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use crate::http::{Request, Response};

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

/// Limits for the clients of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Simultaneous connections. A further one closes the oldest, so that a client that holds connections open cannot lock
    /// out other clients.
    pub connections: usize,
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
            connections: 128,
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

    /// Polls for the next connection.
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Self::Stream>>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        Self::poll_accept(self, context).map_ok(|(stream, _peer)| stream)
    }
}

/// Serves until the future is dropped, which closes the listener and all its connections.
pub(super) async fn serve(mut listener: impl Accept, handler: Arc<dyn Handler>, limits: Limits) -> Infallible {
    let mut tasks = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = poll_fn(|context| listener.poll_accept(context)) => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok(stream) => {
                failing = false;
                oldest_first.retain(|task| !task.is_finished());
                while oldest_first.len() >= limits.connections.max(1)
                    && let Some(oldest) = oldest_first.pop_front()
                {
                    oldest.abort();
                }
                oldest_first.push_back(tasks.spawn(connection(stream, Arc::clone(&handler), limits)));
            }
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                // Usually too many open files; other connections will soon be closed.
                if !failing {
                    warn!(%error, "cannot accept connections");
                }
                failing = true;
                sleep(limits.accept_pause).await;
            }
        }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    handler: Arc<dyn Handler>,
    limits: Limits,
) {
    let service = service_fn(move |request: hyper::Request<_>| {
        let (head, _body): (Request, hyper::body::Incoming) = request.into_parts();
        let response = handler.answer(&head);
        async move { Ok::<_, Infallible>(response) }
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

/// Reports whether a connection failed before it was accepted; the listener itself works.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests;
