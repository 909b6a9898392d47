//! Decides which endpoints are ejected, by the connections that they did not answer or refused. Pure: time and
//! connections are given.
//!
//! ```text
//!   used ──► several connections failing for PATIENCE, and none answered since ──► ejected
//!    ▲                                                                                      │ after a time that doubles
//!    └── a connection is answered ◄── on trial: one failing connection ejects it again ◄──────────┘
//! ```

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use ferroute_core::{ServicePortName, tracker::Ejections};

use crate::observers::watched::WatchedPort;

/// A service port whose endpoints may be ejected, with those that accept connections.
pub(super) type EjectionPort = WatchedPort<Use>;

/// Whether the applied rules send connections to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// New connections may use it.
    Used,
    /// Ejected, so that other endpoints are used.
    Ejected,
}

/// A connection to a frontend, identified by the client and the destination after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Connection {
    pub(super) client: SocketAddr,
    pub(super) frontend: SocketAddr,
    pub(super) endpoint: SocketAddr,
}

/// A change of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) name: ServicePortName,
    pub(super) endpoint: SocketAddr,
    /// Duration of the ejection; `None` if the endpoint gets connections again.
    pub(super) ejected_for: Option<Duration>,
}

/// The state of one IP family.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// Times at which connections without a reply were first seen.
    unanswered: HashMap<Connection, Instant>,
    /// The times of refused connections, which connection tracking forgets at once.
    refused: HashMap<Connection, Instant>,
    /// Failed connections that were first seen before this time do not count, because the endpoint has
    /// answered others.
    excused: HashMap<SocketAddr, Instant>,
    /// The answered connections of suspects when they became suspects.
    answered: HashMap<SocketAddr, HashSet<Connection>>,
    records: BTreeMap<(ServicePortName, SocketAddr), Record>,
}

/// An endpoint that was ejected.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Number of consecutive ejections.
    times: u32,
    state: EjectionPhase,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EjectionPhase {
    Ejected,
    OnTrial,
}

impl Judge {
    /// Updates the connections without a reply, and adds those that were refused. Returns the suspects, the endpoints
    /// whose answered connections [`Judge::judge`] needs.
    pub(super) fn suspects(
        &mut self,
        now: Instant,
        unanswered: HashSet<Connection>,
        refused: impl IntoIterator<Item = Connection>,
    ) -> HashSet<SocketAddr> {
        self.unanswered.retain(|connection, _| unanswered.contains(connection));
        for connection in unanswered {
            self.unanswered.entry(connection).or_insert(now);
        }
        self.refused.retain(|_, time| now - *time < REFUSED_FOR);
        let room = MAX_REFUSED.saturating_sub(self.refused.len());
        self.refused.extend(refused.into_iter().take(room).map(|connection| (connection, now)));
        let on_trial = self.records.iter().filter(|(_, record)| record.state == EjectionPhase::OnTrial);
        let suspects: HashSet<SocketAddr> = self
            .failed()
            .filter(|(connection, first_seen)| self.counts(connection, *first_seen))
            .map(|(connection, _)| connection.endpoint)
            .chain(on_trial.map(|((_, endpoint), _)| *endpoint))
            .collect();
        let failing: HashSet<SocketAddr> = self.failed().map(|(connection, _)| connection.endpoint).collect();
        self.excused.retain(|endpoint, _| failing.contains(endpoint));
        self.answered.retain(|endpoint, _| suspects.contains(endpoint));
        suspects
    }

    /// Returns the failed connections, with the times at which they were first seen.
    fn failed(&self) -> impl Iterator<Item = (&Connection, Instant)> {
        self.unanswered.iter().chain(&self.refused).map(|(connection, time)| (connection, *time))
    }

    fn counts(&self, connection: &Connection, first_seen: Instant) -> bool {
        self.excused.get(&connection.endpoint).is_none_or(|excused| first_seen > *excused)
    }

    /// Decides which endpoints are ejected. `answered` are the connections with a reply of the suspects.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        ports: &[EjectionPort],
        answered: HashMap<SocketAddr, HashSet<Connection>>,
    ) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for (endpoint, connections) in answered {
            let before = self.answered.entry(endpoint).or_insert_with(|| connections.clone());
            if connections.is_subset(before) {
                continue;
            }
            *before = connections;
            self.excused.insert(endpoint, now);
            self.records.retain(|(_, other), record| *other != endpoint || record.state == EjectionPhase::Ejected);
        }
        self.records.retain(|(name, endpoint), record| {
            let is_forgotten = record.state == EjectionPhase::OnTrial && now - record.since > FORGIVEN_AFTER;
            !is_forgotten && ports.iter().any(|port| port.name == *name && port.endpoints.contains_key(endpoint))
        });
        for ((name, endpoint), record) in &mut self.records {
            if record.state == EjectionPhase::Ejected && now - record.since >= pause(record.times) {
                (record.state, record.since) = (EjectionPhase::OnTrial, now);
                verdicts.push(Verdict { name: name.clone(), endpoint: *endpoint, ejected_for: None });
            }
        }
        for port in ports {
            self.eject(now, port, &mut verdicts);
        }
        verdicts
    }

    fn eject(&mut self, now: Instant, port: &EjectionPort, verdicts: &mut Vec<Verdict>) {
        let mut failed: BTreeMap<SocketAddr, (usize, Duration)> = BTreeMap::new();
        for (connection, first_seen) in
            self.failed().filter(|(connection, _)| port.has(connection.frontend, connection.endpoint))
        {
            let record = self.records.get(&(port.name.clone(), connection.endpoint));
            // Connections from before it was ejected do not count again.
            let is_new =
                record.is_none_or(|record| record.state == EjectionPhase::OnTrial && first_seen > record.since);
            let age = now - first_seen;
            if is_new && age >= PATIENCE && self.counts(connection, first_seen) {
                let (count, oldest) = failed.entry(connection.endpoint).or_default();
                (*count, *oldest) = (*count + 1, age.max(*oldest));
            }
        }
        let ejected = port.endpoints.keys().filter(|endpoint| self.is_ejected(&port.name, **endpoint)).count();
        // At most half of the endpoints are ejected, and so never the last one.
        let mut remaining = (port.endpoints.len() / 2).saturating_sub(ejected);
        let mut failed: Vec<_> = failed.into_iter().collect();
        failed.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        for (endpoint, (count, oldest)) in failed {
            let key = (port.name.clone(), endpoint);
            let times = self.records.get(&key).map_or(0, |record| record.times);
            let is_enough = count >= FAILURES || times > 0 || oldest >= PATIENCE_WITH_ONE;
            if remaining == 0 || !is_enough {
                continue;
            }
            remaining -= 1;
            let times = times.saturating_add(1);
            self.records.insert(key, Record { times, state: EjectionPhase::Ejected, since: now });
            verdicts.push(Verdict { name: port.name.clone(), endpoint, ejected_for: Some(pause(times)) });
        }
    }

    fn is_ejected(&self, name: &ServicePortName, endpoint: SocketAddr) -> bool {
        self.records.get(&(name.clone(), endpoint)).is_some_and(|record| record.state == EjectionPhase::Ejected)
    }

    /// Adds the endpoints that are ejected now.
    pub(super) fn add_ejected(&self, ejections: &mut Ejections) {
        let ejected = self.records.iter().filter(|(_, record)| record.state == EjectionPhase::Ejected);
        for ((name, endpoint), _) in ejected {
            ejections.entry(name.clone()).or_default().insert(*endpoint);
        }
    }
}

/// Returns how long an endpoint is ejected that was ejected this many times in a row.
fn pause(times: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << times.saturating_sub(1).min(8)).min(LONGEST_PAUSE)
}

/// Time after which a missing reply counts as lost: a lost packet would have been sent again after a second, and
/// answered.
const PATIENCE: Duration = Duration::from_millis(1_100);
/// Connections without a reply after which an endpoint is ejected.
const FAILURES: usize = 2;
/// A single connection ejects an endpoint after this time, so that the packet that its client sends after three seconds
/// reaches another endpoint: with the time between two reads, and until the rules are applied.
const PATIENCE_WITH_ONE: Duration = Duration::from_secs(2);
/// Time for which a refused connection counts.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Refused connections that are kept: a few are enough to eject an endpoint.
const MAX_REFUSED: usize = 10_000;
/// Longer than until the third time that a client repeats its first packet.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// An endpoint on trial that gets no connections is forgiven after this time.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests;
