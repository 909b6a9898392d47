//! The thread of the sync loop, as the main thread sees it.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use ferroute_admin::health::Health;
use ferroute_config::Resolved;
use ferroute_core::{IpFamily, NodeView, error_chain};
use ferroute_host::{HostAddresses, KernelAddresses};
use ferroute_modes::{OpenMode, Registry};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    observers::{
        ObservedTracker,
        events::EventRecorder,
        problems::{Problem, disabled_families},
        status::Status,
        watchdog::Watchdog,
    },
    process::tasks::Tasks,
    sync::{Change, FamilySync, KernelConntrack, Limits, SyncLoop},
};

/// The thread of the sync loop.
pub(crate) struct SyncThread {
    changes: mpsc::Sender<Vec<Change>>,
    /// Changes that wait until the loop accepts them.
    pending: Vec<Change>,
    /// Disconnected when the loop has ended.
    ended: oneshot::Receiver<()>,
    health: Arc<Health>,
}

/// State that the sync loop shares with the rest of the daemon.
pub(crate) struct DaemonParts<'a> {
    pub(crate) status: &'a Status,
    pub(crate) health: Arc<Health>,
    pub(crate) events: &'a EventRecorder,
    pub(crate) watchdog: &'a Watchdog,
    pub(crate) tasks: &'a Tasks,
}

impl SyncThread {
    /// Opens the dataplanes for `node` and starts the loop with `state`. `first` are its first changes.
    ///
    /// # Errors
    /// If the host cannot run the mode, or the thread cannot be started.
    pub(crate) fn start(
        registry: &Registry,
        resolved: &Resolved,
        node: &NodeView,
        state: ObservedTracker,
        first: Vec<Change>,
        shared: DaemonParts<'_>,
    ) -> anyhow::Result<Self> {
        let DaemonParts { status, health, events, watchdog, tasks } = shared;
        // Opening can hang as well.
        watchdog.heartbeat().beat();
        health.sent();
        let OpenMode { dataplanes, leftovers, relay_reader } = registry.open(resolved, node)?;
        status.dataplanes_open(registry.active(resolved.mode), &dataplanes, relay_reader, resolved, tasks);
        let served: Vec<IpFamily> = dataplanes.iter().map(|(family, _)| *family).collect();
        for family in disabled_families(resolved, node, &served) {
            let probe = registry.active(resolved.mode).probe(resolved, family);
            let reason = probe.err().unwrap_or_else(|| format!("the kernel does not support {family}"));
            let text = format!(
                "{family} is not served, although the node has it: {reason}; rules that an earlier proxy left for {family} are removed, \
                 as far as the kernel permits"
            );
            tracing::warn!("{text}");
            status.problems().set(Problem::DisabledFamily(family), Some(text.clone()));
            events.family_disabled(text);
        }
        let mut kernel = KernelAddresses::open()?;
        let mut last = kernel.list()?;
        let host_addresses = move || {
            match kernel.list() {
                Ok(addresses) => last = addresses,
                Err(error) => tracing::warn!("{}; using the previous addresses", error_chain(&error)),
            }
            last.clone()
        };
        let limits = Limits {
            min_interval: resolved.sync.min_period,
            by_cost: resolved.sync.by_cost,
            burst: BURST,
            first_retry: FIRST_RETRY,
            longest_retry: resolved.sync.period,
        };
        let (changes, receiver) = mpsc::channel(QUEUE);
        let (end, ended) = oneshot::channel();
        let registry = *registry;
        let families = dataplanes.into_iter();
        let families =
            families.map(|(family, dataplane)| FamilySync::new(family, dataplane, resolved.settings.clone()));
        let sync = SyncLoop::new(
            state,
            families.collect(),
            leftovers,
            Box::new(KernelConntrack),
            Box::new(host_addresses),
            Box::new(move |family| registry.relay_ports(family)),
            limits,
        );
        let heartbeat = watchdog.heartbeat().clone();
        let run = move || {
            heartbeat.attach_to_thread();
            // Dropped when the loop ends or panics.
            let _end = end;
            // Built on this thread, because dropping it on the main thread panics, if this thread cannot be started.
            match tokio::runtime::Builder::new_current_thread().enable_time().build() {
                Ok(runtime) => runtime.block_on(sync.run(receiver)),
                Err(error) => tracing::error!("cannot run the sync loop: {error}"),
            }
        };
        tasks.thread("sync", run).context("cannot start the thread of the sync loop")?;
        Ok(Self { changes, pending: first, ended, health })
    }

    /// Queues changes. From now on they count for the health of the proxy, even if the thread hangs.
    pub(crate) fn queue(&mut self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        if self.pending.is_empty() {
            self.health.sent();
        }
        self.pending.extend(changes);
    }

    /// Reports whether changes wait until the loop accepts them. The caller must not read more from the source in the
    /// meantime.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Waits until the loop accepts changes, and passes the queued ones. This method is cancel safe.
    ///
    /// # Errors
    /// If the loop has ended.
    pub(crate) async fn pass(&mut self) -> anyhow::Result<()> {
        let permit = self.changes.reserve().await.ok().context("the sync loop ended unexpectedly")?;
        permit.send(std::mem::take(&mut self.pending));
        Ok(())
    }

    /// Ends the loop after the current sync. Waits at most `at_most`, because a sync can hang.
    pub(crate) async fn finish(self, at_most: Duration) {
        drop(self.changes);
        // The sender is dropped without a message.
        if timeout(at_most, self.ended).await.is_err() {
            tracing::warn!("the sync in progress is cancelled, because it takes more than {at_most:?} to complete");
        }
    }
}

/// Number of batches that may be queued between tasks. It is low because the batches of an initial list hold whole
/// objects.
pub(crate) const QUEUE: usize = 4;

/// Number of syncs that may follow the first one without delay after a quiet time.
const BURST: u32 = 2;

/// Delay after the first failed sync; it doubles up to the sync period.
const FIRST_RETRY: Duration = Duration::from_millis(500);
