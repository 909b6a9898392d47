//! Committing transactions: in pieces if they are long, and in parts if the kernel refuses them.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use ferroute_core::{Heartbeat, ServiceTable};

use super::{
    Failure, NftablesDataplane,
    run::{Pending, Run},
};
use crate::{
    kernel::{ErrorKind, Kernel, KernelError},
    model::{Change, Transaction},
    plan::Planner,
};

impl<K: Kernel> NftablesDataplane<K> {
    /// Commits the pending changes. If the kernel refuses them because of their contents, they are divided until the
    /// service ports at fault are found, and all others are applied.
    pub(super) fn commit_pending(
        &mut self,
        table: &ServiceTable,
        pending: &mut Pending,
        run: &mut Run,
    ) -> Result<(), Failure<K::Error>> {
        self.commit_or_divide(table, pending, run)?;
        self.progress.advance(pending.service_ports);
        if run.is_log_due() {
            let (done, total) = self.progress.get();
            tracing::info!(table = %self.table, done, total, "writing services");
        }
        Ok(())
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
        if transaction.is_empty() {
            return Ok(Duration::ZERO);
        }
        let start = Instant::now();
        self.kernel.commit(transaction)?;
        let took = start.elapsed();
        Heartbeat::beat_thread();
        tracing::debug!(table = %self.table, changes = transaction.len(), ?took, "committed transaction");
        run.count(transaction, took);
        Ok(took)
    }

    fn commit_or_divide(
        &mut self,
        table: &ServiceTable,
        pending: &mut Pending,
        run: &mut Run,
    ) -> Result<(), Failure<K::Error>> {
        pending.planner.finish_transaction(&mut pending.transaction);
        let pieces = pieces(&pending.transaction.changes, self.transaction_size.get());
        if pieces.len() > 1 {
            // A refused piece cannot be taken back alone. The next resync finds the service port at fault.
            self.commit_pieces(pieces, pending, run)?;
        } else {
            match self.commit(&pending.transaction, run) {
                Ok(took) => self.transaction_size.adapt(pending.transaction.len().max(1), took),
                Err(failure) if self.is_at_fault(&failure, run) => self.divide(failure, table, pending, run)?,
                Err(failure) => return Err(failure),
            }
        }
        pending.next();
        Ok(())
    }

    fn commit_pieces(
        &mut self,
        pieces: Vec<Range<usize>>,
        pending: &mut Pending,
        run: &mut Run,
    ) -> Result<(), Failure<K::Error>> {
        let mut changes = std::mem::take(&mut pending.transaction.changes).into_iter();
        for piece in pieces {
            let changes = changes.by_ref().take(piece.len()).collect();
            self.commit(&Transaction { table: self.table.clone(), changes }, run)?;
        }
        Ok(())
    }

    /// Reports whether the contents of a transaction are the cause of a failure: not what the kernel lacks, and not
    /// another program, which may have changed the table.
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
        pending: &mut Pending,
        run: &mut Run,
    ) -> Result<(), Failure<K::Error>> {
        let names = pending.roll_back();
        if !pending.transaction.is_empty() {
            // Changes that belong to no service port.
            self.commit(&pending.transaction, run)?;
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

/// Divides changes into pieces of about this size, if they are much longer.
///
/// Only a Service with thousands of addresses or endpoints is that long. The order of its changes allows it: what a
/// frontend leads to is written before it and deleted after it.
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

/// Reports whether a packet may see the table between two changes: not without an element that is being replaced, and not
/// without the rules of a chain.
fn may_separate(first: &Change, second: &Change) -> bool {
    match (first, second) {
        (Change::DeleteElement(old_set, old), Change::AddElement(set, new)) => old_set != set || old.key != new.key,
        (_, Change::AddElement(..) | Change::DeleteElement(..)) => true,
        _ => false,
    }
}
