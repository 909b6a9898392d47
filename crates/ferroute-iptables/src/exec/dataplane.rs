use std::{collections::BTreeSet, error::Error, time::Duration};

use ferroute_core::{
    Changes, Dataplane, DataplaneError, IpFamily, ProxySettings, RulesDigest, ServicePortName, ServiceTable,
    SyncReport, TableReport, Throttle,
};

use super::{
    access::{Attempts, RuleAccess},
    executor::{RestoreError, SaveError},
    generation::GenerationTracker,
    host::{Environment, HostAccess, LegacyShapes},
    version::Backend,
};
use crate::{
    ChainName, ChainState, Difference, IptablesContext, KernelChains, TableName,
    plan::{KernelChainsCollector, SharedChain, WriteSummary, callers, chains, is_service_chain, rules_digest},
    sink::{RuleSink, WithoutDeletion},
};

/// Applies the rules of one IP family.
#[derive(Debug)]
pub struct IptablesDataplane {
    access: RuleAccess,
    environment: Environment,
    host: HostAccess,
    generations: GenerationTracker,
    /// The applied chains; `None` while they are unknown.
    state: Option<ChainState>,
    /// [`GenerationTracker::external`] at the last time when the kernel's rules were known to equal `state`.
    verified: Option<u32>,
    /// Limits full comparisons of the kernel's rules with `state`.
    comparisons: Throttle,
    /// The number of rules at the last comparison.
    compared: usize,
    /// Number of rules of the chains that all Services share, and of jumps to them, after the last write; empty if
    /// unknown. Between comparisons, it shows whether another program changed a chain or disconnected it.
    uses: Vec<Option<u32>>,
    /// What the last comparison found, for the resync that follows.
    found: Option<Found>,
    /// Limits comparisons of the chains that do not belong to one Service.
    shared_comparisons: Throttle,
    /// Whether `uses` and `legacy_shapes` may include a change that another program made before or during the last write.
    is_suspect: bool,
    /// The tables of the legacy backend at the last time when its rules were known to equal `state`, or after the last
    /// write.
    legacy_shapes: LegacyShapes,
    /// Limits comparisons that `is_suspect` or other `legacy_shapes` are a reason for.
    urgent_comparisons: Throttle,
    /// Limits the checks of the canary chains between comparisons.
    canary_checks: Throttle,
    /// Chains that could not be deleted and have been reported.
    busy: BTreeSet<ChainName>,
}

/// What another program changed.
#[derive(Debug)]
enum Found {
    /// A chain that all Services share: it is restored before all others are read.
    Shared,
    /// These chains of service ports: they are restored without reading others, which are compared later.
    Chains(BTreeSet<ChainName>),
    /// Anything. All chains of this generation, as they were read.
    Compared(u32, Box<KernelChains>),
}

impl IptablesDataplane {
    /// Creates a dataplane without applied rules. `generations` is shared with the dataplane of the other IP family.
    pub fn new(access: RuleAccess, settings: ProxySettings, host: HostAccess, generations: GenerationTracker) -> Self {
        let (environment, backend) = (Environment::new(settings, access.has_random_fully()), access.backend());
        Self {
            access,
            environment,
            host,
            generations,
            state: None,
            verified: None,
            comparisons: backend.comparisons(),
            compared: 0,
            uses: Vec::new(),
            found: None,
            shared_comparisons: backend.comparisons(),
            is_suspect: false,
            legacy_shapes: LegacyShapes::new(),
            urgent_comparisons: Throttle::new(Duration::ZERO),
            canary_checks: Throttle::default(),
            busy: BTreeSet::new(),
        }
    }

    fn family(&self) -> IpFamily {
        self.access.family()
    }

    fn backend(&self) -> Backend {
        self.access.backend()
    }

    fn context(&self, table: &ServiceTable) -> IptablesContext {
        IptablesContext::new(&self.environment.settings, table, &self.environment.host)
    }

    /// Reads the proxy's chains from the kernel; `expected` are chains that probably exist. Also returns the time that it took.
    fn kernel_chains(&self, expected: Vec<(TableName, ChainName)>) -> Result<(KernelChains, Duration), SaveError> {
        let mut chains = KernelChainsCollector::new(self.family());
        let took = self.access.read(&TableName::PROXY, expected, &mut |table, item| chains.add(table, item))?;
        Ok((chains.finish(), took))
    }

    /// Reads some of the proxy's chains from the kernel.
    fn read_chains(&self, chains: &[(TableName, ChainName)]) -> Result<KernelChains, DataplaneError> {
        let mut collector = KernelChainsCollector::new(self.family());
        let read = self.access.read_chains(chains, &mut |table, item| collector.add(table, item));
        read.map_err(|error| self.read_error(error))?;
        Ok(collector.finish())
    }

    /// Writes a difference from the rules of a generation. Also returns the time that it took. Chains to which objects of
    /// other programs refer, such as verdict maps, remain without rules.
    fn write(
        &mut self,
        table: &ServiceTable,
        difference: &Difference,
        generation: Option<u32>,
    ) -> Result<(WriteSummary, Duration), RestoreError> {
        let mut busy = BTreeSet::new();
        loop {
            // After a refusal, the generation is one of this process.
            let generation = generation.filter(|_| busy.is_empty());
            match self.write_without(table, difference, generation, &busy) {
                Err(error) if busy.len() < MAX_BUSY => match error.busy_chain() {
                    Some(chain) if busy.insert(chain) => {
                        if self.busy.insert(chain) {
                            tracing::warn!(
                                family = %self.family(),
                                "cannot delete the unused chain {chain}: an object of another program refers to it, such as a \
                                 verdict map; the chain remains without rules"
                            );
                        }
                    }
                    _ => return Err(error),
                },
                written => return written,
            }
        }
    }

    /// Writes a difference, but does not delete some chains.
    fn write_without(
        &self,
        table: &ServiceTable,
        difference: &Difference,
        generation: Option<u32>,
        kept: &BTreeSet<ChainName>,
    ) -> Result<(WriteSummary, Duration), RestoreError> {
        if difference.is_empty() {
            return Ok((WriteSummary::default(), Duration::ZERO));
        }
        let limit = self.access.chains_per_transaction();
        self.generations.count_own(|| {
            let mut written = WriteSummary::default();
            let took = self.access.write(generation, &mut |out: &mut dyn RuleSink| {
                let mut out = WithoutDeletion { out, kept };
                difference.write_to(table, limit, &mut out).map(|summary| written = summary)
            })?;
            Ok(((written, took), written.transactions))
        })
    }

    fn write_error(&self, error: RestoreError, table: &ServiceTable, difference: &Difference) -> DataplaneError {
        let rules = format!("{} rules", self.family());
        match error.line().and_then(|line| line_owner(line, difference, table)).cloned() {
            Some(service_port) => DataplaneError::Rejected { rules, service_port, source: error.into() },
            None => DataplaneError::Write { rules, source: error.into() },
        }
    }

    fn read_error(&self, source: impl Error + Send + Sync + 'static) -> DataplaneError {
        DataplaneError::Read { rules: format!("{} rules", self.family()), source: source.into() }
    }

    /// Returns [`GenerationTracker::external`], which shows no changes of the legacy backend.
    fn external(&self) -> Option<u32> {
        match self.backend() {
            Backend::Legacy => None,
            Backend::NfTables => self.generations.external(),
        }
    }

    /// Returns the shapes of the tables of the legacy backend; none of others.
    fn legacy_shapes(&self) -> LegacyShapes {
        match self.backend() {
            Backend::Legacy => (self.host.legacy_shapes)(self.family()),
            Backend::NfTables => LegacyShapes::new(),
        }
    }

    /// Stores the state of the applied rules and returns the report of the sync, at whose start the number of other
    /// programs' changes was `external`.
    fn applied(
        &mut self,
        state: ChainState,
        external: Option<u32>,
        full: bool,
        removed: usize,
        written: &WriteSummary,
        took: Duration,
    ) -> SyncReport {
        let counts = state.counts();
        if counts.total() < self.compared / 2 {
            // Comparisons now take less time, so the pause required by the last one is too long.
            (self.comparisons, self.compared) = (self.backend().comparisons(), 0);
        }
        self.state = Some(state);
        // Without numbers, the next comparison finds changes.
        self.uses = self.access.chain_uses(watched_chains()).unwrap_or_default();
        self.is_suspect |= self.external() != external;
        self.legacy_shapes = self.legacy_shapes();
        SyncReport {
            full,
            written: written.rules.total(),
            removed,
            total: counts.total(),
            tables: vec![
                TableReport { name: TableName::Filter.as_str(), written: written.rules.filter, total: counts.filter },
                TableReport { name: TableName::Nat.as_str(), written: written.rules.nat, total: counts.nat },
            ],
            kernel_time: took,
            ..SyncReport::default()
        }
    }

    /// Reports whether a canary chain is missing, which is caused only by a flush of its table. Listing a chain of the
    /// legacy backend reads its whole table, so in that backend only the small table mangle is checked.
    fn is_canary_missing(&self) -> Result<bool, DataplaneError> {
        let tables = match self.backend() {
            Backend::Legacy => &[TableName::Mangle][..],
            Backend::NfTables => &TableName::PROXY,
        };
        for table in tables {
            let exists = self.access.has_chain(*table, chains::CANARY).map_err(|error| self.read_error(error))?;
            if exists == Some(false) {
                tracing::info!(family = %self.family(), %table, "another program flushed the table");
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reports whether packets no longer traverse a builtin chain.
    fn is_chain_cut(&self) -> Result<bool, DataplaneError> {
        let idle = self.access.idle_chain(&TableName::PROXY).map_err(|error| self.read_error(error))?;
        if let Some((table, chain)) = idle {
            tracing::info!(family = %self.family(), %table, %chain, "packets do not traverse the chain any more");
        }
        Ok(idle.is_some())
    }

    /// Reports whether a chain that all Services share has another number of rules, or of jumps to it.
    fn is_chain_changed(&self) -> Result<bool, DataplaneError> {
        if self.uses.is_empty() {
            return Ok(false);
        }
        let uses = self.access.chain_uses(watched_chains()).map_err(|error| self.read_error(error))?;
        let changed = watched_chains().zip(uses.iter().zip(&self.uses)).find(|((_, chain), (now, before))| {
            // Other programs may jump to the one, and have rules in the other.
            if [chains::MARK_MASQ, chains::FIREWALL].contains(chain) { now < before } else { now != before }
        });
        if let Some(((table, chain), _)) = changed {
            let chain = format!("{table} {chain}");
            tracing::info!(family = %self.family(), chain, "another program changed rules of the chain, or jumps to it");
        }
        Ok(changed.is_some())
    }

    /// Restores the chains that all Services share, which takes a fraction of the time that reading all chains takes.
    fn repair_shared(
        &self,
        state: &ChainState,
        table: &ServiceTable,
    ) -> Result<(WriteSummary, Duration), Box<dyn Error>> {
        let kernel = self.read_chains(&state.shared_chains().into_iter().chain(callers()).collect::<Vec<_>>())?;
        Ok(self.write_without(table, &state.shared_repair(kernel), None, &BTreeSet::new())?)
    }

    /// Reads the chains that do not belong to one Service, and reports whether they differ from the applied ones.
    fn has_shared_drift(&self, state: &ChainState) -> Result<bool, DataplaneError> {
        let drift = state.shared_drift(&self.read_chains(&state.shared_chains())?);
        if let Some(drift) = drift {
            tracing::info!(family = %self.family(), %drift, "another program modified the rules");
        }
        Ok(drift.is_some())
    }

    /// Compares the chains that the kernel says another program changed. Others may have changed as well.
    fn compare_notified(&self, state: &ChainState) -> Result<Option<Found>, DataplaneError> {
        let changed = self.generations.changed_chains(self.family());
        if changed.is_empty() {
            return Ok(None);
        }
        let shared = state.shared_chains();
        if changed.iter().any(|chain| shared.contains(chain)) && self.has_shared_drift(state)? {
            return Ok(Some(Found::Shared));
        }
        let read: Vec<_> = changed.into_iter().filter(|(_, chain)| is_service_chain(*chain)).collect();
        let drifted = state.drifted(&read, &self.read_chains(&read)?);
        let Some(chain) = drifted.first() else { return Ok(None) };
        tracing::info!(family = %self.family(), %chain, chains = drifted.len(), "another program modified chains of Services");
        Ok(Some(Found::Chains(drifted)))
    }

    /// Restores `chains` and applies `table`, but reads no chains. Returns `None` if that is refused.
    fn repair_chains(
        &mut self,
        mut state: ChainState,
        chains: &BTreeSet<ChainName>,
        table: &ServiceTable,
    ) -> Option<SyncReport> {
        let external = self.external();
        state.forget(chains);
        let everything = Changes { node: true, ..Changes::default() };
        let difference = state.difference(table, &self.context(table), &everything);
        match self.write_without(table, &difference, None, &BTreeSet::new()) {
            Ok((written, took)) => {
                let removed = difference.deleted();
                state.record(difference);
                Some(self.applied(state, external, true, removed, &written, took))
            }
            Err(error) => {
                tracing::debug!(%error, "cannot restore the changed chains alone");
                None
            }
        }
    }

    /// Reads all rules. Returns them if they differ from the applied ones.
    fn drifted(&self, state: &ChainState) -> Result<Option<KernelChains>, DataplaneError> {
        let (kernel, _) = self.kernel_chains(state.chains()).map_err(|error| self.read_error(error))?;
        let drift = state.drift(&kernel);
        if let Some(drift) = drift {
            tracing::info!(family = %self.family(), %drift, "another program modified the rules");
        }
        Ok(drift.map(|_| kernel))
    }
}

impl Dataplane for IptablesDataplane {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        let external = self.external();
        // The numbers of rules that are stored after this sync must not hide a change.
        if self.is_chain_changed()? {
            self.found = Some(Found::Shared);
            return self.resync(table).map(|report| SyncReport { repaired: true, ..report });
        }
        // The kernel's rules are unknown until the sync has succeeded.
        let Some(mut state) = self.state.take() else { return self.resync(table) };
        self.environment.refresh_addresses(&mut self.host);
        let mut difference = state.difference(table, &self.context(table), changes);
        if self.access.edits_chains() {
            state.edit_shared(table, changes, &mut difference);
        }
        self.is_suspect |= self.legacy_shapes() != self.legacy_shapes;
        let (mut written, mut repaired) = (self.write(table, &difference, None), false);
        if let Err(error) = &written
            && difference.has_edits()
        {
            repaired = error.is_outdated();
            // Whole chains are written, regardless of changes by other programs.
            tracing::debug!(%error, "cannot edit chains; writing whole chains");
            difference.replace_edits();
            written = self.write(table, &difference, None);
        }
        let (written, took) = written.map_err(|error| self.write_error(error, table, &difference))?;
        let (full, removed) = (difference.is_complete(), difference.deleted());
        state.record(difference);
        Ok(SyncReport { repaired, ..self.applied(state, external, full, removed, &written, took) })
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        let previous = self.state.take();
        self.access.look_for_hooks(false);
        self.environment.prepare(self.family(), &mut self.host);
        let (mut attempts, mut took) = (Attempts::new(), Duration::ZERO);
        let (mut repaired, mut compared) = (WriteSummary::default(), None);
        match (self.found.take(), previous) {
            (Some(Found::Chains(chains)), Some(state)) => {
                if let Some(report) = self.repair_chains(state, &chains, table) {
                    return Ok(report);
                }
            }
            (Some(Found::Shared), Some(state)) => match self.repair_shared(&state, table) {
                Ok((written, writing)) => (repaired, took) = (written, writing),
                // A rule may jump to a chain of a Service that is missing.
                Err(error) => tracing::debug!(error, "cannot restore shared chains alone"),
            },
            (Some(Found::Compared(generation, kernel)), _) => compared = Some((generation, *kernel)),
            _ => {}
        }
        loop {
            // Read first, because a change during the read may be missing from the result.
            let (generation, verified) = (attempts.begin(&self.access), self.external());
            let everything = Difference::everything(table, self.context(table));
            let (mut kernel, reading) = match compared.take() {
                Some((at, kernel)) if generation == Some(at) => (kernel, Duration::ZERO),
                _ => self.kernel_chains(everything.chains()).map_err(|error| self.read_error(error))?,
            };
            took += reading;
            let udp_frontends_before = std::mem::take(&mut kernel.udp_frontends);
            let difference = everything.without(kernel);
            let (mut written, writing) = match self.write(table, &difference, generation) {
                Ok(written) => written,
                Err(error) if attempts.must_repeat(&error) => continue,
                // No rule can jump to a chain that is called from a hook.
                Err(error) if error.line().is_some() && self.access.look_for_hooks(true) => continue,
                Err(error) => return Err(self.write_error(error, table, &difference)),
            };
            written.rules += repaired.rules;
            let removed = difference.deleted();
            (self.verified, self.is_suspect) = (verified, false);
            let report = self.applied(ChainState::new(difference), verified, true, removed, &written, took + writing);
            return Ok(SyncReport { udp_frontends_before, ..report });
        }
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        let Some(state) = &self.state else { return Ok(true) };
        let external = self.external();
        if external.is_some() && external == self.verified {
            return Ok(false);
        }
        let (now, before) = ((self.host.now)(), (self.host.processor_time)());
        let cost = || (self.host.processor_time)().saturating_sub(before);
        // `iptables-save` would not show it.
        if self.is_chain_cut()? {
            return Ok(true);
        }
        // Chains that Services share come first: a comparison of a large table takes seconds.
        if self.is_chain_changed()? {
            self.found = Some(Found::Shared);
            return Ok(true);
        }
        if self.access.edits_chains() {
            self.found = self.compare_notified(state)?;
            if self.found.is_some() {
                return Ok(true);
            }
        }
        let is_due = self.comparisons.is_due(now);
        let is_urgent = self.is_suspect && self.urgent_comparisons.is_due(now);
        if self.access.edits_chains() && (is_urgent || !is_due && self.shared_comparisons.is_due(now)) {
            let drifted = self.has_shared_drift(state)?;
            self.shared_comparisons.record((self.host.now)(), cost());
            self.urgent_comparisons.record((self.host.now)(), cost() / 10);
            self.is_suspect = false;
            if drifted {
                self.found = Some(Found::Shared);
                return Ok(true);
            }
        }
        let shapes = self.legacy_shapes();
        let is_reshaped = self.backend() == Backend::Legacy && (self.is_suspect || shapes != self.legacy_shapes);
        if is_due || is_reshaped && self.urgent_comparisons.is_due(now) {
            let generation = self.access.generation();
            let drifted = self.drifted(state)?;
            let has_drifted = drifted.is_some();
            self.comparisons.record((self.host.now)(), cost());
            // These take more of a processor's time than other comparisons, because rules did change.
            self.urgent_comparisons.record((self.host.now)(), cost() / 10);
            self.compared = state.counts().total();
            if !has_drifted {
                (self.verified, self.is_suspect, self.legacy_shapes) = (external, false, shapes);
            }
            self.found =
                generation.zip(drifted).map(|(generation, kernel)| Found::Compared(generation, Box::new(kernel)));
            return Ok(has_drifted);
        }
        if self.canary_checks.is_due(now) {
            let missing = self.is_canary_missing()?;
            self.canary_checks.record((self.host.now)(), cost());
            return Ok(missing);
        }
        Ok(false)
    }

    fn digest(&self, table: &ServiceTable) -> Option<RulesDigest> {
        self.state.as_ref().map(|_| rules_digest(table, &self.context(table)))
    }
}

/// Maximum number of chains that remain in one sync because other programs refer to them. Each costs an attempt.
const MAX_BUSY: usize = 64;

/// Returns the chains that all Services share, without those that the kernel calls.
fn watched_chains() -> impl Iterator<Item = (TableName, ChainName)> {
    let shared = SharedChain::ALL.into_iter().map(|chain| (chain.table(), chain.name()));
    let fixed = [
        (TableName::Nat, chains::MARK_MASQ),
        (TableName::Nat, chains::POSTROUTING),
        (TableName::Filter, chains::FORWARD),
        (TableName::Filter, chains::FIREWALL),
    ];
    shared.chain(fixed)
}

/// Returns the service port that a line of a difference's text belongs to.
fn line_owner<'a>(line: &str, difference: &'a Difference, table: &'a ServiceTable) -> Option<&'a ServicePortName> {
    let words = || line.split([' ', '"', ':']).filter(|word| !word.is_empty());
    // `:CHAIN - [0:0]`, `-A CHAIN …`, `-X CHAIN`
    let chains = words().take(2).filter_map(|word| word.parse::<ChainName>().ok());
    chains.into_iter().find_map(|chain| difference.owner(chain)).or_else(|| {
        // In a shared chain the comment of each rule names its service port.
        let is_named = |name: &ServicePortName| {
            let text = name.to_string();
            line.split([' ', '"']).any(|word| word == text)
        };
        table.entries.keys().find(|name| is_named(name))
    })
}
