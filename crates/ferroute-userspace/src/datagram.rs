//! Datagrams with the addresses of both sides.

use std::{
    cell::RefCell,
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::AsRawFd,
};

use ferroute_core::IpFamily;
use nix::{
    libc::{in_pktinfo, in6_pktinfo},
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg, sendmsg,
        setsockopt, sockopt,
    },
};
use socket2::Type;
use tokio::net::UdpSocket;

use crate::listener::bind;

/// A client, and the address of this host that it sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    pub(crate) client: SocketAddr,
    pub(crate) local: IpAddr,
}

/// Opens a socket on a port of all addresses. Datagrams are received with the address that they were sent to, because the
/// response must have it as its source.
pub(crate) fn listen(family: IpFamily, port: u16) -> io::Result<UdpSocket> {
    let socket = bind(family, Type::DGRAM, port)?;
    match family {
        IpFamily::V4 => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?,
        IpFamily::V6 => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?,
    }
    UdpSocket::from_std(socket.into())
}

/// Receives a datagram. Returns its length, its sender and the local address that it was sent to.
pub(crate) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, FlowKey)> {
    let mut control = nix::cmsg_space!(in_pktinfo, in6_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
    let client = message.address.as_ref().and_then(socket_addr);
    let local = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4PacketInfo(info) => Some(IpAddr::V4(u32::from_be(info.ipi_spec_dst.s_addr).into())),
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::V6(info.ipi6_addr.s6_addr.into())),
        _ => None,
    });
    match client.zip(local) {
        Some((client, local)) => Ok((message.bytes, FlowKey { client, local })),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "a datagram without addresses")),
    }
}

fn socket_addr(address: &SockaddrStorage) -> Option<SocketAddr> {
    let ipv4 = address.as_sockaddr_in().map(|address| SocketAddr::V4(SocketAddrV4::new(address.ip(), address.port())));
    ipv4.or_else(|| {
        let address = address.as_sockaddr_in6()?;
        Some(SocketAddrV6::new(address.ip(), address.port(), address.flowinfo(), address.scope_id()).into())
    })
}

/// Sends a datagram to a client from the address that the client sent to.
pub(crate) fn send_from(socket: &UdpSocket, datagram: &[u8], key: FlowKey) -> io::Result<()> {
    let (fd, parts, flags) = (socket.as_raw_fd(), [IoSlice::new(datagram)], MsgFlags::MSG_DONTWAIT);
    match (key.client, key.local) {
        (SocketAddr::V4(client), IpAddr::V4(local)) => {
            let spec_dst = nix::libc::in_addr { s_addr: u32::from(local).to_be() };
            let info =
                in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: spec_dst, ipi_addr: nix::libc::in_addr { s_addr: 0 } };
            let control = [ControlMessage::Ipv4PacketInfo(&info)];
            sendmsg(fd, &parts, &control, flags, Some(&SockaddrIn::from(client)))?;
        }
        (SocketAddr::V6(client), IpAddr::V6(local)) => {
            let address = nix::libc::in6_addr { s6_addr: local.octets() };
            // A link-local address is valid on the client's link only.
            let info = in6_pktinfo { ipi6_addr: address, ipi6_ifindex: client.scope_id() };
            let control = [ControlMessage::Ipv6PacketInfo(&info)];
            sendmsg(fd, &parts, &control, flags, Some(&SockaddrIn6::from(client)))?;
        }
        // Listeners have one family.
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(())
}

/// Calls a function with a buffer for a datagram of any size. All tasks of a thread share one buffer.
pub(crate) fn with_buffer<T>(use_buffer: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_DATAGRAM].into_boxed_slice());
    }
    BUFFER.with_borrow_mut(|buffer| use_buffer(buffer))
}

/// The length of the longest datagram, from the 16-bit length field of UDP.
const MAX_DATAGRAM: usize = 65_535;
