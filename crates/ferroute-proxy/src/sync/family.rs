//! Syncs of one IP family: rules, then stale conntrack entries.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::Context;
use ferroute_core::{
    Changes, Dataplane, DataplaneError, IpFamily, Protocol, ProxySettings, StaleConntrackEntries, SyncReport, Tracker,
};
use ferroute_host::conntrack;

use crate::logging::chain;

/// The kernel's connection tracking table.
pub(crate) trait ConntrackTable: Send {
    /// Deletes all UDP entries of an IP family for which `is_stale` returns true. It is called with the original
    /// destination of the entry and the source of its replies. Returns the number of deleted entries.
    ///
    /// # Errors
    /// If the table cannot be read, or an entry cannot be deleted.
    fn delete_udp(
        &mut self,
        family: IpFamily,
        is_stale: &mut dyn FnMut(SocketAddr, SocketAddr) -> bool,
    ) -> anyhow::Result<usize>;
}

/// The connection tracking table of the calling thread's network namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelConntrack;

impl ConntrackTable for KernelConntrack {
    fn delete_udp(
        &mut self,
        family: IpFamily,
        is_stale: &mut dyn FnMut(SocketAddr, SocketAddr) -> bool,
    ) -> anyhow::Result<usize> {
        let result = conntrack::delete_if(family, Protocol::Udp, |entry| {
            is_stale(entry.original_destination, entry.reply_source)
        })
        .context("cannot delete stale UDP conntrack entries")?;
        tracing::debug!(%family, checked = result.seen, deleted = result.deleted, "checked UDP conntrack entries");
        Ok(result.deleted)
    }
}

/// The dataplane of one IP family and the state of its syncs.
pub(crate) struct FamilySync {
    family: IpFamily,
    dataplane: Box<dyn Dataplane>,
    settings: ProxySettings,
    /// The kernel's rules may differ from the last ones written: at the start, after a failure, and after modification by
    /// another program.
    needs_resync: bool,
    /// Conntrack entries to delete after the next successful sync.
    stale: StaleConntrackEntries,
}

/// The outcome of a successful sync of one IP family.
#[derive(Debug)]
pub struct FamilyOutcome {
    /// What was written; `None` if nothing had changed.
    pub report: Option<SyncReport>,
    /// The changes since the last sync. After a full sync, [`Changes::previous`] lacks new service ports, see
    /// [`Tracker::update_for_resync`].
    pub changes: Changes,
    /// Number of stale conntrack entries deleted.
    pub conntrack_deleted: usize,
    /// Duration of that deletion; `None` if no entry could be stale.
    pub conntrack_took: Option<Duration>,
    /// Why stale conntrack entries could not be deleted; the next sync retries.
    pub conntrack_error: Option<anyhow::Error>,
    /// Duration of the sync.
    pub took: Duration,
}

impl FamilySync {
    /// Creates the state of a family whose rules have not been written yet.
    pub(crate) fn new(family: IpFamily, dataplane: Box<dyn Dataplane>, settings: ProxySettings) -> Self {
        Self { family, dataplane, settings, needs_resync: true, stale: StaleConntrackEntries::default() }
    }

    /// Returns the IP family.
    pub(crate) fn family(&self) -> IpFamily {
        self.family
    }

    /// Returns the dataplane.
    pub(crate) fn dataplane(&self) -> &dyn Dataplane {
        &*self.dataplane
    }

    /// Makes the next sync a full one, which compares all rules with the kernel's.
    pub(crate) fn mark_for_resync(&mut self) {
        self.needs_resync = true;
    }

    /// Reports whether the next sync is a full one.
    pub(crate) fn needs_resync(&self) -> bool {
        self.needs_resync
    }

    /// Does the dataplane's periodic work.
    pub(crate) fn maintain(&mut self) {
        self.dataplane.maintain();
    }

    /// Reports whether another program may have modified the rules. If that cannot be determined, the answer is yes: the
    /// resync then returns the error.
    pub(crate) fn was_modified_externally(&mut self) -> bool {
        self.dataplane.was_modified_externally().unwrap_or_else(|error| {
            tracing::debug!(family = %self.family, error = %chain(&error), "cannot check for external modifications");
            true
        })
    }

    /// Writes all changes since the last sync, then deletes the conntrack entries that they made stale.
    ///
    /// # Errors
    /// If the rules could not be written. The previous ones stay active, and the next sync is a full one.
    pub(crate) fn sync(
        &mut self,
        tracker: &mut Tracker,
        conntrack: &mut dyn ConntrackTable,
        host_addresses: &[IpAddr],
    ) -> Result<FamilyOutcome, DataplaneError> {
        let start = Instant::now();
        let full = self.needs_resync;
        tracker.set_host_addresses(self.family, &self.settings, host_addresses);
        let changes = if full { tracker.update_for_resync(self.family) } else { tracker.update(self.family) };
        let table = tracker.table(self.family);
        if full {
            self.stale.merge(StaleConntrackEntries::from_table(table));
        }
        self.stale.merge(StaleConntrackEntries::from_changes(table, &changes));
        // After a failure, the rules in the kernel are unknown.
        self.needs_resync = true;
        let report = match (full, changes.is_empty()) {
            (true, _) => Some(self.dataplane.resync(table)?),
            (false, true) => None,
            (false, false) => Some(self.dataplane.sync(table, &changes)?),
        };
        self.needs_resync = false;
        let conntrack_start = (!self.stale.is_empty()).then(Instant::now);
        let (conntrack_deleted, conntrack_error) = match self.delete_stale(conntrack, host_addresses) {
            Ok(deleted) => (deleted, None),
            Err(error) => (0, Some(error)),
        };
        let conntrack_took = conntrack_start.map(|start| start.elapsed());
        let took = start.elapsed();
        Ok(FamilyOutcome { report, changes, conntrack_deleted, conntrack_took, conntrack_error, took })
    }

    fn delete_stale(&mut self, conntrack: &mut dyn ConntrackTable, host_addresses: &[IpAddr]) -> anyhow::Result<usize> {
        if self.stale.is_empty() {
            return Ok(0);
        }
        let is_local = |address: IpAddr| address.is_loopback() || host_addresses.contains(&address);
        let stale = &self.stale;
        let deleted = conntrack.delete_udp(self.family, &mut |destination, reply_source| {
            stale.is_stale(destination, reply_source, is_local)
        })?;
        self.stale = StaleConntrackEntries::default();
        Ok(deleted)
    }
}
