//! The first-sync gate: a taint that keeps pods away from a new node goes once Services work there.
//!
//! Whoever makes nodes gives them the taint (`kubelet --register-with-taints`). It goes when the first rules of all
//! families are in force, and is not put back: later on the data path goes on whatever happens to the proxy.

use std::{collections::BTreeSet, time::Duration};

use ferroute_core::{Backoff, IpFamily};
use ferroute_kube::{ApiWriter, WriteError};
use tokio::sync::oneshot;

use crate::{
    logging::chain,
    observer::{InForce, Observer},
};

/// Tells when the first rules of all families are in force.
pub(crate) struct Gate {
    /// Families without rules yet.
    waiting: BTreeSet<IpFamily>,
    /// Gone once it is open.
    open: Option<oneshot::Sender<()>>,
}

impl Gate {
    /// A gate, and what tells that it is open; it never does if the proxy ends before.
    pub(crate) fn new() -> (Self, oneshot::Receiver<()>) {
        let (open, opened) = oneshot::channel();
        (Self { waiting: BTreeSet::new(), open: Some(open) }, opened)
    }
}

impl Observer for Gate {
    fn serves(&mut self, families: &[IpFamily]) {
        self.waiting = families.iter().copied().collect();
    }

    fn in_force(&mut self, sync: &InForce<'_>) {
        self.waiting.remove(&sync.table.family);
        if self.waiting.is_empty()
            && let Some(open) = self.open.take()
        {
            // Nobody waits where the proxy is about to end.
            let _ = open.send(());
        }
    }
}

/// Waits for the gate and takes the taint away, however often that has to be tried.
pub(crate) async fn remove_taint(opened: oneshot::Receiver<()>, writer: ApiWriter, key: String) {
    if opened.await.is_err() {
        return;
    }
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        let pause = backoff.next_delay();
        match writer.remove_taint(&key).await {
            Ok(true) => return tracing::info!(key, node = writer.node(), "Services work: removed the start-up taint"),
            Ok(false) => return tracing::debug!(key, node = writer.node(), "there is no start-up taint"),
            // The next try begins with what the other one has written.
            Err(error) if error.is_conflict() => tracing::debug!(key, "the Node has changed in the meantime"),
            Err(error) => tell(&key, &error, pause),
        }
        tokio::time::sleep(pause).await;
    }
}

/// Once, and then each time when the pause is at its longest: somebody may be waiting for the node.
fn tell(key: &str, error: &WriteError, pause: Duration) {
    if [FIRST_PAUSE, LONGEST_PAUSE].contains(&pause) {
        tracing::warn!(key, "cannot remove the start-up taint, so that no pod may come to this node: {}", chain(error));
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(32);
