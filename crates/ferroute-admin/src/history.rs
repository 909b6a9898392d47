//! History of changes from receipt to kernel: the applied version of each Service, and slow changes.
//!
//! ```text
//!   sync loop ──► History ─┬► Ledger: applied version of each Service        /services, ferroute status --service
//!                          ├► SlowChanges: slowest changes of the last hour  /changes
//!                          └► AppliedChange, per change                      Metrics
//! ```
//!
//! Time is always an argument. Memory is bounded: 16 bytes per object and, only if the pages are served, one small
//! entry per Service and a few dozen slow changes.

mod changes;
mod delays;
mod ledger;
mod query;
mod services;
mod unapplied;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use ferroute_core::{IpFamily, NamespacedName, SyncReport, Tracker, parse::ObjectVersion, tracker::TrackerEvent};

use self::{
    changes::{ChangesPage, SlowChanges},
    delays::Delays,
    ledger::{Kind, Ledger, ServicesPart},
};
pub use self::{
    delays::ChangeDelays,
    ledger::Applied,
    unapplied::{Unapplied, UnappliedPort, UnappliedService},
};
pub(crate) use self::{
    query::{QueryError, ServiceQuery},
    services::ServicesBody,
};
use ferroute_host::Moment;

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A Service was added or updated. Indexed by [`IpFamily::index`], whether it has ports of each family.
    ServiceApplied([bool; 2]),
    /// A Service was deleted.
    ServiceDeleted,
    /// An EndpointSlice of this family was added or updated.
    SliceApplied(IpFamily),
    /// An EndpointSlice was deleted.
    SliceDeleted,
}

impl ChangeKind {
    fn is_deletion(self) -> bool {
        matches!(self, Self::ServiceDeleted | Self::SliceDeleted)
    }
}

/// Version and times of a change. Rules do not depend on them.
#[derive(Clone, Copy, Debug)]
pub struct ChangeOrigin {
    /// Time of receipt from the source.
    pub received: Instant,
    /// Version of the object; empty for objects from files and deleted objects.
    pub version: ObjectVersion,
    /// Time of the event in the cluster that caused an EndpointSlice to change; see
    /// [`ferroute_core::parse::trigger_time`].
    pub trigger: Option<SystemTime>,
    /// Time of the API server's write, truncated to seconds, if known.
    pub written: Option<SystemTime>,
}

impl ChangeOrigin {
    /// Returns the origin of a change without an object, or of an object without a version.
    pub fn unversioned(received: Instant) -> Self {
        Self { received, version: ObjectVersion::default(), trigger: None, written: None }
    }
}

/// A received change.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// Kind of the change.
    pub kind: ChangeKind,
    /// The affected Service; of a deleted EndpointSlice that the proxy did not have, its own name.
    pub name: NamespacedName,
    /// Indexed by [`IpFamily::index`], whether the rules of each family may depend on the change.
    pub families: [bool; 2],
    /// The EndpointSlice that changed; `None` if the Service itself did.
    pub slice: Option<NamespacedName>,
    /// Version and times.
    pub origin: ChangeOrigin,
}

impl ObjectChange {
    /// Returns the change of a Service or an EndpointSlice that an event makes to the state `before`; `None` for other
    /// events.
    pub fn from_event(event: &TrackerEvent, origin: ChangeOrigin, before: &Tracker) -> Option<Self> {
        let had = |name| before.ports_of(name).map_or([false; 2], |ports| [0, 1].map(|index| !ports[index].is_empty()));
        let only = |family: IpFamily| IpFamily::BOTH.map(|other| other == family);
        let (kind, name, families, slice) = match event {
            TrackerEvent::ServiceApplied(service) => {
                let (has, had) = ([0, 1].map(|index| !service.ports[index].is_empty()), had(&service.name));
                (ChangeKind::ServiceApplied(has), service.name.clone(), [0, 1].map(|i| has[i] || had[i]), None)
            }
            TrackerEvent::ServiceDeleted(name) => (ChangeKind::ServiceDeleted, name.clone(), had(name), None),
            TrackerEvent::SliceApplied(slice) => {
                let kind = ChangeKind::SliceApplied(slice.family);
                (kind, slice.service.clone(), only(slice.family), Some(slice.name.clone()))
            }
            TrackerEvent::SliceDeleted(name) => {
                let deleted = before.slice(name).map(|slice| (slice.service, only(slice.family)));
                let (service, families) = deleted.unwrap_or_else(|| (name.clone(), [false; 2]));
                (ChangeKind::SliceDeleted, service, families, Some(name.clone()))
            }
            TrackerEvent::NodeApplied(_)
            | TrackerEvent::ServiceCidrsApplied(_)
            | TrackerEvent::EndpointsEjected(_)
            | TrackerEvent::SharesApplied(_)
            | TrackerEvent::OtherHostsApplied(_) => return None,
        };
        Some(Self { kind, name, families, slice, origin })
    }
}

/// Numbers of service ports of one family after a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServicePortCounts {
    /// Service ports that are not up to date because the kernel refused their rules, in this sync or before.
    pub isolated: usize,
    /// Service ports that are not served, or not with all of their endpoints, because a limit was exceeded.
    pub limited: usize,
    /// Service ports with internal traffic policy Local for which only other nodes have usable endpoints.
    pub no_local_internal: usize,
    /// The same for external traffic policy Local; only service ports with an address for external traffic.
    pub no_local_external: usize,
}

/// A successful sync of one family.
#[derive(Clone, Copy, Debug)]
pub struct Synced<'a> {
    /// End of the sync.
    pub ended: Moment,
    /// Duration of the sync.
    pub took: Duration,
    /// Whether all rules were compared or written, not only changes.
    pub full: bool,
    /// Report of the dataplane; `None` if nothing had changed.
    pub report: Option<&'a SyncReport>,
    /// Numbers of service ports.
    pub counts: ServicePortCounts,
    /// Services whose rules have changed.
    pub changed: &'a BTreeSet<NamespacedName>,
    /// Services with service ports that are not applied because the kernel refuses their rules, or because the mode has
    /// no number left.
    pub unapplied: &'a BTreeMap<NamespacedName, UnappliedService>,
    /// Services that are not served, or not with all of their endpoints, because a limit is exceeded: those that
    /// [`ServicePortCounts::limited`] counts.
    pub limited: &'a BTreeSet<NamespacedName>,
    /// Duration of the search for stale conntrack entries and number of deleted entries; `None` without a search.
    pub conntrack: Option<(Duration, usize)>,
}

/// A change that has been applied in one family.
#[derive(Clone, Debug)]
pub struct AppliedChange {
    /// The change.
    pub change: ObjectChange,
    /// IP family.
    pub family: IpFamily,
    /// Start of the sync that applied the change.
    pub started: Instant,
    /// End of that sync.
    pub ended: Moment,
    /// The kernel's share of that sync.
    pub kernel: Duration,
    /// Whether rules of the Service have changed.
    pub has_effect: bool,
}

/// History of changes, from their receipt until they are applied. Changes stay pending when a sync fails.
///
/// Changes received before the first sync are only counted, so that a large cluster needs no memory here beyond the state
/// of its Services.
#[derive(Debug)]
pub struct History(Mutex<AppliedAndPending>);

#[derive(Debug)]
struct AppliedAndPending {
    started: SystemTime,
    families: Vec<IpFamily>,
    /// Indexed by [`IpFamily::index`].
    pending: [Pending; 2],
    ledger: Ledger,
    delays: Delays,
    /// Slow changes; `None` if the pages of changes are not served.
    slow: Option<SlowChanges>,
}

#[derive(Debug, Default)]
struct Pending {
    changes: Vec<ObjectChange>,
    services: usize,
    slices: usize,
    deleted_slices: usize,
    /// Start of the current sync.
    sync_started: Option<Instant>,
    /// Whether any sync has succeeded.
    has_synced: bool,
}

impl History {
    /// Creates an empty history of a proxy that was started at this time and serves both families. If `with_pages` is
    /// true, it also keeps the data for `/services` and `/changes`.
    pub fn new(started: SystemTime, with_pages: bool) -> Self {
        Self(Mutex::new(AppliedAndPending {
            started,
            families: IpFamily::BOTH.to_vec(),
            pending: Default::default(),
            ledger: Ledger::new(with_pages),
            delays: Delays::default(),
            slow: with_pages.then(SlowChanges::default),
        }))
    }

    /// Sets the served families, which are known once the initial lists have been received.
    pub fn set_families(&self, families: &[IpFamily]) {
        let state = &mut *self.lock();
        state.families = families.to_vec();
        for family in IpFamily::BOTH.into_iter().filter(|family| !families.contains(family)) {
            state.pending[family.index()] = Pending::default();
        }
        state.ledger.set_families(families);
    }

    /// Records a received change.
    pub fn received(&self, mut change: ObjectChange) {
        let state = &mut *self.lock();
        // As in kube-proxy, events before the start do not measure this proxy.
        change.origin.trigger = change.origin.trigger.filter(|trigger| *trigger > state.started);
        state.ledger.received(&change);
        let is_affected = |family: &&IpFamily| match change.kind {
            ChangeKind::SliceApplied(slice) => slice == **family,
            ChangeKind::ServiceApplied(_) | ChangeKind::ServiceDeleted | ChangeKind::SliceDeleted => true,
        };
        for family in state.families.iter().filter(is_affected) {
            state.pending[family.index()].push(change.clone());
        }
    }

    /// Returns the number of Services of which a received change is not applied in some family, as `/services` shows them. Where
    /// that is not served, this is the number of received changes before the first sync.
    pub fn pending(&self) -> usize {
        let state = &mut *self.lock();
        let starting = state.pending.iter().filter(|pending| !pending.has_synced && !state.ledger.has_services());
        let starting = starting.map(|pending| pending.services + pending.slices + pending.deleted_slices).max();
        state.ledger.pending().max(starting.unwrap_or_default())
    }

    /// Returns the service ports whose desired rules are not active although the last sync succeeded.
    pub fn unapplied(&self) -> Vec<UnappliedPort> {
        self.lock().ledger.unapplied()
    }

    /// Returns the numbers of Service changes and EndpointSlice changes that no sync has processed in any family.
    pub fn pending_changes(&self) -> (usize, usize) {
        let [v4, v6] = &self.lock().pending;
        let slices = v4.slices + v6.slices + v4.deleted_slices.max(v6.deleted_slices);
        (v4.services.max(v6.services), slices)
    }

    /// Records the start of a sync.
    pub fn sync_started(&self, family: IpFamily, at: Instant) {
        self.lock().pending[family.index()].sync_started = Some(at);
    }

    /// Records a successful sync, which applies all pending changes of its family. Calls `each` for those of them that
    /// were received after the first sync.
    pub fn synced(&self, family: IpFamily, sync: &Synced<'_>, mut each: impl FnMut(&AppliedChange)) {
        let state = &mut *self.lock();
        state.ledger.synced(family, sync);
        let pending = &mut state.pending[family.index()];
        let done = std::mem::take(pending);
        pending.has_synced = true;
        let started = done.sync_started.unwrap_or(sync.ended.instant);
        let kernel = sync.report.map(|report| report.kernel_time).unwrap_or_default();
        for change in done.changes {
            let has_effect = sync.full || sync.changed.contains(&change.name);
            let applied = AppliedChange { change, family, started, ended: sync.ended, kernel, has_effect };
            state.delays.insert(applied.queue(), applied.sync());
            each(&applied);
            if let Some(slow) = &mut state.slow
                && has_effect
            {
                slow.insert(applied);
            }
        }
    }

    /// Records a failed sync. Its changes stay pending, and no Service counts as applied until the next success.
    pub fn failed(&self, family: IpFamily) {
        self.lock().ledger.failed(family);
    }

    /// Returns whether the last received version of a Service is applied. `has_ports` is whether it has ports of each
    /// family, indexed by [`IpFamily::index`]; `None` if the Service does not exist.
    pub fn applied(&self, service: &NamespacedName, has_ports: Option<[bool; 2]>) -> Applied {
        self.lock().ledger.applied(service, has_ports)
    }

    /// Returns the last received `resourceVersion` of an existing Service.
    pub fn service_version(&self, name: &NamespacedName) -> Option<u64> {
        self.lock().ledger.version(Kind::Service, name)
    }

    /// Returns the last received `resourceVersion` of an existing EndpointSlice.
    pub fn slice_version(&self, name: &NamespacedName) -> Option<u64> {
        self.lock().ledger.version(Kind::Slice, name)
    }

    /// Returns the waiting times of the last changes, and the durations of their syncs; `None` if there were none since
    /// the first sync.
    pub fn delays(&self) -> Option<ChangeDelays> {
        self.lock().delays.summary()
    }

    /// Reports whether `/services` and `/changes` are kept.
    pub(crate) fn has_pages(&self) -> bool {
        self.lock().slow.is_some()
    }

    /// Returns the applied versions of the Services after `after`, in the order of their names: a few of them, so that the
    /// lock is held for a short time only.
    pub(crate) fn services(&self, query: &ServiceQuery, after: Option<&NamespacedName>) -> ServicesPart {
        self.lock().ledger.part(query, after)
    }

    /// Returns the slowest changes of the last hour, without the first `skip`.
    pub(crate) fn slow_changes(&self, now: Instant, skip: usize, limit: usize) -> ChangesPage {
        let slow = &self.lock().slow;
        slow.as_ref().map(|slow| slow.page(now, skip, limit)).unwrap_or_default()
    }

    /// Locks the state. No operation under the lock leaves an inconsistent state behind when it panics.
    fn lock(&self) -> MutexGuard<'_, AppliedAndPending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn push(&mut self, change: ObjectChange) {
        match change.kind {
            ChangeKind::ServiceApplied(_) | ChangeKind::ServiceDeleted => self.services += 1,
            ChangeKind::SliceApplied(_) => self.slices += 1,
            ChangeKind::SliceDeleted => self.deleted_slices += 1,
        }
        // Objects of the initial list may be years old.
        if self.has_synced || change.origin.trigger.is_some() {
            self.changes.push(change);
        }
    }
}

impl AppliedChange {
    /// Time from the event in the cluster to the receipt. It compares the clocks of two computers.
    fn delivery(&self) -> Option<Duration> {
        let trigger = self.change.origin.trigger?;
        Some(self.received().duration_since(trigger).unwrap_or_default())
    }

    /// Returns the time from the event in the cluster to the API server's write, which is spent in controllers. It is up to
    /// a second too short, because the time of the write is truncated to seconds.
    pub(crate) fn api(&self) -> Option<Duration> {
        let took = self.change.origin.written?.duration_since(self.change.origin.trigger?).unwrap_or_default();
        Some(took.min(self.delivery()?))
    }

    /// Returns the time from the API server's write, or if that is unknown from the event, to the receipt.
    pub(crate) fn watch(&self) -> Option<Duration> {
        Some(self.delivery()? - self.api().unwrap_or_default())
    }

    /// Returns the time from the receipt to the start of the sync.
    pub(crate) fn queue(&self) -> Duration {
        self.started.saturating_duration_since(self.change.origin.received)
    }

    /// Returns the duration of the sync.
    pub(crate) fn sync(&self) -> Duration {
        self.ended.instant.saturating_duration_since(self.started)
    }

    /// Returns the time from the event in the cluster, or from the receipt if the event is unknown, to the end of the
    /// sync.
    pub(crate) fn total(&self) -> Duration {
        self.delivery().unwrap_or_default() + self.queue() + self.sync()
    }

    /// Returns the value for `kubeproxy_network_programming_duration_seconds`; `None` for changes that it does not count:
    /// those without effect or without a known event in the cluster.
    pub(crate) fn programming(&self) -> Option<Duration> {
        let trigger = self.change.origin.trigger.filter(|_| self.has_effect)?;
        Some(self.ended.wall.duration_since(trigger).unwrap_or_default())
    }

    /// Returns the wall-clock time of the receipt.
    pub(crate) fn received(&self) -> SystemTime {
        self.wall(self.change.origin.received)
    }

    /// Converts an earlier monotonic time to wall-clock time.
    fn wall(&self, instant: Instant) -> SystemTime {
        let ago = self.ended.instant.saturating_duration_since(instant);
        self.ended.wall.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests;
