//! Observers of the sync loop: health, metrics, Events, startup taint, recording and logs.

pub(crate) mod applied;
pub(crate) mod drain;
pub(crate) mod ejection;
pub(crate) mod events;
pub(crate) mod flows;
pub(crate) mod health;
pub(crate) mod held_node_ports;
pub(crate) mod localhost;
pub(crate) mod observed;
pub(crate) mod other_proxies;
pub(crate) mod problems;
pub(crate) mod requests;
pub(crate) mod shares;
pub(crate) mod startup_taint;
pub(crate) mod status;
mod sync_log;
pub(crate) mod sysctl_watch;
pub(crate) mod traffic;
pub(crate) mod watchdog;
mod watched;

use std::{collections::BTreeSet, net::IpAddr};

use ferroute_core::{
    Dataplane, DataplaneError, IpFamily, NamespacedName, ServicePortEntry, ServicePortName, ServiceTable, Tracker,
};

pub(crate) use self::sync_log::SyncLog;
use crate::sync::{Change, FamilyOutcome};

/// Receives the events of the sync loop.
///
/// All methods are called on the thread of the sync loop and must not block, because they delay syncs.
pub trait Observer: Send {
    /// A change was received; `before` is the state that it is applied to.
    fn on_change(&mut self, _: &Change, _before: &Tracker) {}
    /// The sync loop has received this many batches of changes and requested the syncs that they require.
    fn on_received(&mut self, _batches: usize) {}
    /// The sync loop starts, with these IP families.
    fn on_start(&mut self, _: &[IpFamily]) {}
    /// A sync of an IP family was requested.
    fn on_queued(&mut self, _: IpFamily) {}
    /// A sync of an IP family starts; `full` if it compares all rules with the kernel's.
    fn on_sync_start(&mut self, _: IpFamily, _full: bool) {}
    /// A sync of an IP family succeeded: all changes queued for it are applied.
    fn on_synced(&mut self, _: &FamilySynced<'_>) {}
    /// A sync of an IP family failed: the rules applied before stay active, and its changes stay queued.
    fn on_failure(&mut self, _: IpFamily, _: &DataplaneError) {}
    /// Another program modified the rules of an IP family, which are about to be repaired, or have been in this sync.
    fn on_modified(&mut self, _: IpFamily) {}
    /// The rules of an IP family were checked for external modifications; `problem` is the reason why connections fail
    /// although the rules are correct.
    fn on_checked(&mut self, _: IpFamily, _problem: Option<&'static str>) {}
    /// Called about once a second, for retries and requests for the desired state.
    fn on_tick(&mut self, _desired: &Tracker) {}
}

/// A successful sync of one IP family.
#[derive(Clone, Copy)]
pub struct FamilySynced<'a> {
    /// The applied state.
    pub table: &'a ServiceTable,
    /// Outcome of the sync.
    pub outcome: &'a FamilyOutcome,
    /// The addresses of the host's interfaces.
    pub host_addresses: &'a [IpAddr],
    /// The dataplane that the state is applied to.
    pub dataplane: &'a dyn Dataplane,
}

/// Services that an observer with data for each Service has to check after a sync.
#[derive(Debug, Default)]
struct ServicesToUpdate {
    has_synced: [bool; 2],
}

impl ServicesToUpdate {
    /// Returns the Services that the sync changed; after the first sync of an IP family, the Services with a service
    /// port for which `concerns` returns true, because only they can have data.
    fn after<'a>(
        &mut self,
        sync: &FamilySynced<'a>,
        concerns: impl Fn(&ServicePortName, &ServicePortEntry) -> bool,
    ) -> BTreeSet<&'a NamespacedName> {
        let FamilySynced { table, outcome, .. } = *sync;
        if std::mem::replace(&mut self.has_synced[table.family.index()], true) {
            return outcome.changes.services.iter().collect();
        }
        let concerned = table.entries.iter().filter(|(name, entry)| concerns(name, entry));
        concerned.map(|(name, _)| &name.service).collect()
    }
}

/// A tracker of the desired state that notifies observers of each change.
///
/// It receives changes before the sync loop exists, because the IP families of the node are only known after the initial
/// lists. Objects are applied one by one as they arrive, so a large cluster is never in memory twice.
pub(crate) struct ObservedTracker {
    pub(crate) tracker: Tracker,
    pub(crate) observers: Vec<Box<dyn Observer>>,
}

impl ObservedTracker {
    /// Creates an observed tracker.
    pub(crate) fn new(tracker: Tracker, observers: Vec<Box<dyn Observer>>) -> Self {
        Self { tracker, observers }
    }

    /// Returns the desired state.
    pub(crate) fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Applies a change of the desired state. Returns changes of other kinds, which the sync loop handles.
    pub(crate) fn apply(&mut self, change: Change) -> Option<Change> {
        if matches!(change, Change::Synced | Change::Host) {
            return Some(change);
        }
        self.notify_change(&change);
        if let Change::Desired(event, _) = change {
            self.tracker.apply(event);
        }
        None
    }

    pub(crate) fn notify_change(&mut self, change: &Change) {
        tracing::trace!(?change, "change");
        self.observers.iter_mut().for_each(|observer| observer.on_change(change, &self.tracker));
    }

    pub(crate) fn notify_tick(&mut self) {
        self.observers.iter_mut().for_each(|observer| observer.on_tick(&self.tracker));
    }

    pub(crate) fn notify(&mut self, mut event: impl FnMut(&mut dyn Observer)) {
        self.observers.iter_mut().for_each(|observer| event(&mut **observer));
    }
}
