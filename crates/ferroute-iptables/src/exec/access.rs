//! The two ways to the kernel's rules.

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, error_chain};

use super::{
    executor::{Executor, RestoreError, SaveError},
    process::Exec,
    programs::IptablesPrograms,
    version::Backend,
};
use crate::{
    ChainName, SaveParser, TableName,
    native::{AddItem, KernelSink, NativeRules, Obstacle},
    plan::ignore_unnameable,
    sink::{RuleSink, WithoutChains},
    text::RestoreWriter,
};

/// The access to the rules of one IP family, in the network namespace in which it was created.
#[derive(Clone, Debug)]
pub struct RuleAccess(Way);

#[derive(Clone, Debug)]
enum Way {
    /// The iptables programs.
    Programs(Executor, Option<Arc<Repair>>),
    /// nf_tables, by netlink.
    Netlink(Arc<NativeRules>),
}

/// Repairs of what the programs of nf_tables neither show nor change.
#[derive(Debug)]
struct Repair {
    rules: NativeRules,
    /// What could not be repaired at the last read.
    obstacles: Mutex<Vec<Obstacle>>,
}

impl Repair {
    fn obstacles(&self) -> MutexGuard<'_, Vec<Obstacle>> {
        self.obstacles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Repairs tables and the proxy's chains. Without an answer of the kernel, the programs have to do.
    fn run(&self, tables: &[TableName], own: &[(TableName, ChainName)]) {
        let obstacles = self.rules.repair(tables, own).unwrap_or_else(|error| {
            tracing::debug!("cannot look for tables and chains to repair: {}", error_chain(&error));
            Vec::new()
        });
        obstacles.iter().for_each(|obstacle| tracing::error!(family = %self.rules.family(), "{obstacle}"));
        *self.obstacles() = obstacles;
    }
}

impl RuleAccess {
    /// Creates an access that runs `iptables-save` and `iptables-restore`.
    pub fn programs(programs: IptablesPrograms, exec: Arc<dyn Exec>) -> Self {
        Self(Way::Programs(Executor { programs, exec }, None))
    }

    /// Makes an access by the programs of nf_tables repair by netlink what they cannot: dormant tables, builtin chains without
    /// their hook, and chains of the proxy that another program made base chains.
    #[must_use]
    pub fn with_repairs(self, rules: NativeRules) -> Self {
        match self.0 {
            Way::Programs(executor, _) if executor.programs.release.backend == Backend::NfTables => {
                Self(Way::Programs(executor, Some(Arc::new(Repair { rules, obstacles: Mutex::default() }))))
            }
            way => Self(way),
        }
    }

    /// Creates an access by netlink.
    pub fn netlink(rules: NativeRules) -> Self {
        Self(Way::Netlink(rules.into()))
    }

    /// The IP family.
    pub fn family(&self) -> IpFamily {
        match &self.0 {
            Way::Programs(executor, _) => executor.programs.family,
            Way::Netlink(rules) => rules.family(),
        }
    }

    /// The backend of the rules.
    pub fn backend(&self) -> Backend {
        match &self.0 {
            Way::Programs(executor, _) => executor.programs.release.backend,
            Way::Netlink(_) => Backend::NfTables,
        }
    }

    /// The iptables programs, if it uses them.
    pub fn iptables_programs(&self) -> Option<&IptablesPrograms> {
        match &self.0 {
            Way::Programs(executor, _) => Some(&executor.programs),
            Way::Netlink(_) => None,
        }
    }

    /// Reports whether `MASQUERADE` supports `--random-fully`.
    pub fn has_random_fully(&self) -> bool {
        match &self.0 {
            Way::Programs(executor, _) => executor.programs.release.has_random_fully(),
            Way::Netlink(_) => true,
        }
    }

    /// The number of chains that a transaction should have at most; `None` if it should contain the whole change.
    pub(super) fn chains_per_transaction(&self) -> Option<usize> {
        match (&self.0, self.backend()) {
            // Each transaction reads and replaces the whole table.
            (_, Backend::Legacy) => None,
            (Way::Programs(..), Backend::NfTables) => Some(CHAINS_PER_TRANSACTION),
            (Way::Netlink(_), Backend::NfTables) => Some(NATIVE_CHAINS_PER_TRANSACTION),
        }
    }

    /// Reports whether shared chains should be edited. The programs would read the whole table to find a rule that they delete.
    pub(super) fn edits_chains(&self) -> bool {
        matches!(self.0, Way::Netlink(_))
    }

    /// Reads tables: calls `add` with chains, and with the rules of each chain together. Returns the duration. By
    /// netlink, it is shorter if the chains of large tables are `expected`. For the programs, repairs the tables and the
    /// `expected` chains first, see [`RuleAccess::with_repairs`].
    ///
    /// # Errors
    /// If the rules cannot be read.
    pub(super) fn read(
        &self,
        tables: &[TableName],
        expected: Vec<(TableName, ChainName)>,
        add: &mut AddItem<'_>,
    ) -> Result<Duration, SaveError> {
        match &self.0 {
            Way::Programs(executor, repair) => {
                if let Some(repair) = repair {
                    repair.run(tables, &expected);
                }
                let mut took = Duration::ZERO;
                for name in tables {
                    let mut parser = SaveParser::new(self.family());
                    took += executor.save(*name, &mut |line| {
                        let item = ignore_unnameable(parser.line(line))?;
                        if let Some((table, item)) = parser.table().zip(item) {
                            add(table, item);
                        }
                        Ok(())
                    })?;
                    parser.finish().map_err(|source| executor.parse_error(*name, source))?;
                }
                Ok(took)
            }
            Way::Netlink(rules) => {
                let start = Instant::now();
                rules.read(tables, expected, add)?;
                Ok(start.elapsed())
            }
        }
    }

    /// Makes [`RuleAccess::read`] look for hooks of the chains of Services in tables of any size, which takes longer;
    /// none for the programs. Returns whether it did not do so before.
    pub(super) fn look_for_hooks(&self, look: bool) -> bool {
        match &self.0 {
            Way::Programs(..) => false,
            Way::Netlink(rules) => rules.look_for_hooks(look) != look,
        }
    }

    /// Reads some chains like [`RuleAccess::read`]; none by the programs, which read whole tables.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn read_chains(
        &self,
        chains: &[(TableName, ChainName)],
        add: &mut AddItem<'_>,
    ) -> Result<(), SaveError> {
        match &self.0 {
            Way::Programs(..) => Ok(()),
            Way::Netlink(rules) => Ok(rules.read_chains(chains, add)?),
        }
    }

    /// Returns the generation of the kernel's rules. `None` for the programs: those of nf_tables themselves check that
    /// no other program commits between their reads and writes.
    pub(super) fn generation(&self) -> Option<u32> {
        match &self.0 {
            Way::Programs(..) => None,
            Way::Netlink(rules) => {
                let generation = rules.generation();
                generation.inspect_err(|error| tracing::debug!(%error, "cannot read the nf_tables generation id")).ok()
            }
        }
    }

    /// Writes rules and returns the time that it took. After a failure, `write` may be called once more, and must write
    /// the same rules. With a generation, everything that follows a transaction of another program is refused.
    ///
    /// # Errors
    /// If a rule or transaction is rejected. Transactions before it are applied nevertheless.
    pub(super) fn write(
        &self,
        generation: Option<u32>,
        write: &mut dyn FnMut(&mut dyn RuleSink) -> io::Result<()>,
    ) -> Result<Duration, RestoreError> {
        match &self.0 {
            Way::Programs(executor, repair) => {
                let mut restore = |left_out: &BTreeSet<(TableName, ChainName)>| {
                    executor.restore(&mut |out| {
                        let mut writer = RestoreWriter::new(out);
                        write(&mut WithoutChains { out: &mut writer, left_out, table: TableName::Filter })?;
                        writer.finish()
                    })
                };
                let Some(repair) = repair else { return restore(&BTreeSet::new()) };
                let obstacles = repair.obstacles();
                let result = restore(&obstacles.iter().filter_map(Obstacle::chain).collect());
                match obstacles.first().cloned() {
                    Some(obstacle) => Err(RestoreError::Obstacle { obstacle, source: result.err().map(Box::new) }),
                    None => result,
                }
            }
            Way::Netlink(rules) => {
                let start = Instant::now();
                let mut sink = KernelSink::new(rules, generation);
                match (write(&mut sink), sink.into_error()) {
                    (Ok(()), _) => Ok(start.elapsed()),
                    (Err(_), Some(error)) => Err(error.into()),
                    (Err(error), None) => unreachable!("bug: the sink has no error but reports {error}"),
                }
            }
        }
    }

    /// Returns the number of rules of each of these chains and of jumps to it; `None` for a missing chain. The cost
    /// does not depend on the number of rules. The result is empty if only the programs could count.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn chain_uses(
        &self,
        chains: impl Iterator<Item = (TableName, ChainName)>,
    ) -> Result<Vec<Option<u32>>, SaveError> {
        match &self.0 {
            Way::Programs(..) => Ok(Vec::new()),
            Way::Netlink(rules) => chains.map(|(table, chain)| Ok(rules.chain_uses(table, chain)?)).collect(),
        }
    }

    /// Returns a builtin chain that exists but that packets do not traverse; `None` for the programs without
    /// [repairs](RuleAccess::with_repairs), to which such a chain looks like others.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn idle_chain(&self, tables: &[TableName]) -> Result<Option<(TableName, ChainName)>, SaveError> {
        match &self.0 {
            Way::Programs(_, None) => Ok(None),
            Way::Programs(_, Some(repair)) => Ok(repair.rules.idle_chain(tables)?),
            Way::Netlink(rules) => Ok(rules.idle_chain(tables)?),
        }
    }

    /// Reports whether a chain exists; `None` if another program holds the xtables lock.
    ///
    /// # Errors
    /// If that cannot be determined.
    pub(super) fn has_chain(&self, table: TableName, chain: ChainName) -> Result<Option<bool>, SaveError> {
        match &self.0 {
            Way::Programs(executor, _) => Ok(executor.has_chain(table, chain)?),
            Way::Netlink(rules) => Ok(Some(rules.has_chain(table, chain)?)),
        }
    }
}

/// Attempts to read rules and write the difference, without a transaction of another program in between.
///
/// The last attempt allows such a transaction, so that constant writes by other programs cannot block a sync. The next
/// comparison finds any changes that it missed.
#[derive(Debug)]
pub(super) struct Attempts {
    start: Instant,
    begun: u32,
    /// Whether the current attempt is the last one.
    is_last: bool,
}

impl Attempts {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), begun: 0, is_last: false }
    }

    /// Begins an attempt, before rules are read. Returns the generation for [`RuleAccess::write`].
    pub(super) fn begin(&mut self, access: &RuleAccess) -> Option<u32> {
        self.begun += 1;
        self.is_last = self.begun >= MAX_ATTEMPTS || self.start.elapsed() >= MAX_TIME;
        if self.is_last { None } else { access.generation() }
    }

    /// Reports whether another attempt is required after this failure to write.
    pub(super) fn must_repeat(&self, error: &RestoreError) -> bool {
        let repeat = error.is_outdated() && !self.is_last;
        if repeat {
            tracing::debug!(attempt = self.begun, "another program modified rules since they were read; reading again");
        }
        repeat
    }
}

/// The number of attempts.
const MAX_ATTEMPTS: u32 = 4;
/// Time after which an attempt is the last one. An attempt takes milliseconds, or seconds with the rules of 10,000
/// Services, in which case at most two attempts are worthwhile.
const MAX_TIME: Duration = Duration::from_secs(1);
/// The limit of chains per transaction of `iptables-nft-restore`, which only a service port with more chains exceeds:
/// for each rule, the program searches a list of all chains in the transaction, which takes 40 s for 20,000 chains and
/// a quarter of an hour for 100,000. With half as many, 55,000 chains take the kernel 1.5 times as long, because it
/// validates the whole table at each commit; with more, searching the list takes the time that fewer commits save.
const CHAINS_PER_TRANSACTION: usize = 2000;
/// Limit of chains per transaction encoded in this process, which bounds its memory: some MiB.
const NATIVE_CHAINS_PER_TRANSACTION: usize = 4000;
