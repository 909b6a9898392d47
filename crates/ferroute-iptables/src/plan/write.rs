use std::io;

use ferroute_core::ServiceTable;

use super::{
    ChainContents, Difference, Jump, RuleCounts, ServicePlan, SharedChain, chains,
    difference::{SharedChange, TABLES},
    edit::SharedEdit,
    fixed::{localnet_rule, node_port_jumps},
};
use crate::{ChainName, Rule, TableName, sink::RuleSink, text::RestoreWriter};

/// The summary of writing a [`Difference`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteSummary {
    /// Numbers of rules written, without jumps.
    pub rules: RuleCounts,
    /// Number of transactions in the kernel, each of which changes something.
    pub transactions: u32,
}

impl Difference {
    /// Writes the input of `iptables-restore --noflush` with one transaction per table. `table` must be the one that was
    /// compared. Writing twice produces the same text.
    ///
    /// # Errors
    /// Only errors of `out`.
    pub fn write<W: io::Write>(&self, table: &ServiceTable, out: W) -> io::Result<WriteSummary> {
        self.write_text(table, None, out)
    }

    /// Writes like [`Difference::write`], but in transactions with at most `limit` chains, unless a service port has more:
    /// the chains of one service port are always in one transaction.
    ///
    /// # Errors
    /// Only errors of `out`.
    pub fn write_in_parts<W: io::Write>(&self, table: &ServiceTable, limit: usize, out: W) -> io::Result<WriteSummary> {
        self.write_text(table, Some(limit), out)
    }

    fn write_text<W: io::Write>(&self, table: &ServiceTable, limit: Option<usize>, out: W) -> io::Result<WriteSummary> {
        let mut writer = RestoreWriter::new(out);
        let written = self.write_to(table, limit, &mut writer)?;
        writer.finish()?;
        Ok(written)
    }

    /// Writes to `sink`, in one transaction or, with a `limit`, in transactions with at most this many chains.
    ///
    /// The chains of one service port are always in one transaction, and new ones are committed before the shared
    /// chains jump to them, so that the active rules are correct for each Service at any time.
    ///
    /// # Errors
    /// Only errors of `sink`.
    pub(crate) fn write_to(
        &self,
        table: &ServiceTable,
        limit: Option<usize>,
        sink: &mut dyn RuleSink,
    ) -> io::Result<WriteSummary> {
        let limit = limit.unwrap_or(usize::MAX);
        let mut out = Transactions { sink, limit, table: None, named: 0, rules: 0 };
        let mut rules = RuleCounts::default();
        for name in TABLES.into_iter().filter(|name| self.changes(*name)) {
            let before = out.rules;
            self.write_fixed(name, &mut out)?;
            if name == TableName::Nat {
                self.write_service_chains(table, &mut out)?;
            }
            self.write_shared(name, table, &mut out)?;
            if name == TableName::Nat {
                self.flush.iter().chain(&self.delete).try_for_each(|chain| out.declare(name, &[*chain]))?;
                self.delete.iter().try_for_each(|chain| out.delete(name, *chain))?;
            }
            out.end()?;
            *rules.table_mut(name) += out.rules - before;
        }
        out.sink.commit()?;
        Ok(WriteSummary { rules, transactions: out.sink.transactions() })
    }

    fn write_fixed(&self, name: TableName, out: &mut Transactions<'_>) -> io::Result<()> {
        for chain in self.fixed.iter().filter(|chain| chain.table == name) {
            out.declare(name, &[chain.name])?;
            if let ChainContents::Rules(rules) = &chain.contents {
                out.append_all(chain.name, rules)?;
            }
        }
        if name == TableName::Filter && self.write_localnet_rule {
            out.reserve(name, 1)?;
            out.append_all(chains::FIREWALL, &[localnet_rule(self.context.settings.family)])?;
        }
        Ok(())
    }

    /// Writes the chains that belong to one service port, those of one port together.
    fn write_service_chains(&self, table: &ServiceTable, out: &mut Transactions<'_>) -> io::Result<()> {
        for (name, port) in &self.ports {
            let stale = port.iter().flat_map(|port| &port.chains).filter(|chain| !chain.applied);
            let chains: Vec<ChainName> = stale.map(|chain| chain.name).collect();
            let Some(entry) = table.entries.get(name).filter(|_| !chains.is_empty()) else { continue };
            out.declare(TableName::Nat, &chains)?;
            let mut result = Ok(());
            ServicePlan::new(table, name, entry, &self.context).service_chains(&mut |chain, rules| {
                // `chains` is sorted, as in the port's state.
                if result.is_ok() && chains.binary_search(&chain).is_ok() {
                    result = out.append_all(chain, rules);
                }
            });
            result?;
        }
        Ok(())
    }

    /// Writes the shared chains of a table, then the jumps, whose targets then exist. Plans every service port again if
    /// chains are written as a whole, because rules are not stored.
    fn write_shared(&self, name: TableName, table: &ServiceTable, out: &mut Transactions<'_>) -> io::Result<()> {
        let jumps = || self.jumps.iter().filter(|jump| jump.table == name);
        let changed = self.shared_in(name).count();
        if changed == 0 && jumps().next().is_none() {
            return Ok(());
        }
        out.reserve(name, changed)?;
        let mut whole = Vec::new();
        for (chain, change) in self.shared_in(name) {
            match change {
                SharedChange::Nothing => {}
                SharedChange::Edit(edit) => out.edit(chain.name(), edit)?,
                SharedChange::Whole => {
                    out.sink.declare(chain.name())?;
                    whole.push(chain);
                }
            }
        }
        if !whole.is_empty() {
            for (port, entry) in &table.entries {
                let mut result = Ok(());
                ServicePlan::new(table, port, entry, &self.context).shared_rules(&mut |chain, rule| {
                    if result.is_ok() && whole.contains(&chain) {
                        result = out.append_all(chain.name(), &[rule]);
                    }
                });
                result?;
            }
        }
        if whole.contains(&SharedChain::NatServices) {
            out.append_all(SharedChain::NatServices.name(), &node_port_jumps(&self.context))?;
        }
        jumps().try_for_each(|Jump { from, rule, .. }| out.sink.insert(*from, rule))
    }
}

/// A writer of transactions with a limited number of chains.
struct Transactions<'a> {
    sink: &'a mut dyn RuleSink,
    /// Maximum number of chains in one transaction.
    limit: usize,
    /// The current table; `None` between tables and between transactions.
    table: Option<TableName>,
    /// The number of chains that the current transaction names.
    named: usize,
    /// The number of appended and inserted rules, without jumps.
    rules: usize,
}

impl Transactions<'_> {
    /// Creates or flushes chains, all in one transaction.
    fn declare(&mut self, table: TableName, chains: &[ChainName]) -> io::Result<()> {
        self.reserve(table, chains.len())?;
        chains.iter().try_for_each(|chain| self.sink.declare(*chain))
    }

    fn delete(&mut self, table: TableName, chain: ChainName) -> io::Result<()> {
        self.reserve(table, 1)?;
        self.sink.delete(chain)
    }

    fn append_all(&mut self, chain: ChainName, rules: &[Rule]) -> io::Result<()> {
        self.rules += rules.len();
        rules.iter().try_for_each(|rule| self.sink.append(chain, rule))
    }

    fn edit(&mut self, chain: ChainName, edit: &SharedEdit) -> io::Result<()> {
        let SharedEdit { remove, insert } = edit;
        if !remove.is_empty() {
            self.sink.remove(chain, remove)?;
        }
        self.rules += insert.len();
        // Inserted in reverse order, because each rule becomes the first one.
        insert.iter().rev().try_for_each(|rule| self.sink.insert(chain, rule))
    }

    /// Reserves this many chains, in a new transaction if they exceed the limit of the current one.
    fn reserve(&mut self, table: TableName, chains: usize) -> io::Result<()> {
        if self.named > 0 && self.named.saturating_add(chains) > self.limit {
            self.end()?;
            self.sink.commit()?;
            self.named = 0;
        }
        if self.table.is_none() {
            self.sink.begin(table)?;
            self.table = Some(table);
        }
        self.named = self.named.saturating_add(chains);
        Ok(())
    }

    /// Ends the changes of the current table.
    fn end(&mut self) -> io::Result<()> {
        if self.table.take().is_some() { self.sink.end() } else { Ok(()) }
    }
}
