//! Specification of a listener, the state that the tasks of its connections share, and its counters.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, Protocol};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use crate::{
    balancer::{Balancer, ClientBudget},
    own_sockets::{OwnSockets, Path},
    relay::{PipePool, RelayedBytes},
    relay_ports::RelayPorts,
    retired::Retired,
    shares::{ListenerId, Permit, Shares},
};

/// Specification of a listener. Traffic of different policies uses different endpoints, and therefore different
/// listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// The family of the listener's address and of all endpoints.
    pub family: IpFamily,
    /// The protocol: TCP or UDP.
    pub protocol: Protocol,
    /// Endpoints for new connections. Established connections keep their endpoints.
    pub endpoints: Vec<SocketAddr>,
    /// The timeout of session affinity, if enabled.
    pub affinity: Option<Duration>,
}

/// Limits of all listeners of a process together. A single listener gets at most half of each limit, and a single
/// client at most as many as it leaves, so that neither can use up a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections (TCP). While all are in use, new connections wait: one for each listener, others in the kernel's
    /// queue. Connections of a client that has reached its share are reset.
    pub connections: usize,
    /// Flows (UDP): clients whose last datagram is not older than [`Limits::udp_timeout`]. Datagrams of further clients
    /// are dropped.
    pub flows: usize,
    /// Time for which a flow without datagrams is kept.
    pub udp_timeout: Duration,
    /// Minimum time for which a connection without data is kept; it may be kept for twice as long.
    pub tcp_timeout: Duration,
}

impl Default for Limits {
    /// Returns 65,536 connections and flows, the idle timeout that kube-proxy's userspace mode had for UDP, 250 ms, and the default of
    /// connection tracking in Kubernetes for TCP, one day.
    fn default() -> Self {
        Self {
            connections: 65_536,
            flows: 65_536,
            udp_timeout: Duration::from_millis(250),
            tcp_timeout: Duration::from_secs(86_400),
        }
    }
}

/// Statistics of a listener since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerStats {
    /// Connections or flows that reached an endpoint.
    pub connections: u64,
    /// Connections or flows that are currently open.
    pub active: u64,
    /// Failed attempts to reach an endpoint; after each, another endpoint was tried, if there was one.
    pub failed_attempts: u64,
    /// Connections that reached no endpoint, and datagrams that were dropped.
    pub refused: u64,
    /// Connections that were reset, and datagrams that were dropped, because the client had reached its share of all
    /// connections or flows.
    #[serde(default)]
    pub limited: u64,
    /// Bytes from clients to endpoints.
    pub bytes_to_endpoints: u64,
    /// Bytes from endpoints to clients.
    pub bytes_to_clients: u64,
}

impl ListenerStats {
    /// Adds the statistics of another listener.
    pub fn add(&mut self, other: &Self) {
        let Self { connections, active, failed_attempts, refused, limited, bytes_to_endpoints, bytes_to_clients } =
            other;
        self.connections += connections;
        self.active += active;
        self.failed_attempts += failed_attempts;
        self.refused += refused;
        self.limited += limited;
        self.bytes_to_endpoints += bytes_to_endpoints;
        self.bytes_to_clients += bytes_to_clients;
    }
}

/// Listeners, planned or of a running worker.
pub trait Listeners: std::fmt::Debug {
    /// Returns the endpoints of the listener on a port; `None` if there is no listener.
    fn endpoints(&self, family: IpFamily, protocol: Protocol, port: u16) -> Option<Vec<SocketAddr>>;
}

/// The limits and resources that all listeners of a process share.
#[derive(Debug)]
pub(crate) struct ListenerResources {
    pub(crate) limits: Limits,
    pub(crate) pipes: PipePool,
    pub(crate) connections: Arc<Shares>,
    pub(crate) flows: Arc<Shares>,
    pub(crate) sticky_clients: Arc<ClientBudget>,
    pub(crate) own_sockets: OwnSockets,
    pub(crate) relay_ports: RelayPorts,
    pub(crate) retired: Retired,
}

/// State that the tasks of a listener share.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) shared: Arc<ListenerResources>,
    balancer: Mutex<Balancer>,
    pub(crate) counters: Counters,
    /// Whether a loop was found, and logged.
    has_loop: AtomicBool,
    /// Identifier of the listener for its connections or flows.
    id: ListenerId,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) failed_attempts: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) limited: AtomicU64,
    pub(crate) bytes: RelayedBytes,
}

impl ListenerResources {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            pipes: PipePool::default(),
            connections: Shares::new(limits.connections),
            flows: Shares::new(limits.flows),
            sticky_clients: Arc::default(),
            own_sockets: OwnSockets::default(),
            relay_ports: RelayPorts::default(),
            retired: Retired::default(),
        })
    }
}

impl Listener {
    pub(crate) fn new(shared: Arc<ListenerResources>, spec: &ListenerSpec) -> Arc<Self> {
        let id = match spec.protocol {
            Protocol::Udp => shared.flows.add_listener(),
            _ => shared.connections.add_listener(),
        };
        let (balancer, counters) = (Balancer::new(shared.sticky_clients.clone()).into(), Counters::default());
        let listener = Self { shared, balancer, counters, has_loop: AtomicBool::new(false), id };
        listener.balancer().update(&spec.endpoints, spec.affinity);
        Arc::new(listener)
    }

    /// Returns the balancer. It is locked for short computations only, never across an await.
    pub(crate) fn balancer(&self) -> MutexGuard<'_, Balancer> {
        // Its methods leave it valid at every point at which they could panic.
        self.balancer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all endpoints in the order in which a new connection or flow tries them, except those that lead back.
    pub(crate) fn candidates(&self, client: IpAddr, path: &Path) -> Vec<SocketAddr> {
        let endpoints = self.balancer().candidates(client, Instant::now());
        let (candidates, loops): (Vec<_>, Vec<_>) =
            endpoints.into_iter().partition(|endpoint| path.may_continue(*endpoint));
        if let Some(endpoint) = loops.first()
            && !self.has_loop.swap(true, Relaxed)
        {
            tracing::warn!(%endpoint, "an endpoint is the address of a Service that leads back to it; what returns is not sent there again");
        }
        candidates
    }

    /// Waits for a permit for a connection; `None` if the client has reached its share.
    pub(crate) async fn connection_permit(&self, client: IpAddr) -> Option<Permit> {
        let permit = self.shared.connections.acquire(self.id, client).await;
        permit.inspect_err(|_| self.count_limited(client)).ok()
    }

    /// Returns a permit for a flow; `None` if the client may not have one.
    pub(crate) fn flow_permit(&self, client: IpAddr) -> Option<Permit> {
        let permit = self.shared.flows.try_acquire(self.id, client);
        permit.inspect_err(|_| self.count_limited(client)).ok()
    }

    fn count_limited(&self, client: IpAddr) {
        if self.counters.limited.fetch_add(1, Relaxed) == 0 {
            tracing::warn!(%client, "the client has its share of the connections that the worker can have; resetting more of them");
        }
    }

    pub(crate) fn stats(&self) -> ListenerStats {
        let counters = &self.counters;
        // The end of a connection is counted after its start, so that in this order the difference is never negative.
        let ended = counters.ended.load(Relaxed);
        let connections = counters.connections.load(Relaxed);
        ListenerStats {
            connections,
            active: connections.saturating_sub(ended),
            failed_attempts: counters.failed_attempts.load(Relaxed),
            refused: counters.refused.load(Relaxed),
            limited: counters.limited.load(Relaxed),
            bytes_to_endpoints: counters.bytes.to_endpoint.load(Relaxed),
            bytes_to_clients: counters.bytes.to_client.load(Relaxed),
        }
    }
}

/// Creates a non-blocking socket that is bound to a port on all addresses of a family.
pub(crate) fn bind(family: IpFamily, kind: Type, port: u16) -> std::io::Result<Socket> {
    let (domain, any) = match family {
        IpFamily::V4 => (Domain::IPV4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        IpFamily::V6 => (Domain::IPV6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    let socket = Socket::new(domain, kind.nonblocking().cloexec(), None)?;
    if family == IpFamily::V6 {
        socket.set_only_v6(true)?;
    }
    socket.bind(&SocketAddr::new(any, port).into())?;
    Ok(socket)
}
