//! Applies one IP family's Services through a [`Kernel`].
//!
//! Syncs write the difference that the [`Planner`] computes, without reading the table. The kernel's generation shows
//! whether another program has committed a transaction since the last sync. Only then is the table checked, and read
//! and repaired if it was modified.

mod commit;
mod compare;
mod flowtable;
mod resync;
mod run;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use ferroute_core::{
    Changes, Dataplane, DataplaneError, IpFamily, Progress, RulesDigest, ServicePortName, ServiceTable, SyncReport,
    Throttle, error_chain,
};
use ferroute_host::{AddressError, DeviceError, HostAddresses, HostDevices, KernelDevices, processor_time};

use self::{
    commit::is_divided,
    flowtable::{FlowtableDevices, own_devices},
    run::{Pending, Run, TransactionSize},
};
use crate::{
    kernel::{Consistency, ErrorKind, Kernel, KernelError, ListedChain, Listing, NetlinkError, NetlinkKernel},
    model::{ChainWithRules, Change, Name, TableId, Transaction},
    plan::{Context, NftablesSettings, Planner, SetId, Steps, TABLE},
    probe::probe_flowtable,
};

/// The nftables mode for one IP family.
pub struct NftablesDataplane<K = NetlinkKernel> {
    kernel: K,
    table: TableId,
    settings: NftablesSettings,
    addresses: Box<dyn HostAddresses>,
    /// Devices of the flowtable; `None` if there is no flowtable.
    flowtable: Option<FlowtableDevices>,
    /// The applied state; `None` before the first sync and after a failure, when it is unknown.
    applied: Option<Applied>,
    transaction_size: TransactionSize,
    /// Limits comparisons of the elements with those that were written.
    comparisons: Throttle,
    progress: Progress,
}

struct Applied {
    planner: Planner,
    /// The number of elements of each set.
    elements: HashMap<Name, usize>,
    /// The kernel's generation after the last transaction of this proxy; `None` if another program committed one in
    /// between, so that the generation does not prove the table unmodified.
    generation: Option<u32>,
    /// Whether another program may have replaced elements since they were written or compared. Their number is correct.
    may_be_replaced: bool,
}

/// Reason why a sync failed.
#[derive(Debug, thiserror::Error)]
enum Failure<E: KernelError> {
    #[error(transparent)]
    Kernel(#[from] E),
    #[error(transparent)]
    Addresses(#[from] AddressError),
    /// The kernel refused a transaction because of this service port.
    #[error("kernel refused the rules of {service_port}")]
    Rejected { service_port: ServicePortName, source: E },
    /// Every attempt to read the set was interrupted by a transaction. A retry may succeed.
    #[error("another program keeps changing set {set}")]
    ChangedWhileReading { set: Name },
}

/// Reason why the mode could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel's nf_tables are not accessible.
    #[error(transparent)]
    Kernel(#[from] NetlinkError),
    /// The host's devices are not accessible.
    #[error(transparent)]
    Devices(#[from] DeviceError),
}

impl NftablesDataplane {
    /// Opens the kernel's nf_tables in the calling thread's network namespace. `addresses` are read at each resync and
    /// when the Node changes. If the kernel does not support flowtables, this is logged, and no flowtable is created.
    ///
    /// # Errors
    ///
    /// The netlink sockets could not be opened, or the kernel does not support nf_tables.
    pub fn open(
        family: IpFamily,
        mut settings: NftablesSettings,
        addresses: Box<dyn HostAddresses>,
    ) -> Result<Self, OpenError> {
        let mut kernel = NetlinkKernel::open()?;
        if settings.flowtable.is_some()
            && let Err(error) = probe_flowtable(&mut kernel, family)
        {
            tracing::warn!(
                %family, error = error_chain(&error),
                "the kernel supports no flowtables; all packets of connections pass its hooks"
            );
            settings.flowtable = None;
        }
        kernel.listen();
        let devices = settings.flowtable.is_some().then(KernelDevices::open).transpose()?;
        let dataplane = Self::with_kernel(kernel, family, settings, addresses);
        Ok(match devices {
            Some(devices) => dataplane.with_devices(Box::new(devices)),
            None => dataplane,
        })
    }
}

impl<K: Kernel> NftablesDataplane<K> {
    /// Returns the mode on top of any kernel.
    pub fn with_kernel(
        kernel: K,
        family: IpFamily,
        settings: NftablesSettings,
        addresses: Box<dyn HostAddresses>,
    ) -> Self {
        Self {
            kernel,
            table: TableId { family, name: TABLE },
            settings,
            addresses,
            flowtable: None,
            applied: None,
            transaction_size: TransactionSize::default(),
            comparisons: Throttle::new(Duration::ZERO),
            progress: Progress::default(),
        }
    }

    /// Adds the devices of the host that the settings name to the flowtable. Has no effect without a flowtable.
    pub fn with_devices(mut self, devices: Box<dyn HostDevices>) -> Self {
        self.flowtable = self.settings.flowtable.clone().map(|settings| FlowtableDevices::new(settings, devices));
        self
    }

    /// Returns the kernel.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    fn context(&mut self, table: &ServiceTable) -> Result<Context, AddressError> {
        Ok(Context::new(table, &self.settings, &self.addresses.list()?))
    }

    /// Applies the changes of these service ports, in transactions of limited size.
    fn update_all<'a>(
        &mut self,
        names: impl Iterator<Item = &'a ServicePortName> + Clone + Send,
        table: &ServiceTable,
        mut pending: Pending<K>,
        mut run: Run,
    ) -> Result<SyncReport, Failure<K::Error>> {
        pending.planner.begin_updates(names.clone(), table);
        let mut names = names.peekable();
        while pending.fill(&mut names, table, self.transaction_size, &mut run) {
            if names.peek().is_none() || is_divided(&pending.batch, self.transaction_size) {
                self.commit_pending(table, &mut pending, &mut run)?;
            } else {
                let size = self.transaction_size;
                self.commit_and_plan(table, &mut pending, &mut run, |pending, run| {
                    pending.fill(&mut names, table, size, run);
                })?;
            }
        }
        self.commit_pending(table, &mut pending, &mut run)?;
        pending.planner.end_updates();
        self.delete_unused_chains(&mut pending.planner, &mut run)?;
        Ok(self.finish(pending.planner, run))
    }

    /// Deletes unused chains once there are many. The kernel takes some milliseconds to create a chain after another was
    /// deleted, and the number of endpoints of a Service often changes back and forth.
    fn delete_unused_chains(&mut self, planner: &mut Planner, run: &mut Run) -> Result<(), Failure<K::Error>> {
        let chains = planner.unused_chains();
        if chains.len() <= MAX_UNUSED_CHAINS {
            return Ok(());
        }
        // Elements are deleted first, because kernels before 6.2 still count the references of elements that the same
        // transaction deletes.
        self.commit(&Transaction { table: self.table.clone(), changes: planner.unused_elements() }, run)?;
        planner.unused_elements_deleted();
        // Flushed first, because the chains may jump to each other.
        let flush = chains.iter().cloned().map(Change::FlushChain);
        let changes = flush.chain(chains.iter().cloned().map(Change::DeleteChain)).collect();
        if self.delete_unused(changes, run)? {
            planner.unused_deleted();
        }
        Ok(())
    }

    /// Deletes unused objects. Returns false if the kernel still counts references to one of them, as it may for a
    /// short time. They then remain until the next attempt, without effect on packets.
    fn delete_unused(&mut self, changes: Vec<Change>, run: &mut Run) -> Result<bool, Failure<K::Error>> {
        let transaction = Transaction { table: self.table.clone(), changes };
        match self.commit(&transaction, run) {
            Ok(_) => Ok(true),
            Err(Failure::Kernel(error)) if error.kind() == Some(ErrorKind::Busy) => {
                run.report.refused_removals += 1;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn finish(&mut self, planner: Planner, run: Run) -> SyncReport {
        let Run { mut report, elements, expected_generation, may_be_replaced, .. } = run;
        report.total = elements.values().sum();
        report.unserved = planner.unnumbered().clone();
        // Without a generation the next check compares the table.
        let generation =
            expected_generation.filter(|expected| self.kernel.generation().is_ok_and(|now| now == *expected));
        let may_be_replaced = may_be_replaced || generation.is_none();
        self.applied = Some(Applied { planner, elements, generation, may_be_replaced });
        report
    }

    fn steps(&self) -> Steps {
        Steps::new(self.table.clone())
    }

    fn apply_changes(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, Failure<K::Error>> {
        let Some(Applied { mut planner, elements, generation, may_be_replaced }) = self.applied.take() else {
            return self.reconcile(table);
        };
        let mut run = Run::new(elements, generation);
        run.may_be_replaced = may_be_replaced;
        let mut steps = self.steps();
        if !(changes.node || changes.service_cidrs) {
            self.progress.start(changes.previous.len());
            return self.update_all(changes.previous.keys(), table, Pending::new(planner, steps), run);
        }
        planner.set_context(self.context(table)?, &mut steps.before);
        let removed = planner.service_ports().filter(|name| !table.entries.contains_key(*name));
        let names: Vec<ServicePortName> = removed.chain(table.entries.keys()).cloned().collect();
        self.progress.start(names.len());
        self.update_all(names.iter(), table, Pending::new(planner, steps), run)
    }

    /// Reports whether the table may have been modified since the last sync. The number of elements is checked at once,
    /// and their contents as soon as [`Throttle`] permits another comparison.
    fn is_modified(&mut self) -> Result<bool, K::Error> {
        let Some(applied) = &mut self.applied else { return Ok(true) };
        let generation = self.kernel.generation()?;
        if applied.generation == Some(generation) {
            return self.has_other_elements();
        }
        let Some(listing) = self.kernel.list_table(&self.table)? else { return Ok(true) };
        let has_other_devices =
            self.flowtable.as_mut().is_some_and(|flowtable| !flowtable.has_devices(own_devices(&listing)));
        if has_other_devices || !applied.matches(&listing) {
            return Ok(true);
        }
        for set in applied.planner.sets() {
            let Some(listed) = listing.sets.iter().find(|listed| listed.name == set.name) else { return Ok(true) };
            if SetId::from_name(&set.name).is_some_and(SetId::is_dynamic) {
                continue;
            }
            let expected = applied.elements.get(&set.name).copied().unwrap_or_default();
            let count = match listed.element_count {
                Some(count) => count,
                None if expected <= MAX_COUNTED_ELEMENTS => {
                    let mut count = 0;
                    match self.kernel.dump_elements(&self.table, &set, &mut |_, _| count += 1)? {
                        Consistency::Consistent => count,
                        // The next check counts again.
                        Consistency::Interrupted => return Ok(false),
                    }
                }
                None => expected,
            };
            if count != expected {
                return Ok(true);
            }
        }
        (applied.generation, applied.may_be_replaced) = (Some(generation), true);
        self.has_other_elements()
    }

    /// Compares the elements if another program may have replaced some: those that the kernel named at once, and all others if
    /// a comparison is due.
    fn has_other_elements(&mut self) -> Result<bool, K::Error> {
        let cost = processor_time();
        let Some(applied) = &mut self.applied else { return Ok(false) };
        let changed = self.kernel.changed_elements(&self.table, &applied.planner.sets());
        if !changed.is_empty() && compare::differ(&mut self.kernel, &self.table, &applied.planner, &changed)? {
            return Ok(true);
        }
        if !applied.may_be_replaced {
            return Ok(false);
        }
        if !self.comparisons.is_due(Instant::now()) {
            return Ok(false);
        }
        let differs = compare::has_other_elements(&mut self.kernel, &self.table, &applied.planner)?;
        self.comparisons.record(Instant::now(), processor_time().saturating_sub(cost));
        // Elements that kept changing are compared again.
        applied.may_be_replaced = differs.is_none();
        Ok(differs == Some(true))
    }

    fn write_error(&self, failure: Failure<K::Error>) -> DataplaneError {
        let rules = format!("table {}", self.table);
        match failure {
            Failure::ChangedWhileReading { set } => {
                DataplaneError::ChangedWhileReading { rules, object: format!("set {set}") }
            }
            Failure::Rejected { service_port, source } => {
                DataplaneError::Rejected { rules, service_port, source: source.into() }
            }
            failure => DataplaneError::Write { rules, source: failure.into() },
        }
    }
}

impl Applied {
    /// Reports whether the listed chains, rules and sets, with all their properties, are those that were applied.
    fn matches(&self, listing: &Listing) -> bool {
        let chains = self.planner.chains();
        let unused = self.planner.unused_chains().len();
        let flowtable = self.planner.flowtable();
        let family = self.planner.context().settings.family;
        let sets = self.planner.sets();
        !listing.is_changed
            && !listing.has_stateful_objects
            && listing.chains.len() == chains.len() + unused
            && listing.sets.len() == sets.len()
            && sets.iter().all(|set| listing.sets.iter().any(|listed| listed.set.as_ref() == Some(set)))
            && listing.flowtables.iter().map(|listed| &listed.name).eq(flowtable.iter().map(|own| &own.name))
            && listing.flowtables.iter().all(|listed| listed.flowtable.is_some())
            && chains.iter().all(|chain| {
                let listed = listing.chains.iter().find(|listed| listed.name == chain.chain.name);
                listed.is_some_and(|listed| {
                    listed.chain.as_ref() == Some(&chain.chain) && has_rules(listed, chain, family)
                })
            })
    }
}

/// Reports whether a listed chain has the rules of `chain`.
fn has_rules(listed: &ListedChain, chain: &ChainWithRules, family: IpFamily) -> bool {
    listed.rules.len() == chain.rules.len()
        && listed.rules.iter().zip(&chain.rules).all(|(listed, rule)| listed.matches(rule, family))
}

impl<K: Kernel> Dataplane for NftablesDataplane<K> {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        self.apply_changes(table, changes).map_err(|failure| self.write_error(failure))
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        let report = self.reconcile(table).map_err(|failure| self.write_error(failure))?;
        // Later changes are found once per second: a sync need not look for them.
        self.maintain();
        Ok(report)
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        self.is_modified()
            .map_err(|error| DataplaneError::Read { rules: format!("table {}", self.table), source: error.into() })
    }

    fn maintain(&mut self) {
        let Some(mut applied) = self.applied.take() else { return };
        self.attach_devices(&mut applied.generation);
        self.applied = Some(applied);
    }

    fn progress(&self) -> Option<Progress> {
        Some(self.progress.clone())
    }

    fn digest(&self, _table: &ServiceTable) -> Option<RulesDigest> {
        self.applied.as_ref().map(|applied| applied.planner.digest())
    }
}

/// Number of unused chains that are kept for reuse. They refer only to other chains.
const MAX_UNUSED_CHAINS: usize = 16;
/// Maximum size of sets that are dumped to count their elements if the kernel does not report the number. A dump takes
/// quadratic time, 0.3 s for 100,000 elements.
const MAX_COUNTED_ELEMENTS: usize = 50_000;
