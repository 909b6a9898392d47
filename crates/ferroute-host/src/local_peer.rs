//! Sockets by which programs of one network namespace find each other.
//!
//! They have abstract names, which are scoped by the network namespace like rules, and leave no file behind. But such
//! names have no owner and no permissions: any local process can bind any unused name, with any bytes in it, let
//! connections wait, and never respond. A peer therefore has several possible names, connecting to it never waits, and
//! only processes of root and of this user are peers.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    os::{
        fd::AsRawFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials},
    unistd::geteuid,
};

/// A connection to a process of root or of this user.
#[derive(Debug)]
pub struct LocalPeer {
    /// The connection. Reads and writes block for a limited time.
    pub stream: UnixStream,
    /// The process that opened the socket; 0 if it is in another PID namespace.
    pub pid: i32,
}

/// The processes that listen on sockets with a name.
#[derive(Debug, Default)]
pub struct LocalPeers {
    /// Peers of root and of this user.
    pub trusted: Vec<LocalPeer>,
    /// Process IDs and users of other peers.
    pub others: Vec<(i32, u32)>,
}

/// Binds a socket to this name. Peers find it by [`local_peers`].
///
/// # Errors
/// If the name is not free.
pub fn listen_locally(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Binds a socket to a name that begins with this one and that other processes cannot predict. Returns it with its
/// name.
///
/// # Errors
/// If the socket cannot be bound.
pub fn listen_locally_beside(name: &str) -> io::Result<(UnixListener, String)> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let name = format!("{name}/{}", id.trim());
    Ok((listen_locally(&name)?, name))
}

/// Connects to the sockets of [`listen_locally`] and [`listen_locally_beside`] in the network namespace of the calling
/// thread. Reads and writes of the connections block for `patience` at most. Within `search`, a peer is found even if
/// this process or the peer does not get a processor for a while; sockets that accept no connection in this time are
/// ignored.
///
/// # Errors
/// If the sockets of the namespace cannot be listed.
pub fn local_peers(name: &str, search: Duration, patience: Duration) -> io::Result<LocalPeers> {
    let end = Instant::now() + search;
    let mut peers = LocalPeers::default();
    let mut waiting = socket_names(name, end)?;
    loop {
        waiting.retain(|name| {
            Instant::now() >= end
                || match open(name, patience) {
                    Ok(Ok(peer)) => {
                        peers.trusted.push(peer);
                        false
                    }
                    Ok(Err(other)) => {
                        peers.others.push(other);
                        false
                    }
                    // Too many connections are waiting. A peer accepts them at once, except under attack.
                    Err(error) => error.kind() == io::ErrorKind::WouldBlock,
                }
        });
        if waiting.is_empty() || Instant::now() >= end {
            return Ok(peers);
        }
        sleep(RETRY);
    }
}

/// Reports whether a process of this user may be a peer: sockets with abstract names have no permissions.
pub fn is_trusted_user(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// Connects to a Unix socket without waiting for it to accept. The connection does not block.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if too many connections wait.
pub fn connect_now(address: &UnixAddr) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), address)?;
    Ok(UnixStream::from(socket))
}

/// Connects to a socket. The error value has the process and user of another user's socket.
fn open(name: &[u8], patience: Duration) -> io::Result<Result<LocalPeer, (i32, u32)>> {
    let stream = connect_now(&UnixAddr::new_abstract(name)?)?;
    let peer = getsockopt(&stream, PeerCredentials)?;
    if !is_trusted_user(peer.uid()) {
        return Ok(Err((peer.pid(), peer.uid())));
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(Ok(LocalPeer { stream, pid: peer.pid() }))
}

/// Returns the names of sockets that [`listen_locally`] or [`listen_locally_beside`] may have bound, sorted.
fn socket_names(name: &str, end: Instant) -> io::Result<Vec<Vec<u8>>> {
    let mut sockets = BufReader::new(File::open("/proc/thread-self/net/unix")?);
    let (mut names, mut line) = (Vec::new(), Vec::new());
    while sockets.read_until(b'\n', &mut line)? > 0 && Instant::now() < end {
        names.extend(socket_name(&line, name).map(<[u8]>::to_vec));
        line.clear();
    }
    // Connections to a socket have its name, too.
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Returns the socket's name in a line of `/proc/net/unix`, if it is `name`, or `name/` with a UUID. Other names may
/// contain any bytes, including line breaks.
pub(crate) fn socket_name<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    // An abstract name is shown with `@` in place of its first byte. The columns before it are numbers.
    let found = &line[line.windows(2).position(|bytes| bytes == b" @")? + 2..];
    let id = match found.strip_prefix(name.as_bytes())? {
        [] => return Some(found),
        rest => rest.strip_prefix(b"/")?,
    };
    let is_id = id.len() == UUID && id.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    is_id.then_some(found)
}

/// The time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(5);
/// The length of a UUID as text.
const UUID: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_peer_may_have_are_found() {
        let line = |name: &[u8]| [b"0000000057265f4d: 00000002 00000000 00010000 0001 01    12 ", name, b"\n"].concat();
        let found = |name: &[u8]| socket_name(&line(name), "peer").map(<[u8]>::to_vec);
        let with_id = b"peer/01234567-89ab-cdef-0123-456789abcdef".to_vec();
        assert_eq!(found(b"@peer"), Some(b"peer".to_vec()));
        assert_eq!(found(&[b"@", &with_id[..]].concat()), Some(with_id));
        for other in [&b"@peer/\xfc"[..], b"@peer\xfc", b"@peers", b"@", b"", b"/run/peer", b"@@peer", b"@peer/"] {
            assert_eq!(found(other), None, "{other:?}");
        }
        for malformed in [&b""[..], b"\n", b"@peer", b" @"] {
            assert_eq!(socket_name(malformed, "peer"), None);
        }
    }
}
