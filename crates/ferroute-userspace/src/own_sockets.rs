//! Sockets of this process that are connected to endpoints.
//!
//! An endpoint may be the address of another Service, or of a Service that leads back. A connection from such a socket
//! must not pass the same endpoint again: one connection of a client would use up all connections of its Service.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ferroute_core::Protocol;
use nix::libc::EINPROGRESS;
use socket2::{Domain, Socket, Type};

/// Sockets that are connected to endpoints, by their local addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnSockets {
    paths: Arc<Mutex<Paths>>,
}

type Paths = HashMap<(Protocol, SocketAddr), Path>;

/// Endpoints through which a connection or flow has come, the last one at the end. Empty if the client is outside of
/// this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path(Arc<[SocketAddr]>);

/// A socket in [`OwnSockets`], which is removed on drop.
#[derive(Debug)]
pub(crate) struct OwnSocket {
    sockets: OwnSockets,
    key: (Protocol, SocketAddr),
    path: Path,
}

impl OwnSockets {
    /// Returns the path of a listener's client.
    pub(crate) fn path(&self, protocol: Protocol, client: SocketAddr) -> Path {
        self.lock().get(&key(protocol, client)).cloned().unwrap_or_default()
    }

    /// Opens a non-blocking socket from and to an endpoint only, for a client with this path. A connection may not be established
    /// yet.
    ///
    /// # Errors
    /// If the socket cannot be opened or connected.
    pub(crate) fn connect(
        &self,
        protocol: Protocol,
        endpoint: SocketAddr,
        path: &Path,
    ) -> io::Result<(Socket, OwnSocket)> {
        let kind = if protocol == Protocol::Udp { Type::DGRAM } else { Type::STREAM };
        let socket = Socket::new(Domain::for_address(endpoint), kind.nonblocking().cloexec(), None)?;
        // Locked, because a listener may accept the connection before this function has returned.
        let mut paths = self.lock();
        match socket.connect(&endpoint.into()) {
            Err(error) if error.raw_os_error() != Some(EINPROGRESS) => return Err(error),
            _ => {}
        }
        let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        let key = key(protocol, local);
        let path = Path(path.0.iter().copied().chain([endpoint]).collect());
        paths.insert(key, path.clone());
        Ok((socket, OwnSocket { sockets: self.clone(), key, path }))
    }

    fn lock(&self) -> MutexGuard<'_, Paths> {
        // A map is valid after each of its operations.
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Path {
    /// Reports whether a connection or flow with this path may be sent to an endpoint.
    pub(crate) fn may_continue(&self, endpoint: SocketAddr) -> bool {
        self.0.len() < MAX_LENGTH && !self.0.contains(&endpoint)
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        let mut paths = self.sockets.lock();
        // The socket may be closed already, and another socket may have its address.
        if paths.get(&self.key).is_some_and(|path| Arc::ptr_eq(&path.0, &self.path.0)) {
            paths.remove(&self.key);
        }
    }
}

/// Returns the key of a socket, without the flow label and the scope of an IPv6 address, which its peer does not see.
fn key(protocol: Protocol, address: SocketAddr) -> (Protocol, SocketAddr) {
    (protocol, SocketAddr::new(address.ip(), address.port()))
}

/// Maximum number of Services in a row that relay one connection. More than one is uncommon, and each needs another
/// connection.
const MAX_LENGTH: usize = 8;
