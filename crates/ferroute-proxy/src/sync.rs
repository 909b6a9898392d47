//! The loop that brings what is wanted into force.
//!
//! ```text
//!   changes ──► Tracker          a change only notes that something differs
//!                  │
//!              Schedule          when to act: at once after a quiet time, seldom in a storm, again after a failure
//!                  │
//!              FamilySync ──► Dataplane ──► stale flows go        once per IP family
//! ```
//!
//! It runs on a thread of its own, because writing rules blocks, and owns everything it touches. No rule is written
//! before Services and endpoints have been listed once. When it ends, the rules stay.

mod family;
mod intake;
mod schedule;

use std::{net::IpAddr, time::Duration};

use ferroute_core::{
    IpFamily,
    parse::ObjectVersion,
    tracker::TrackerEvent,
};
use tokio::{sync::mpsc, time::Instant};

use self::schedule::Schedule;
pub use self::{
    family::{FamilyOutcome, FamilySync, FlowTable},
    intake::Intake,
    schedule::Limits,
};
use crate::{
    cleanup::{Leftovers, Report},
    logging::chain,
    observer::InForce,
};

/// An input of the sync loop.
#[derive(Debug)]
pub enum Change {
    /// The desired state changed.
    Desired(TrackerEvent, Stamp),
    /// Services and endpoints have been listed once: rules may be written.
    Listed,
    /// Something about the host differs that rules depend on: addresses of its interfaces, or a firewall that has started
    /// anew and may have taken rules away.
    Host,
}

/// When a change was received, and which version of its object it is. The rules do not depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// When it came from the source.
    pub received: std::time::Instant,
    /// The object's version; nothing is known of it in files and of what is gone.
    pub version: ObjectVersion,
    /// When that happened in the cluster which has made the slice change; see
    /// [`ferroute_core::parse::trigger_time`]. Nothing else tells.
    pub trigger: Option<std::time::SystemTime>,
    /// When the API server wrote it, if that is known.
    pub written: Option<std::time::SystemTime>,
}

/// See the module's text.
pub struct SyncLoop {
    intake: Intake,
    families: Vec<FamilySync>,
    /// Modes whose rules may still be there from before; they go once ours have taken over.
    predecessors: Vec<Box<dyn Leftovers>>,
    /// The next sync that succeeds is followed by a try to remove them: the first one and, where that was in vain, one
    /// an hour.
    predecessors_due: bool,
    flows: Box<dyn FlowTable>,
    host_addresses: Box<dyn FnMut() -> Vec<IpAddr> + Send>,
    schedule: Schedule,
    listed: bool,
}

impl SyncLoop {
    /// A loop that has written nothing yet, for what has come in and what is still to come. What the `predecessors` have
    /// left goes after the first sync; `host_addresses` tells the addresses of the host's interfaces whenever it is asked.
    pub fn new(
        mut intake: Intake,
        families: Vec<FamilySync>,
        predecessors: Vec<Box<dyn Leftovers>>,
        flows: Box<dyn FlowTable>,
        host_addresses: Box<dyn FnMut() -> Vec<IpAddr> + Send>,
        limits: Limits,
    ) -> Self {
        let schedule = Schedule::new(limits);
        let served: Vec<IpFamily> = families.iter().map(FamilySync::family).collect();
        intake.tell(|observer| observer.serves(&served));
        Self { intake, families, predecessors, predecessors_due: true, flows, host_addresses, schedule, listed: false }
    }

    /// Takes changes until their senders are gone.
    pub async fn run(mut self, mut changes: mpsc::Receiver<Vec<Change>>) {
        let mut look_at = Instant::now() + LOOK_INTERVAL;
        let mut distrust_at = Instant::now() + FULL_SYNC_INTERVAL;
        loop {
            tokio::select! {
                batch = changes.recv() => {
                    let Some(batch) = batch else { return };
                    self.take(batch);
                    // What has come in the meantime belongs into the same sync.
                    while let Ok(batch) = changes.try_recv() {
                        self.take(batch);
                    }
                }
                () = self.schedule.ready() => self.sync(),
                () = tokio::time::sleep_until(look_at) => {
                    self.look();
                    look_at = Instant::now() + LOOK_INTERVAL;
                }
                () = tokio::time::sleep_until(distrust_at) => {
                    self.predecessors_due = true;
                    self.distrust();
                    distrust_at = Instant::now() + FULL_SYNC_INTERVAL;
                }
            }
        }
    }

    fn take(&mut self, batch: Vec<Change>) {
        for change in batch {
            let Some(change) = self.intake.take(change) else { continue };
            self.intake.taken(&change);
            match change {
                Change::Listed => {
                    self.listed = true;
                    self.request();
                }
                _ => self.distrust(),
            }
        }
        if self.families.iter().any(|family| self.intake.tracker().has_pending_changes(family.family())) {
            // The change may well mend what made the last sync fail.
            self.schedule.forget_failure();
            self.request();
        }
    }

    fn request(&mut self) {
        if !self.listed {
            return;
        }
        self.schedule.request();
        for family in &self.families {
            self.intake.tell(|observer| observer.queued(family.family()));
        }
    }

    /// Looks whether somebody else changed our rules.
    fn look(&mut self) {
        self.intake.look();
        if !self.listed {
            return;
        }
        let mut disturbed = false;
        for family in self.families.iter_mut().filter(|family| !family.needs_resync()) {
            if family.was_disturbed() {
                tracing::warn!(family = %family.family(), "somebody else changed our rules: repairing them");
                family.distrust();
                disturbed = true;
            }
        }
        if disturbed {
            self.request();
        }
    }

    fn distrust(&mut self) {
        for family in &mut self.families {
            family.distrust();
        }
        self.request();
    }

    fn sync(&mut self) {
        self.schedule.begin();
        let host_addresses = (self.host_addresses)();
        let mut failed = false;
        let Intake { tracker, observers } = &mut self.intake;
        for family in &mut self.families {
            let (of, full) = (family.family(), family.needs_resync());
            observers.iter_mut().for_each(|observer| observer.begins(of, full));
            match family.sync(tracker, &mut *self.flows, &host_addresses) {
                Ok(outcome) => {
                    failed |= outcome.flows_error.is_some();
                    let table = tracker.table(family.family());
                    let dataplane = family.dataplane();
                    let sync = InForce { table, outcome: &outcome, host_addresses: &host_addresses, dataplane };
                    observers.iter_mut().for_each(|observer| observer.in_force(&sync));
                }
                Err(error) => {
                    tracing::error!(family = %family.family(), error = %chain(&error), "cannot write rules: the old ones stay in force");
                    observers.iter_mut().for_each(|observer| observer.failed(family.family(), &error));
                    failed = true;
                }
            }
        }
        if failed {
            let wait = self.schedule.failed();
            tracing::info!(?wait, "trying again");
        } else {
            self.schedule.succeeded();
            self.retire_predecessors();
        }
    }

    /// New flows find our rules by now, and flows that began under the old ones go on by the kernel's connection table.
    fn retire_predecessors(&mut self) {
        if !std::mem::take(&mut self.predecessors_due) {
            return;
        }
        self.predecessors.retain_mut(|predecessor| {
            let mut report = Report::default();
            predecessor.remove(&mut report);
            for removed in &report.removed {
                tracing::info!("removed leftovers of another mode: {removed}");
            }
            for remaining in &report.remaining {
                tracing::warn!("leftovers of another mode remain: {remaining}");
            }
            !report.remaining.is_empty()
        });
    }
}

/// How often to look whether somebody else changed our rules. A look is one tiny message where the kernel counts
/// changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How often to compare everything although nothing seems wrong; kube-proxy's hour.
const FULL_SYNC_INTERVAL: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
