//! Brings one IP family's Services into force through a [`Kernel`].

mod found;
mod look;
mod pace;
mod repair;
mod resync;
mod run;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use ferroute_core::{
    Changes, Dataplane, DataplaneError, IpFamily, Progress, RulesDigest, ServicePortName, ServiceTable, SyncReport,
};
use ferroute_host::{AddressError, HostAddresses};

use self::{
    pace::Pace,
    run::{Run, Writing},
};
use crate::{
    kernel::{Kernel, KernelError, NetlinkError, NetlinkKernel, Objection},
    model::{Change, Name, TableId, Transaction},
    plan::{Context, NftablesSettings, Planner, TABLE},
    remove::remove_table,
};

/// The nftables mode of one IP family.
pub struct NftablesDataplane<K = NetlinkKernel> {
    kernel: K,
    table: TableId,
    settings: NftablesSettings,
    addresses: Box<dyn HostAddresses>,
    /// What is in force; `None` before the first sync and after a failure, when that is not known.
    in_force: Option<InForce>,
    pace: Pace,
    progress: Progress,
}

struct InForce {
    planner: Planner,
    /// Elements by set.
    elements: HashMap<Name, usize>,
    /// The kernel's number after our last transaction; `None` if somebody else came in between, so that it says
    /// nothing about us.
    generation: Option<u32>,
}

/// Why the mode cannot do its work.
#[derive(Debug, thiserror::Error)]
enum Failure<E: KernelError> {
    /// The kernel does not do what it is asked to.
    #[error(transparent)]
    Kernel(#[from] E),
    /// The host's addresses are not known.
    #[error(transparent)]
    Addresses(#[from] AddressError),
    /// It cannot be told what is there. Worth another try.
    #[error("somebody keeps changing set {set}")]
    Unsteady {
        /// The set.
        set: Name,
    },
}

impl NftablesDataplane {
    /// The mode in the calling thread's network namespace. `addresses` are asked at each comparison, and when the node
    /// changes.
    pub fn open(
        family: IpFamily,
        settings: NftablesSettings,
        addresses: Box<dyn HostAddresses>,
    ) -> Result<Self, NetlinkError> {
        Ok(Self::with_kernel(NetlinkKernel::open()?, family, settings, addresses))
    }
}

impl<K: Kernel> NftablesDataplane<K> {
    /// The mode with tables in any kernel.
    pub fn with_kernel(
        kernel: K,
        family: IpFamily,
        settings: NftablesSettings,
        addresses: Box<dyn HostAddresses>,
    ) -> Self {
        let table = TableId { family, name: TABLE };
        let progress = Progress::default();
        Self { kernel, table, settings, addresses, in_force: None, pace: Pace::default(), progress }
    }

    /// The kernel, to look at what it holds.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    fn context(&mut self, table: &ServiceTable) -> Result<Context, AddressError> {
        Ok(Context::new(table, &self.settings, &self.addresses.list()?))
    }

    /// Brings changes of these service ports into force, in transactions that are short enough.
    fn update_all<'a>(
        &mut self,
        names: impl Iterator<Item = &'a ServicePortName>,
        table: &ServiceTable,
        mut writing: Writing,
        mut run: Run,
    ) -> Result<SyncReport, Failure<K::Error>> {
        for name in names {
            writing.planner.update(name, table, &mut writing.transaction);
            writing.done += 1;
            if self.pace.is_full(writing.transaction.len()) {
                self.commit_stage(&mut writing, &mut run)?;
            }
        }
        self.commit_stage(&mut writing, &mut run)?;
        self.remove_chains(&mut writing.planner, &mut run)?;
        Ok(self.finish(writing.planner, run))
    }

    fn commit_stage(&mut self, writing: &mut Writing, run: &mut Run) -> Result<(), Failure<K::Error>> {
        writing.planner.settle(&mut writing.transaction);
        let changes = writing.transaction.len();
        let took = self.commit(&writing.transaction, run)?;
        self.pace.learn(changes.max(1), took);
        writing.transaction.changes.clear();
        self.progress.advance(writing.done);
        if run.is_time_to_tell() {
            let (done, total) = self.progress.get();
            tracing::info!(table = %self.table, done, total, "writing services");
        }
        Ok(())
    }

    fn commit(&mut self, transaction: &Transaction, run: &mut Run) -> Result<Duration, Failure<K::Error>> {
        if transaction.is_empty() {
            return Ok(Duration::ZERO);
        }
        let start = Instant::now();
        self.kernel.commit(transaction)?;
        let took = start.elapsed();
        tracing::debug!(table = %self.table, changes = transaction.len(), ?took, "committed");
        run.committed(transaction, took);
        Ok(took)
    }

    /// Removes chains that are not used any more, once there are many: making one anew after another was removed takes
    /// the kernel some milliseconds, and the number of endpoints of a Service often goes up and down.
    fn remove_chains(&mut self, planner: &mut Planner, run: &mut Run) -> Result<(), Failure<K::Error>> {
        let garbage = planner.garbage();
        if garbage.len() <= KEPT_CHAINS {
            return Ok(());
        }
        // They may lead to each other.
        let flush = garbage.iter().cloned().map(Change::FlushChain);
        let changes = flush.chain(garbage.iter().cloned().map(Change::DeleteChain)).collect();
        if self.remove(changes, run)? {
            planner.garbage_is_gone();
        }
        Ok(())
    }

    /// Removes what is not used any more. False if the kernel says that it is still in use, which can be so for a
    /// moment: then it stays until the next time, and does no harm.
    fn remove(&mut self, garbage: Vec<Change>, run: &mut Run) -> Result<bool, Failure<K::Error>> {
        let transaction = Transaction { table: self.table.clone(), changes: garbage };
        match self.commit(&transaction, run) {
            Ok(_) => Ok(true),
            Err(Failure::Kernel(error)) if error.objection() == Some(Objection::Busy) => {
                run.report.refused_removals += 1;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn finish(&mut self, planner: Planner, run: Run) -> SyncReport {
        let Run { mut report, elements, expected, .. } = run;
        let tally = planner.tally();
        report.no_local_internal = tally.no_local_internal;
        report.no_local_external = tally.no_local_external;
        report.total = elements.values().sum();
        // If it cannot be told now, it is looked at more closely the next time.
        let generation = expected.filter(|expected| self.kernel.generation().is_ok_and(|now| now == *expected));
        self.in_force = Some(InForce { planner, elements, generation });
        report
    }

    fn transaction(&self) -> Transaction {
        Transaction::new(self.table.clone())
    }

    fn update(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, Failure<K::Error>> {
        let Some(InForce { mut planner, elements, generation }) = self.in_force.take() else {
            return self.compare(table);
        };
        let run = Run::new(elements, generation);
        let mut transaction = self.transaction();
        if !(changes.node || changes.service_cidrs) {
            self.progress.start(changes.previous.len());
            let writing = Writing { planner, transaction, done: 0 };
            return self.update_all(changes.previous.keys(), table, writing, run);
        }
        planner.set_context(self.context(table)?, &mut transaction);
        let gone = planner.names().filter(|name| !table.entries.contains_key(*name));
        let names: Vec<ServicePortName> = gone.chain(table.entries.keys()).cloned().collect();
        self.progress.start(names.len());
        self.update_all(names.iter(), table, Writing { planner, transaction, done: 0 }, run)
    }

    fn error(&self, attempt: &str, source: impl std::error::Error + Send + Sync + 'static) -> DataplaneError {
        DataplaneError { attempt: format!("cannot {attempt} table {}", self.table), source: Box::new(source) }
    }
}

impl<K: Kernel> Dataplane for NftablesDataplane<K> {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        self.update(table, changes).map_err(|failure| self.error("write changes of", failure))
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        self.compare(table).map_err(|failure| self.error("write", failure))
    }

    fn was_disturbed(&mut self) -> Result<bool, DataplaneError> {
        self.look().map_err(|error| self.error("look at", error))
    }

    fn progress(&self) -> Option<Progress> {
        Some(self.progress.clone())
    }

    fn digest(&self, _table: &ServiceTable) -> Option<RulesDigest> {
        self.in_force.as_ref().map(|in_force| in_force.planner.digest())
    }

    fn cleanup(&mut self) -> Result<(), DataplaneError> {
        self.in_force = None;
        remove_table(&mut self.kernel, self.table.clone()).map(drop).map_err(|error| self.error("remove", error))
    }
}

/// Unused chains that may be there. They hold no reference to anything but other chains.
const KEPT_CHAINS: usize = 16;
