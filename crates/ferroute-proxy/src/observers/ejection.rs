//! Passive ejection: endpoints whose connections fail get no connections for a while, in modes that forward packets.
//!
//! ```text
//!   sync loop ──► EjectionObserver ──► endpoints ──► thread ──► conntrack entries without a reply ──► Judge
//!       ▲                                              │  └───► events of refused connections ──────────┤
//!       └────────────────── EndpointsEjected ◄─────────┴──── deletes entries to ejected endpoints ◄─────┘
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
    Ejection, Eligibility, Endpoint, IpFamily, Protocol, ServicePortEntry, ServicePortName, error_chain,
    tracker::{Ejections, TrackerEvent},
};
use ferroute_host::conntrack::{self, ConnectionEvents, Entry, EventKind, TcpState};
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
        let mut refusals = Refusals::default();
        let mut sent = Ejections::new();
        let mut changed = None;
        loop {
            // Without ports the last ejections are taken back.
            let ports = if sent.is_empty() { self.ports.wait_for_some() } else { self.ports.get().0 };
            let start = Instant::now();
            let mut ejections = Ejections::new();
            let refused = refusals.since_last_call(&ports);
            for (((family, judge), ports), refused) in
                IpFamily::BOTH.into_iter().zip(&mut judges).zip(&ports).zip(refused)
            {
                let verdicts = round(family, judge, ports, refused).unwrap_or_else(|error| {
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
                changed = Some(Instant::now());
                sent.clone_from(&ejections);
                if sender.send(TrackerEvent::EndpointsEjected(ejections)).is_err() {
                    // The process ends.
                    thread::park();
                }
            }
            // The first round after the rules were applied deletes the entries of connections to ejected endpoints.
            let is_applying = changed.is_some_and(|changed: Instant| changed.elapsed() < APPLYING);
            let interval = if is_applying { SHORT_INTERVAL } else { INTERVAL };
            thread::sleep((start.elapsed() * PAUSE_FACTOR).clamp(interval, MAX_PAUSE));
        }
    }
}

/// Receives the refused connections: connection tracking deletes their entries at once, so that no list has them.
#[derive(Default)]
struct Refusals {
    /// Open while a service port ejects endpoints that refuse connections.
    events: Option<ConnectionEvents>,
}

impl Refusals {
    /// Returns the connections to these service ports, by [`IpFamily::index`], that endpoints have refused.
    fn since_last_call(&mut self, ports: &[Vec<EjectionPort>; 2]) -> [Vec<Connection>; 2] {
        let asking: [Vec<&EjectionPort>; 2] = ports.each_ref().map(|ports| {
            let asks = |port: &&EjectionPort| port.service.balancing.passive_ejection == Some(Ejection::Refused);
            ports.iter().filter(asks).collect()
        });
        let mut refused = [Vec::new(), Vec::new()];
        if asking.iter().all(Vec::is_empty) {
            self.events = None;
            return refused;
        }
        if self.events.is_none() {
            self.events = ConnectionEvents::open_ends(BUFFER)
                .inspect_err(|error| tracing::debug!("cannot watch refused connections: {}", error_chain(error)))
                .ok();
        }
        let Some(events) = &mut self.events else { return refused };
        let received = events.receive(MAX_EVENTS, |kind, connection| {
            let entry = &connection.entry;
            let is_refused = kind == EventKind::Destroy
                && entry.protocol == Protocol::Tcp
                && !connection.is_answered
                && connection.tcp == Some(TcpState::Reset);
            let family = IpFamily::of(entry.original_destination.ip()).index();
            if is_refused && asking[family].iter().any(|port| port.has_entry(entry)) {
                refused[family].push(self::connection(entry));
            }
        });
        // Without some of the events, others eject an endpoint whose connections keep failing.
        if let Err(error) = received {
            tracing::debug!("cannot read refused connections: {}", error_chain(&error));
            self.events = None;
        }
        refused
    }
}

/// Reads the connections to these service ports and judges their endpoints.
fn round(
    family: IpFamily,
    judge: &mut Judge,
    ports: &[EjectionPort],
    refused: Vec<Connection>,
) -> Result<Vec<Verdict>, conntrack::Error> {
    if ports.iter().any(|port| port.endpoints.values().any(|endpoint| *endpoint == Use::Ejected)) {
        let is_lost = |entry: &Entry| {
            let is_unused = |port: &EjectionPort| port.endpoints.get(&entry.reply_source) == Some(&Use::Ejected);
            entry.protocol == Protocol::Tcp && ports.iter().any(|port| is_unused(port) && port.has_entry(entry))
        };
        conntrack::delete_unanswered_if(family, is_lost)?;
    }
    let mut unanswered = HashSet::new();
    if !ports.is_empty() {
        conntrack::list_unanswered(family, Protocol::Tcp, |entry| {
            if ports.iter().any(|port| port.has_entry(entry)) {
                unanswered.insert(connection(entry));
            }
        })?;
    }
    let suspects = judge.suspects(Instant::now(), unanswered, refused);
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
            tracing::warn!(service_port = %name, %endpoint, seconds, "connections to the endpoint failed; it gets no more for a while");
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
                let eligibility = sync.table.eligibility(entry);
                let of = |index: usize| {
                    [&eligibility.cluster, &eligibility.local].into_iter().flatten().map(move |all| all[index])
                };
                let endpoint = |(index, endpoint): (usize, Endpoint)| {
                    let use_ = match () {
                        () if of(index).any(Eligibility::is_eligible) => Use::Used,
                        () if of(index).any(|eligibility| eligibility == Eligibility::Ejected) => Use::Ejected,
                        () => return None,
                    };
                    Some((endpoint.socket(), use_))
                };
                entry.endpoints.iter().enumerate().filter_map(endpoint).collect()
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

/// Size of the buffer for events: some thousand connections that end between two reads.
const BUFFER: usize = 4 << 20;

/// Maximum number of events that are read at a time; more than the buffer has.
const MAX_EVENTS: usize = 100_000;

/// Time between two reads. Together with [`judge`]'s patience and the sync, an endpoint is ejected less than two
/// seconds after its first connection without a reply.
const INTERVAL: Duration = Duration::from_millis(400);

/// Time in which most syncs apply an ejection.
const APPLYING: Duration = Duration::from_secs(1);

/// Time between two reads meanwhile.
const SHORT_INTERVAL: Duration = Duration::from_millis(50);

/// The pause is at least this many times as long as the read before it: 10 % of a CPU at most.
const PAUSE_FACTOR: u32 = 9;

/// Maximum pause: a round that waited for a processor must not delay ejections for long.
const MAX_PAUSE: Duration = Duration::from_secs(2);
