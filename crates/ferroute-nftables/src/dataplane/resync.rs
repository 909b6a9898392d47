//! The comparison of a table with what the kernel holds.

use std::collections::HashMap;

use ferroute_core::{ServicePortName, ServiceTable, SyncReport};

use super::{
    Failure, NftablesDataplane,
    found::{self, Outcome},
    run::{Run, Writing},
};
use crate::{
    kernel::Kernel,
    model::{Change, Transaction},
    plan::{Order, Planner},
};

impl<K: Kernel> NftablesDataplane<K> {
    /// Makes the table as `table` says; the first sync of all writes the most important Services first.
    pub(super) fn compare(&mut self, table: &ServiceTable) -> Result<SyncReport, Failure<K::Error>> {
        self.in_force = None;
        let planner = Planner::new(self.context(table)?);
        let mut run = Run::new(HashMap::new(), Some(self.kernel.generation()?));
        let Some(listing) = self.kernel.listing(&self.table)? else {
            let mut transaction = self.transaction();
            planner.set_up(&mut transaction);
            return self.write(planner, table, transaction, run);
        };
        let mut found = match found::read(&mut self.kernel, &self.table, listing, &planner)? {
            Outcome::Found(found) => found,
            Outcome::Incompatible => {
                tracing::info!(table = %self.table, "the table has another shape: making it anew");
                return self.write_at_once(planner, table, run);
            }
            Outcome::Unsteady(set) => return Err(Failure::Unsteady { set }),
        };
        let order = std::mem::replace(&mut found.order, Order::new(table.family));
        let mut planner = Planner::with_order(planner.context().clone(), order);
        let mut transaction = self.transaction();
        for name in table.entries.keys() {
            planner.update(name, table, &mut transaction);
            transaction.changes.clear();
        }
        planner.settle(&mut transaction);
        transaction.changes.clear();
        // What it has made and removed again on the way was never there.
        planner.garbage_is_gone();
        found.order = planner.take_order();
        planner.for_each_element(|set, _| *run.elements.entry(set.name()).or_default() += 1);
        let garbage = found.repair(&planner, &mut transaction);
        let counted = std::mem::take(&mut run.elements);
        self.commit(&transaction, &mut run)?;
        // What was added or removed was missing or too much.
        run.elements = counted;
        self.remove(garbage, &mut run)?;
        Ok(self.finish(planner, run))
    }

    /// Replaces the table in one transaction, so that no packet meets half of it.
    fn write_at_once(
        &mut self,
        mut planner: Planner,
        table: &ServiceTable,
        mut run: Run,
    ) -> Result<SyncReport, Failure<K::Error>> {
        let mut transaction = self.transaction();
        transaction.push(Change::DeleteTable);
        planner.set_up(&mut transaction);
        for name in table.entries.keys() {
            planner.update(name, table, &mut transaction);
        }
        planner.settle(&mut transaction);
        run.report.full = true;
        self.commit(&transaction, &mut run)?;
        Ok(self.finish(planner, run))
    }

    /// Writes a table that is not there.
    fn write(
        &mut self,
        planner: Planner,
        table: &ServiceTable,
        transaction: Transaction,
        mut run: Run,
    ) -> Result<SyncReport, Failure<K::Error>> {
        run.report.full = true;
        let (urgent, others): (Vec<_>, Vec<_>) = table.entries.keys().partition(|name| is_urgent(name, table));
        self.progress.start(table.entries.len());
        let mut writing = Writing { planner, transaction, done: 0 };
        for name in urgent {
            writing.planner.update(name, table, &mut writing.transaction);
            writing.done += 1;
        }
        self.commit_stage(&mut writing, &mut run)?;
        self.update_all(others.into_iter(), table, writing, run)
    }
}

/// Without these Services nothing else in a cluster works: the API server, and names.
fn is_urgent(name: &ServicePortName, table: &ServiceTable) -> bool {
    let service = &name.service;
    service.as_str() == API_SERVER
        || service.namespace() == SYSTEM_NAMESPACE
            && table.entries.get(name).is_some_and(|entry| entry.service.port == DNS_PORT)
}

const API_SERVER: &str = "default/kubernetes";
const SYSTEM_NAMESPACE: &str = "kube-system";
const DNS_PORT: u16 = 53;
