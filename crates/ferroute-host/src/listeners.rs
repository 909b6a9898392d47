use std::{
    collections::HashSet,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ferroute_core::Protocol;
use ferroute_netlink::{self as netlink, Error, Message, Request, Socket};

/// Listening sockets could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("cannot list listening {protocol} sockets")]
pub struct ListenerError {
    /// The protocol.
    protocol: Protocol,
    /// The kernel's error.
    #[source]
    source: Error,
}

/// A socket that receives packets or connections on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    /// The local address; unspecified for all addresses.
    pub address: SocketAddr,
    /// The user id of the socket's owner.
    pub user: u32,
    /// The socket's inode, as shown in `/proc/PID/fd`.
    pub inode: u32,
}

/// Returns the inodes of this process's own sockets, comparable with [`Listener::inode`].
///
/// # Errors
///
/// `/proc/self/fd` cannot be read.
pub fn own_sockets() -> io::Result<HashSet<u32>> {
    let mut inodes = HashSet::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        // The descriptor of the directory itself has been closed in the meantime, and so may others.
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        let inode = target.to_str().and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']'));
        inodes.extend(inode.and_then(|inode| inode.parse::<u32>().ok()));
    }
    Ok(inodes)
}

/// Returns the listening sockets of a protocol in the calling thread's network namespace, sorted: TCP and SCTP sockets in
/// state LISTEN, bound and unconnected UDP sockets. The kernel filters by state, so the cost does not depend on the number
/// of connections.
///
/// # Errors
///
/// The kernel refuses the request, for example because it was built without `sock_diag`. A kernel without SCTP has no
/// SCTP listeners; this is not an error.
pub fn listeners(protocol: Protocol) -> Result<Vec<Listener>, ListenerError> {
    let mut listeners = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        match list(protocol, family) {
            Ok(listed) => listeners.extend(listed),
            // Most kernels load the sctp module with the first SCTP socket.
            Err(error) if protocol == Protocol::Sctp && error.is_not_found() => {}
            Err(source) => return Err(ListenerError { protocol, source }),
        }
    }
    listeners.sort_unstable();
    Ok(listeners)
}

fn list(protocol: Protocol, family: libc::c_int) -> Result<Vec<Listener>, Error> {
    let state = match protocol {
        Protocol::Tcp | Protocol::Sctp => TCP_LISTEN,
        Protocol::Udp => TCP_CLOSE,
    };
    let mut header = [0; INET_DIAG_REQ_V2_LENGTH];
    header[0] = family.to_le_bytes()[0];
    header[1] = protocol.number();
    header[4..8].copy_from_slice(&(1_u32 << state).to_ne_bytes());
    let mut request = Request::new(SOCK_DIAG_BY_FAMILY, 0, &header);
    Socket::open(netlink::Protocol::SocketDiagnosis)?.collect(&mut request, parse)
}

pub(crate) fn parse(message: Message<'_>) -> Result<Option<Listener>, Error> {
    let (header, _) = message.split_header::<INET_DIAG_MSG_LENGTH>()?;
    let port = u16::from_be_bytes([header[4], header[5]]);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&header[8..24]);
    let address = match libc::c_int::from(header[0]) {
        libc::AF_INET => IpAddr::from(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        libc::AF_INET6 => IpAddr::from(Ipv6Addr::from(bytes)),
        _ => return Ok(None),
    };
    let u32_at = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (user, inode) = (u32_at(64), u32_at(68));
    Ok((port != 0).then(|| Listener { address: SocketAddr::new(address, port), user, inode }))
}

/// `include/uapi/linux/sock_diag.h`
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// `sizeof(struct inet_diag_req_v2)`: family at offset 0, protocol at 1, state bits at 4, then a socket id that stays zero
/// (`include/uapi/linux/inet_diag.h`).
const INET_DIAG_REQ_V2_LENGTH: usize = 56;

/// `sizeof(struct inet_diag_msg)`: family at offset 0, source port at 4, source address at 8, user at 64, inode at 68.
pub(crate) const INET_DIAG_MSG_LENGTH: usize = 72;

// include/net/tcp_states.h
const TCP_CLOSE: u32 = 7;
const TCP_LISTEN: u32 = 10;
