//! Limits of the connections and ports that the process may have open, so that clients cannot use up the descriptors
//! that the source, netlink and the iptables programs need.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::task::AbortHandle;

/// The shares of the process's file descriptors that HTTP servers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Number of descriptors of all ports and connections.
    pub descriptors: usize,
    /// Number of connections of all ports, if ports leave this many descriptors.
    pub connections: usize,
    /// Descriptors that ports leave to connections.
    pub least_connections: usize,
}

impl Budget {
    /// Returns the budget of a process that may open this many descriptors.
    pub fn for_descriptor_limit(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        // With very few descriptors, no part works well, but each gets some.
        let descriptors = limit - RESERVED.min(limit / 2);
        Self {
            descriptors,
            connections: MAX_CONNECTIONS.min(descriptors),
            least_connections: LEAST_CONNECTIONS.min(descriptors / 2),
        }
    }

    /// Returns the maximum number of open connections besides this many ports.
    fn connections_beside(self, ports: usize) -> usize {
        self.connections.min(self.descriptors.saturating_sub(ports)).max(1)
    }

    /// Returns the maximum number of open connections of one client: half of all, because a load balancer checks each
    /// Service on a separate connection, and always from the same few addresses.
    fn per_peer(connections: usize) -> usize {
        (connections / 2).max(1)
    }
}

impl Default for Budget {
    /// The budget for a descriptor limit of 1024, which is the usual soft limit.
    fn default() -> Self {
        Self::for_descriptor_limit(1024)
    }
}

/// The open ports and connections of all servers of a process.
#[derive(Debug)]
pub(super) struct OpenSockets {
    budget: Budget,
    state: Mutex<Usage>,
    /// Counts the times at which a connection became idle, so that they can be compared.
    clock: AtomicU64,
}

#[derive(Debug, Default)]
struct Usage {
    ports: usize,
    /// Ports in [`Self::ports`] that are only held.
    held: usize,
    /// By number, in the order of arrival.
    connections: HashMap<u64, Entry>,
    by_peer: HashMap<IpAddr, usize>,
    last: u64,
}

#[derive(Debug)]
struct Entry {
    peer: IpAddr,
    activity: Activity,
    /// Handle to end the connection; `None` until its task has started.
    task: Option<AbortHandle>,
}

/// Time at which a connection became idle, by [`OpenSockets::clock`]; [`BUSY`] during a request.
#[derive(Clone, Debug)]
struct Activity(Arc<AtomicU64>);

/// The place of a connection in the budget, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    sockets: Arc<OpenSockets>,
    number: u64,
    activity: Activity,
}

/// The place of a port in the budget, until it is dropped.
#[derive(Debug)]
pub struct PortPermit {
    sockets: Arc<OpenSockets>,
    is_held: bool,
}

/// The budget does not permit another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many open ports ({open}) for the limit of open files; raise LimitNOFILE or ulimit -n")]
pub struct TooManyPorts {
    /// Ports that are open.
    pub open: usize,
}

impl OpenSockets {
    pub(super) fn new(budget: Budget) -> Arc<Self> {
        Arc::new(Self { budget, state: Mutex::default(), clock: AtomicU64::new(0) })
    }

    /// Reserves a port in the budget. Connections that no longer fit are closed, because ports take precedence over
    /// connections.
    pub(super) fn open_port(self: &Arc<Self>) -> Result<PortPermit, TooManyPorts> {
        let mut state = self.state();
        if state.ports + self.budget.least_connections >= self.budget.descriptors {
            return Err(TooManyPorts { open: state.ports });
        }
        state.ports += 1;
        let most = self.budget.connections_beside(state.ports);
        state.evict_down_to(most);
        Ok(PortPermit { sockets: Arc::clone(self), is_held: false })
    }

    /// Reserves a port that is not served but only held. Held ports get at most half of the budget, so that ports that
    /// are served always have enough.
    pub(super) fn hold_port(self: &Arc<Self>) -> Result<PortPermit, TooManyPorts> {
        let held = self.state().held;
        if held >= self.budget.descriptors / 2 {
            return Err(TooManyPorts { open: held });
        }
        let mut permit = self.open_port()?;
        permit.is_held = true;
        self.state().held += 1;
        Ok(permit)
    }

    /// Reserves a connection. If the budget is used up, another connection is closed: of the same peer if it has more
    /// than its share, otherwise of the peer with the most connections. Among its connections, the one that has been
    /// idle the longest is closed.
    pub(super) fn open_connection(self: &Arc<Self>, peer: IpAddr) -> ConnectionPermit {
        let peer = network(peer);
        let activity = Activity(Arc::new(AtomicU64::new(self.tick())));
        let mut state = self.state();
        let most = self.budget.connections_beside(state.ports);
        if state.by_peer.get(&peer).is_some_and(|open| *open >= Budget::per_peer(most)) {
            state.evict_from(peer);
        }
        state.evict_down_to(most - 1);
        state.last += 1;
        let number = state.last;
        state.connections.insert(number, Entry { peer, activity: activity.clone(), task: None });
        *state.by_peer.entry(peer).or_default() += 1;
        ConnectionPermit { sockets: Arc::clone(self), number, activity }
    }

    /// Sets the task of a connection, by which it can be closed.
    pub(super) fn started(&self, number: u64, task: AbortHandle) {
        match self.state().connections.get_mut(&number) {
            Some(entry) => entry.task = Some(task),
            // It has been evicted in the meantime.
            None => task.abort(),
        }
    }

    /// Closes the connection that has been idle the longest, after the process has run out of descriptors.
    pub(super) fn evict_one(&self) {
        let mut state = self.state();
        let open = state.connections.len();
        state.evict_down_to(open.saturating_sub(1));
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Locks the state. No operation under the lock leaves an inconsistent state behind when it panics.
    fn state(&self) -> MutexGuard<'_, Usage> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Usage {
    fn evict_down_to(&mut self, most: usize) {
        while self.connections.len() > most {
            let Some(peer) = self.by_peer.iter().max_by_key(|(_, open)| **open).map(|(peer, open)| (*peer, *open))
            else {
                return;
            };
            match peer {
                // All peers have one connection, so it is fair to close the oldest.
                (_, 1) => self.evict(|_| true),
                (peer, _) => self.evict_from(peer),
            }
        }
    }

    fn evict_from(&mut self, peer: IpAddr) {
        self.evict(|entry| entry.peer == peer);
    }

    /// Closes the matching connection that has been idle the longest.
    fn evict(&mut self, matches: impl Fn(&Entry) -> bool) {
        let candidates = self.connections.iter().filter(|(_, entry)| matches(entry));
        let Some(number) = candidates.min_by_key(|(number, entry)| (entry.activity.get(), **number)).map(|(n, _)| *n)
        else {
            return;
        };
        if let Some(task) = self.remove(number).and_then(|entry| entry.task) {
            task.abort();
        }
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.connections.remove(&number)?;
        if let Some(open) = self.by_peer.get_mut(&entry.peer) {
            *open -= 1;
            if *open == 0 {
                self.by_peer.remove(&entry.peer);
            }
        }
        Some(entry)
    }
}

impl Activity {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ConnectionPermit {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Marks the connection as busy with a request.
    pub(super) fn begin_request(&self) {
        self.activity.0.store(BUSY, Ordering::Relaxed);
    }

    /// Marks the connection as idle.
    pub(super) fn end_request(&self) {
        self.activity.0.store(self.sockets.tick(), Ordering::Relaxed);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.sockets.state().remove(self.number);
    }
}

impl Drop for PortPermit {
    fn drop(&mut self) {
        let mut state = self.sockets.state();
        state.ports -= 1;
        state.held -= usize::from(self.is_held);
    }
}

/// Returns the address by which a client is counted: for IPv6, its /64, because a host has all its addresses.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

/// The activity of a connection during a request: it is closed last.
const BUSY: u64 = u64::MAX;

/// Descriptors for the source, netlink, the iptables programs and all other uses: a proxy has about 40 open.
const RESERVED: usize = 256;

/// Maximum number of connections: idle ones take about 10 KB each.
const MAX_CONNECTIONS: usize = 1024;

/// Minimum number of connections, for any number of open ports.
const LEAST_CONNECTIONS: usize = 64;

#[cfg(test)]
mod tests;
