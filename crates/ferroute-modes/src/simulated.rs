//! Simulations of modes whose dataplane can have an in-memory kernel.

use ferroute_core::{Changes, Dataplane, ServiceTable, SyncReport};

use crate::{SimulatedSync, Simulation};

/// A dataplane over an in-memory kernel.
pub(super) struct Simulated<D, T> {
    dataplane: D,
    /// Takes the text written since the last call, in the syntax of the mode's tool.
    take_text: T,
}

impl<D: Dataplane, T: FnMut(&mut D) -> String> Simulated<D, T> {
    pub(super) fn new(dataplane: D, take_text: T) -> Self {
        Self { dataplane, take_text }
    }

    fn written(&mut self, report: &SyncReport) -> SimulatedSync {
        let text = (self.take_text)(&mut self.dataplane);
        SimulatedSync {
            written: report.written,
            removed: report.removed,
            total: report.total,
            rules: None,
            text,
            other: None,
        }
    }
}

impl<D: Dataplane, T: FnMut(&mut D) -> String + Send> Simulation for Simulated<D, T> {
    fn resync(&mut self, table: &ServiceTable) -> anyhow::Result<SimulatedSync> {
        let report = self.dataplane.resync(table)?;
        Ok(SimulatedSync { rules: self.dataplane.digest(table), ..self.written(&report) })
    }

    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> anyhow::Result<SimulatedSync> {
        let report = self.dataplane.sync(table, changes)?;
        Ok(self.written(&report))
    }
}
