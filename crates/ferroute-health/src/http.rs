//! A small HTTP/1.1 server: short answers from memory, to clients that may be slow, broken or hostile.

mod accept;

use std::{collections::VecDeque, convert::Infallible, io, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

pub(crate) use self::accept::Accept;
use crate::{Request, Response};

/// Answers requests. It is called on the server's one thread, so it has to answer from what it has at hand.
pub trait Handler: Send + Sync + 'static {
    /// The answer to a request.
    fn answer(&self, request: &Request) -> Response;
}

impl<F: Fn(&Request) -> Response + Send + Sync + 'static> Handler for F {
    fn answer(&self, request: &Request) -> Response {
        self(request)
    }
}

/// How much clients may ask of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. When one more comes, the oldest is closed: whoever holds connections open cannot lock out
    /// the others.
    pub connections: usize,
    /// Time that the head of a request may take, and that a connection may be idle between two.
    pub head: Duration,
    /// Bytes that the head of a request may have.
    pub head_bytes: usize,
    /// Time after which a connection takes no further request.
    pub lifetime: Duration,
    /// Time that it then has to finish.
    pub grace: Duration,
    /// Pause after an error in accepting, such as too many open files.
    pub accept_pause: Duration,
}

impl Default for Limits {
    /// Enough for load balancers that keep their connections between two checks, every ten seconds or so.
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

/// Serves until it is dropped, which closes the listener and all its connections.
pub(crate) async fn serve(mut listener: impl Accept, handler: Arc<dyn Handler>, limits: Limits) -> Infallible {
    let mut tasks = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = accept::next(&mut listener) => accepted,
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
            Err(error) if is_clients_fault(&error) => {}
            Err(error) => {
                // Often there are too many open files, which other connections will soon close.
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
        // As Go writes them, for readers that compare letter by letter.
        .title_case_headers(true)
        // A client may close its own direction as soon as it has asked.
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
        debug!(%error, "connection ended early");
    }
}

/// The connection was lost before it was accepted; the listener is well.
fn is_clients_fault(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests;
