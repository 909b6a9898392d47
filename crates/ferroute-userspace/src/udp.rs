//! UDP listeners: each client has a flow to one endpoint, until no datagram has passed for a while.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use ferroute_core::{Protocol, error_chain};
use socket2::SockRef;
use tokio::{io::Interest, net::UdpSocket};

use crate::{
    datagram::{FlowKey, receive, send_from, with_buffer},
    exchange::Exchange,
    listener::Listener,
    own_sockets::{OwnSocket, Path},
    relay_ports::RelayPort,
    shares::Permit,
};

/// All flows of a listener.
#[derive(Debug)]
pub(crate) struct Flows {
    listener: Arc<Listener>,
    socket: UdpSocket,
    tables: Mutex<Tables>,
    _port: RelayPort,
}

#[derive(Debug, Default)]
struct Tables {
    /// The flow that a client's next datagram belongs to.
    current: HashMap<FlowKey, Arc<Flow>>,
    /// Flows whose endpoint was removed or refused a datagram. They still return outstanding responses.
    replaced: HashMap<FlowKey, Vec<Arc<Flow>>>,
}

/// A flow to an endpoint.
#[derive(Debug)]
struct Flow {
    endpoint: SocketAddr,
    socket: UdpSocket,
    exchange: Mutex<Exchange>,
    _own_socket: OwnSocket,
    _permit: Permit,
}

impl Flows {
    /// Returns the empty set of flows of a listening socket.
    pub(crate) fn new(listener: Arc<Listener>, socket: UdpSocket, port: RelayPort) -> Arc<Self> {
        Arc::new(Self { listener, socket, tables: Mutex::default(), _port: port })
    }

    /// Forwards datagrams until the task is aborted. Existing flows end when they are idle.
    pub(crate) async fn serve(self: Arc<Self>) {
        loop {
            if let Err(error) = self.socket.readable().await {
                tracing::warn!("cannot receive datagrams: {}", error_chain(&error));
                return;
            }
            loop {
                let received: io::Result<()> = with_buffer(|buffer| {
                    let (length, key) = self.socket.try_io(Interest::READABLE, || receive(&self.socket, buffer))?;
                    self.forward(key, &buffer[..length]);
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

    /// Reports whether a client may still receive a response through a flow, or currently uses one if
    /// `is_busy_allowed`.
    pub(crate) fn is_in_use(&self, key: &FlowKey, now: Instant, is_busy_allowed: bool) -> bool {
        let timeout = self.timeout();
        let is_in_use = |flow: &Arc<Flow>| {
            let exchange = flow.exchange();
            exchange.awaits_response(now, timeout) || is_busy_allowed && exchange.idle(now) < BUSY
        };
        let tables = self.lock();
        tables.current.get(key).is_some_and(is_in_use)
            || tables.replaced.get(key).is_some_and(|flows| flows.iter().any(is_in_use))
    }

    /// Forwards a client's datagram to its endpoint, or to another one if that endpoint was removed.
    fn forward(self: &Arc<Self>, key: FlowKey, datagram: &[u8]) {
        let flow = self.lock().current.get(&key).cloned();
        if let Some(flow) = flow {
            if self.listener.balancer().contains(flow.endpoint) && self.send(&flow, datagram) {
                return;
            }
            self.lock().replace(&key, &flow);
        }
        let path = self.listener.shared.own_sockets.path(Protocol::Udp, key.client);
        for endpoint in self.listener.candidates(key.client.ip(), &path) {
            let Some(flow) = self.open(key, endpoint, &path) else { continue };
            if self.send(&flow, datagram) {
                return;
            }
            self.lock().replace(&key, &flow);
        }
        self.listener.counters.refused.fetch_add(1, Relaxed);
    }

    /// Opens a flow; `None` if the endpoint is unreachable or the limit is reached.
    fn open(self: &Arc<Self>, key: FlowKey, endpoint: SocketAddr, path: &Path) -> Option<Arc<Flow>> {
        let permit = self.listener.flow_permit(key.client.ip())?;
        let opened = self.listener.shared.own_sockets.connect(Protocol::Udp, endpoint, path);
        let opened = opened.and_then(|(socket, own)| Ok((UdpSocket::from_std(socket.into())?, own)));
        let (socket, own_socket) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::trace!(%endpoint, "cannot open a flow: {}", error_chain(&error));
                self.failed(endpoint);
                return None;
            }
        };
        let exchange = Mutex::new(Exchange::new(Instant::now()));
        let flow = Arc::new(Flow { endpoint, socket, exchange, _own_socket: own_socket, _permit: permit });
        self.lock().current.insert(key, flow.clone());
        let counters = &self.listener.counters;
        counters.connections.fetch_add(1, Relaxed);
        self.listener.balancer().connected(key.client.ip(), endpoint, Instant::now());
        let (flows, task_flow) = (self.clone(), flow.clone());
        tokio::spawn(async move {
            flows.return_responses(key, &task_flow).await;
            flows.lock().remove(&key, &task_flow);
            flows.listener.counters.ended.fetch_add(1, Relaxed);
        });
        Some(flow)
    }

    /// Sends a datagram to the endpoint of a flow. Returns false if the endpoint refused an earlier one, so that another
    /// endpoint should get it.
    fn send(&self, flow: &Flow, datagram: &[u8]) -> bool {
        // Before the datagram is sent, because its response may arrive at once.
        flow.exchange().sent(Instant::now());
        // tokio's `try_send` fails until the runtime has polled a new socket for the first time.
        match SockRef::from(&flow.socket).send(datagram) {
            Ok(length) => {
                self.listener.counters.bytes.to_endpoint.fetch_add(length as u64, Relaxed);
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

    /// Passes the endpoint's datagrams on to the client until the flow is idle or refused. A flow that was replaced
    /// ends when no response is outstanding.
    async fn return_responses(&self, key: FlowKey, flow: &Arc<Flow>) {
        let timeout = self.timeout();
        loop {
            let now = Instant::now();
            let exchange = *flow.exchange();
            let rest = timeout.saturating_sub(exchange.idle(now));
            let is_over = || !exchange.awaits_response(now, timeout) && !self.lock().is_current(&key, flow);
            if rest.is_zero() || is_over() {
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
        // Limited, so that one flow does not delay others.
        for _ in 0..BATCH {
            let result: io::Result<()> = with_buffer(|buffer| {
                let length = flow.socket.try_recv(buffer)?;
                self.listener.counters.bytes.to_client.fetch_add(length as u64, Relaxed);
                if let Err(error) = send_from(&self.socket, &buffer[..length], key) {
                    tracing::trace!(client = %key.client, "cannot send a datagram: {}", error_chain(&error));
                }
                // Recorded after the datagram was sent, because its conntrack entry may be deleted once it is no longer
                // needed.
                flow.exchange().answered(Instant::now(), self.timeout());
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

    fn timeout(&self) -> Duration {
        self.listener.shared.limits.udp_timeout
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // Maps are valid after each of their operations.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flow {
    fn exchange(&self) -> MutexGuard<'_, Exchange> {
        // Each of its fields is valid at any time.
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn is_current(&self, key: &FlowKey, flow: &Arc<Flow>) -> bool {
        self.current.get(key).is_some_and(|current| Arc::ptr_eq(current, flow))
    }

    /// Retires the current flow in favour of a new one, unless it has ended already.
    fn replace(&mut self, key: &FlowKey, flow: &Arc<Flow>) {
        if self.is_current(key, flow)
            && let Some(flow) = self.current.remove(key)
        {
            self.replaced.entry(*key).or_default().push(flow);
        }
    }

    /// Removes a flow that has ended.
    fn remove(&mut self, key: &FlowKey, flow: &Arc<Flow>) {
        if self.is_current(key, flow) {
            self.current.remove(key);
        } else if let Some(flows) = self.replaced.get_mut(key) {
            flows.retain(|other| !Arc::ptr_eq(other, flow));
            if flows.is_empty() {
                self.replaced.remove(key);
            }
        }
    }
}

/// Time after the last datagram in which a flow is considered in the middle of an exchange: the next request follows a
/// response.
const BUSY: Duration = Duration::from_millis(100);

/// Maximum number of datagrams that a flow returns before other tasks run.
const BATCH: usize = 64;
