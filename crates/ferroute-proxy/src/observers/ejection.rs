//! Passive ejection: endpoints that do not answer get no connections for a while, in modes that forward packets.
//!
//! ```text
//!   sync loop ──► EjectionObserver ──► endpoints ──► thread ──► conntrack entries without a reply ──► Judge
//!       ▲                                              │                                               │
//!       └────────────────── EndpointsEjected ◄─────────┴──── deletes entries to ejected endpoints ◄────┘
//! ```
//!
//! If the entry of a connection is deleted, the connection is translated again when the client repeats its packet, to
//! another endpoint. The thread waits until a Service requests ejection.

mod judge;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ferroute_admin::metrics::Ejected;
use ferroute_core::{
    Endpoint, IpFamily, Protocol, ServicePortEntry, ServicePortName, error_chain,
    tracker::{Ejections, TrackerEvent},
};
use ferroute_host::conntrack::{self, Entry};
use tokio::sync::mpsc::UnboundedSender;

use self::judge::{Connection, EjectionPort, Judge, Use, Verdict};
use crate::{
    observers::{
        FamilySynced, Observer,
        events::EventRecorder,
        watched::{WatchedPorts, Watcher},
    },
    process::tasks::Tasks,
};

/// The service ports with ejection and the ejected endpoints, shared by the sync loop, the thread and `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct EjectionState {
    ports: Arc<WatchedPorts<Use>>,
    counts: Mutex<[Ejected; 2]>,
}

/// Keeps the service ports with ejection up to date.
#[derive(Debug)]
pub(crate) struct EjectionObserver {
    shared: Arc<EjectionState>,
    tasks: Tasks,
    events: EventRecorder,
    ejections: UnboundedSender<TrackerEvent>,
    watcher: Watcher<Use>,
}

impl EjectionState {
    /// Returns the numbers of ejected endpoints, for families with Services that request ejection.
    pub(crate) fn counts(&self) -> Vec<(IpFamily, Ejected)> {
        let counts = *self.lock();
        let watched = IpFamily::BOTH.into_iter().filter(|family| self.ports.has_some(*family));
        watched.map(|family| (family, counts[family.index()])).collect()
    }

    fn lock(&self) -> MutexGuard<'_, [Ejected; 2]> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, events: &EventRecorder, sender: &UnboundedSender<TrackerEvent>) {
        let mut judges = <[Judge; 2]>::default();
        let mut sent = Ejections::new();
        loop {
            // Without ports the last ejections are taken back.
            let ports = if sent.is_empty() { self.ports.wait_for_some() } else { self.ports.get().0 };
            let start = Instant::now();
            let mut ejections = Ejections::new();
            for ((family, judge), ports) in IpFamily::BOTH.into_iter().zip(&mut judges).zip(&ports) {
                let verdicts = round(family, judge, ports).unwrap_or_else(|error| {
                    tracing::debug!(%family, "cannot read unanswered connections: {}", error_chain(&error));
                    Vec::new()
                });
                verdicts.iter().for_each(|verdict| report(verdict, events));
                let before = ejections.values().map(BTreeSet::len).sum::<usize>();
                judge.add_ejected(&mut ejections);
                let counts = &mut self.lock()[family.index()];
                counts.endpoints = (ejections.values().map(BTreeSet::len).sum::<usize>() - before) as u64;
                counts.total += verdicts.iter().filter(|verdict| verdict.ejected_for.is_some()).count() as u64;
            }
            if ejections != sent {
                sent.clone_from(&ejections);
                if sender.send(TrackerEvent::EndpointsEjected(ejections)).is_err() {
                    // The process ends.
                    thread::park();
                }
            }
            thread::sleep((start.elapsed() * PAUSE_FACTOR).clamp(INTERVAL, MAX_PAUSE));
        }
    }
}

/// Reads the connections to these service ports and judges their endpoints.
fn round(family: IpFamily, judge: &mut Judge, ports: &[EjectionPort]) -> Result<Vec<Verdict>, conntrack::Error> {
    if ports.iter().any(|port| port.endpoints.values().any(|endpoint| *endpoint == Use::Ejected)) {
        let is_lost = |entry: &Entry| {
            let is_unused = |port: &EjectionPort| port.endpoints.get(&entry.reply_source) == Some(&Use::Ejected);
            ports.iter().any(|port| is_unused(port) && port.has_entry(entry))
        };
        conntrack::delete_unanswered_if(family, Protocol::Tcp, is_lost)?;
    }
    let mut unanswered = HashSet::new();
    if !ports.is_empty() {
        conntrack::list_unanswered(family, Protocol::Tcp, |entry| {
            if ports.iter().any(|port| port.has_entry(entry)) {
                unanswered.insert(connection(entry));
            }
        })?;
    }
    let suspects = judge.suspects(Instant::now(), unanswered);
    let answered = answered(family, &suspects)?;
    Ok(judge.judge(Instant::now(), ports, answered))
}

/// Returns the connections with a reply of these endpoints.
fn answered(
    family: IpFamily,
    suspects: &HashSet<SocketAddr>,
) -> Result<HashMap<SocketAddr, HashSet<Connection>>, conntrack::Error> {
    let mut answered: HashMap<SocketAddr, HashSet<Connection>> =
        suspects.iter().map(|endpoint| (*endpoint, HashSet::new())).collect();
    if suspects.is_empty() {
        return Ok(answered);
    }
    let addresses = suspects.iter().map(SocketAddr::ip).collect();
    conntrack::list_from(&addresses, family, Protocol::Tcp, |entry| {
        if let Some(connections) = answered.get_mut(&entry.reply_source).filter(|_| entry.is_answered) {
            connections.insert(connection(entry));
        }
    })?;
    Ok(answered)
}

fn connection(entry: &Entry) -> Connection {
    Connection { client: entry.original_source, frontend: entry.original_destination, endpoint: entry.reply_source }
}

fn report(verdict: &Verdict, events: &EventRecorder) {
    let Verdict { name, endpoint, ejected_for } = verdict;
    match ejected_for {
        Some(pause) => {
            let seconds = pause.as_secs();
            tracing::warn!(service_port = %name, %endpoint, seconds, "endpoint did not answer; it gets no connections");
        }
        None => tracing::info!(service_port = %name, %endpoint, "ejected endpoint gets connections again"),
    }
    events.endpoint_ejected(&name.service, *endpoint, *ejected_for);
}

impl EjectionObserver {
    /// Creates an observer that keeps `shared` up to date, and starts the thread when a Service requests ejection.
    pub(crate) fn new(
        shared: Arc<EjectionState>,
        tasks: Tasks,
        events: EventRecorder,
        ejections: UnboundedSender<TrackerEvent>,
    ) -> Self {
        let watcher = Watcher::new(Arc::clone(&shared.ports));
        Self { shared, tasks, events, ejections, watcher }
    }
}

impl Observer for EjectionObserver {
    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let mut changed = false;
        for service in self.watcher.services(sync, ejects) {
            changed |= self.watcher.update(sync.table, service, ejects, |_, entry, _| {
                let reachable = sync.table.endpoint_sets(entry).reachable;
                let endpoint = |endpoint: Endpoint| {
                    let socket = endpoint.socket();
                    let is_unused = endpoint.ejected && reachable.iter().all(|other| other.socket() != socket);
                    (socket, if is_unused { Use::Ejected } else { Use::Used })
                };
                entry.endpoints.iter().filter(|endpoint| endpoint.accepts()).map(endpoint).collect()
            });
        }
        if changed {
            let (shared, events, ejections) = (Arc::clone(&self.shared), self.events.clone(), self.ejections.clone());
            self.watcher.start(&self.tasks, "ejection", move || shared.run(&events, &ejections));
        }
    }
}

fn ejects(name: &ServicePortName, entry: &ServicePortEntry) -> bool {
    entry.service.balancing.ejects() && name.protocol == Protocol::Tcp
}

/// Time between two reads. Together with [`judge`]'s patience and the sync, an endpoint is ejected less than two
/// seconds after its first connection without a reply.
const INTERVAL: Duration = Duration::from_millis(400);

/// The pause is at least this many times as long as the read before it: 10 % of a CPU at most.
const PAUSE_FACTOR: u32 = 9;

/// Maximum pause: a round that waited for a processor must not delay ejections for long.
const MAX_PAUSE: Duration = Duration::from_secs(2);
