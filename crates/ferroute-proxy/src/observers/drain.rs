//! Open connections to terminating endpoints, so that an administrator can see whether a drain is complete.
//!
//! ```text
//!   sync loop ──► DrainObserver ──► terminating endpoints ──► thread ──► counts ──► /metrics
//!                 (changed Services only)                     (reads conntrack)
//! ```
//!
//! Connections of Services with a deadline are ended after it, by deleting their entries.
//!
//! Conntrack is read only while an endpoint terminates, on a thread of its own, and so rarely that reads take a few
//! percent of a CPU however large the table is.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ferroute_admin::metrics::Draining;
use ferroute_core::{
    Endpoint, IpFamily, ModeTraits, NamespacedName, Protocol, ServicePort, ServicePortEntry, ServicePortName,
    ServiceTable, error_chain,
};
use ferroute_host::conntrack::{self, Entry};

use crate::{
    observers::{FamilySynced, Observer, ServicesToUpdate},
    process::tasks::Tasks,
};

/// A service port with terminating endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DrainingPort {
    name: ServicePortName,
    service: Arc<ServicePort>,
    endpoints: Vec<SocketAddr>,
    /// Those whose connections end, each with the time.
    deadlines: BTreeMap<SocketAddr, Instant>,
}

/// Terminating endpoints and the connections to them, shared by the sync loop, the reader and `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct DrainState {
    state: Mutex<DrainingPorts>,
    /// Wakes the reader.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct DrainingPorts {
    /// Service ports with terminating endpoints, by [`IpFamily::index`] and Service.
    ports: [BTreeMap<NamespacedName, Vec<DrainingPort>>; 2],
    counts: Vec<Draining>,
    has_reader: bool,
}

/// Keeps the terminating endpoints up to date.
#[derive(Debug)]
pub(crate) struct DrainObserver {
    shared: Arc<DrainState>,
    tasks: Tasks,
    /// The Services in the state, so that syncs of others need no lock, by [`IpFamily::index`].
    draining: [BTreeSet<NamespacedName>; 2],
    to_update: ServicesToUpdate,
    /// Whether the mode's connections end with their conntrack entries.
    ends_connections: bool,
}

impl DrainState {
    /// Returns the counts that were read last.
    pub(crate) fn counts(&self) -> Vec<Draining> {
        self.lock().counts.clone()
    }

    fn lock(&self) -> MutexGuard<'_, DrainingPorts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads whenever there are terminating endpoints.
    fn run(&self) {
        loop {
            let has_none = |state: &mut DrainingPorts| state.is_empty();
            let state = self.changed.wait_while(self.lock(), has_none).unwrap_or_else(PoisonError::into_inner);
            let ports = IpFamily::BOTH.map(|family| state.ports(family));
            drop(state);
            let start = Instant::now();
            for (family, ports) in IpFamily::BOTH.into_iter().zip(&ports) {
                end_expired(family, ports, start).unwrap_or_else(|error| {
                    tracing::warn!(%family, "cannot end connections to terminating endpoints: {}", error_chain(&error));
                });
            }
            let counts = IpFamily::BOTH.into_iter().zip(ports).filter_map(|(family, ports)| {
                let read = |protocol, endpoints: &BTreeSet<IpAddr>, each: &mut dyn FnMut(&Entry)| {
                    read_conntrack(family, protocol, endpoints, each)
                };
                count(family, &ports, read).unwrap_or_else(|error| {
                    tracing::debug!(%family, "cannot count connections to terminating endpoints: {}", error_chain(&error));
                    None
                })
            });
            let counts = counts.collect();
            let pause = READ_INTERVAL.max(start.elapsed() * PAUSE_FACTOR);
            let mut state = self.lock();
            state.counts = counts;
            // Meanwhile the last endpoint may have gone.
            for family in IpFamily::BOTH {
                state.forget_if_empty(family);
            }
            drop(state);
            thread::sleep(pause);
        }
    }
}

impl DrainingPorts {
    fn is_empty(&self) -> bool {
        self.ports.iter().all(BTreeMap::is_empty)
    }

    fn ports(&self, family: IpFamily) -> Vec<DrainingPort> {
        self.ports[family.index()].values().flatten().cloned().collect()
    }

    fn forget_if_empty(&mut self, family: IpFamily) {
        if self.ports[family.index()].is_empty() {
            self.counts.retain(|counts| counts.family != family);
        }
    }
}

impl DrainObserver {
    /// Creates an observer that keeps `shared` up to date and starts the reader when there is something to read.
    pub(crate) fn new(shared: Arc<DrainState>, tasks: Tasks, traits: &ModeTraits) -> Self {
        let (draining, to_update) = Default::default();
        Self { shared, tasks, draining, to_update, ends_connections: traits.drain_timeouts }
    }

    /// Returns when the connections to these terminating endpoints end. A connection to an endpoint that is used for want of others
    /// would reach it again.
    fn deadlines(
        &self,
        table: &ServiceTable,
        entry: &ServicePortEntry,
        endpoints: &[SocketAddr],
        before: Option<&DrainingPort>,
    ) -> BTreeMap<SocketAddr, Instant> {
        let timeout = entry.service.balancing.drain_timeout.filter(|_| self.ends_connections);
        let Some(timeout) = timeout.map(|seconds| Duration::from_secs(seconds.get().into())) else {
            return BTreeMap::new();
        };
        let used: BTreeSet<SocketAddr> = table.endpoint_sets(entry).reachable.iter().map(Endpoint::socket).collect();
        let now = Instant::now();
        let deadline = |endpoint: &SocketAddr| {
            let known = before.and_then(|port| port.deadlines.get(endpoint));
            (*endpoint, known.copied().unwrap_or(now + timeout))
        };
        endpoints.iter().filter(|endpoint| !used.contains(endpoint)).map(deadline).collect()
    }

    fn update(&mut self, table: &ServiceTable, service: &NamespacedName) {
        let index = table.family.index();
        let before = self.shared.lock().ports[index].get(service).cloned().unwrap_or_default();
        let ports = table.ports_of(service).map(|(name, entry)| {
            let terminating = entry.endpoints.iter().filter(|endpoint| endpoint.terminating);
            let endpoints: Vec<SocketAddr> = terminating.map(|endpoint| endpoint.socket()).collect();
            let before = before.iter().find(|port| port.name == *name);
            let deadlines = self.deadlines(table, entry, &endpoints, before);
            DrainingPort { name: name.clone(), service: entry.service.clone(), endpoints, deadlines }
        });
        let ports: Vec<DrainingPort> = ports.filter(|port| !port.endpoints.is_empty()).collect();
        let is_known = self.draining[index].contains(service);
        if ports.is_empty() && !is_known {
            return;
        }
        let mut state = self.shared.lock();
        if ports.is_empty() {
            self.draining[index].remove(service);
            state.ports[index].remove(service);
            state.forget_if_empty(table.family);
            return;
        }
        self.draining[index].insert(service.clone());
        state.ports[index].insert(service.clone(), ports);
        if !state.has_reader {
            let shared = Arc::clone(&self.shared);
            match self.tasks.thread("drain", move || shared.run()) {
                Ok(_) => state.has_reader = true,
                // The next change of a terminating endpoint is another attempt.
                Err(error) => tracing::warn!("cannot start the thread that counts draining connections: {error}"),
            }
        }
        self.shared.changed.notify_all();
    }
}

impl Observer for DrainObserver {
    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let services = self.to_update.after(sync, |entry| entry.endpoints.iter().any(|endpoint| endpoint.terminating));
        services.into_iter().for_each(|service| self.update(sync.table, service));
    }
}

/// Counts the open connections to terminating endpoints; `None` if there are none of those. `read` calls its last argument
/// with at least the entries of a protocol whose replies come from one of some addresses.
fn count<E>(
    family: IpFamily,
    ports: &[DrainingPort],
    read: impl Fn(Protocol, &BTreeSet<IpAddr>, &mut dyn FnMut(&Entry)) -> Result<(), E>,
) -> Result<Option<Draining>, E> {
    if ports.is_empty() {
        return Ok(None);
    }
    let mut counts = vec![0; ports.len()];
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let mut by_endpoint: HashMap<SocketAddr, Vec<usize>> = HashMap::new();
        let mut frontends: Vec<HashSet<(Option<IpAddr>, u16)>> = vec![HashSet::new(); ports.len()];
        for (index, port) in ports.iter().enumerate().filter(|(_, port)| port.name.protocol == protocol) {
            frontends[index] = self::frontends(&port.service, protocol);
            for endpoint in &port.endpoints {
                by_endpoint.entry(*endpoint).or_default().push(index);
            }
        }
        if by_endpoint.is_empty() {
            continue;
        }
        let addresses = by_endpoint.keys().map(SocketAddr::ip).collect();
        read(protocol, &addresses, &mut |entry| {
            let Some(indices) = by_endpoint.get(&entry.reply_source).filter(|_| entry.is_open) else { return };
            for index in indices {
                counts[*index] += u64::from(is_for(&frontends[*index], entry));
            }
        })?;
    }
    let endpoints: BTreeSet<(Protocol, SocketAddr)> =
        ports.iter().flat_map(|port| port.endpoints.iter().map(|endpoint| (port.name.protocol, *endpoint))).collect();
    let mut services: Vec<(String, u64)> = ports.iter().map(|port| port.name.to_string()).zip(counts).collect();
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

/// Deletes the entries of connections whose deadline has passed. The client's next packet is translated again, to another endpoint:
/// a TCP connection that this one does not know is reset.
fn end_expired(family: IpFamily, ports: &[DrainingPort], now: Instant) -> Result<(), conntrack::Error> {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let ports: Vec<ExpiredPort> = ports
            .iter()
            .filter(|port| port.name.protocol == protocol)
            .map(|port| ExpiredPort::new(port, now))
            .filter(|port| !port.endpoints.is_empty())
            .collect();
        if !ports.is_empty() {
            conntrack::delete_if(family, protocol, |entry| ports.iter().any(|port| port.has(entry)))?;
        }
    }
    Ok(())
}

/// The endpoints of a service port whose deadline has passed.
struct ExpiredPort {
    frontends: HashSet<(Option<IpAddr>, u16)>,
    endpoints: BTreeSet<SocketAddr>,
}

impl ExpiredPort {
    fn new(port: &DrainingPort, now: Instant) -> Self {
        let endpoints = port.deadlines.iter().filter(|(_, deadline)| **deadline <= now).map(|(endpoint, _)| *endpoint);
        Self { frontends: frontends(&port.service, port.name.protocol), endpoints: endpoints.collect() }
    }

    fn has(&self, entry: &Entry) -> bool {
        self.endpoints.contains(&entry.reply_source) && is_for(&self.frontends, entry)
    }
}

/// Returns the addresses and ports of a Service's frontends; node ports have no address.
pub(super) fn frontends(service: &ServicePort, protocol: Protocol) -> HashSet<(Option<IpAddr>, u16)> {
    service.frontends(protocol).map(|(_, frontend)| (frontend.address, frontend.port)).collect()
}

/// Reports whether a connection is for a Service with these frontends. Connections to the endpoint's own address are not; those to a
/// node port have any address.
pub(super) fn is_for(frontends: &HashSet<(Option<IpAddr>, u16)>, entry: &Entry) -> bool {
    let (address, port) = (entry.original_destination.ip(), entry.original_destination.port());
    let is_frontend = [Some(address), None].iter().any(|address| frontends.contains(&(*address, port)));
    is_frontend && entry.original_destination != entry.reply_source
}

fn read_conntrack(
    family: IpFamily,
    protocol: Protocol,
    endpoints: &BTreeSet<IpAddr>,
    mut each: &mut dyn FnMut(&Entry),
) -> Result<(), conntrack::Error> {
    let addresses = endpoints.iter().map(|endpoint| match endpoint {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    match addresses.collect::<Option<Vec<Ipv4Addr>>>() {
        Some(addresses) if addresses.len() <= MAX_FILTERED => {
            addresses.iter().try_for_each(|address| conntrack::list_to(*address, protocol, &mut each))
        }
        _ => conntrack::list(family, protocol, each),
    }
}

/// Service ports with a count of their own.
const MAX_PORTS: usize = 100;

/// IPv4 endpoint addresses that are worth a dump each, for which the kernel walks its whole table but returns only their
/// entries. A dump of all entries takes about eight times as long: 1.4 µs of CPU for each entry.
const MAX_FILTERED: usize = 8;

/// Minimum pause between reads.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// The pause is at least this many times as long as the read before it.
const PAUSE_FACTOR: u32 = 30;

#[cfg(test)]
mod tests;
