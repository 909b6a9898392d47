use std::{io, net::SocketAddr};

use ferroute_core::Protocol;
use socket2::{Domain, SockFilter, Socket, Type};

/// A port that cannot be held.
#[derive(Debug, thiserror::Error)]
#[error("cannot bind {protocol} port {address}")]
pub struct HoldError {
    /// The protocol.
    pub protocol: Protocol,
    /// Address and port.
    pub address: SocketAddr,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

/// A port of the host that no other program can bind, and that the kernel does not use for outgoing connections, until this
/// value is dropped.
///
/// The socket is bound, but receives no packets: connections to it are refused, and datagrams are dropped.
#[derive(Debug)]
pub struct HeldPort {
    _socket: Socket,
}

impl HeldPort {
    /// Binds a port at one address, or at all addresses of a family if it is unspecified, in the calling thread's network
    /// namespace.
    ///
    /// # Errors
    ///
    /// Another socket is bound to the port ([`HoldError::is_in_use`]), the host does not have the address, or the kernel does
    /// not support the protocol.
    pub fn bind(protocol: Protocol, address: SocketAddr) -> Result<Self, HoldError> {
        bind(protocol, address).map(|socket| Self { _socket: socket }).map_err(|source| HoldError {
            protocol,
            address,
            source,
        })
    }
}

impl HoldError {
    /// Reports whether another socket is bound to the port.
    pub fn is_in_use(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

fn bind(protocol: Protocol, address: SocketAddr) -> io::Result<Socket> {
    let kind = match protocol {
        Protocol::Tcp | Protocol::Sctp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    let number = libc::c_int::from(protocol.number());
    let socket = Socket::new(Domain::for_address(address), kind, Some(number.into()))?;
    if address.is_ipv6() {
        // The default depends on net.ipv6.bindv6only.
        socket.set_only_v6(true)?;
    }
    if protocol == Protocol::Udp {
        // A datagram that no rule forwards would stay in the socket's buffer for ever.
        socket.attach_filter(&[SockFilter::new(DROP, 0, 0, 0)])?;
    }
    // SO_REUSEADDR is not set: other sockets with this option could be bound as long as this one does not listen.
    socket.bind(&address.into())?;
    Ok(socket)
}

/// The classic BPF instruction that accepts 0 bytes: `BPF_RET | BPF_K` (`include/uapi/linux/filter.h`).
const DROP: u16 = 0x06;
