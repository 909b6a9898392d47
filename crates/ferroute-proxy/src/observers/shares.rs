//! Shares of endpoints that get less than their full weight: new ones that start slowly and, in modes that choose by
//! weights, those with many connections if the Service requests the method of least connections.
//!
//! ```text
//!   sync loop ──► SharesObserver ──► endpoints, and since when ──► thread ──► conntrack entries ──► counts ──► Levels
//!       ▲                                                             │                                           │
//!       └───────────────────── SharesApplied ◄────────────────────────┴───────────────────────────────────────────┘
//! ```
//!
//! The thread waits until a Service requests either.

mod levels;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ferroute_core::{
    Endpoint, IpFamily, Method, ModeTraits, ServicePort, ServicePortEntry, ServicePortName, Share, Tracker,
    error_chain,
    tracker::{Shares, TrackerEvent},
};
use ferroute_host::conntrack;
use tokio::sync::mpsc::UnboundedSender;

use self::levels::{Levels, Load, starting};
use crate::{
    observers::{
        FamilySynced, Observer,
        watched::{WatchedPort, WatchedPorts, Watcher, open_connections},
    },
    process::tasks::Tasks,
    sync::Change,
};

/// An endpoint that accepts connections.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Time since which it accepts connections; `None` if it did before the port was watched.
    since: Option<Instant>,
    /// Weight without a share, relative to the weights of the others.
    weight: f64,
}

/// Updates the service ports whose endpoints may get a part of their weight.
#[derive(Debug)]
pub(crate) struct SharesObserver {
    ports: Arc<WatchedPorts<Member>>,
    watcher: Watcher<Member>,
    tasks: Tasks,
    shares: UnboundedSender<TrackerEvent>,
    traits: &'static ModeTraits,
    /// The shares in the tables.
    applied: Shares,
}

/// Sends the shares of the service ports when they change, until the process ends.
fn run(watched: &WatchedPorts<Member>, counts_connections: bool, sender: &UnboundedSender<TrackerEvent>) {
    let mut levels = <[Levels; 2]>::default();
    let mut sent = Shares::new();
    let mut counted_at = Instant::now();
    let mut pause = Duration::ZERO;
    loop {
        let now = Instant::now();
        let (ports, changes) = watched.get();
        let counts = |port: &WatchedPort<Member>| counts_connections && least_connections(&port.service);
        let counting = ports.iter().flatten().any(counts);
        if counting && now >= counted_at + pause {
            for ((family, ports), levels) in IpFamily::BOTH.into_iter().zip(&ports).zip(&mut levels) {
                let ports: Vec<&WatchedPort<Member>> = ports.iter().filter(|port| counts(port)).collect();
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
        watched.wait_for_change(changes, wait);
    }
}

/// Returns the open connections to the endpoints of service ports, with the endpoints' weights.
fn loads(
    family: IpFamily,
    ports: &[&WatchedPort<Member>],
) -> Result<BTreeMap<ServicePortName, BTreeMap<SocketAddr, Load>>, conntrack::Error> {
    let counts =
        open_connections(ports, |protocol, endpoints, each| conntrack::list_from(endpoints, family, protocol, each))?;
    let loads = ports.iter().zip(counts).map(|(port, counts)| {
        let load = |((endpoint, member), connections): ((&SocketAddr, &Member), u64)| {
            (*endpoint, Load { connections, weight: member.weight })
        };
        (port.name.clone(), port.endpoints.iter().zip(counts.into_values()).map(load).collect())
    });
    Ok(loads.collect())
}

fn least_connections(service: &ServicePort) -> bool {
    service.balancing.method == Some(Method::LeastConnections)
}

fn is_watched(traits: &ModeTraits, service: &ServicePort) -> bool {
    let counts = traits.least_connections_by_weights && least_connections(service);
    traits.weights && (counts || service.balancing.slow_start.is_some())
}

impl SharesObserver {
    /// Creates an observer that sends all shares when they change, and starts the thread when a Service requires it.
    pub(crate) fn new(tasks: Tasks, shares: UnboundedSender<TrackerEvent>, traits: &'static ModeTraits) -> Self {
        let ports = Arc::<WatchedPorts<Member>>::default();
        let watcher = Watcher::new(Arc::clone(&ports));
        Self { ports, watcher, tasks, shares, traits, applied: Shares::new() }
    }
}

/// Returns the endpoints of a service port. Endpoints that did not accept connections before are new.
fn members(
    entry: &ServicePortEntry,
    before: Option<&BTreeMap<SocketAddr, Member>>,
    applied: Option<&BTreeMap<SocketAddr, Share>>,
) -> BTreeMap<SocketAddr, Member> {
    let now = Instant::now();
    let member = |endpoint: Endpoint| {
        let socket = endpoint.socket();
        let known = before.map(|before| before.get(&socket).map(|member| member.since));
        let since = known.and_then(|known| known.unwrap_or(Some(now)));
        let share = applied.and_then(|applied| applied.get(&socket)).copied().unwrap_or(Share::FULL);
        let weight = f64::from(endpoint.weight) / f64::from(share.get());
        (socket, Member { since, weight })
    };
    entry.endpoints.iter().filter(|endpoint| endpoint.accepts()).map(member).collect()
}

impl Observer for SharesObserver {
    fn on_change(&mut self, change: &Change, _: &Tracker) {
        if let Change::Desired(TrackerEvent::SharesApplied(shares), _) = change {
            self.applied.clone_from(shares);
        }
    }

    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let traits = self.traits;
        let is_watched = |_: &ServicePortName, entry: &ServicePortEntry| is_watched(traits, &entry.service);
        let mut changed = false;
        for service in self.watcher.services(sync, is_watched) {
            changed |= self.watcher.update(sync.table, service, is_watched, |name, entry, before| {
                members(entry, before, self.applied.get(name))
            });
        }
        if changed {
            let (ports, shares) = (Arc::clone(&self.ports), self.shares.clone());
            let counts = traits.least_connections_by_weights;
            self.watcher.start(&self.tasks, "shares", move || run(&ports, counts, &shares));
        }
    }
}

/// Minimum pause between counts, each of which is followed by at most one transaction.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The pause is at least this many times as long as the count before it.
const PAUSE_FACTOR: u32 = 30;

/// The shortest pause of the thread.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// Pause if there is no work, unless a Service changes.
const IDLE: Duration = Duration::from_secs(3_600);
