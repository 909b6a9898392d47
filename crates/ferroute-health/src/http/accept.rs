use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};

/// Where connections come from; a seam for tests, which have errors to offer that a real listener seldom has.
pub(crate) trait Accept: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection.
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Self::Stream>>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        Self::poll_accept(self, context).map_ok(|(stream, _peer)| stream)
    }
}

/// Waits for the next connection. Dropping it loses none.
pub(super) async fn next<A: Accept>(listener: &mut A) -> io::Result<A::Stream> {
    poll_fn(|context| listener.poll_accept(context)).await
}
