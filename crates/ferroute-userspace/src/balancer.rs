//! The choice of an endpoint for each new connection. Pure: the caller passes the time.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// The endpoints of one listener, and the state by which they are chosen.
///
/// Connections are spread round robin. With session affinity, a client's connections go to the endpoint of its previous
/// one. An endpoint to which a connection failed is tried last for [`SUSPECT_FOR`], so that a dead endpoint does not delay
/// every connection until it is removed.
#[derive(Debug)]
pub(crate) struct Balancer {
    endpoints: Vec<Candidate>,
    /// Index of the endpoint that the next connection tries first.
    next: usize,
    /// Timeout of session affinity, if enabled.
    affinity: Option<Duration>,
    clients: HashMap<IpAddr, Client>,
    budget: Arc<ClientBudget>,
    /// When expired clients were removed last.
    swept_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    address: SocketAddr,
    /// The end of the time for which a failed endpoint is tried last.
    suspect_until: Option<Instant>,
    /// Connections that were established, and those that reached no endpoint and tried this one last.
    connections: u64,
}

/// The endpoint of a client with session affinity.
#[derive(Clone, Copy, Debug)]
struct Client {
    endpoint: SocketAddr,
    last_connection: Instant,
}

/// Number of clients with session affinity that all listeners remember together.
///
/// A listener may remember at most an eighth of the remaining number, so that some always remains for others,
/// regardless of the number of listeners. Further clients are served without affinity, so that a flood of addresses has
/// a bounded memory cost.
#[derive(Debug, Default)]
pub(crate) struct ClientBudget(AtomicUsize);

impl ClientBudget {
    /// Takes one more client for a listener that has `own` already. Returns false if the listener may not have it.
    fn take(&self, own: usize) -> bool {
        let more = |used: usize| (own < MAX_CLIENTS.saturating_sub(used) / 8).then_some(used + 1);
        self.0.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_back(&self, clients: usize) {
        self.0.fetch_sub(clients, Relaxed);
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.budget.give_back(self.clients.len());
    }
}

impl Balancer {
    /// Returns a balancer without endpoints.
    pub(crate) fn new(budget: Arc<ClientBudget>) -> Self {
        Self { endpoints: Vec::new(), next: 0, affinity: None, clients: HashMap::new(), budget, swept_at: None }
    }

    /// Replaces the endpoints and the timeout of session affinity. Endpoints that stay keep their state, and clients of
    /// removed ones are forgotten.
    pub(crate) fn update(&mut self, endpoints: &[SocketAddr], affinity: Option<Duration>) {
        let old: HashMap<SocketAddr, Candidate> =
            std::mem::take(&mut self.endpoints).into_iter().map(|candidate| (candidate.address, candidate)).collect();
        let new = |address: &SocketAddr| Candidate { address: *address, suspect_until: None, connections: 0 };
        self.endpoints =
            endpoints.iter().map(|address| old.get(address).copied().unwrap_or_else(|| new(address))).collect();
        self.affinity = affinity;
        self.retain(|client| affinity.is_some() && endpoints.contains(&client.endpoint));
        if affinity.is_none() {
            self.clients = HashMap::new();
        }
    }

    /// Reports whether an address is one of the endpoints.
    pub(crate) fn contains(&self, endpoint: SocketAddr) -> bool {
        self.endpoints.iter().any(|candidate| candidate.address == endpoint)
    }

    /// Returns the number of connections that each endpoint got, or was the last to refuse, in the order of the last update.
    pub(crate) fn connections(&self) -> Vec<u64> {
        self.endpoints.iter().map(|candidate| candidate.connections).collect()
    }

    /// Returns all endpoints in the order in which a new connection of `client` tries them.
    pub(crate) fn candidates(&mut self, client: IpAddr, now: Instant) -> Vec<SocketAddr> {
        let count = self.endpoints.len();
        if count == 0 {
            return Vec::new();
        }
        let sticky = self.sticky_endpoint(client, now);
        let first = self.next % count;
        if sticky.is_none() {
            self.next = first + 1;
        }
        let in_turn = self.endpoints[first..].iter().chain(&self.endpoints[..first]);
        let mut order: Vec<&Candidate> = in_turn.collect();
        // A stable sort keeps the turns within each group.
        order.sort_by_key(|candidate| (Some(candidate.address) != sticky, candidate.is_suspect(now)));
        order.into_iter().map(|candidate| candidate.address).collect()
    }

    /// Records that a connection of `client` was established.
    pub(crate) fn connected(&mut self, client: IpAddr, endpoint: SocketAddr, now: Instant) {
        if let Some(candidate) = self.endpoints.iter_mut().find(|candidate| candidate.address == endpoint) {
            candidate.suspect_until = None;
            candidate.connections += 1;
            if self.affinity.is_some() {
                self.sweep(now);
                if self.clients.contains_key(&client) || self.budget.take(self.clients.len()) {
                    self.clients.insert(client, Client { endpoint, last_connection: now });
                }
            }
        }
    }

    /// Records that a connection to an endpoint could not be established.
    pub(crate) fn failed(&mut self, endpoint: SocketAddr, now: Instant) {
        if let Some(candidate) = self.endpoints.iter_mut().find(|candidate| candidate.address == endpoint) {
            candidate.suspect_until = Some(now + SUSPECT_FOR);
        }
    }

    /// Records that a connection has reached no endpoint, and that this one was tried last.
    pub(crate) fn given_up(&mut self, endpoint: SocketAddr) {
        if let Some(candidate) = self.endpoints.iter_mut().find(|candidate| candidate.address == endpoint) {
            candidate.connections += 1;
        }
    }

    fn sticky_endpoint(&self, client: IpAddr, now: Instant) -> Option<SocketAddr> {
        let timeout = self.affinity?;
        let client = self.clients.get(&client)?;
        (now.duration_since(client.last_connection) < timeout).then_some(client.endpoint)
    }

    /// Removes expired clients, at most once per [`SWEEP_INTERVAL`].
    fn sweep(&mut self, now: Instant) {
        let Some(timeout) = self.affinity else { return };
        if self.swept_at.is_some_and(|at| now.duration_since(at) < SWEEP_INTERVAL) {
            return;
        }
        self.swept_at = Some(now);
        self.retain(|client| now.duration_since(client.last_connection) < timeout);
    }

    fn retain(&mut self, keep: impl Fn(&Client) -> bool) {
        let before = self.clients.len();
        self.clients.retain(|_, client| keep(client));
        self.budget.give_back(before - self.clients.len());
    }
}

impl Candidate {
    fn is_suspect(&self, now: Instant) -> bool {
        self.suspect_until.is_some_and(|until| now < until)
    }
}

/// Time for which an endpoint that failed is tried after all others: a few of the kubelet's default probe periods (10
/// s), after which a dead endpoint is no longer listed.
const SUSPECT_FOR: Duration = Duration::from_secs(30);

/// Interval of the removal of expired clients.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of clients that are remembered, at about 100 bytes each. A single listener has at most a ninth of
/// them.
const MAX_CLIENTS: usize = 1 << 19;

#[cfg(test)]
mod tests;
