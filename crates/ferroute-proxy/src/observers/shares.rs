//! The shares of endpoints that do not get all of their weight: new ones that start slowly and, in modes that choose by weights, those
//! with many connections where a Service asks for the fewest.
//!
//! ```text
//!   sync loop ──► SharesObserver ──► endpoints, and since when ──► thread ──► conntrack entries ──► counts ──► Levels
//!       ▲                                                             │                                           │
//!       └───────────────────── SharesApplied ◄────────────────────────┴───────────────────────────────────────────┘
//! ```
//!
//! The thread runs once a Service asks for either; without any it waits.

mod levels;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ferroute_core::{
    IpFamily, Method, ModeTraits, NamespacedName, Protocol, ServicePort, ServicePortEntry, ServicePortName,
    ServiceTable, Share, error_chain,
    tracker::{Shares, TrackerEvent},
};
use ferroute_host::conntrack::{self, Entry};
use tokio::sync::mpsc::UnboundedSender;

use self::levels::{Levels, Load, starting};
use crate::{
    observers::{
        FamilySynced, Observer, ServicesToUpdate,
        drain::{self, is_for},
    },
    process::tasks::Tasks,
    sync::Change,
};

/// A service port whose endpoints may get a part of their weight.
#[derive(Clone, Debug)]
struct SharedPort {
    name: ServicePortName,
    service: Arc<ServicePort>,
    endpoints: BTreeMap<SocketAddr, Member>,
}

/// An endpoint that accepts connections.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// When it began to; `None` if it did before the port was watched.
    since: Option<Instant>,
    /// Its weight without a share, compared with those of the others.
    weight: f64,
}

#[derive(Debug, Default)]
struct SharedPorts {
    /// By [`IpFamily::index`] and Service.
    ports: [BTreeMap<NamespacedName, Vec<SharedPort>>; 2],
    /// How often they changed.
    changes: u64,
    has_thread: bool,
}

/// The service ports, shared by the sync loop and the thread.
#[derive(Debug, Default)]
struct SharesState {
    state: Mutex<SharedPorts>,
    /// Wakes the thread.
    changed: Condvar,
}

/// Keeps the service ports up to date.
#[derive(Debug)]
pub(crate) struct SharesObserver {
    shared: Arc<SharesState>,
    tasks: Tasks,
    shares: UnboundedSender<TrackerEvent>,
    traits: &'static ModeTraits,
    /// The shares in the tables.
    applied: Shares,
    /// The Services in the state, so that syncs of others need no lock, by [`IpFamily::index`].
    watched: [BTreeSet<NamespacedName>; 2],
    to_update: ServicesToUpdate,
}

impl SharesState {
    fn lock(&self) -> MutexGuard<'_, SharedPorts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, counts_connections: bool, sender: &UnboundedSender<TrackerEvent>) {
        let mut levels = <[Levels; 2]>::default();
        let mut sent = Shares::new();
        let mut counted_at = Instant::now();
        let mut pause = Duration::ZERO;
        loop {
            let now = Instant::now();
            let (ports, changes) = {
                let state = self.lock();
                let ports = |family: IpFamily| state.ports[family.index()].values().flatten().cloned();
                (IpFamily::BOTH.map(|family| ports(family).collect::<Vec<_>>()), state.changes)
            };
            let counts = |port: &SharedPort| counts_connections && least_connections(&port.service);
            let counting = ports.iter().flatten().any(counts);
            if counting && now >= counted_at + pause {
                for ((family, ports), levels) in IpFamily::BOTH.into_iter().zip(&ports).zip(&mut levels) {
                    let ports: Vec<&SharedPort> = ports.iter().filter(|port| counts(port)).collect();
                    match loads(family, &ports) {
                        Ok(loads) => levels.update(&loads),
                        Err(error) => tracing::debug!(%family, "cannot count connections: {}", error_chain(&error)),
                    }
                }
                pause = COUNT_INTERVAL.max(now.elapsed() * PAUSE_FACTOR);
                counted_at = now;
            }
            if !counting {
                levels = Default::default();
            }
            let mut shares = Shares::new();
            levels.iter().for_each(|levels| levels.add_shares(&mut shares));
            let mut next_step = None;
            for port in ports.iter().flatten() {
                let Some(window) = port.service.balancing.slow_start else { continue };
                let window = Duration::from_secs(window.get().into());
                for (endpoint, member) in &port.endpoints {
                    let Some((share, step)) = member.since.and_then(|since| starting(now - since, window)) else {
                        continue;
                    };
                    let share_of = shares.entry(port.name.clone()).or_default().entry(*endpoint).or_insert(Share::FULL);
                    *share_of = share.of(*share_of);
                    next_step = Some(next_step.unwrap_or(step).min(step));
                }
            }
            if shares != sent {
                sent.clone_from(&shares);
                if sender.send(TrackerEvent::SharesApplied(shares)).is_err() {
                    // The process ends.
                    thread::park();
                }
            }
            let next_count = counting.then(|| (counted_at + pause).saturating_duration_since(Instant::now()));
            let wait = next_step.into_iter().chain(next_count).min().map_or(IDLE, |wait| wait.max(MIN_PAUSE));
            let is_same = |state: &mut SharedPorts| state.changes == changes;
            drop(self.changed.wait_timeout_while(self.lock(), wait, is_same).unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Returns the open connections to the endpoints of service ports, with the endpoints' weights.
fn loads(
    family: IpFamily,
    ports: &[&SharedPort],
) -> Result<BTreeMap<ServicePortName, BTreeMap<SocketAddr, Load>>, conntrack::Error> {
    let load = |member: &Member| Load { connections: 0, weight: member.weight };
    let mut loads: Vec<BTreeMap<SocketAddr, Load>> = ports
        .iter()
        .map(|port| port.endpoints.iter().map(|(endpoint, member)| (*endpoint, load(member))).collect())
        .collect();
    for protocol in Protocol::ALL {
        let mut by_endpoint: HashMap<SocketAddr, Vec<usize>> = HashMap::new();
        let mut frontends: Vec<HashSet<(Option<IpAddr>, u16)>> = vec![HashSet::new(); ports.len()];
        for (index, port) in ports.iter().enumerate().filter(|(_, port)| port.name.protocol == protocol) {
            port.endpoints.keys().for_each(|endpoint| by_endpoint.entry(*endpoint).or_default().push(index));
            frontends[index] = drain::frontends(&port.service, protocol);
        }
        if by_endpoint.is_empty() {
            continue;
        }
        conntrack::list(family, protocol, |entry: &Entry| {
            let indices = by_endpoint.get(&entry.reply_source).filter(|_| entry.is_open);
            for index in indices.into_iter().flatten().filter(|index| is_for(&frontends[**index], entry)) {
                if let Some(load) = loads[*index].get_mut(&entry.reply_source) {
                    load.connections += 1;
                }
            }
        })?;
    }
    Ok(ports.iter().map(|port| port.name.clone()).zip(loads).collect())
}

fn least_connections(service: &ServicePort) -> bool {
    service.balancing.method == Some(Method::LeastConnections)
}

fn is_watched(traits: &ModeTraits, service: &ServicePort) -> bool {
    let counts = traits.least_connections_by_weights && least_connections(service);
    traits.weights && (counts || service.balancing.slow_start.is_some())
}

impl SharesObserver {
    /// Creates an observer that sends all shares when they change, and starts the thread when a Service asks for it.
    pub(crate) fn new(tasks: Tasks, shares: UnboundedSender<TrackerEvent>, traits: &'static ModeTraits) -> Self {
        let (shared, applied, watched, to_update) = Default::default();
        Self { shared, tasks, shares, traits, applied, watched, to_update }
    }

    fn update(&mut self, table: &ServiceTable, service: &NamespacedName) {
        let index = table.family.index();
        let watched = table.ports_of(service).filter(|(_, entry)| is_watched(self.traits, &entry.service));
        let entries: Vec<(&ServicePortName, &ServicePortEntry)> = watched.collect();
        if entries.is_empty() && !self.watched[index].contains(service) {
            return;
        }
        let mut state = self.shared.lock();
        state.changes += 1;
        if entries.is_empty() {
            self.watched[index].remove(service);
            state.ports[index].remove(service);
            self.shared.changed.notify_all();
            return;
        }
        let before = state.ports[index].remove(service).unwrap_or_default();
        let ports = entries.into_iter().map(|(name, entry)| {
            let before = before.iter().find(|port| port.name == *name);
            port(name, entry, before, self.applied.get(name))
        });
        state.ports[index].insert(service.clone(), ports.collect());
        self.watched[index].insert(service.clone());
        if !state.has_thread {
            let (shared, shares) = (Arc::clone(&self.shared), self.shares.clone());
            let counts = self.traits.least_connections_by_weights;
            match self.tasks.thread("shares", move || shared.run(counts, &shares)) {
                Ok(_) => state.has_thread = true,
                // The next change of such a Service is another attempt.
                Err(error) => tracing::warn!("cannot start the thread that sets the shares of endpoints: {error}"),
            }
        }
        self.shared.changed.notify_all();
    }
}

/// Returns a service port, whose endpoints that were not accepting connections before are new.
fn port(
    name: &ServicePortName,
    entry: &ServicePortEntry,
    before: Option<&SharedPort>,
    applied: Option<&BTreeMap<SocketAddr, Share>>,
) -> SharedPort {
    let now = Instant::now();
    let endpoints = entry.endpoints.iter().filter(|endpoint| endpoint.accepts()).map(|endpoint| {
        let socket = endpoint.socket();
        let known = before.map(|port| port.endpoints.get(&socket).map(|member| member.since));
        let since = known.and_then(|known| known.unwrap_or(Some(now)));
        let share = applied.and_then(|applied| applied.get(&socket)).copied().unwrap_or(Share::FULL);
        let weight = f64::from(endpoint.weight) / f64::from(share.get());
        (socket, Member { since, weight })
    });
    SharedPort { name: name.clone(), service: entry.service.clone(), endpoints: endpoints.collect() }
}

impl Observer for SharesObserver {
    fn on_change(&mut self, change: &Change, _: &ferroute_core::Tracker) {
        if let Change::Desired(TrackerEvent::SharesApplied(shares), _) = change {
            self.applied.clone_from(shares);
        }
    }

    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let services = self.to_update.after(sync, |entry| is_watched(self.traits, &entry.service));
        services.into_iter().for_each(|service| self.update(sync.table, service));
    }
}

/// Minimum pause between counts: at most one transaction per second follows.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The pause is at least this many times as long as the count before it.
const PAUSE_FACTOR: u32 = 30;

/// The shortest pause of the thread.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// The pause without anything to do, unless a Service changes.
const IDLE: Duration = Duration::from_secs(3_600);
