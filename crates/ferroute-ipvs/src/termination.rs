//! Removed real servers that still have connections.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use ferroute_core::Protocol;

use crate::plan::{RealServer, ServerKey};

/// The real servers with weight 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terminating {
    servers: BTreeMap<ServerKey, BTreeSet<RealServer>>,
    /// The time of the next check; `None` without real servers.
    next_check: Option<Instant>,
}

impl Terminating {
    /// Adds a real server.
    pub(crate) fn add(&mut self, key: ServerKey, real: RealServer, now: Instant) {
        self.servers.entry(key).or_default().insert(real);
        self.next_check.get_or_insert(now + CHECK_INTERVAL);
    }

    /// Removes a real server. Returns false if it is not terminating.
    pub(crate) fn remove(&mut self, key: ServerKey, real: RealServer) -> bool {
        let Some(servers) = self.servers.get_mut(&key) else { return false };
        let removed = servers.remove(&real);
        if servers.is_empty() {
            self.servers.remove(&key);
        }
        removed
    }

    /// Removes all real servers of a virtual server.
    pub(crate) fn remove_all(&mut self, key: ServerKey) {
        self.servers.remove(&key);
    }

    /// Removes all real servers.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the virtual servers to check if a check is due, and schedules the next one.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<ServerKey> {
        if self.servers.is_empty() {
            self.next_check = None;
        }
        match self.next_check {
            Some(next) if now >= next => {
                self.next_check = Some(now + CHECK_INTERVAL);
                self.servers.keys().copied().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Reports whether a real server of a virtual server terminates.
    pub(crate) fn contains(&self, key: ServerKey, real: &RealServer) -> bool {
        self.servers.get(&key).is_some_and(|servers| servers.contains(real))
    }

    /// Returns the terminating real servers of a virtual server.
    pub(crate) fn of(&self, key: ServerKey) -> Vec<RealServer> {
        self.servers.get(&key).into_iter().flatten().copied().collect()
    }

    /// Returns the number of real servers.
    pub(crate) fn len(&self) -> usize {
        self.servers.values().map(BTreeSet::len).sum()
    }
}

/// Reports whether a real server stays until its connections have ended. As in kube-proxy, this does not apply to UDP
/// and SCTP: the kernel expires their connections at the next packet (`expire_nodest_conn`).
pub(crate) fn is_graceful(protocol: Protocol) -> bool {
    protocol == Protocol::Tcp
}

/// Interval of checks for ended connections, as in kube-proxy.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
