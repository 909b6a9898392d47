use std::{error::Error, io::Write, sync::Arc, time::Duration};

use ferroute_core::{
    Changes, Dataplane, DataplaneError, IpFamily, ProxySettings, RulesDigest, ServicePortName, ServiceTable,
    SyncReport, TableReport,
};

use super::{
    cleanup::{CleanupErrors, Scope, cleanup, remove_counters},
    generations::Generations,
    host::{Host, Surroundings},
    pace::Pace,
    programs::Programs,
    restore::{RestoreError, Runner, SaveError},
    tools::Tools,
    version::Backend,
};
use crate::{
    ChainName, Difference, InForce, InForceReader, Ledger, PlanContext, TableName,
    plan::{Written, chains, rules_digest},
};

/// Keeps one family's rules in force by means of `iptables-save` and `iptables-restore`.
#[derive(Debug)]
pub struct IptablesDataplane {
    runner: Runner,
    surroundings: Surroundings,
    host: Host,
    generations: Generations,
    /// What is in force; `None` while that is not known.
    ledger: Option<Ledger>,
    /// [`Generations::foreign`] when our rules were last known to be whole.
    seen: Option<u32>,
    /// How often all rules may be read only to see whether they are whole.
    looks: Pace,
    /// How often the canaries may be looked for in between.
    glances: Pace,
}

impl IptablesDataplane {
    /// A dataplane that knows of no rules yet. `generations` is shared with the dataplane of the other family.
    pub fn new(
        tools: Tools,
        settings: ProxySettings,
        programs: Arc<dyn Programs>,
        host: Host,
        generations: Generations,
    ) -> Self {
        let surroundings = Surroundings::new(settings, tools.release.has_random_fully());
        Self {
            runner: Runner { tools, programs },
            surroundings,
            host,
            generations,
            ledger: None,
            seen: None,
            looks: Pace::default(),
            glances: Pace::default(),
        }
    }

    /// The tools that it runs.
    pub fn tools(&self) -> &Tools {
        &self.runner.tools
    }

    fn family(&self) -> IpFamily {
        self.runner.tools.family
    }

    fn context(&self, table: &ServiceTable) -> PlanContext {
        PlanContext::new(&self.surroundings.settings, table, &self.surroundings.facts)
    }

    /// Reads what the kernel holds of our rules, and tells how long `iptables-save` took.
    fn in_force(&self) -> Result<(InForce, Duration), SaveError> {
        let mut reader = InForceReader::new(self.family());
        let mut took = Duration::ZERO;
        let [.., last] = TableName::OURS;
        for table in TableName::OURS {
            took += self.runner.save(table, &mut |line| reader.line(line))?;
        }
        reader.finish().map(|in_force| (in_force, took)).map_err(|source| self.runner.not_understood(last, source))
    }

    /// Writes a difference, and tells how long `iptables-restore` took.
    fn write(&self, table: &ServiceTable, difference: &Difference) -> Result<(Written, Duration), DataplaneError> {
        if difference.is_empty() {
            return Ok((Written::default(), Duration::ZERO));
        }
        let text = |out: &mut dyn Write| match self.runner.tools.release.backend {
            // Every transaction takes the whole table out of the kernel and puts it back.
            Backend::Legacy => difference.write(table, out),
            Backend::NfTables => difference.write_in_parts(table, out),
        };
        let written = self.generations.own(|| {
            let mut written = Written::default();
            let took = self.runner.restore(&mut |out| text(out).map(|sum| written = sum))?;
            Ok(((written, took), written.transactions))
        });
        written.map_err(|error: RestoreError| {
            let mut attempt = format!("cannot write {} rules", self.family());
            if let Some(owner) = error.line().and_then(|line| owner(line, difference, table)) {
                attempt.push_str(&format!(" of {owner}"));
            }
            DataplaneError { attempt, source: error.into() }
        })
    }

    fn cannot_read(&self, source: impl Error + Send + Sync + 'static) -> DataplaneError {
        DataplaneError { attempt: format!("cannot read {} rules", self.family()), source: source.into() }
    }

    /// Remembers what is in force now, and tells how it came to be.
    fn succeeded(
        &mut self,
        ledger: Ledger,
        full: bool,
        removed: usize,
        written: &Written,
        took: Duration,
    ) -> SyncReport {
        let tally = ledger.tally();
        self.ledger = Some(ledger);
        SyncReport {
            full,
            written: written.rules.total(),
            removed,
            total: tally.rules.total(),
            tables: vec![
                TableReport {
                    name: TableName::Filter.as_str(),
                    written: written.rules.filter,
                    total: tally.rules.filter,
                },
                TableReport { name: TableName::Nat.as_str(), written: written.rules.nat, total: tally.rules.nat },
            ],
            refused_removals: 0,
            no_local_internal: tally.no_local_internal,
            no_local_external: tally.no_local_external,
            kernel_time: took,
        }
    }

    /// Looks whether the chains are gone that are there to be looked for; only a flush takes them. Reading a chain of
    /// the old backend reads its table, so there only the one is looked for whose table is small.
    fn is_canary_gone(&self) -> Result<bool, DataplaneError> {
        let tables = match self.runner.tools.release.backend {
            Backend::Legacy => &[TableName::Mangle][..],
            Backend::NfTables => &TableName::OURS,
        };
        for table in tables {
            let there = self.runner.has_chain(*table, chains::CANARY).map_err(|error| self.cannot_read(error))?;
            if there == Some(false) {
                tracing::info!(family = %self.family(), %table, "somebody has flushed the table");
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads all rules and compares them with what they should be.
    fn is_damaged(&self, ledger: &Ledger) -> Result<bool, DataplaneError> {
        let (in_force, _) = self.in_force().map_err(|error| self.cannot_read(error))?;
        let damage = ledger.damage(&in_force);
        if let Some(damage) = damage {
            tracing::info!(family = %self.family(), %damage, "rules are not as they were written");
        }
        Ok(damage.is_some())
    }
}

impl Dataplane for IptablesDataplane {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        // Until it has succeeded, what the kernel holds is not known.
        let Some(mut ledger) = self.ledger.take() else { return self.resync(table) };
        self.surroundings.look_at_addresses(&mut self.host);
        let difference = ledger.difference(table, &self.context(table), changes);
        let (written, took) = self.write(table, &difference)?;
        let (full, removed) = (difference.is_complete(), difference.deleted());
        ledger.note(difference, &written);
        Ok(self.succeeded(ledger, full, removed, &written, took))
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        self.ledger = None;
        self.surroundings.prepare(self.family(), &mut self.host);
        // Asked for beforehand: what comes while we read may be overlooked.
        let seen = self.generations.foreign();
        let (in_force, reading) = self.in_force().map_err(|error| self.cannot_read(error))?;
        let difference = Difference::from_kernel(table, self.context(table), in_force);
        let (written, writing) = self.write(table, &difference)?;
        let removed = difference.deleted();
        self.seen = seen;
        Ok(self.succeeded(Ledger::new(difference), true, removed, &written, reading + writing))
    }

    fn was_disturbed(&mut self) -> Result<bool, DataplaneError> {
        let Some(ledger) = &self.ledger else { return Ok(true) };
        let foreign = match self.runner.tools.release.backend {
            Backend::Legacy => None,
            Backend::NfTables => self.generations.foreign(),
        };
        if foreign.is_some() && foreign == self.seen {
            return Ok(false);
        }
        let start = (self.host.now)();
        if self.looks.is_due(start) {
            let damaged = self.is_damaged(ledger)?;
            self.looks.done(start, (self.host.now)());
            if !damaged {
                self.seen = foreign;
            }
            return Ok(damaged);
        }
        if self.glances.is_due(start) {
            let gone = self.is_canary_gone()?;
            self.glances.done(start, (self.host.now)());
            return Ok(gone);
        }
        Ok(false)
    }

    fn digest(&self, table: &ServiceTable) -> Option<RulesDigest> {
        self.ledger.as_ref().map(|_| rules_digest(table, &self.context(table)))
    }

    fn cleanup(&mut self) -> Result<(), DataplaneError> {
        self.ledger = None;
        let errors = cleanup(&self.runner, Scope::Everything).errors;
        if let Some(counters) = &mut self.host.counters {
            // The other family's rules may use them still; its cleanup removes them then.
            for error in remove_counters(&mut **counters).1 {
                tracing::debug!(%error, "a packet counter stays");
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        let attempt = format!("cannot clean up {} rules", self.family());
        Err(DataplaneError { attempt, source: CleanupErrors(errors).into() })
    }
}

/// The service port that a line of a difference's text is about.
fn owner<'a>(line: &str, difference: &'a Difference, table: &'a ServiceTable) -> Option<&'a ServicePortName> {
    let words = || line.split([' ', '"', ':']).filter(|word| !word.is_empty());
    // `:CHAIN - [0:0]`, `-A CHAIN …`, `-X CHAIN`
    let chains = words().take(2).filter_map(|word| word.parse::<ChainName>().ok());
    chains.into_iter().find_map(|chain| difference.owner(chain)).or_else(|| {
        // A chain that all share: there each rule has a comment that names its service port.
        let named = |name: &ServicePortName| {
            let text = name.to_string();
            line.split([' ', '"']).any(|word| word == text)
        };
        table.entries.keys().find(|name| named(name))
    })
}
