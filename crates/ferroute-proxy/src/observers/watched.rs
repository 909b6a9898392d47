//! Data of Services that observers keep for separate threads.
//!
//! ```text
//!   sync loop ──► Watcher ──► WatchedPorts ──► thread
//!                 (changed Services only)
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ferroute_core::{IpFamily, NamespacedName, Protocol, ServicePort, ServicePortEntry, ServicePortName, ServiceTable};
use ferroute_host::conntrack::Entry;

use crate::{
    observers::{FamilySynced, ServicesToUpdate},
    process::tasks::Tasks,
};

/// A service port in one IP family, with the endpoints that a thread watches and its data for each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatchedPort<E> {
    pub(super) name: ServicePortName,
    pub(super) service: Arc<ServicePort>,
    pub(super) endpoints: Endpoints<E>,
}

/// Data of a thread for each endpoint.
pub(super) type Endpoints<E> = BTreeMap<SocketAddr, E>;

/// Service ports, shared by the sync loop and a thread.
#[derive(Debug)]
pub(super) struct WatchedPorts<E> {
    ports: Mutex<VersionedPorts<E>>,
    changed: Condvar,
}

#[derive(Debug)]
struct VersionedPorts<E> {
    /// By [`IpFamily::index`] and Service.
    ports: [BTreeMap<NamespacedName, Vec<WatchedPort<E>>>; 2],
    /// Number of changes.
    changes: u64,
}

/// The side of the sync loop.
#[derive(Debug)]
pub(super) struct Watcher<E> {
    ports: Arc<WatchedPorts<E>>,
    /// Services with ports, by [`IpFamily::index`], so that syncs of other Services do not need the lock.
    services: [BTreeSet<NamespacedName>; 2],
    to_update: ServicesToUpdate,
    has_thread: bool,
}

/// Counts the open connections to the endpoints of service ports. `list` must call its last argument with the
/// connection tracking entries of a protocol whose replies come from one of the addresses, and may call it with others.
pub(super) fn open_connections<E, R>(
    ports: &[&WatchedPort<E>],
    list: impl Fn(Protocol, &BTreeSet<IpAddr>, &mut dyn FnMut(&Entry)) -> Result<(), R>,
) -> Result<Vec<BTreeMap<SocketAddr, u64>>, R> {
    let none = |port: &&WatchedPort<E>| port.endpoints.keys().map(|endpoint| (*endpoint, 0)).collect();
    let mut counts: Vec<BTreeMap<SocketAddr, u64>> = ports.iter().map(none).collect();
    for protocol in Protocol::ALL {
        let mut by_endpoint: HashMap<SocketAddr, Vec<usize>> = HashMap::new();
        for (index, port) in ports.iter().enumerate().filter(|(_, port)| port.name.protocol == protocol) {
            port.endpoints.keys().for_each(|endpoint| by_endpoint.entry(*endpoint).or_default().push(index));
        }
        if by_endpoint.is_empty() {
            continue;
        }
        let addresses = by_endpoint.keys().map(SocketAddr::ip).collect();
        list(protocol, &addresses, &mut |entry| {
            let indices = by_endpoint.get(&entry.reply_source).filter(|_| entry.is_open);
            for index in indices.into_iter().flatten().filter(|index| ports[**index].has_entry(entry)) {
                *counts[*index].entry(entry.reply_source).or_default() += 1;
            }
        })?;
    }
    Ok(counts)
}

impl<E> WatchedPort<E> {
    /// Reports whether a connection came through one of the frontends to one of the endpoints. A connection to the
    /// endpoint's own address did not. Node ports have any address.
    pub(super) fn has(&self, frontend: SocketAddr, endpoint: SocketAddr) -> bool {
        frontend != endpoint
            && self.endpoints.contains_key(&endpoint)
            && self.service.frontends(self.name.protocol).any(|(_, other)| {
                other.port == frontend.port() && other.address.is_none_or(|address| address == frontend.ip())
            })
    }

    /// Like [`Self::has`], for a connection tracking entry.
    pub(super) fn has_entry(&self, entry: &Entry) -> bool {
        self.has(entry.original_destination, entry.reply_source)
    }
}

impl<E> Default for WatchedPorts<E> {
    fn default() -> Self {
        Self { ports: Mutex::new(VersionedPorts { ports: Default::default(), changes: 0 }), changed: Condvar::new() }
    }
}

impl<E: Clone> WatchedPorts<E> {
    fn lock(&self) -> MutexGuard<'_, VersionedPorts<E>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports whether an IP family has service ports.
    pub(super) fn has_some(&self, family: IpFamily) -> bool {
        !self.lock().ports[family.index()].is_empty()
    }

    /// Returns the service ports by [`IpFamily::index`], and a number that each change increases.
    pub(super) fn get(&self) -> ([Vec<WatchedPort<E>>; 2], u64) {
        self.lock().get()
    }

    /// Returns the ports of a Service.
    pub(super) fn of(&self, family: IpFamily, service: &NamespacedName) -> Vec<WatchedPort<E>> {
        self.lock().ports[family.index()].get(service).cloned().unwrap_or_default()
    }

    /// Removes endpoints, and the ports and Services that have no others.
    pub(super) fn remove(&self, is_removed: impl Fn(&E) -> bool) {
        let mut state = self.lock();
        for services in &mut state.ports {
            services.retain(|_, ports| {
                ports.retain_mut(|port| {
                    port.endpoints.retain(|_, data| !is_removed(data));
                    !port.endpoints.is_empty()
                });
                !ports.is_empty()
            });
        }
    }

    /// Waits until there are service ports, and returns them by [`IpFamily::index`].
    pub(super) fn wait_for_some(&self) -> [Vec<WatchedPort<E>>; 2] {
        let is_empty = |ports: &mut VersionedPorts<E>| ports.ports.iter().all(BTreeMap::is_empty);
        self.changed.wait_while(self.lock(), is_empty).unwrap_or_else(PoisonError::into_inner).get().0
    }

    /// Waits for a change of the service ports that [`Self::get`] returned with this number, at most for some time.
    pub(super) fn wait_for_change(&self, changes: u64, timeout: Duration) {
        let is_same = |ports: &mut VersionedPorts<E>| ports.changes == changes;
        drop(self.changed.wait_timeout_while(self.lock(), timeout, is_same).unwrap_or_else(PoisonError::into_inner));
    }
}

impl<E: Clone> VersionedPorts<E> {
    fn get(&self) -> ([Vec<WatchedPort<E>>; 2], u64) {
        (IpFamily::BOTH.map(|family| self.ports[family.index()].values().flatten().cloned().collect()), self.changes)
    }
}

impl<E: Clone> Watcher<E> {
    /// Creates a watcher without ports.
    pub(super) fn new(ports: Arc<WatchedPorts<E>>) -> Self {
        Self { ports, services: Default::default(), to_update: ServicesToUpdate::default(), has_thread: false }
    }

    /// Returns the Services to update after a sync, like [`ServicesToUpdate::after`].
    pub(super) fn services<'a>(
        &mut self,
        sync: &FamilySynced<'a>,
        concerns: impl Fn(&ServicePortName, &ServicePortEntry) -> bool,
    ) -> BTreeSet<&'a NamespacedName> {
        self.to_update.after(sync, concerns)
    }

    /// Updates the ports of a Service. `concerns` selects them, and `endpoints` returns the endpoints of a port that
    /// are watched, given the previous ones. Returns true if something may have changed.
    pub(super) fn update(
        &mut self,
        table: &ServiceTable,
        service: &NamespacedName,
        concerns: impl Fn(&ServicePortName, &ServicePortEntry) -> bool,
        endpoints: impl Fn(&ServicePortName, &ServicePortEntry, Option<&Endpoints<E>>) -> Endpoints<E>,
    ) -> bool {
        let family = table.family.index();
        let is_known = self.services[family].contains(service);
        let concerned: Vec<_> = table.ports_of(service).filter(|(name, entry)| concerns(name, entry)).collect();
        if concerned.is_empty() && !is_known {
            return false;
        }
        let mut state = self.ports.lock();
        state.changes += 1;
        let before = state.ports[family].remove(service).unwrap_or_default();
        let port = |(name, entry): (&ServicePortName, &ServicePortEntry)| {
            let before = before.iter().find(|port| port.name == *name).map(|port| &port.endpoints);
            let endpoints = endpoints(name, entry, before);
            WatchedPort { name: name.clone(), service: entry.service.clone(), endpoints }
        };
        if concerned.is_empty() {
            self.services[family].remove(service);
        } else {
            self.services[family].insert(service.clone());
            state.ports[family].insert(service.clone(), concerned.into_iter().map(port).collect());
        }
        self.ports.changed.notify_all();
        true
    }

    /// Starts the thread unless it runs. `work` ends with the process.
    pub(super) fn start(&mut self, tasks: &Tasks, name: &'static str, work: impl FnOnce() + Send + 'static) {
        if self.has_thread {
            return;
        }
        match tasks.thread(name, work) {
            Ok(_) => self.has_thread = true,
            // The next change is another attempt.
            Err(error) => tracing::warn!("cannot start the thread \"{name}\": {error}"),
        }
    }
}
