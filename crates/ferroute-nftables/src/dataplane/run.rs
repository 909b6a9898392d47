//! The state of one sync.

use std::{
    collections::HashMap,
    error::Error,
    time::{Duration, Instant},
};

use ferroute_core::{Rejection, ServicePortName, ServiceTable, SyncReport, error_chain};

use crate::{
    kernel::Kernel,
    model::{Change, Name, Transaction},
    plan::{Planner, Steps, Undo, Written},
};

/// The planner with the changes that are not committed yet.
pub(super) struct Pending<K: Kernel> {
    pub(super) planner: Planner,
    pub(super) batch: Batch<K>,
    /// The number of service ports that were planned in this sync.
    pub(super) service_ports: usize,
    /// The last committed transaction, whose memory the one after the next is planned in.
    spent: Option<Batch<K>>,
}

/// A transaction, with the state that is needed to roll it back.
pub(super) struct Batch<K: Kernel> {
    pub(super) steps: Steps,
    /// The encoded changes of elements, once it is complete; see [`Pending::complete`].
    pub(super) encoded: Option<K::Encoded>,
    /// Number of changes at the start of the first step that do not depend on the updates.
    base: usize,
    /// The updates in the transaction.
    updates: Vec<Undo>,
    /// State that is written: without the first step, or with it once it was committed.
    written: Written,
    /// State that is written with the first step, once the transaction is complete.
    written_before: Option<Written>,
    /// The size up to which service ports were added; 0 if that was not limited.
    size: usize,
}

/// Results that a sync has committed so far.
pub(super) struct Run {
    pub(super) report: SyncReport,
    /// The number of elements of each set.
    pub(super) elements: HashMap<Name, usize>,
    /// The kernel's generation if no other program commits a transaction.
    pub(super) expected_generation: Option<u32>,
    /// Whether another program may have replaced elements before.
    pub(super) may_be_replaced: bool,
    /// Deletions of Ferroute's objects that earlier syncs kept for reuse. A comparison with the kernel results in these
    /// deletions too, but they are not repairs and are not counted.
    pub(super) kept_unused: Vec<Change>,
    logged: Instant,
}

/// The numbers of objects in a transaction.
#[derive(Default)]
pub(super) struct Counts<'a> {
    written: usize,
    removed: usize,
    /// Whether it deletes the table first.
    replaces_table: bool,
    /// How many elements each set has more after it, or less.
    elements: Vec<(&'a Name, isize)>,
}

/// The number of changes per transaction, adapted so that no transaction takes long.
///
/// The kernel executes one transaction at a time, so other programs have to wait for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransactionSize(usize);

impl<K: Kernel> Batch<K> {
    /// Returns the size of pieces in which the transaction is committed if it is much longer. The size for the next one may have
    /// become smaller since service ports were added.
    pub(super) fn piece_size(&self, next: TransactionSize) -> usize {
        self.size.max(next.get())
    }

    /// Returns a batch without service ports that begins with these changes.
    fn new(steps: Steps, planner: &Planner) -> Self {
        Self {
            encoded: None,
            base: steps.before.len(),
            updates: Vec::new(),
            written: planner.written(),
            written_before: None,
            size: 0,
            steps,
        }
    }

    /// Marks the first step as committed.
    pub(super) fn prepared(&mut self) {
        self.steps.before.changes.clear();
        self.base = 0;
        self.written = self.written_before.take().unwrap_or_else(|| self.written.clone());
    }
}

impl<K: Kernel> Pending<K> {
    /// Begins with these steps, which belong to no service port.
    pub(super) fn new(planner: Planner, steps: Steps) -> Self {
        Self { batch: Batch::new(steps, &planner), planner, service_ports: 0, spent: None }
    }

    /// Adds the changes of a service port. A service port that cannot be planned keeps its previous elements and is
    /// reported.
    pub(super) fn update(&mut self, name: &ServicePortName, table: &ServiceTable, run: &mut Run) {
        match self.planner.update(name, table, &mut self.batch.steps) {
            Ok(update) => self.batch.updates.extend(update),
            Err(error) => run.reject(name, &error),
        }
        self.service_ports += 1;
    }

    /// Adds the changes of service ports until the transaction has this size or no service ports remain. Returns true
    /// if it has this size.
    pub(super) fn fill<'a>(
        &mut self,
        names: &mut impl Iterator<Item = &'a ServicePortName>,
        table: &ServiceTable,
        size: TransactionSize,
        run: &mut Run,
    ) -> bool {
        if self.batch.encoded.is_some() {
            return true;
        }
        self.batch.size = self.batch.size.max(size.get());
        while !size.is_reached(self.batch.steps.len()) {
            let Some(name) = names.next() else { return false };
            self.update(name, table, run);
        }
        true
    }

    /// Adds the changes that depend on all updates in the transaction, so that none can be added, and encodes it.
    pub(super) fn complete(&mut self) {
        self.finish();
        self.batch.encoded.get_or_insert_with(|| K::encode(&self.batch.steps.changes));
    }

    /// Adds the changes that depend on all updates in the transaction.
    pub(super) fn finish(&mut self) {
        let Batch { steps, encoded: None, written_before, .. } = &mut self.batch else { return };
        *written_before = Some(self.planner.finish_transaction(steps));
    }

    /// Takes the transaction and starts the next one.
    pub(super) fn take(&mut self) -> Batch<K> {
        self.complete();
        let next = Batch::new(Steps::new(self.batch.steps.changes.table.clone()), &self.planner);
        std::mem::replace(&mut self.batch, next)
    }

    /// Keeps a transaction that was committed for [`Pending::reuse`].
    pub(super) fn keep(&mut self, spent: Batch<K>) {
        self.spent = Some(spent);
    }

    /// Uses the memory of the last committed transaction for this one, which must be empty. To be called while another
    /// one is committed, because it takes some time to free the contents.
    pub(super) fn reuse(&mut self) {
        if let Some(spent) = self.spent.take() {
            let mut steps = spent.steps;
            steps.clear();
            self.batch.steps = steps;
        }
    }

    /// Starts the next transaction, after this one was committed.
    pub(super) fn next(&mut self) {
        let Batch { steps, encoded, base, updates, written, written_before, size } = &mut self.batch;
        steps.clear();
        updates.clear();
        (*encoded, *base, *written, *written_before, *size) = (None, 0, self.planner.written(), None, 0);
    }

    /// Rolls back all updates of the transaction, and returns their service ports. Changes that belong to no service
    /// port remain.
    pub(super) fn roll_back(&mut self) -> Vec<ServicePortName> {
        let Batch { steps, encoded, base, updates, written, .. } = &mut self.batch;
        let mut before = std::mem::take(&mut steps.before.changes);
        before.truncate(*base);
        steps.clear();
        steps.before.changes = before;
        *encoded = None;
        let updates = std::mem::take(updates);
        let names = updates.iter().map(|update| update.name.clone()).collect();
        self.planner.roll_back(updates, written.clone());
        names
    }
}

impl Run {
    /// Starts a sync with this number of elements in each set and this generation.
    pub(super) fn new(elements: HashMap<Name, usize>, generation: Option<u32>) -> Self {
        Self {
            report: SyncReport::default(),
            elements,
            expected_generation: generation,
            may_be_replaced: false,
            kept_unused: Vec::new(),
            logged: Instant::now(),
        }
    }

    /// Reports a service port whose entry cannot be applied.
    pub(super) fn reject(&mut self, name: &ServicePortName, error: &dyn Error) {
        self.report.rejected.push(Rejection { service_port: name.clone(), error: error_chain(error) });
    }

    /// Counts the objects in a transaction, for [`Run::committed`].
    pub(super) fn counts<'a>(&self, transaction: &'a Transaction) -> Counts<'a> {
        let mut counts = Counts::default();
        for change in &transaction.changes {
            match change {
                Change::AddTable(_) | Change::AddOwnedTable(_) | Change::FlushChain(_) => {}
                Change::DeleteTable => counts.replaces_table = true,
                Change::AddChain(_) | Change::AddRule(..) | Change::AddSet(_) | Change::AddFlowtable(_) => {
                    counts.written += 1;
                }
                Change::DeleteChain(_)
                | Change::DeleteSet(..)
                | Change::DeleteFlowtable(_)
                | Change::DeleteDevices(_) => counts.removed += self.removed(change),
                Change::AddElement(set, _) => {
                    counts.written += 1;
                    counts.add_element(set, 1);
                }
                Change::DeleteElement(set, _) => {
                    counts.removed += self.removed(change);
                    counts.add_element(set, -1);
                }
            }
        }
        counts
    }

    /// Adds the counts of a committed transaction.
    pub(super) fn committed(&mut self, counts: &Counts<'_>, took: Duration) {
        self.report.kernel_time += took;
        self.report.written += counts.written;
        self.report.removed += counts.removed;
        self.expected_generation = self.expected_generation.map(next_generation);
        if counts.replaces_table {
            self.elements.clear();
        }
        for (set, difference) in &counts.elements {
            let count = self.elements.entry((*set).clone()).or_default();
            // Saturating, because a repair sets the numbers itself.
            *count = count.saturating_add_signed(*difference);
        }
    }

    fn removed(&self, deletion: &Change) -> usize {
        usize::from(!self.kept_unused.contains(deletion))
    }

    /// Reports whether it is time to log the progress.
    pub(super) fn is_log_due(&mut self) -> bool {
        let is_due = self.logged.elapsed() > LOG_INTERVAL;
        if is_due {
            self.logged = Instant::now();
        }
        is_due
    }
}

impl<'a> Counts<'a> {
    /// Nearly all elements follow one of the same set.
    fn add_element(&mut self, set: &'a Name, difference: isize) {
        match self.elements.iter_mut().rev().find(|(name, _)| *name == set) {
            Some((_, number)) => *number += difference,
            None => self.elements.push((set, difference)),
        }
    }
}

/// Returns the kernel's generation after one more transaction. The kernel skips 0.
pub(super) fn next_generation(generation: u32) -> u32 {
    generation.checked_add(1).unwrap_or(1)
}

impl Default for TransactionSize {
    fn default() -> Self {
        Self(INITIAL_SIZE)
    }
}

impl TransactionSize {
    /// Returns the number of changes.
    pub(super) fn get(self) -> usize {
        self.0
    }

    /// Reports whether a transaction with this number of changes is to be committed.
    pub(super) fn is_reached(self, changes: usize) -> bool {
        changes >= self.0
    }

    /// Adapts the size to the duration of a transaction.
    pub(super) fn adapt(&mut self, changes: usize, took: Duration) {
        // The duration of a small transaction is no measure of the cost per change.
        if changes * 2 < self.0 {
            return;
        }
        let per_change = took.as_secs_f64() / changes as f64;
        let fitting = (TARGET.as_secs_f64() / per_change.max(f64::EPSILON)) as usize;
        self.0 = fitting.clamp(self.0 / 2, self.0 * 2).clamp(MIN_SIZE, MAX_SIZE);
    }
}

const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Target duration. Less than a third of the 100 ms that other programs should wait at most, because the duration
/// varies with the host's load.
const TARGET: Duration = Duration::from_millis(30);
const INITIAL_SIZE: usize = 4_000;
const MIN_SIZE: usize = 500;
/// Limits the memory of a transaction to one megabyte. The allocator cannot return the temporary memory of the first
/// sync, because it lies between long-lived allocations.
const MAX_SIZE: usize = 4_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_size_shrinks_after_slow_and_grows_after_fast_transactions() {
        let mut size = TransactionSize::default();
        size.adapt(INITIAL_SIZE, Duration::from_millis(500));
        assert!(size.is_reached(INITIAL_SIZE / 2) && !size.is_reached(INITIAL_SIZE / 2 - 1));
        for _ in 0..20 {
            size.adapt(40_000, Duration::from_millis(1));
        }
        assert!(size.is_reached(MAX_SIZE) && !size.is_reached(MAX_SIZE - 1));
        size.adapt(10, Duration::from_secs(1));
        assert!(!size.is_reached(MAX_SIZE - 1), "small transactions are ignored");
    }
}
