//! UDP listeners: each client has a flow to one endpoint, until no datagram has passed for a while.

use std::{
    cell::RefCell,
    collections::HashMap,
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use ferroute_core::{IpFamily, error_chain};
use nix::{
    libc::{in_pktinfo, in6_pktinfo},
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg, sendmsg,
        setsockopt, sockopt,
    },
};
use socket2::{Domain, SockRef, Socket, Type};
use tokio::{io::Interest, net::UdpSocket};

use crate::listener::{Listener, Permit, bind};

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

/// Forwards datagrams until the task is aborted. Flows end by themselves afterwards.
pub(crate) async fn serve(listener: Arc<Listener>, socket: UdpSocket) {
    let flows = Arc::new(Flows { listener, socket, flows: Mutex::default(), started: Instant::now() });
    loop {
        if let Err(error) = flows.socket.readable().await {
            tracing::warn!("cannot receive datagrams: {}", error_chain(&error));
            return;
        }
        loop {
            let received: io::Result<()> = with_buffer(|buffer| {
                let (length, key) = flows.socket.try_io(Interest::READABLE, || receive(&flows.socket, buffer))?;
                flows.forward(key, &buffer[..length]);
                Ok(())
            });
            match received {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An error of an earlier datagram, reported by ICMP.
                Err(error) => tracing::trace!("cannot receive a datagram: {}", error_chain(&error)),
            }
            tokio::task::consume_budget().await;
        }
    }
}

/// A client, and the address of this host that it sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowKey {
    client: SocketAddr,
    local: IpAddr,
}

/// All flows of a listener.
#[derive(Debug)]
struct Flows {
    listener: Arc<Listener>,
    socket: UdpSocket,
    flows: Mutex<HashMap<FlowKey, Arc<Flow>>>,
    started: Instant,
}

/// A flow to an endpoint.
#[derive(Debug)]
struct Flow {
    endpoint: SocketAddr,
    socket: UdpSocket,
    /// When a datagram passed last, in milliseconds since [`Flows::started`].
    last_datagram: AtomicU64,
    _permit: Permit,
}

impl Flows {
    /// Forwards a client's datagram to its endpoint, or to another one if that is gone.
    fn forward(self: &Arc<Self>, key: FlowKey, datagram: &[u8]) {
        let flow = self.lock().get(&key).cloned();
        if let Some(flow) = flow {
            if self.listener.balancer().contains(flow.endpoint) && self.send(&flow, datagram) {
                return;
            }
            self.remove(&key, &flow);
        }
        let candidates = self.listener.balancer().candidates(key.client.ip(), Instant::now());
        for endpoint in candidates {
            let Some(flow) = self.open(key, endpoint) else { continue };
            if self.send(&flow, datagram) {
                return;
            }
            self.remove(&key, &flow);
        }
        self.listener.counters.refused.fetch_add(1, Relaxed);
    }

    /// Opens a flow; `None` if the endpoint is unreachable or the limit is reached.
    fn open(self: &Arc<Self>, key: FlowKey, endpoint: SocketAddr) -> Option<Arc<Flow>> {
        let permit = self.listener.flow_permit()?;
        let socket = match connect(endpoint) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::trace!(%endpoint, "cannot open a flow: {}", error_chain(&error));
                self.failed(endpoint);
                return None;
            }
        };
        let flow = Arc::new(Flow { endpoint, socket, last_datagram: AtomicU64::new(self.now()), _permit: permit });
        self.lock().insert(key, flow.clone());
        let counters = &self.listener.counters;
        counters.connections.fetch_add(1, Relaxed);
        self.listener.balancer().connected(key.client.ip(), endpoint, Instant::now());
        let (flows, task_flow) = (self.clone(), flow.clone());
        tokio::spawn(async move {
            flows.return_responses(key, &task_flow).await;
            flows.remove(&key, &task_flow);
            flows.listener.counters.ended.fetch_add(1, Relaxed);
        });
        Some(flow)
    }

    /// Sends a datagram to the endpoint of a flow. Returns false if the endpoint refused an earlier one, so that another
    /// endpoint should get it.
    fn send(&self, flow: &Flow, datagram: &[u8]) -> bool {
        flow.last_datagram.store(self.now(), Relaxed);
        // Not by tokio's `try_send`, which fails until the runtime has polled a new socket for the first time.
        match SockRef::from(&flow.socket).send(datagram) {
            Ok(length) => {
                self.listener.counters.bytes_to_endpoints.fetch_add(length as u64, Relaxed);
                true
            }
            // The queue is full: datagrams may be lost.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(_) => {
                self.failed(flow.endpoint);
                false
            }
        }
    }

    /// Passes the endpoint's datagrams on to the client, until the flow is idle, replaced or refused.
    async fn return_responses(&self, key: FlowKey, flow: &Arc<Flow>) {
        let timeout = self.listener.shared.limits.udp_timeout;
        loop {
            let idle = self.now().saturating_sub(flow.last_datagram.load(Relaxed));
            let rest = timeout.saturating_sub(std::time::Duration::from_millis(idle));
            if rest.is_zero() || !self.is_current(&key, flow) {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                ready = flow.socket.ready(Interest::READABLE | Interest::ERROR) => match ready {
                    // The endpoint's host reported by ICMP that it refused a datagram. Such a socket is not readable.
                    Ok(ready) if ready.is_error() => return self.failed(flow.endpoint),
                    Ok(_) if self.return_available(key, flow) => {}
                    _ => return,
                },
            }
        }
    }

    /// Passes on the datagrams that have arrived. Returns false if the endpoint refused a datagram.
    fn return_available(&self, key: FlowKey, flow: &Flow) -> bool {
        // A limit, so that one flow does not keep others from their turn.
        for _ in 0..BATCH {
            let result: io::Result<()> = with_buffer(|buffer| {
                let length = flow.socket.try_recv(buffer)?;
                flow.last_datagram.store(self.now(), Relaxed);
                self.listener.counters.bytes_to_clients.fetch_add(length as u64, Relaxed);
                if let Err(error) = send_from(&self.socket, &buffer[..length], key) {
                    tracing::trace!(client = %key.client, "cannot send a datagram: {}", error_chain(&error));
                }
                Ok(())
            });
            match result {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => {
                    self.failed(flow.endpoint);
                    return false;
                }
            }
        }
        true
    }

    fn failed(&self, endpoint: SocketAddr) {
        self.listener.counters.failed_attempts.fetch_add(1, Relaxed);
        self.listener.balancer().failed(endpoint, Instant::now());
    }

    fn is_current(&self, key: &FlowKey, flow: &Arc<Flow>) -> bool {
        self.lock().get(key).is_some_and(|current| Arc::ptr_eq(current, flow))
    }

    /// Removes a flow, unless another one has replaced it.
    fn remove(&self, key: &FlowKey, flow: &Arc<Flow>) {
        let mut flows = self.lock();
        if flows.get(key).is_some_and(|current| Arc::ptr_eq(current, flow)) {
            flows.remove(key);
        }
    }

    fn now(&self) -> u64 {
        // Overflows after 500 million years.
        self.started.elapsed().as_millis() as u64
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FlowKey, Arc<Flow>>> {
        // A map is valid after each of its operations.
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a non-blocking socket from and to an endpoint only.
fn connect(endpoint: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(endpoint), Type::DGRAM.nonblocking().cloexec(), None)?;
    socket.connect(&endpoint.into())?;
    UdpSocket::from_std(socket.into())
}

/// Receives a datagram. Returns its length, its sender and the local address that it was sent to.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, FlowKey)> {
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
fn send_from(socket: &UdpSocket, datagram: &[u8], key: FlowKey) -> io::Result<()> {
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

/// Calls a function with a buffer for a datagram of any size. All tasks of a thread share one.
fn with_buffer<T>(use_buffer: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_DATAGRAM].into_boxed_slice());
    }
    BUFFER.with_borrow_mut(|buffer| use_buffer(buffer))
}

/// The length of the longest datagram, from the 16-bit length field of UDP.
const MAX_DATAGRAM: usize = 65_535;

/// Datagrams that a flow returns before other tasks get their turn.
const BATCH: usize = 64;
