//! Removes the startup taint of a new node after its first sync.
//!
//! An administrator registers nodes with a taint (`kubelet --register-with-taints`) that keeps pods away until Services
//! work. The proxy removes it after the first sync of all IP families and never adds it again, because the data path works
//! independently of the proxy from then on.

use std::{collections::BTreeSet, time::Duration};

use ferroute_core::{Backoff, IpFamily, error_chain};
use ferroute_kube::{ApiWriter, WriteError};
use tokio::sync::oneshot;

use crate::observers::{FamilySynced, Observer};

/// Sends a signal after the first sync of all IP families.
pub(crate) struct FirstSync {
    /// IP families without a successful sync.
    unsynced: BTreeSet<IpFamily>,
    /// The signal; `None` once it has been sent.
    signal: Option<oneshot::Sender<()>>,
}

impl FirstSync {
    /// Creates the observer and the receiver of its signal.
    pub(crate) fn new() -> (Self, oneshot::Receiver<()>) {
        let (signal, first_sync) = oneshot::channel();
        (Self { unsynced: BTreeSet::new(), signal: Some(signal) }, first_sync)
    }
}

impl Observer for FirstSync {
    fn on_start(&mut self, families: &[IpFamily]) {
        self.unsynced = families.iter().copied().collect();
    }

    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        self.unsynced.remove(&sync.table.family);
        if self.unsynced.is_empty()
            && let Some(signal) = self.signal.take()
        {
            // The receiver may have been dropped: without a startup taint, or when the proxy ends.
            let _ = signal.send(());
        }
    }
}

/// Waits for the first sync and removes the taint, with retries.
pub(crate) async fn remove_taint(first_sync: oneshot::Receiver<()>, writer: ApiWriter, key: String) {
    if first_sync.await.is_err() {
        return;
    }
    let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
    loop {
        let delay = backoff.next_delay();
        match writer.remove_taint(&key).await {
            Ok(true) => return tracing::info!(key, node = writer.node(), "removed the startup taint"),
            Ok(false) => return tracing::debug!(key, node = writer.node(), "no startup taint to remove"),
            // The retry reads the Node again.
            Err(error) if error.is_conflict() => tracing::debug!(key, "the Node was modified concurrently"),
            Err(error) => log_error(&key, &error, delay),
        }
        tokio::time::sleep(delay).await;
    }
}

/// Logs the first error, and every error after the longest delay.
fn log_error(key: &str, error: &WriteError, delay: Duration) {
    if [FIRST_DELAY, LONGEST_DELAY].contains(&delay) {
        tracing::warn!(key, "cannot remove the startup taint, which keeps pods away: {}", error_chain(error));
    }
}

const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(32);
