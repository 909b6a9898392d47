//! One IP family's way from the table to the kernel, and what follows once rules are in force.

use std::{net::IpAddr, time::Duration};

use crate::logging::chain;
use ferroute_core::{Changes, Dataplane, DataplaneError, IpFamily, StaleConntrackEntries, SyncReport, Tracker};

/// Removes flows from the kernel's connection table.
pub trait FlowTable: Send {
    /// Removes every UDP flow of the family that `is_stale`, called with the flow's original destination and the
    /// address and port that its answers come from. Returns how many were removed.
    fn remove_udp(
        &mut self,
        family: IpFamily,
        is_stale: &mut dyn FnMut(std::net::SocketAddr, std::net::SocketAddr) -> bool,
    ) -> anyhow::Result<usize>;
}

/// One family's rules and what is known about them.
pub struct FamilySync {
    family: IpFamily,
    dataplane: Box<dyn Dataplane>,
    /// The kernel may hold something else than was last written: at the start, after a failure, when somebody else
    /// changed our rules.
    needs_resync: bool,
    /// Flows to look for once rules are in force; kept until then, so that a failure loses none.
    stale: StaleConntrackEntries,
}

/// What a sync of one family has done.
#[derive(Debug)]
pub struct FamilyOutcome {
    /// What was written; `None` if nothing had changed.
    pub report: Option<SyncReport>,
    /// What had changed since the last sync; after a full one without what there was before of new service ports, which
    /// is nothing: see [`Tracker::update_for_resync`].
    pub changes: Changes,
    /// Stale flows that were removed.
    pub flows_removed: usize,
    /// How long it took to look for them; `None` where there were none to be looked for.
    pub flows_took: Option<Duration>,
    /// Why stale flows could not be removed; they are looked for again at the next sync.
    pub flows_error: Option<anyhow::Error>,
    /// How long all of it took.
    pub took: Duration,
}

impl FamilySync {
    /// Nothing has been written yet.
    pub fn new(family: IpFamily, dataplane: Box<dyn Dataplane>) -> Self {
        Self { family, dataplane, needs_resync: true, stale: StaleConntrackEntries::default() }
    }

    /// The family.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// Who writes the rules, to be asked about them.
    pub fn dataplane(&self) -> &dyn Dataplane {
        &*self.dataplane
    }

    /// The next sync compares with what the kernel holds and repairs it.
    pub fn distrust(&mut self) {
        self.needs_resync = true;
    }

    /// The next sync is a full one anyway.
    pub fn needs_resync(&self) -> bool {
        self.needs_resync
    }

    /// Whether somebody else changed our rules. A look that fails counts as yes: the resync tells why.
    pub fn was_disturbed(&mut self) -> bool {
        self.dataplane.was_disturbed().unwrap_or_else(|error| {
            tracing::debug!(family = %self.family, error = %chain(&error), "cannot look at the rules");
            true
        })
    }

    /// Writes what has changed, then removes the flows that the change made stale. After an error the old rules are
    /// still in force and the next call writes everything.
    pub fn sync(
        &mut self,
        tracker: &mut Tracker,
        flows: &mut dyn FlowTable,
        host_addresses: &[IpAddr],
    ) -> Result<FamilyOutcome, DataplaneError> {
        let start = std::time::Instant::now();
        let full = self.needs_resync;
        let changes = if full { tracker.update_for_resync(self.family) } else { tracker.update(self.family) };
        let table = tracker.table(self.family);
        if full {
            self.stale.merge(StaleConntrackEntries::from_table(table));
        }
        self.stale.merge(StaleConntrackEntries::from_changes(table, &changes));
        // Until it has succeeded, what the kernel holds is not known.
        self.needs_resync = true;
        let report = match (full, changes.is_empty()) {
            (true, _) => Some(self.dataplane.resync(table)?),
            (false, true) => None,
            (false, false) => Some(self.dataplane.sync(table, &changes)?),
        };
        self.needs_resync = false;
        let looking = (!self.stale.is_empty()).then(std::time::Instant::now);
        let (flows_removed, flows_error) = match self.remove_stale(flows, host_addresses) {
            Ok(removed) => (removed, None),
            Err(error) => (0, Some(error)),
        };
        let flows_took = looking.map(|start| start.elapsed());
        Ok(FamilyOutcome { report, changes, flows_removed, flows_took, flows_error, took: start.elapsed() })
    }

    fn remove_stale(&mut self, flows: &mut dyn FlowTable, host_addresses: &[IpAddr]) -> anyhow::Result<usize> {
        if self.stale.is_empty() {
            return Ok(0);
        }
        let is_local = |address: IpAddr| address.is_loopback() || host_addresses.contains(&address);
        let stale = &self.stale;
        let removed = flows.remove_udp(self.family, &mut |destination, answers_from| {
            stale.is_stale(destination, answers_from, is_local)
        })?;
        self.stale = StaleConntrackEntries::default();
        Ok(removed)
    }
}
