use std::io;

use ferroute_core::{Entry, ServicePortName, ServiceTable};

use super::{
    ChainDigest, Contents, Difference, Dispatch, Jump, RuleCounts, ServicePlan,
    base::{localnet_guard, node_port_jumps},
    chains,
    difference::TABLES,
};
use crate::{ChainName, RestoreWriter, Rule, TableName};

/// What [`Difference::write`] has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Rules, not counting jumps.
    pub rules: RuleCounts,
    /// Transactions that the kernel makes of it. Each changes something.
    pub transactions: u32,
    /// What is in the dispatch chains that were written.
    pub(super) shared: [Option<ChainDigest>; Dispatch::ALL.len()],
}

impl Difference {
    /// Writes the input for `iptables-restore --noflush`, each table as one transaction. `table` must be the one that
    /// the difference was made for. Doing so again writes the same again.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn write<W: io::Write>(&self, table: &ServiceTable, out: W) -> io::Result<Written> {
        self.write_limited(table, usize::MAX, out)
    }

    /// As [`Difference::write`], but when many chains are to be written, in many transactions: `iptables-nft-restore`
    /// looks through a list of all chains in the transaction for each rule, so that 20,000 chains at once keep it busy
    /// for 40 s, and 100,000 for a quarter of an hour. A service port's own chains always change together, and those of new ones come before the dispatch
    /// chains lead to them, so that what is in force in between is right for each Service.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn write_in_parts<W: io::Write>(&self, table: &ServiceTable, out: W) -> io::Result<Written> {
        self.write_limited(table, CHAINS_PER_PART, out)
    }

    fn write_limited<W: io::Write>(&self, table: &ServiceTable, limit: usize, out: W) -> io::Result<Written> {
        let mut out = Parts { out: RestoreWriter::new(out), limit, current: None, written: Written::default() };
        for name in TABLES.into_iter().filter(|name| self.concerns(*name)) {
            let before = out.out.rules();
            self.write_base(name, &mut out)?;
            if name == TableName::Nat {
                self.write_own_chains(table, &mut out)?;
            }
            self.write_shared(name, table, &mut out)?;
            if name == TableName::Nat {
                self.clear.iter().chain(&self.delete).try_for_each(|chain| out.declare(name, &[*chain]))?;
                self.delete.iter().try_for_each(|chain| out.delete(name, *chain))?;
            }
            out.commit()?;
            *out.written.rules.of_mut(name) += out.out.rules() - before;
        }
        out.out.finish()?;
        Ok(out.written)
    }

    fn write_base<W: io::Write>(&self, name: TableName, out: &mut Parts<W>) -> io::Result<()> {
        for chain in self.base.iter().filter(|chain| chain.table == name) {
            out.declare(name, &[chain.name])?;
            if let Contents::Rules(rules) = &chain.contents {
                out.out.append_all(chain.name, rules)?;
            }
        }
        if name == TableName::Filter && self.guard {
            out.make_room(name, 1)?;
            out.out.append(chains::FIREWALL, &localnet_guard(self.context.family))?;
        }
        Ok(())
    }

    /// Writes chains that belong to one service port, all those of one port together.
    fn write_own_chains<W: io::Write>(&self, table: &ServiceTable, out: &mut Parts<W>) -> io::Result<()> {
        for (name, record) in &self.ports {
            let own = record.iter().flat_map(|record| &record.chains).filter(|chain| !chain.in_force);
            let chains: Vec<ChainName> = own.map(|chain| chain.name).collect();
            let Some(entry) = table.entries.get(name).filter(|_| !chains.is_empty()) else { continue };
            out.declare(TableName::Nat, &chains)?;
            let mut result = Ok(());
            self.plan(name, entry, table).own_chains(&mut |chain, rules| {
                // Sorted, as the record is.
                if result.is_ok() && chains.binary_search(&chain).is_ok() {
                    result = out.out.append_all(chain, rules);
                }
            });
            result?;
        }
        Ok(())
    }

    /// Writes the dispatch chains of a table, and then the jumps: all that they lead to is there by now. Every service
    /// port is planned again, one after the other, because their rules are not kept.
    fn write_shared<W: io::Write>(&self, name: TableName, table: &ServiceTable, out: &mut Parts<W>) -> io::Result<()> {
        let shared: Vec<Dispatch> = self.shared_in(name).collect();
        let jumps = || self.jumps.iter().filter(|jump| jump.table == name);
        if shared.is_empty() && jumps().next().is_none() {
            return Ok(());
        }
        let chains: Vec<ChainName> = shared.iter().map(|dispatch| dispatch.chain()).collect();
        out.declare(name, &chains)?;
        for dispatch in &shared {
            out.written.shared[dispatch.index()] = Some(ChainDigest::EMPTY);
        }
        if !shared.is_empty() {
            for (port, entry) in &table.entries {
                let mut result = Ok(());
                self.plan(port, entry, table).contribute(&mut |dispatch, rule| {
                    if result.is_ok() && shared.contains(&dispatch) {
                        result = out.append(dispatch, &rule);
                    }
                });
                result?;
            }
        }
        if shared.contains(&Dispatch::Services) {
            node_port_jumps(&self.context).iter().try_for_each(|rule| out.append(Dispatch::Services, rule))?;
        }
        jumps().try_for_each(|Jump { from, rule, .. }| out.out.insert(*from, rule))
    }

    fn plan<'a>(&'a self, name: &ServicePortName, entry: &'a Entry, table: &ServiceTable) -> ServicePlan<'a> {
        ServicePlan::new(name, &entry.service, table.routes(entry), &self.context)
    }
}

/// Writes in transactions that do not name too many chains.
struct Parts<W: io::Write> {
    out: RestoreWriter<W>,
    /// Chains that one transaction may name.
    limit: usize,
    /// The transaction's table and how many chains it has named; `None` between transactions.
    current: Option<(TableName, usize)>,
    written: Written,
}

impl<W: io::Write> Parts<W> {
    /// Makes chains, or empties them, all in one transaction.
    fn declare(&mut self, table: TableName, chains: &[ChainName]) -> io::Result<()> {
        self.make_room(table, chains.len())?;
        chains.iter().try_for_each(|chain| self.out.declare(*chain))
    }

    fn delete(&mut self, table: TableName, chain: ChainName) -> io::Result<()> {
        self.make_room(table, 1)?;
        self.out.delete(chain)
    }

    fn append(&mut self, dispatch: Dispatch, rule: &Rule) -> io::Result<()> {
        self.written.shared[dispatch.index()].get_or_insert(ChainDigest::EMPTY).append(rule);
        self.out.append(dispatch.chain(), rule)
    }

    /// Goes on in a new transaction if that many chains more are too many for this one.
    fn make_room(&mut self, table: TableName, chains: usize) -> io::Result<()> {
        if self.current.is_some_and(|(_, named)| named > 0 && named.saturating_add(chains) > self.limit) {
            self.commit()?;
        }
        let (_, named) = match &mut self.current {
            Some(current) => current,
            None => {
                self.out.begin(table)?;
                self.current.insert((table, 0))
            }
        };
        *named = named.saturating_add(chains);
        Ok(())
    }

    fn commit(&mut self) -> io::Result<()> {
        if self.current.take().is_some() {
            self.written.transactions += 1;
            self.out.commit()?;
        }
        Ok(())
    }
}

/// Chains that one of several transactions names at most, unless a single service port has more. With half as many,
/// 55,000 chains take the kernel half as long again, because it checks the whole table at each commit; with more, looking
/// through the list takes what is saved.
const CHAINS_PER_PART: usize = 2000;
