use std::{
    collections::BTreeSet,
    error::Error,
    time::{Duration, Instant},
};

use ferroute_core::{DataplaneError, Frontend, IpFamily, TableReport, Throttle};
use ferroute_host::processor_time;

use super::{
    access::{Attempts, RuleAccess},
    executor::{RestoreError, SaveError},
    generation::GenerationTracker,
    version::Backend,
};
use crate::{
    TableName,
    plan::{ChainGroup, ChainGroupCollector, GroupSummary},
    sink::RuleSink,
};

/// Applies a [`ChainGroup`] of one IP family, for modes that use few rules in addition to other objects of the kernel.
#[derive(Debug)]
pub struct GroupWriter {
    access: RuleAccess,
    generations: GenerationTracker,
    /// The applied chains; `None` while they are unknown.
    applied: Option<ChainGroup>,
    /// [`GenerationTracker::external`] at the last time when the kernel's rules were known to equal `applied`.
    verified: Option<u32>,
    /// Limits comparisons of the kernel's rules with `applied` if changes cannot be detected otherwise.
    comparisons: Throttle,
}

/// A writer of the rules of one IP family.
pub trait RuleWriter: Send {
    /// Applies `wanted`. Compares it with the kernel's rules if these are unknown, or if `full` is true.
    ///
    /// # Errors
    /// If the rules cannot be read or written.
    fn apply(&mut self, wanted: &ChainGroup, full: bool) -> Result<GroupReport, DataplaneError>;

    /// Reports whether another program has modified the rules.
    ///
    /// # Errors
    /// If the rules cannot be read.
    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError>;
}

impl RuleWriter for GroupWriter {
    fn apply(&mut self, wanted: &ChainGroup, full: bool) -> Result<GroupReport, DataplaneError> {
        Self::apply(self, wanted, full)
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        Self::was_modified_externally(self)
    }
}

/// The outcome of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupReport {
    /// The rules written.
    pub written: GroupSummary,
    /// Written and active rules by table.
    pub tables: Vec<TableReport>,
    /// The UDP frontends in the rules that were read.
    pub udp_frontends_before: BTreeSet<Frontend>,
    /// The time spent in the programs and the kernel.
    pub took: Duration,
}

impl GroupWriter {
    /// Creates a writer without applied rules. `generations` is shared with all other writers of the network namespace.
    pub fn new(access: RuleAccess, generations: GenerationTracker) -> Self {
        let comparisons = access.backend().comparisons();
        Self { access, generations, applied: None, verified: None, comparisons }
    }

    /// The IP family.
    pub fn family(&self) -> IpFamily {
        self.access.family()
    }

    /// Applies `wanted`. Does nothing if it is applied already. Reads the kernel's rules first if they are unknown, or
    /// if `full` is true.
    ///
    /// # Errors
    /// If the rules cannot be read or written. They are then unknown.
    pub fn apply(&mut self, wanted: &ChainGroup, full: bool) -> Result<GroupReport, DataplaneError> {
        let mut udp_frontends_before = BTreeSet::new();
        let (written, took) = match self.applied.take().filter(|_| !full) {
            Some(applied) => self.write(wanted, &applied, None).map_err(|error| self.write_error(error))?,
            None => self.read_and_write(wanted, &mut udp_frontends_before)?,
        };
        self.applied = Some(wanted.clone());
        let total = wanted.counts();
        let tables =
            [(TableName::Filter, written.rules.filter, total.filter), (TableName::Nat, written.rules.nat, total.nat)];
        Ok(GroupReport {
            written,
            tables: tables.map(|(table, written, total)| TableReport { name: table.as_str(), written, total }).into(),
            udp_frontends_before,
            took,
        })
    }

    /// Reports whether another program has modified the chains.
    ///
    /// # Errors
    /// If the rules cannot be read.
    pub fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        let Some(applied) = &self.applied else { return Ok(true) };
        let external = match self.access.backend() {
            Backend::Legacy => None,
            Backend::NfTables => self.generations.external(),
        };
        if external.is_some() && external == self.verified {
            return Ok(false);
        }
        let cost = processor_time();
        if !self.comparisons.is_due(Instant::now()) {
            return Ok(false);
        }
        let (kernel, _) = self.read(applied).map_err(|error| self.read_error(error))?;
        self.comparisons.record(Instant::now(), processor_time().saturating_sub(cost));
        let is_same = applied.is_in(&kernel);
        if is_same {
            self.verified = external;
        }
        Ok(!is_same)
    }

    /// Reads the kernel's rules and writes the difference. Also returns the duration.
    fn read_and_write(
        &mut self,
        wanted: &ChainGroup,
        udp_frontends: &mut BTreeSet<Frontend>,
    ) -> Result<(GroupSummary, Duration), DataplaneError> {
        let (mut attempts, mut took) = (Attempts::new(), Duration::ZERO);
        loop {
            // Read first, because a change during the read may be missing from the result.
            let generation = attempts.begin(&self.access);
            self.verified = self.generations.external();
            let (kernel, reading) = self.read(wanted).map_err(|error| self.read_error(error))?;
            took += reading;
            udp_frontends.extend(kernel.udp_frontends());
            match self.write(wanted, &kernel, generation) {
                Ok((written, writing)) => return Ok((written, took + writing)),
                Err(error) if attempts.must_repeat(&error) => {}
                Err(error) => return Err(self.write_error(error)),
            }
        }
    }

    fn read(&self, wanted: &ChainGroup) -> Result<(ChainGroup, Duration), SaveError> {
        let tables: Vec<TableName> = wanted.tables().into_iter().collect();
        let mut kernel = ChainGroupCollector::new(wanted);
        let chains = wanted.chains.keys().copied().collect();
        let took = self.access.read(&tables, chains, &mut |table, item| kernel.add(table, item))?;
        Ok((kernel.finish(), took))
    }

    /// Writes the difference from the rules of a generation.
    fn write(
        &self,
        wanted: &ChainGroup,
        kernel: &ChainGroup,
        generation: Option<u32>,
    ) -> Result<(GroupSummary, Duration), RestoreError> {
        if wanted.is_in(kernel) {
            return Ok(Default::default());
        }
        self.generations.count_own(|| {
            let mut written = GroupSummary::default();
            let took = self.access.write(generation, &mut |out: &mut dyn RuleSink| {
                wanted.write_difference_to(kernel, out).map(|summary| written = summary)
            })?;
            Ok(((written, took), written.transactions))
        })
    }

    fn write_error(&self, source: RestoreError) -> DataplaneError {
        DataplaneError::Write { rules: format!("{} rules", self.family()), source: source.into() }
    }

    fn read_error(&self, source: impl Error + Send + Sync + 'static) -> DataplaneError {
        DataplaneError::Read { rules: format!("{} rules", self.family()), source: source.into() }
    }
}
