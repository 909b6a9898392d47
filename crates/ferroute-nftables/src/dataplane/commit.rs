//! Commits transactions: in pieces if they are long, and in parts if the kernel refuses them.

use std::{
    ops::Range,
    panic::resume_unwind,
    thread,
    time::{Duration, Instant},
};

use ferroute_core::{Heartbeat, ServiceTable};

use super::{
    Failure, NftablesDataplane,
    run::{Batch, Counts, Pending, Run, TransactionSize},
};
use crate::{
    kernel::{ErrorKind, Kernel, KernelError},
    model::{Change, Transaction},
    plan::Planner,
};

impl<K: Kernel> NftablesDataplane<K> {
    /// Commits the pending changes. If the kernel refuses them because of their contents, they are divided until the
    /// service ports at fault are identified, and all others are applied.
    pub(super) fn commit_pending(
        &mut self,
        table: &ServiceTable,
        pending: &mut Pending<K>,
        run: &mut Run,
    ) -> Result<(), Failure<K::Error>> {
        self.commit_or_divide(table, pending, run)?;
        self.advance(pending.service_ports, run);
        Ok(())
    }

    /// Commits the pending changes like [`NftablesDataplane::commit_pending`], and plans the next transaction at the
    /// same time on another thread. `fill` must add no more than one transaction.
    pub(super) fn commit_and_plan(
        &mut self,
        table: &ServiceTable,
        pending: &mut Pending<K>,
        run: &mut Run,
        fill: impl FnOnce(&mut Pending<K>, &mut Run) + Send,
    ) -> Result<(), Failure<K::Error>> {
        let service_ports = pending.service_ports;
        let mut sent = pending.take();
        if self.prepare(&mut sent, run).is_err() {
            pending.batch = sent;
            // It is tried again, and divided.
            return self.commit_pending(table, pending, run);
        }
        let encoded = sent.encoded.take();
        let size = self.transaction_size;
        let mut counts = Counts::default();
        let committed = thread::scope(|scope| {
            // The planning has time until the kernel is done, so a delay of its thread does not delay the commit.
            let plan = || {
                pending.reuse();
                fill(pending, run);
                if !is_divided(&pending.batch, size) {
                    pending.complete();
                }
                counts = run.counts(&sent.steps.changes);
            };
            let thread = thread::Builder::new().name("plan".to_owned()).spawn_scoped(scope, plan).ok()?;
            let committed = timed(&mut self.kernel, &sent.steps.changes, encoded);
            thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            Some(committed)
        });
        match committed {
            Some((Ok(()), took)) => {
                self.transaction_size.adapt(sent.steps.changes.len(), took);
                self.committed(&sent.steps.changes, &counts, took, run);
                let after = std::mem::take(&mut sent.steps.after.changes);
                self.commit_pieces(after, sent.piece_size(size), run)?;
                pending.keep(sent);
            }
            Some((Err(error), _)) => {
                let failure = Failure::Kernel(error);
                if !self.is_at_fault(&failure, run) {
                    return Err(failure);
                }
                // The changes planned in the meantime assume that this transaction was committed.
                let names = pending.roll_back();
                pending.batch = sent;
                pending.service_ports = service_ports;
                self.divide(failure, table, pending, run)?;
                pending.next();
                names.iter().for_each(|name| pending.update(name, table, run));
            }
            // The thread could not be started.
            None => {
                pending.batch = sent;
                self.commit_or_divide(table, pending, run)?;
            }
        }
        self.advance(service_ports, run);
        Ok(())
    }

    /// Reports how many service ports were written.
    fn advance(&self, service_ports: usize, run: &mut Run) {
        self.progress.advance(service_ports);
        if run.is_log_due() {
            let (done, total) = self.progress.get();
            tracing::info!(table = %self.table, done, total, "writing services");
        }
    }

    /// Commits a transaction for all service ports. If the kernel refuses it, the error names the one at fault.
    pub(super) fn commit_all(
        &mut self,
        transaction: &Transaction,
        planner: &Planner,
        run: &mut Run,
    ) -> Result<(), Failure<K::Error>> {
        match self.commit(transaction, run) {
            Ok(_) => Ok(()),
            Err(failure) if self.is_at_fault(&failure, run) => Err(match failure {
                Failure::Kernel(source) => match source.refused().and_then(|change| planner.owner_of(change)) {
                    Some(service_port) => Failure::Rejected { service_port, source },
                    None => Failure::Kernel(source),
                },
                other => other,
            }),
            Err(failure) => Err(failure),
        }
    }

    /// Commits a transaction at once.
    pub(super) fn commit(&mut self, transaction: &Transaction, run: &mut Run) -> Result<Duration, Failure<K::Error>> {
        self.commit_encoded(transaction, None, run)
    }

    /// Commits a transaction at once, which may have been encoded before.
    fn commit_encoded(
        &mut self,
        transaction: &Transaction,
        encoded: Option<K::Encoded>,
        run: &mut Run,
    ) -> Result<Duration, Failure<K::Error>> {
        if transaction.is_empty() {
            return Ok(Duration::ZERO);
        }
        let (result, took) = timed(&mut self.kernel, transaction, encoded);
        result?;
        self.committed(transaction, &run.counts(transaction), took, run);
        Ok(took)
    }

    fn committed(&self, transaction: &Transaction, counts: &Counts<'_>, took: Duration, run: &mut Run) {
        Heartbeat::beat_thread();
        tracing::debug!(table = %self.table, changes = transaction.len(), ?took, "committed transaction");
        run.committed(counts, took);
    }

    fn commit_or_divide(
        &mut self,
        table: &ServiceTable,
        pending: &mut Pending<K>,
        run: &mut Run,
    ) -> Result<(), Failure<K::Error>> {
        pending.finish();
        if let Err(failure) = self.prepare(&mut pending.batch, run) {
            if !self.is_at_fault(&failure, run) {
                return Err(failure);
            }
            self.divide(failure, table, pending, run)?;
            pending.next();
            return Ok(());
        }
        let size = pending.batch.piece_size(self.transaction_size);
        if is_divided(&pending.batch, self.transaction_size) {
            // A refused piece cannot be taken back alone. The next resync finds the service port at fault.
            let changes = std::mem::take(&mut pending.batch.steps.changes.changes);
            self.commit_pieces(changes, size, run)?;
        } else {
            let encoded = pending.batch.encoded.take();
            match self.commit_encoded(&pending.batch.steps.changes, encoded, run) {
                Ok(took) => self.transaction_size.adapt(pending.batch.steps.changes.len().max(1), took),
                Err(failure) if self.is_at_fault(&failure, run) => self.divide(failure, table, pending, run)?,
                Err(failure) => return Err(failure),
            }
        }
        let after = std::mem::take(&mut pending.batch.steps.after.changes);
        self.commit_pieces(after, size, run)?;
        pending.next();
        Ok(())
    }

    /// Commits the first step.
    fn prepare(&mut self, batch: &mut Batch<K>, run: &mut Run) -> Result<(), Failure<K::Error>> {
        self.commit(&batch.steps.before, run)?;
        batch.prepared();
        Ok(())
    }

    /// Commits changes in pieces of about this size, if they are much longer.
    fn commit_pieces(&mut self, changes: Vec<Change>, size: usize, run: &mut Run) -> Result<(), Failure<K::Error>> {
        let pieces = pieces(&changes, size);
        let mut changes = changes.into_iter();
        for piece in pieces {
            let changes = changes.by_ref().take(piece.len()).collect();
            self.commit(&Transaction { table: self.table.clone(), changes }, run)?;
        }
        Ok(())
    }

    /// Reports whether the contents of a transaction are the cause of a failure, as opposed to a feature that the
    /// kernel lacks, or to another program that may have changed the table.
    fn is_at_fault(&mut self, failure: &Failure<K::Error>, run: &Run) -> bool {
        let Failure::Kernel(error) = failure else { return false };
        let mut is_unchanged = |expected| self.kernel.generation().is_ok_and(|now| now == expected);
        error.kind().is_some_and(ErrorKind::is_about_contents) && run.expected_generation.is_some_and(&mut is_unchanged)
    }

    /// Commits the halves of a refused transaction, and their halves. A single service port that is refused keeps its
    /// previous elements and is reported.
    fn divide(
        &mut self,
        failure: Failure<K::Error>,
        table: &ServiceTable,
        pending: &mut Pending<K>,
        run: &mut Run,
    ) -> Result<(), Failure<K::Error>> {
        let names = pending.roll_back();
        if !pending.batch.steps.before.is_empty() {
            // Changes that belong to no service port.
            self.commit(&pending.batch.steps.before, run)?;
        } else if let [name] = &names[..] {
            run.reject(name, &failure);
            return Ok(());
        } else if names.is_empty() {
            return Err(failure);
        }
        pending.next();
        for half in names.chunks(names.len().div_ceil(2).max(1)) {
            half.iter().for_each(|name| pending.update(name, table, run));
            self.commit_or_divide(table, pending, run)?;
        }
        Ok(())
    }
}

/// Commits a transaction, which may have been encoded before, and measures the kernel's time.
fn timed<K: Kernel>(
    kernel: &mut K,
    transaction: &Transaction,
    encoded: Option<K::Encoded>,
) -> (Result<(), K::Error>, Duration) {
    let encoded = encoded.unwrap_or_else(|| K::encode(transaction));
    let start = Instant::now();
    (kernel.commit_encoded(transaction, encoded), start.elapsed())
}

/// Reports whether a transaction is so long that it is committed in pieces.
pub(super) fn is_divided<K: Kernel>(batch: &Batch<K>, size: TransactionSize) -> bool {
    pieces(&batch.steps.changes.changes, batch.piece_size(size)).len() > 1
}

/// Divides changes into pieces of about this size, if they are much longer.
///
/// Only the changes of a Service with thousands of addresses or endpoints are that long. Their order allows the
/// division: the objects that a frontend leads to are written before it and deleted after it.
fn pieces(changes: &[Change], size: usize) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while changes.len() - start > 2 * size {
        let mut end = start + size;
        while end < changes.len() && !may_separate(&changes[end - 1], &changes[end]) {
            end += 1;
        }
        pieces.push(start..end);
        start = end;
    }
    pieces.push(start..changes.len());
    pieces
}

/// Reports whether packets may see the table between two changes: not while an element is being replaced, and not while
/// a chain has no rules.
fn may_separate(first: &Change, second: &Change) -> bool {
    match (first, second) {
        (Change::DeleteElement(old_set, old), Change::AddElement(set, new)) => old_set != set || old.key != new.key,
        (_, Change::AddElement(..) | Change::DeleteElement(..)) => true,
        _ => false,
    }
}
