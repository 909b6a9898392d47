//! Passive ejection: endpoints that do not answer get no connections for a while, in modes that forward packets.
//!
//! ```text
//!   sync loop ──► EjectionObserver ──► endpoints ──► thread ──► conntrack entries without a reply ──► Judge
//!       ▲                                              │                                               │
//!       └────────────────── EndpointsEjected ◄─────────┴──── deletes entries to ejected endpoints ◄────┘
//! ```
//!
//! A connection whose entry is deleted is translated again when the client repeats its packet, then to another endpoint.
//! The thread runs once a Service asks for ejection; without any it waits.

mod judge;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ferroute_admin::metrics::Ejected;
use ferroute_core::{
    IpFamily, NamespacedName, Protocol, ServiceTable, error_chain,
    tracker::{Ejections, TrackerEvent},
};
use ferroute_host::conntrack::{self, Entry};
use tokio::sync::mpsc::UnboundedSender;

use self::judge::{Connection, Judge, Verdict, WatchedPort};
use crate::{
    observers::{FamilySynced, Observer, ServicesToUpdate, events::EventRecorder},
    process::tasks::Tasks,
};

/// The service ports with ejection and the ejected endpoints, shared by the sync loop, the thread and `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct EjectionState {
    state: Mutex<WatchedPorts>,
    /// Wakes the thread.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WatchedPorts {
    /// By [`IpFamily::index`] and Service.
    ports: [BTreeMap<NamespacedName, Vec<WatchedPort>>; 2],
    counts: [Ejected; 2],
    has_thread: bool,
}

/// Keeps the service ports with ejection up to date.
#[derive(Debug)]
pub(crate) struct EjectionObserver {
    shared: Arc<EjectionState>,
    tasks: Tasks,
    events: EventRecorder,
    ejections: UnboundedSender<TrackerEvent>,
    /// The Services in the state, so that syncs of others need no lock, by [`IpFamily::index`].
    watched: [BTreeSet<NamespacedName>; 2],
    to_update: ServicesToUpdate,
}

impl EjectionState {
    /// Returns the numbers of ejected endpoints, of families with Services that ask for ejection.
    pub(crate) fn counts(&self) -> Vec<(IpFamily, Ejected)> {
        let state = self.lock();
        let watched = IpFamily::BOTH.into_iter().filter(|family| !state.ports[family.index()].is_empty());
        watched.map(|family| (family, state.counts[family.index()])).collect()
    }

    fn lock(&self) -> MutexGuard<'_, WatchedPorts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, events: &EventRecorder, sender: &UnboundedSender<TrackerEvent>) {
        let mut judges = <[Judge; 2]>::default();
        let mut sent = Ejections::new();
        loop {
            // Without ports the last ejections are taken back.
            let has_none = |state: &mut WatchedPorts| state.ports.iter().all(BTreeMap::is_empty) && sent.is_empty();
            let state = self.changed.wait_while(self.lock(), has_none).unwrap_or_else(PoisonError::into_inner);
            let ports = [0, 1].map(|index| state.ports[index].values().flatten().cloned().collect::<Vec<_>>());
            drop(state);
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
                let mut state = self.lock();
                let counts = &mut state.counts[family.index()];
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
            thread::sleep(INTERVAL.max(start.elapsed() * PAUSE_FACTOR));
        }
    }
}

/// Reads the connections to these service ports and judges their endpoints.
fn round(family: IpFamily, judge: &mut Judge, ports: &[WatchedPort]) -> Result<Vec<Verdict>, conntrack::Error> {
    if ports.iter().any(|port| !port.unused.is_empty()) {
        let is_lost = |entry: &Entry| {
            let connection = connection(entry);
            ports.iter().any(|port| port.unused.contains(&connection.endpoint) && port.has(&connection))
        };
        conntrack::delete_unanswered_if(family, Protocol::Tcp, is_lost)?;
    }
    let mut unanswered = HashSet::new();
    if !ports.is_empty() {
        conntrack::list_unanswered(family, Protocol::Tcp, |entry| {
            let connection = connection(entry);
            if ports.iter().any(|port| port.has(&connection)) {
                unanswered.insert(connection);
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
    let mut each = |entry: &Entry| {
        if let Some(connections) = answered.get_mut(&entry.reply_source).filter(|_| entry.is_answered) {
            connections.insert(connection(entry));
        }
    };
    let addresses: HashSet<IpAddr> = suspects.iter().map(SocketAddr::ip).collect();
    let v4: Vec<_> = addresses
        .iter()
        .filter_map(|address| if let IpAddr::V4(address) = address { Some(*address) } else { None })
        .collect();
    if family == IpFamily::V4 && v4.len() <= MAX_FILTERED {
        v4.into_iter().try_for_each(|address| conntrack::list_to(address, Protocol::Tcp, &mut each))?;
    } else {
        conntrack::list(family, Protocol::Tcp, each)?;
    }
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
    /// Creates an observer that keeps `shared` up to date, and starts the thread when a Service asks for ejection.
    pub(crate) fn new(
        shared: Arc<EjectionState>,
        tasks: Tasks,
        events: EventRecorder,
        ejections: UnboundedSender<TrackerEvent>,
    ) -> Self {
        Self { shared, tasks, events, ejections, watched: Default::default(), to_update: ServicesToUpdate::default() }
    }

    fn update(&mut self, table: &ServiceTable, service: &NamespacedName) {
        let index = table.family.index();
        let watched = table
            .ports_of(service)
            .filter(|(name, entry)| entry.service.balancing.ejects() && name.protocol == Protocol::Tcp);
        let ports: Vec<WatchedPort> = watched
            .map(|(name, entry)| {
                let reachable = table.endpoint_sets(entry).reachable;
                let unused = |endpoint: &SocketAddr| reachable.iter().all(|other| other.socket() != *endpoint);
                let accepting = || entry.endpoints.iter().filter(|endpoint| endpoint.accepts());
                let ejected = accepting().filter(|endpoint| endpoint.ejected).map(|endpoint| endpoint.socket());
                WatchedPort {
                    name: name.clone(),
                    service: entry.service.clone(),
                    endpoints: accepting().map(|endpoint| endpoint.socket()).collect(),
                    unused: ejected.filter(unused).collect(),
                }
            })
            .collect();
        if ports.is_empty() && !self.watched[index].contains(service) {
            return;
        }
        let mut state = self.shared.lock();
        if ports.is_empty() {
            self.watched[index].remove(service);
            state.ports[index].remove(service);
            return;
        }
        self.watched[index].insert(service.clone());
        state.ports[index].insert(service.clone(), ports);
        if !state.has_thread {
            let (shared, events, ejections) = (Arc::clone(&self.shared), self.events.clone(), self.ejections.clone());
            match self.tasks.thread("ejection", move || shared.run(&events, &ejections)) {
                Ok(_) => state.has_thread = true,
                // The next change of such a Service is another attempt.
                Err(error) => tracing::warn!("cannot start the thread that ejects endpoints: {error}"),
            }
        }
        self.shared.changed.notify_all();
    }
}

impl Observer for EjectionObserver {
    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let services = self.to_update.after(sync, |entry| entry.service.balancing.ejects());
        services.into_iter().for_each(|service| self.update(sync.table, service));
    }
}

/// Time between two reads. Within it, [`judge`]'s patience and the sync, an endpoint is ejected less than two seconds after its
/// first connection without a reply.
const INTERVAL: Duration = Duration::from_millis(400);

/// The pause is at least this many times as long as the read before it: 10 % of a CPU at most.
const PAUSE_FACTOR: u32 = 9;

/// IPv4 endpoint addresses that are worth a dump each.
const MAX_FILTERED: usize = 8;
