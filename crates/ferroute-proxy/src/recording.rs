//! The flight recorder's place in the running proxy, and the socket over which `ferroute bundle` asks for the record.
//!
//! ```text
//!   sync loop ──► Recording ◄── asks ── Control ◄── socket ◄── ferroute bundle
//!   (a thread)       └──── snapshot ──────►│
//! ```
//!
//! The socket has a name in the kernel and none among files, so each network namespace, which has one proxy at most, has
//! its own, and nothing is left behind. Only root and the user of the proxy are answered.

mod bundle;
mod control;
pub mod objects;
mod recorder;

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use ferroute_core::{DataplaneError, IpFamily, Tracker};
use tokio::sync::oneshot;

pub use self::{
    bundle::{Bundle, Change as RecordedChange, FORMAT, FamilyRecord, Outcome, ReadError, State, SyncRecord},
    control::{About, AskError, ask, serve},
    recorder::{Limits, Recorder, Snapshot},
};
use crate::{
    logging::chain,
    observer::{InForce, Observer},
    sync::Change,
};

/// Keeps the record of the sync loop that it observes.
pub(crate) struct Recording {
    recorder: Recorder,
    host_addresses: Vec<IpAddr>,
    /// The sync that runs compares everything with the kernel.
    compares: bool,
    inbox: Inbox,
}

/// Where the record can be asked for, from any thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inbox(Arc<Mutex<Vec<oneshot::Sender<Answer>>>>);

/// What is there at the moment of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The record, and what is wanted.
    pub(crate) snapshot: Snapshot,
    /// Addresses of the host's interfaces at the last sync.
    pub(crate) host_addresses: Vec<IpAddr>,
}

impl Recording {
    /// Nothing has happened yet.
    pub(crate) fn new() -> Self {
        let (recorder, inbox) = (Recorder::new(Limits::default()), Inbox::default());
        Self { recorder, host_addresses: Vec::new(), compares: false, inbox }
    }

    /// Where to ask for the record.
    pub(crate) fn inbox(&self) -> Inbox {
        self.inbox.clone()
    }
}

impl Inbox {
    /// Asks for the record. The answer comes within a second, and never once the sync loop has ended.
    pub(crate) fn ask(&self) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        self.senders().push(sender);
        answer
    }

    fn senders(&self) -> std::sync::MutexGuard<'_, Vec<oneshot::Sender<Answer>>> {
        // A list of senders is whole, whatever happened to the thread that last held it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.inbox.senders().clear();
    }
}

impl Observer for Recording {
    fn taken(&mut self, change: &Change, before: &Tracker) {
        if let Change::Desired(event, _) = change {
            self.recorder.record(event, before);
        }
    }

    fn begins(&mut self, _: IpFamily, full: bool) {
        self.compares = full;
    }

    fn in_force(&mut self, sync: &InForce<'_>) {
        let (outcome, family) = (sync.outcome, sync.table.family);
        self.host_addresses = sync.host_addresses.to_vec();
        let mut record = FamilyRecord::in_force(
            family,
            &outcome.changes,
            outcome.report.as_ref(),
            outcome.flows_removed,
            outcome.took,
        );
        // One that wrote everything anew without reading what there was goes through everything, too.
        let full = self.compares || outcome.report.as_ref().is_some_and(|report| report.full);
        if full && self.recorder.records(family) {
            record = record.of_everything(sync.dataplane.digest(sync.table));
        }
        self.recorder.synced(SystemTime::now(), record);
    }

    fn failed(&mut self, family: IpFamily, error: &DataplaneError) {
        self.recorder.synced(SystemTime::now(), FamilyRecord::failed(family, chain(error)));
    }

    fn look(&mut self, wanted: &Tracker) {
        for asker in std::mem::take(&mut *self.inbox.senders()) {
            let host_addresses = self.host_addresses.clone();
            // One who does not wait any more has no use for it.
            let _ = asker.send(Answer { snapshot: self.recorder.snapshot(wanted), host_addresses });
        }
    }
}
