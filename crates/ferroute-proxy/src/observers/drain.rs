//! Open connections to terminating endpoints, so that an administrator can see whether a drain is complete.
//!
//! ```text
//!   sync loop ──► DrainObserver ──► terminating endpoints ──► thread ──► counts ──► /metrics
//!                 (changed Services only)                     (reads conntrack)
//! ```
//!
//! If a Service has a deadline, its connections are ended after it by deleting their entries.
//!
//! Conntrack is read only while an endpoint terminates, on a separate thread, and so rarely that reads take a few
//! percent of a CPU for tables of any size.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ferroute_admin::metrics::Draining;
use ferroute_core::{
    Endpoint, IpFamily, ModeTraits, NamespacedName, Protocol, ServicePortEntry, ServicePortName, ServiceTable,
    error_chain,
};
use ferroute_host::conntrack::{self, Entry};

use crate::{
    observers::{
        FamilySynced, Observer,
        watched::{WatchedPort, WatchedPorts, Watcher, open_connections},
    },
    process::tasks::Tasks,
};

/// A service port with its terminating endpoints.
type DrainingPort = WatchedPort<Termination>;

/// The termination of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Termination {
    /// When it was received with the endpoint unused; `None` while the endpoint is used because there are no others.
    since: Option<Instant>,
    /// The time at which its connections end.
    deadline: Option<Instant>,
    /// Whether it has left its EndpointSlice, and is only kept for its deadline.
    has_left: bool,
}

impl Termination {
    fn has_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// Terminating endpoints and the connections to them, shared by the sync loop, the reader and `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct DrainState {
    ports: Arc<WatchedPorts<Termination>>,
    counts: Mutex<Vec<Draining>>,
}

/// Keeps the terminating endpoints up to date.
#[derive(Debug)]
pub(crate) struct DrainObserver {
    shared: Arc<DrainState>,
    tasks: Tasks,
    watcher: Watcher<Termination>,
    /// Whether the mode's connections end with their conntrack entries.
    ends_connections: bool,
}

impl DrainState {
    /// Returns the counts that were read last.
    pub(crate) fn counts(&self) -> Vec<Draining> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Draining>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads whenever there are terminating endpoints.
    fn run(&self) {
        loop {
            let ports = self.ports.wait_for_some();
            let start = Instant::now();
            let ended = IpFamily::BOTH.into_iter().zip(&ports).map(|(family, ports)| {
                end_expired(family, ports, start).inspect_err(|error| {
                    tracing::warn!(%family, "cannot end connections to terminating endpoints: {}", error_chain(error));
                })
            });
            let ended: Vec<_> = ended.collect();
            if ended.iter().all(Result::is_ok) {
                self.ports.remove(|termination| termination.has_left && termination.has_expired(start));
            }
            let counts = IpFamily::BOTH.into_iter().zip(ports).filter_map(|(family, ports)| {
                let read = |protocol, endpoints: &BTreeSet<IpAddr>, each: &mut dyn FnMut(&Entry)| {
                    conntrack::list_from(endpoints, family, protocol, each)
                };
                count(family, &ports, read).unwrap_or_else(|error| {
                    tracing::debug!(%family, "cannot count connections to terminating endpoints: {}", error_chain(&error));
                    None
                })
            });
            let counts = counts.collect();
            let pause = READ_INTERVAL.max(start.elapsed() * PAUSE_FACTOR);
            *self.lock() = counts;
            self.forget_counts();
            thread::sleep(pause);
        }
    }

    /// Removes the counts of IP families whose last terminating endpoint has been removed. Both threads call it after
    /// their change, so that the later call sees the change of the other thread.
    fn forget_counts(&self) {
        self.lock().retain(|counts| self.ports.has_some(counts.family));
    }
}

impl DrainObserver {
    /// Creates an observer that keeps `shared` up to date and starts the reader when an endpoint terminates.
    pub(crate) fn new(shared: Arc<DrainState>, tasks: Tasks, traits: &ModeTraits) -> Self {
        let watcher = Watcher::new(Arc::clone(&shared.ports));
        Self { shared, tasks, watcher, ends_connections: traits.drain_timeouts }
    }

    fn update(&mut self, table: &ServiceTable, service: &NamespacedName) -> bool {
        let (known, now) = (self.shared.ports.of(table.family, service), Instant::now());
        let timeout_of = |entry: &ServicePortEntry| {
            let timeout = entry.service.balancing.drain_timeout.filter(|_| self.ends_connections);
            timeout.map(|seconds| Duration::from_secs(seconds.get().into()))
        };
        // Pods are deleted after their grace period, which may be shorter than the deadline.
        let left = |name: &ServicePortName, entry: &ServicePortEntry| -> Vec<(SocketAddr, Termination)> {
            let Some(timeout) = timeout_of(entry) else { return Vec::new() };
            let before = known.iter().filter(|port| port.name == *name).flat_map(|port| &port.endpoints);
            let left = before.filter(|(of, _)| !entry.endpoints.iter().any(|endpoint| endpoint.socket() == **of));
            let termination = |(endpoint, before): (&SocketAddr, &Termination)| {
                let since = before.since.unwrap_or(now);
                (*endpoint, Termination { since: Some(since), deadline: Some(since + timeout), has_left: true })
            };
            left.map(termination).collect()
        };
        let concerns =
            |name: &ServicePortName, entry: &ServicePortEntry| terminates(name, entry) || !left(name, entry).is_empty();
        let changed = self.watcher.update(table, service, concerns, |name, entry, before| {
            let terminating =
                entry.endpoints.iter().filter(|endpoint| endpoint.terminating).map(|endpoint| endpoint.socket());
            let timeout = timeout_of(entry);
            let used: BTreeSet<SocketAddr> =
                table.endpoint_sets(entry).reachable.iter().map(Endpoint::socket).collect();
            let termination = |endpoint| {
                // An endpoint that is still used, because there are no others, has no deadline: a new connection would
                // reach it again.
                let known = before.and_then(|before| before.get(&endpoint)?.since);
                let since = Some(known.unwrap_or(now)).filter(|_| !used.contains(&endpoint));
                let deadline = since.zip(timeout).map(|(since, timeout)| since + timeout);
                (endpoint, Termination { since, deadline, has_left: false })
            };
            terminating.map(termination).chain(left(name, entry)).collect()
        });
        if changed {
            self.shared.forget_counts();
        }
        changed
    }
}

impl Observer for DrainObserver {
    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let mut changed = false;
        for service in self.watcher.services(sync, terminates) {
            changed |= self.update(sync.table, service);
        }
        if changed {
            let shared = Arc::clone(&self.shared);
            self.watcher.start(&self.tasks, "drain", move || shared.run());
        }
    }
}

fn terminates(_: &ServicePortName, entry: &ServicePortEntry) -> bool {
    entry.endpoints.iter().any(|endpoint| endpoint.terminating)
}

/// Counts the open connections to terminating endpoints; `None` if no endpoint terminates. `read` is
/// [`open_connections`].
fn count<E>(
    family: IpFamily,
    ports: &[DrainingPort],
    read: impl Fn(Protocol, &BTreeSet<IpAddr>, &mut dyn FnMut(&Entry)) -> Result<(), E>,
) -> Result<Option<Draining>, E> {
    if ports.is_empty() {
        return Ok(None);
    }
    let counts = open_connections(&ports.iter().collect::<Vec<_>>(), read)?;
    let endpoints: BTreeSet<(Protocol, SocketAddr)> =
        ports.iter().flat_map(|port| port.endpoints.keys().map(|endpoint| (port.name.protocol, *endpoint))).collect();
    let totals = counts.iter().map(|counts| counts.values().sum());
    let mut services: Vec<(String, u64)> = ports.iter().map(|port| port.name.to_string()).zip(totals).collect();
    // Ports that differ only in the protocol have the same name.
    services.sort_unstable();
    services.dedup_by(|next, first| {
        let is_same = next.0 == first.0;
        first.1 += if is_same { next.1 } else { 0 };
        is_same
    });
    services.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let other_services = services.drain(MAX_PORTS.min(services.len())..).map(|(_, count)| count).sum();
    Ok(Some(Draining { family, endpoints: endpoints.len() as u64, services, other_services }))
}

/// Deletes the entries of connections whose deadline has passed. The client's next packet is translated again, to
/// another endpoint, which resets a TCP connection that it does not know.
fn end_expired(family: IpFamily, ports: &[DrainingPort], now: Instant) -> Result<(), conntrack::Error> {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let expired = |port: &DrainingPort| {
            let endpoints = port.endpoints.iter().filter(|(_, termination)| termination.has_expired(now));
            DrainingPort {
                endpoints: endpoints.map(|(endpoint, termination)| (*endpoint, *termination)).collect(),
                ..port.clone()
            }
        };
        let ports = ports.iter().filter(|port| port.name.protocol == protocol).map(expired);
        let ports: Vec<DrainingPort> = ports.filter(|port| !port.endpoints.is_empty()).collect();
        if !ports.is_empty() {
            conntrack::delete_if(family, protocol, |entry| ports.iter().any(|port| port.has_entry(entry)))?;
        }
    }
    Ok(())
}

/// Maximum number of service ports with separate counts.
const MAX_PORTS: usize = 100;

/// Minimum pause between reads.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// The pause is at least this many times as long as the read before it.
const PAUSE_FACTOR: u32 = 30;

#[cfg(test)]
mod tests;
