use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferroute_netlink::{Error, Message, Protocol, Request, Socket};

/// It could not be told which ports are listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot list the sockets that listen for {protocol:?}")]
pub struct ListenerError {
    /// The protocol that was asked about.
    protocol: Transport,
    /// The kernel's answer.
    #[source]
    source: Error,
}

/// A protocol whose sockets have ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP: sockets in state LISTEN.
    Tcp,
    /// UDP: sockets that are bound and not connected.
    Udp,
    /// SCTP: sockets in state LISTEN; none where the kernel has no SCTP.
    Sctp,
}

/// A socket that takes what comes to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    /// Where it listens; the unspecified address for all addresses.
    pub address: SocketAddr,
    /// The user whose process has made it.
    pub user: u32,
    /// Its inode, by which `/proc/PID/fd` names it.
    pub inode: u32,
}

/// Every socket of the calling thread's network namespace that takes what comes to a port, sorted. Only those are gone
/// through by the kernel, so that a host with many connections costs no more.
///
/// # Errors
///
/// The kernel does not tell: it may be built without `sock_diag`.
pub fn listeners(transport: Transport) -> Result<Vec<Listener>, ListenerError> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        match list(transport, family) {
            Ok(listed) => found.extend(listed),
            // Most kernels load it with the first socket.
            Err(error) if transport == Transport::Sctp && error.is_not_found() => {}
            Err(source) => return Err(ListenerError { protocol: transport, source }),
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn list(transport: Transport, family: libc::c_int) -> Result<Vec<Listener>, Error> {
    let (number, state) = match transport {
        Transport::Tcp => (libc::IPPROTO_TCP, LISTEN),
        Transport::Udp => (libc::IPPROTO_UDP, CLOSE),
        Transport::Sctp => (libc::IPPROTO_SCTP, LISTEN),
    };
    let mut header = [0; REQUEST];
    header[0] = family.to_le_bytes()[0];
    header[1] = number.to_le_bytes()[0];
    header[4..8].copy_from_slice(&(1_u32 << state).to_ne_bytes());
    let mut request = Request::new(BY_FAMILY, 0, &header);
    Socket::open(Protocol::SocketDiagnosis)?.collect(&mut request, parse)
}

fn parse(message: Message<'_>) -> Result<Option<Listener>, Error> {
    let (header, _) = message.split_header::<ANSWER>()?;
    let port = u16::from_be_bytes([header[4], header[5]]);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&header[8..24]);
    let address = match libc::c_int::from(header[0]) {
        libc::AF_INET => IpAddr::from(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        libc::AF_INET6 => IpAddr::from(Ipv6Addr::from(bytes)),
        _ => return Ok(None),
    };
    let number = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (user, inode) = (number(64), number(68));
    Ok((port != 0).then(|| Listener { address: SocketAddr::new(address, port), user, inode }))
}

/// `SOCK_DIAG_BY_FAMILY` of `include/uapi/linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;

/// Bytes of `struct inet_diag_req_v2`: family, protocol, two more, the wanted states as bits, and a socket that stays
/// empty (`include/uapi/linux/inet_diag.h`).
const REQUEST: usize = 56;

/// Bytes of `struct inet_diag_msg`: family at 0, source port at 4, source address at 8, user at 64, inode at 68.
const ANSWER: usize = 72;

// States of `include/net/tcp_states.h`.
const CLOSE: u32 = 7;
const LISTEN: u32 = 10;
