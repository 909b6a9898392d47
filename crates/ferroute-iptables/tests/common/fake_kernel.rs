//! A fake kernel: tables in memory, with the semantics of `iptables-restore --noflush` and `iptables-save`.

use std::collections::{BTreeMap, BTreeSet};

use ferroute_core::IpFamily;
use ferroute_iptables::{
    Chain, ChainHead, ChainName, KernelChains, KernelChainsReader, Rule, RuleSet, SaveItem, SaveParser, TableName,
};

/// The rules of all programs.
#[derive(Clone, Debug)]
pub(crate) struct FakeKernel {
    pub(crate) rules: RuleSet,
}

impl FakeKernel {
    /// Creates a kernel without rules.
    pub(crate) fn new(family: IpFamily) -> Self {
        Self { rules: RuleSet::new(family) }
    }

    /// Applies `input` like `iptables-restore --noflush`, and panics where that would fail.
    pub(crate) fn restore(&mut self, input: &[u8]) {
        let mut parser = SaveParser::new(self.rules.family);
        for line in str::from_utf8(input).unwrap().lines() {
            let table = parser.table();
            if let Some(rest) = line.strip_prefix("-X ") {
                self.delete(table.unwrap(), rest.parse().unwrap());
                continue;
            }
            let inserts = line.starts_with("-I ");
            match parser.line(&line.replacen("-I ", "-A ", 1)).unwrap() {
                Some(SaveItem::Chain(chain, head)) => {
                    *self.rules.table_mut(table.unwrap()).declare(chain, head) =
                        Chain { head: Some(head), rules: Vec::new() };
                }
                Some(SaveItem::Rule(chain, rule)) => self.add(table.unwrap(), chain, rule, inserts),
                Some(SaveItem::Table(table)) => drop(self.rules.table_mut(table)),
                Some(SaveItem::Commit) | None => {}
            }
        }
        parser.finish().unwrap();
    }

    fn add(&mut self, table: TableName, chain: ChainName, rule: Rule, first: bool) {
        let chains = &mut self.rules.table_mut(table).chains;
        if let Some(next) = rule.next_chain() {
            assert!(chains.contains_key(&next), "{table} {chain} jumps to missing chain {next}");
        }
        if chain.is_builtin() {
            chains.entry(chain).or_default();
        }
        let existing = chains.get_mut(&chain).unwrap_or_else(|| panic!("{table} has no {chain}"));
        existing.rules.insert(if first { 0 } else { existing.rules.len() }, rule);
    }

    fn delete(&mut self, table: TableName, chain: ChainName) {
        let chains = &mut self.rules.table_mut(table).chains;
        let old = chains.shift_remove(&chain).unwrap_or_else(|| panic!("{table} has no {chain} to delete"));
        assert!(old.rules.is_empty(), "{table} {chain} is deleted but not empty");
        for (from, left) in chains {
            assert!(left.rules.iter().all(|rule| rule.next_chain() != Some(chain)), "{from} still jumps to {chain}");
        }
    }

    /// Returns the rules as `iptables-save` prints them.
    pub(crate) fn save(&self) -> String {
        self.rules.to_string()
    }

    /// Returns the rules of each chain, independent of the order of chains.
    pub(crate) fn chains(&self) -> BTreeMap<(TableName, ChainName), Vec<Rule>> {
        chains_of(&self.rules)
    }
}

/// Returns the rules of each chain, independent of the order of chains.
pub(crate) fn chains_of(rules: &RuleSet) -> BTreeMap<(TableName, ChainName), Vec<Rule>> {
    let tables = rules.tables.iter();
    tables
        .flat_map(|(table, contents)| {
            contents.chains.iter().map(|(name, chain)| ((*table, *name), chain.rules.clone()))
        })
        .collect()
}

/// Returns the proxy's chains in `iptables-save` text.
pub(crate) fn kernel_chains(family: IpFamily, saved: &str) -> KernelChains {
    let mut reader = KernelChainsReader::new(family);
    saved.lines().for_each(|line| reader.line(line).unwrap());
    reader.finish().unwrap()
}

/// Returns the chains that `input` for `iptables-restore` creates or flushes.
pub(crate) fn declared(family: IpFamily, input: &[u8]) -> BTreeSet<(TableName, ChainName)> {
    let mut parser = SaveParser::new(family);
    let mut chains = BTreeSet::new();
    for line in str::from_utf8(input).unwrap().lines().filter(|line| line.starts_with(['*', ':']) || *line == "COMMIT")
    {
        if let Some(SaveItem::Chain(chain, head)) = parser.line(line).unwrap() {
            assert_eq!(head, ChainHead::default());
            assert!(chains.insert((parser.table().unwrap(), chain)), "{chain} is declared twice");
        }
    }
    chains
}
