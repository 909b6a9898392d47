//! The loop that applies the desired state to the kernel.
//!
//! ```text
//!   changes --> Tracker          records what changed
//!                  |
//!              Schedule          when to sync: at once after a quiet time, at a limited rate, again after a failure
//!                  |
//!              FamilySync --> Dataplane --> deletion of stale conntrack entries        once per IP family
//! ```
//!
//! The loop runs on its own thread, because writing rules blocks. It writes no rules until the initial lists of
//! Services and endpoints have been received, and leaves the rules in the kernel when it ends.

mod counts;
mod family;
mod isolation;
mod late;
mod schedule;
pub(crate) mod thread;
mod unanswered;

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
    time::Duration,
};

use ferroute_admin::history::ChangeOrigin;
use ferroute_core::{IpFamily, error_chain, parse::ObjectVersion, tracker::TrackerEvent};
use ferroute_host::processor_time;
use ferroute_modes::cleanup::{Leftovers, RemovalReport};
use tokio::{sync::mpsc, time::Instant};

pub use self::family::FamilyOutcome;
use self::schedule::Schedule;
pub(crate) use self::{
    family::{ConntrackTable, FamilySync, KernelConntrack},
    schedule::Limits,
};
use crate::observers::{FamilySynced, ObservedTracker, Observer};

/// An input of the sync loop.
#[derive(Debug)]
pub enum Change {
    /// The desired state changed.
    Desired(TrackerEvent, ChangeOrigin),
    /// The initial lists of all resources have been received, so rules may be written.
    Synced,
    /// The host's addresses changed, or a firewall started, which may have removed rules.
    Host,
}

impl Change {
    /// Returns the change for an observation of the proxy itself.
    pub(crate) fn observed(event: TrackerEvent) -> Self {
        let received = std::time::Instant::now();
        let origin = ChangeOrigin { received, version: ObjectVersion::default(), trigger: None, written: None };
        Self::Desired(event, origin)
    }
}

/// The sync loop; see the [module documentation](self).
pub(crate) struct SyncLoop {
    state: ObservedTracker,
    families: Vec<FamilySync>,
    /// Leftovers of other modes that may still be in the kernel.
    leftovers: Vec<Box<dyn Leftovers>>,
    /// Whether the next successful sync is followed by a removal of `leftovers`: after the start and once per
    /// [`FULL_SYNC_INTERVAL`].
    leftovers_due: bool,
    conntrack: Box<dyn ConntrackTable>,
    host_addresses: Box<dyn FnMut() -> Vec<IpAddr> + Send>,
    relay_ports: RelayPorts,
    schedule: Schedule,
    last_sync_took: Duration,
    synced: bool,
}

/// Returns the host's ports on which processes relay UDP flows of an IP family.
type RelayPorts = Box<dyn Fn(IpFamily) -> HashSet<u16> + Send>;

impl SyncLoop {
    /// Creates a sync loop that has not written anything yet. It removes `leftovers` after its first successful sync;
    /// `host_addresses` returns the current addresses of the host's interfaces, `relay_ports` the host's ports on which
    /// processes relay UDP flows.
    pub(crate) fn new(
        mut state: ObservedTracker,
        families: Vec<FamilySync>,
        leftovers: Vec<Box<dyn Leftovers>>,
        conntrack: Box<dyn ConntrackTable>,
        host_addresses: Box<dyn FnMut() -> Vec<IpAddr> + Send>,
        relay_ports: RelayPorts,
        limits: Limits,
    ) -> Self {
        let schedule = Schedule::new(limits);
        let served: Vec<IpFamily> = families.iter().map(FamilySync::family).collect();
        state.notify(|observer| observer.on_start(&served));
        Self {
            state,
            families,
            leftovers,
            leftovers_due: true,
            conntrack,
            host_addresses,
            relay_ports,
            schedule,
            last_sync_took: Duration::ZERO,
            synced: false,
        }
    }

    /// Handles changes until all their senders are dropped.
    pub(crate) async fn run(mut self, mut changes: mpsc::Receiver<Vec<Change>>) {
        let mut poll_at = Instant::now() + POLL_INTERVAL;
        let mut full_sync_at = Instant::now() + FULL_SYNC_INTERVAL;
        loop {
            tokio::select! {
                batch = changes.recv() => {
                    let Some(batch) = batch else { return };
                    self.apply(batch);
                    let batches = 1 + self.apply_queued(&mut changes).await;
                    self.state.notify(|observer| observer.on_received(batches));
                }
                () = self.schedule.ready() => self.sync(),
                () = tokio::time::sleep_until(poll_at) => {
                    self.poll();
                    poll_at = Instant::now() + POLL_INTERVAL;
                }
                () = tokio::time::sleep_until(full_sync_at) => {
                    self.leftovers_due = true;
                    self.resync();
                    full_sync_at = Instant::now() + FULL_SYNC_INTERVAL;
                }
            }
        }
    }

    /// Applies all changes that have been sent, so that one sync covers them. Returns the number of batches.
    ///
    /// The queue is short, so after a long sync the senders wait with further changes, and thousands of changes would
    /// need a sync for every few of them. The loop therefore receives changes for as long as the last sync took, which
    /// at most doubles the delay of a change.
    async fn apply_queued(&mut self, changes: &mut mpsc::Receiver<Vec<Change>>) -> usize {
        let deadline = Instant::now() + self.last_sync_took;
        let mut batches = 0;
        loop {
            while let Ok(batch) = changes.try_recv() {
                self.apply(batch);
                batches += 1;
            }
            let now = Instant::now();
            if batches < changes.max_capacity() || now >= deadline {
                return batches;
            }
            match tokio::time::timeout_at(deadline.min(now + SENDER_DELAY), changes.recv()).await {
                Ok(Some(batch)) => self.apply(batch),
                Ok(None) | Err(_) => return batches,
            }
            batches += 1;
        }
    }

    fn apply(&mut self, batch: Vec<Change>) {
        for change in batch {
            let Some(change) = self.state.apply(change) else { continue };
            self.state.notify_change(&change);
            match change {
                Change::Synced => {
                    self.synced = true;
                    self.request();
                }
                _ => self.resync(),
            }
        }
        if self.families.iter().any(|family| self.state.tracker().has_pending_changes(family.family())) {
            // The change may remove the cause of the last failure.
            self.schedule.forget_failure();
            self.request();
        }
    }

    fn request(&mut self) {
        if !self.synced {
            return;
        }
        self.schedule.request();
        for family in &self.families {
            self.state.notify(|observer| observer.on_queued(family.family()));
        }
    }

    /// Requests a resync if another program modified the rules.
    fn poll(&mut self) {
        self.state.notify_tick();
        if !self.synced {
            return;
        }
        for family in &mut self.families {
            let table = self.state.tracker.table(family.family());
            family.maintain(table, &mut *self.conntrack, &mut *self.host_addresses, &*self.relay_ports);
        }
        let mut modified = false;
        for family in self.families.iter_mut().filter(|family| !family.needs_resync()) {
            if family.was_modified_externally() {
                family.mark_for_resync();
                modified = true;
                report_modified(family.family(), &mut self.state.observers);
            }
        }
        let problems = self.families.iter_mut().map(|family| (family.family(), family.problem()));
        let problems: Vec<_> = problems.collect();
        for (family, problem) in problems {
            self.state.notify(|observer| observer.on_checked(family, problem));
        }
        if modified || self.families.iter().any(FamilySync::is_due) {
            self.request();
        }
    }

    /// Requests a sync that compares all rules with the kernel's.
    fn resync(&mut self) {
        self.families.iter_mut().for_each(FamilySync::mark_for_resync);
        self.request();
    }

    fn sync(&mut self) {
        self.schedule.begin();
        let (start, processor_time) = (Instant::now(), processor_time());
        let host_addresses = (self.host_addresses)();
        let mut failed = false;
        let ObservedTracker { tracker, observers } = &mut self.state;
        for sync in &mut self.families {
            let (family, full) = (sync.family(), sync.needs_resync());
            observers.iter_mut().for_each(|observer| observer.on_sync_start(family, full));
            match sync.sync(tracker, &mut *self.conntrack, &host_addresses, &*self.relay_ports) {
                Ok(outcome) => {
                    failed |= outcome.conntrack_error.is_some();
                    if outcome.report.as_ref().is_some_and(|report| report.repaired) {
                        report_modified(family, observers);
                    }
                    let (table, dataplane) = (tracker.table(family), sync.dataplane());
                    let synced = FamilySynced { table, outcome: &outcome, host_addresses: &host_addresses, dataplane };
                    observers.iter_mut().for_each(|observer| observer.on_synced(&synced));
                }
                Err(error) => {
                    tracing::error!(%family, error = %error_chain(&error), "cannot sync rules; the previous rules stay active");
                    observers.iter_mut().for_each(|observer| observer.on_failure(family, &error));
                    failed = true;
                }
            }
        }
        self.last_sync_took = start.elapsed();
        // Other threads have worked, too.
        self.schedule.took(self::processor_time().saturating_sub(processor_time).min(self.last_sync_took));
        if failed {
            let delay = self.schedule.failed();
            tracing::info!(?delay, "retrying the sync");
        } else {
            self.schedule.succeeded();
            self.remove_leftovers();
        }
    }

    /// Removes the leftovers of other modes. New connections already use the new rules; established ones continue by
    /// their conntrack entries.
    fn remove_leftovers(&mut self) {
        if !std::mem::take(&mut self.leftovers_due) {
            return;
        }
        let (mut has_removed, mut udp_frontends) = (false, BTreeSet::new());
        self.leftovers.retain_mut(|leftovers| {
            let mut report = RemovalReport::default();
            leftovers.remove(&mut report);
            for removed in &report.removed {
                tracing::info!("removed leftovers of another mode: {removed}");
            }
            for remaining in &report.remaining {
                tracing::warn!("leftovers of another mode remain: {remaining}");
            }
            has_removed |= !report.removed.is_empty();
            udp_frontends.append(&mut report.udp_frontends);
            !report.remaining.is_empty()
        });
        let tracker = self.state.tracker();
        for family in &mut self.families {
            // The next sync deletes the conntrack entries of the removed rules.
            if has_removed && family.rules_were_removed(tracker.table(family.family()), &udp_frontends) {
                self.schedule.request();
            }
        }
    }
}

/// Reports that another program modified the rules of an IP family. They are repaired next, or have just been repaired.
fn report_modified(family: IpFamily, observers: &mut [Box<dyn Observer>]) {
    tracing::warn!(%family, "rules were modified by another program; repairing them");
    observers.iter_mut().for_each(|observer| observer.on_modified(family));
}

/// The time in which a sender that waited for the queue sends its next batch, also on a busy machine.
const SENDER_DELAY: Duration = Duration::from_millis(5);

/// Interval of the check for external modifications, which is one small message if the kernel counts changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of full syncs; kube-proxy's value.
const FULL_SYNC_INTERVAL: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
