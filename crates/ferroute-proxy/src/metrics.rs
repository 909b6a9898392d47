//! The sync loop's progress as metrics, receipts and slow changes.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Instant, SystemTime},
};

use ferroute_core::{DataplaneError, IpFamily, NamespacedName, Tracker, tracker::TrackerEvent};
use ferroute_admin::metrics::{Failed, Failure, History, InForce as Succeeded, Metrics, Now, ObjectChange, Subject, Synced};

use crate::{
    observer::{InForce, Observer},
    sync::{Change, Stamp},
};

/// What has become of each change; the sync loop tells, the HTTP server asks. It is never locked for long.
#[derive(Clone, Debug)]
pub(crate) struct SharedHistory(Arc<Mutex<History>>);

/// Tells the sync loop's progress to those who answer for it.
pub(crate) struct MetricsObserver {
    metrics: Arc<Metrics>,
    history: SharedHistory,
    /// The sync that runs: when it began, and whether it compares everything.
    running: (Instant, bool),
}

impl SharedHistory {
    /// Of a proxy that starts now.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(History::new(SystemTime::now()))))
    }

    /// No step under the lock can leave it half-changed, so a panic elsewhere does not matter.
    pub(crate) fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetricsObserver {
    /// Nothing has been received yet.
    pub(crate) fn new(metrics: Arc<Metrics>, history: SharedHistory) -> Self {
        Self { metrics, history, running: (Instant::now(), true) }
    }

    fn changed(&self, subject: Subject, name: &NamespacedName, stamp: &Stamp) {
        match subject {
            Subject::Service(_) | Subject::ServiceGone => self.metrics.service_changed(),
            Subject::Slice(_) | Subject::SliceGone => self.metrics.endpoints_changed(),
        }
        let Stamp { received, version, trigger, written } = *stamp;
        let mut history = self.history.lock();
        history.changed(ObjectChange { subject, name: name.clone(), version, received, trigger, written });
        let (services, slices) = history.pending();
        self.metrics.pending(services, slices);
    }
}

impl Observer for MetricsObserver {
    fn taken(&mut self, change: &Change, _: &Tracker) {
        let Change::Desired(event, stamp) = change else { return };
        match event {
            TrackerEvent::ServiceApplied(service) => {
                let has = IpFamily::BOTH.map(|family| !service.ports[family.index()].is_empty());
                self.changed(Subject::Service(has), &service.name, stamp);
            }
            TrackerEvent::ServiceDeleted(name) => self.changed(Subject::ServiceGone, name, stamp),
            TrackerEvent::SliceApplied(slice) => self.changed(Subject::Slice(slice.family), &slice.service, stamp),
            TrackerEvent::SliceDeleted(name) => self.changed(Subject::SliceGone, name, stamp),
            TrackerEvent::NodeApplied(_) | TrackerEvent::ServiceCidrsApplied(_) => {}
        }
    }

    fn serves(&mut self, families: &[IpFamily]) {
        self.metrics.serve(families);
        self.history.lock().serve(families);
    }

    fn queued(&mut self, family: IpFamily) {
        self.metrics.queued(family, SystemTime::now());
    }

    fn begins(&mut self, family: IpFamily, full: bool) {
        self.running = (Instant::now(), full);
        self.history.lock().begins(family, self.running.0);
    }

    fn in_force(&mut self, sync: &InForce<'_>) {
        let (family, outcome) = (sync.table.family, sync.outcome);
        let now = Now { instant: Instant::now(), wall: SystemTime::now() };
        let report = outcome.report.as_ref();
        let full = self.running.1 || report.is_some_and(|report| report.full);
        let flows = outcome.flows_took.map(|took| (took, outcome.flows_removed));
        self.metrics.synced(family, &Synced { at: now.wall, took: outcome.took, full, report, flows });
        let kernel = report.map(|report| report.kernel_time).unwrap_or_default();
        let succeeded = Succeeded { now, full, changed: &outcome.changes.services, kernel };
        let mut history = self.history.lock();
        history.in_force(family, &succeeded, |finished| self.metrics.finished(finished));
        let (services, slices) = history.pending();
        self.metrics.pending(services, slices);
    }

    fn failed(&mut self, family: IpFamily, error: &DataplaneError) {
        let (began, full) = self.running;
        let failure = if matches!(error, DataplaneError::Read { .. }) { Failure::Read } else { Failure::Write };
        self.metrics.failed(family, &Failed { took: began.elapsed(), full, failure });
    }
}
