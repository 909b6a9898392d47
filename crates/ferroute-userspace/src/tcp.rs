//! TCP listeners: each connection is accepted first, then an endpoint is found for it.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, Protocol, error_chain};
use socket2::{SockRef, TcpKeepalive, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use crate::{
    listener::{Listener, bind},
    own_sockets::{OwnSocket, Path},
    relay::relay,
};

/// Opens a listening socket on a port.
pub(crate) fn listen(family: IpFamily, port: u16) -> io::Result<TcpListener> {
    let socket = bind(family, Type::STREAM, port)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections until the task is aborted. Established connections continue afterwards.
pub(crate) async fn serve(listener: Arc<Listener>, socket: TcpListener) {
    loop {
        let (client, address) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                tracing::warn!("cannot accept connections; retrying: {}", error_chain(&error));
                sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        // One accepted connection waits here, others in the kernel's queue. A permit acquired earlier would not be
        // available to other listeners while no client connects to this one.
        let Some(permit) = listener.connection_permit(address.ip()).await else {
            // A socket that is closed already needs no reset.
            let _ = client.set_zero_linger();
            continue;
        };
        let listener = listener.clone();
        tokio::spawn(async move {
            serve_connection(&listener, client, address).await;
            drop(permit);
        });
    }
}

/// Reports whether an error of `accept` was caused by a client that has gone, and not by this host.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

async fn serve_connection(listener: &Listener, client: TcpStream, address: SocketAddr) {
    let counters = &listener.counters;
    let Some((endpoint, _own_socket)) = connect(listener, address).await else {
        counters.refused.fetch_add(1, Relaxed);
        // The client must not take the end for an empty response. A socket that is closed already needs no reset.
        let _ = client.set_zero_linger();
        return;
    };
    counters.connections.fetch_add(1, Relaxed);
    for stream in [&client, &endpoint] {
        // Without these options the connection works, but more slowly, or remains open after its peer has gone.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(stream).set_tcp_keepalive(&KEEPALIVE);
    }
    let shared = &listener.shared;
    if let Err(error) = relay(&client, &endpoint, &shared.pipes, &counters.bytes, shared.limits.tcp_timeout).await {
        tracing::trace!(%address, "connection ended: {}", error_chain(&error));
    }
    counters.ended.fetch_add(1, Relaxed);
}

/// Connects to an endpoint for a client; `None` if none can be reached.
///
/// All endpoints are tried in several rounds, each with a longer timeout. The endpoints may change in the meantime.
async fn connect(listener: &Listener, client: SocketAddr) -> Option<(TcpStream, OwnSocket)> {
    let start = Instant::now();
    let path = listener.shared.own_sockets.path(Protocol::Tcp, client);
    let mut last = None;
    'attempts: for attempt in ATTEMPT_TIMEOUTS {
        for endpoint in listener.candidates(client.ip(), &path) {
            if let Ok(Ok(connection)) = timeout(attempt, connect_to(listener, endpoint, &path)).await {
                listener.balancer().connected(client.ip(), endpoint, Instant::now());
                return Some(connection);
            }
            listener.counters.failed_attempts.fetch_add(1, Relaxed);
            listener.balancer().failed(endpoint, Instant::now());
            last = Some(endpoint);
            if start.elapsed() > CONNECT_DEADLINE {
                break 'attempts;
            }
        }
    }
    if let Some(endpoint) = last {
        listener.balancer().given_up(endpoint);
    }
    None
}

async fn connect_to(listener: &Listener, endpoint: SocketAddr, path: &Path) -> io::Result<(TcpStream, OwnSocket)> {
    let (socket, own_socket) = listener.shared.own_sockets.connect(Protocol::Tcp, endpoint, path)?;
    let stream = TcpStream::from_std(socket.into())?;
    // The socket becomes writable when it is connected or has failed.
    stream.writable().await?;
    match stream.take_error()? {
        None => Ok((stream, own_socket)),
        Some(error) => Err(error),
    }
}

/// Timeouts of the rounds, as kube-proxy's userspace mode had them.
const ATTEMPT_TIMEOUTS: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

/// Time after which the search for an endpoint ends. Otherwise, many endpoints that do not respond would keep a client
/// waiting for minutes.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);

/// Connections that wait to be accepted; the kernel limits the number to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Delay after a failed accept, the most likely cause of which is that no descriptor is left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Detects peers that have disappeared within about two minutes, so that they do not hold a connection forever.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15)).with_retries(4);
