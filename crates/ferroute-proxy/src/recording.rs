//! The flight recorder: keeps the recent syncs of the running proxy, for `ferroute bundle` and `ferroute replay`.
//!
//! ```text
//!   sync loop --> RecordingObserver <-- BundleRequests <-- socket <-- ferroute bundle
//!   (a thread)            `------ BundleContents ------------^
//! ```

mod bundle;
pub mod objects;
mod recorder;
mod unused;

use std::{net::IpAddr, time::SystemTime};

use ferroute_core::{DataplaneError, IpFamily, Tracker, error_chain};

pub(crate) use self::unused::SharedUnused;
pub use self::{
    bundle::{
        Bundle, DesiredObjects, FORMAT, FamilyRecord, Outcome, ReadError, RecordedChange, RecordedShares, SyncRecord,
        ejections, shares,
    },
    recorder::{Limits, Recorder, Snapshot},
    unused::UnusedServices,
};
use crate::{
    observers::{FamilySynced, Observer, requests::Requests},
    sync::Change,
};

/// Records syncs.
pub(crate) struct RecordingObserver {
    recorder: Recorder,
    host_addresses: Vec<IpAddr>,
    /// Whether the current sync is a full one.
    full: bool,
    requests: BundleRequests,
}

/// Requests for the contents of a bundle.
pub(crate) type BundleRequests = Requests<(), BundleContents>;

/// The state of the recorder for a bundle.
#[derive(Debug)]
pub(crate) struct BundleContents {
    /// The recent syncs and the desired state.
    pub(crate) snapshot: Snapshot,
    /// The addresses of the host's interfaces at the last sync.
    pub(crate) host_addresses: Vec<IpAddr>,
}

impl RecordingObserver {
    /// Creates a recorder without syncs.
    pub(crate) fn new() -> Self {
        let (recorder, requests) = (Recorder::new(Limits::default()), BundleRequests::default());
        Self { recorder, host_addresses: Vec::new(), full: false, requests }
    }

    /// Returns the queue of requests.
    pub(crate) fn requests(&self) -> BundleRequests {
        self.requests.clone()
    }
}

impl Drop for RecordingObserver {
    fn drop(&mut self) {
        self.requests.close();
    }
}

impl Observer for RecordingObserver {
    fn on_change(&mut self, change: &Change, before: &Tracker) {
        if let Change::Desired(event, _) = change {
            self.recorder.record(event, before);
        }
    }

    fn on_sync_start(&mut self, _: IpFamily, full: bool) {
        self.full = full;
    }

    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let (outcome, family) = (sync.outcome, sync.table.family);
        self.host_addresses = sync.host_addresses.to_vec();
        let report = outcome.report.as_ref();
        let mut record =
            FamilyRecord::synced(family, &outcome.changes, report, outcome.conntrack_deleted, outcome.took);
        // A dataplane may also write all rules without a comparison.
        let full = self.full || report.is_some_and(|report| report.full);
        if full && self.recorder.is_recording(family) {
            record = record.with_digest(sync.dataplane.digest(sync.table));
        }
        self.recorder.synced(SystemTime::now(), record);
    }

    fn on_failure(&mut self, family: IpFamily, error: &DataplaneError) {
        self.recorder.synced(SystemTime::now(), FamilyRecord::failed(family, error_chain(error)));
    }

    fn on_tick(&mut self, desired: &Tracker) {
        self.requests.respond(|()| BundleContents {
            snapshot: self.recorder.snapshot(desired),
            host_addresses: self.host_addresses.clone(),
        });
    }
}
