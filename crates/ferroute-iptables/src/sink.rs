//! Receivers of rules that are written.

use std::{collections::BTreeSet, io};

use crate::{ChainName, Rule, TableName};

/// A receiver of changes: the input of `iptables-restore --noflush`, or transactions that are sent to the kernel.
///
/// Changes of a table are made between [`RuleSink::begin`] and [`RuleSink::end`]. By netlink, the changes of all tables
/// until [`RuleSink::commit`] are one transaction; the programs commit each table separately. All methods fail only if
/// the receiver does.
pub(crate) trait RuleSink {
    /// Begins the changes of a table.
    fn begin(&mut self, table: TableName) -> io::Result<()>;

    /// Creates a chain, or flushes it if it exists.
    fn declare(&mut self, chain: ChainName) -> io::Result<()>;

    /// Appends a rule to a chain.
    fn append(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()>;

    /// Inserts a rule at the start of a chain.
    fn insert(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()>;

    /// Deletes rules from a chain, which fails if the chain lacks one of them. Must be called with all rules of the chain that
    /// the transaction deletes.
    fn remove(&mut self, chain: ChainName, rules: &[Rule]) -> io::Result<()>;

    /// Deletes a chain, which must be empty and unreferenced.
    fn delete(&mut self, chain: ChainName) -> io::Result<()>;

    /// Ends the changes of the table.
    fn end(&mut self) -> io::Result<()>;

    /// Ends the transaction.
    fn commit(&mut self) -> io::Result<()>;

    /// Returns the number of transactions that have ended.
    fn transactions(&self) -> u32;
}

/// A sink that writes neither some chains nor rules that jump to them.
pub(crate) struct WithoutChains<'a> {
    pub(crate) out: &'a mut dyn RuleSink,
    pub(crate) left_out: &'a BTreeSet<(TableName, ChainName)>,
    /// The current table.
    pub(crate) table: TableName,
}

impl WithoutChains<'_> {
    fn is_written(&self, chain: ChainName, rule: Option<&Rule>) -> bool {
        let mut named = [Some(chain), rule.and_then(Rule::next_chain)].into_iter().flatten();
        !named.any(|chain| self.left_out.contains(&(self.table, chain)))
    }
}

impl RuleSink for WithoutChains<'_> {
    fn begin(&mut self, table: TableName) -> io::Result<()> {
        self.table = table;
        self.out.begin(table)
    }

    fn declare(&mut self, chain: ChainName) -> io::Result<()> {
        if self.is_written(chain, None) { self.out.declare(chain) } else { Ok(()) }
    }

    fn append(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        if self.is_written(chain, Some(rule)) { self.out.append(chain, rule) } else { Ok(()) }
    }

    fn insert(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        if self.is_written(chain, Some(rule)) { self.out.insert(chain, rule) } else { Ok(()) }
    }

    fn remove(&mut self, chain: ChainName, rules: &[Rule]) -> io::Result<()> {
        if self.is_written(chain, None) { self.out.remove(chain, rules) } else { Ok(()) }
    }

    fn delete(&mut self, chain: ChainName) -> io::Result<()> {
        if self.is_written(chain, None) { self.out.delete(chain) } else { Ok(()) }
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.end()
    }

    fn commit(&mut self) -> io::Result<()> {
        self.out.commit()
    }

    fn transactions(&self) -> u32 {
        self.out.transactions()
    }
}

/// A sink that does not delete some chains.
pub(crate) struct WithoutDeletion<'a> {
    pub(crate) out: &'a mut dyn RuleSink,
    pub(crate) kept: &'a BTreeSet<ChainName>,
}

impl RuleSink for WithoutDeletion<'_> {
    fn begin(&mut self, table: TableName) -> io::Result<()> {
        self.out.begin(table)
    }

    fn declare(&mut self, chain: ChainName) -> io::Result<()> {
        self.out.declare(chain)
    }

    fn append(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        self.out.append(chain, rule)
    }

    fn insert(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        self.out.insert(chain, rule)
    }

    fn remove(&mut self, chain: ChainName, rules: &[Rule]) -> io::Result<()> {
        self.out.remove(chain, rules)
    }

    fn delete(&mut self, chain: ChainName) -> io::Result<()> {
        if self.kept.contains(&chain) { Ok(()) } else { self.out.delete(chain) }
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.end()
    }

    fn commit(&mut self) -> io::Result<()> {
        self.out.commit()
    }

    fn transactions(&self) -> u32 {
        self.out.transactions()
    }
}
