//! A kernel's tables in memory, as far as `iptables-restore --noflush` and `iptables-save` show them.

use std::collections::{BTreeMap, BTreeSet};

use ferroute_core::IpFamily;
use ferroute_iptables::{
    Chain, ChainHead, ChainName, InForce, InForceReader, Rule, RuleSet, SaveItem, SaveParser, TableName,
};

/// All rules, of whomever.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) rules: RuleSet,
}

impl Kernel {
    /// A kernel without rules.
    pub(crate) fn new(family: IpFamily) -> Self {
        Self { rules: RuleSet::new(family) }
    }

    /// Does what `iptables-restore --noflush` does with `input`, and panics where that would fail.
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
            assert!(chains.contains_key(&next), "{table} {chain} jumps to {next}, which is not there");
        }
        if chain.is_builtin() {
            chains.entry(chain).or_default();
        }
        let known = chains.get_mut(&chain).unwrap_or_else(|| panic!("{table} has no {chain}"));
        known.rules.insert(if first { 0 } else { known.rules.len() }, rule);
    }

    fn delete(&mut self, table: TableName, chain: ChainName) {
        let chains = &mut self.rules.table_mut(table).chains;
        let old = chains.shift_remove(&chain).unwrap_or_else(|| panic!("{table} has no {chain} to delete"));
        assert!(old.rules.is_empty(), "{table} {chain} is deleted with rules in it");
        for (from, left) in chains {
            assert!(left.rules.iter().all(|rule| rule.next_chain() != Some(chain)), "{from} still jumps to {chain}");
        }
    }

    /// What `iptables-save` would print.
    pub(crate) fn save(&self) -> String {
        self.rules.to_string()
    }

    /// Each chain's rules, whatever order the chains are in.
    pub(crate) fn chains(&self) -> BTreeMap<(TableName, ChainName), Vec<Rule>> {
        chains_of(&self.rules)
    }
}

/// Each chain's rules, whatever order the chains are in.
pub(crate) fn chains_of(rules: &RuleSet) -> BTreeMap<(TableName, ChainName), Vec<Rule>> {
    let tables = rules.tables.iter();
    tables
        .flat_map(|(table, contents)| {
            contents.chains.iter().map(|(name, chain)| ((*table, *name), chain.rules.clone()))
        })
        .collect()
}

/// What is in force according to `iptables-save`'s text.
pub(crate) fn in_force(family: IpFamily, saved: &str) -> InForce {
    let mut reader = InForceReader::new(family);
    saved.lines().for_each(|line| reader.line(line).unwrap());
    reader.finish().unwrap()
}

/// The chains that `input` for `iptables-restore` makes or empties.
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
