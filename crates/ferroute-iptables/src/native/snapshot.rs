//! The rules of all programs.

use std::collections::BTreeMap;

use ferroute_netlink::Error;

use super::{
    NativeRules, ReadError,
    read::{ListedChain, ListedRule},
    tables::{BUILTIN_CHAINS, base_chain},
};
use crate::{ChainHead, ChainName, Policy, SaveItem, SavedRules, SavedRulesReader, TableName};

impl NativeRules {
    /// Reads all tables that only `iptables` has written, with their counters. Tables with chains or expressions that
    /// `iptables-save` would not print are left out, because they have more meaning than a [`crate::Rule`].
    ///
    /// # Errors
    /// If the kernel refuses, or other programs change rules all the time.
    pub(crate) fn snapshot(&self) -> Result<SavedRules, ReadError> {
        let mut reader = SavedRulesReader::new(self.family);
        let mut tables: BTreeMap<TableName, Vec<ListedChain>> = BTreeMap::new();
        let listed = self.list_chains(&TableName::ALL);
        for (table, chain) in listed.map_err(|source| ReadError { table: TableName::Filter, source })? {
            tables.entry(table).or_default().push(chain);
        }
        for (table, chains) in tables {
            self.add_table(table, chains, &mut reader).map_err(|source| ReadError { table, source })?;
        }
        Ok(reader.into_rules())
    }

    fn add_table(
        &self,
        table: TableName,
        listed: Vec<ListedChain>,
        reader: &mut SavedRulesReader,
    ) -> Result<(), Error> {
        let mut chains = Vec::new();
        for ListedChain { name, head, is_base } in listed {
            let Some(name) = name.filter(|name| name.is_builtin() == is_base) else { return Ok(()) };
            let rules = self.rules_of(table, name)?;
            if rules.iter().any(|rule| rule.is_foreign) {
                return Ok(());
            }
            chains.push((name, head, rules));
        }
        if chains.is_empty() {
            return Ok(());
        }
        // As `iptables-save` prints them: also builtin chains that no program has needed yet.
        let accept = ChainHead { policy: Some(Policy::Accept), ..ChainHead::default() };
        for name in BUILTIN_CHAINS.into_iter().filter(|name| base_chain(table, *name).is_some()) {
            if !chains.iter().any(|(existing, ..)| *existing == name) {
                chains.push((name, accept, Vec::new()));
            }
        }
        let position =
            |chain: &ChainName| BUILTIN_CHAINS.iter().position(|name| name == chain).unwrap_or(BUILTIN_CHAINS.len());
        chains.sort_by_key(|(name, ..)| (position(name), *name));
        for (name, head, _) in &chains {
            reader.add(table, SaveItem::Chain(*name, *head), None);
        }
        for (name, _, rules) in chains {
            for ListedRule { rule, counters, .. } in rules {
                reader.add(table, SaveItem::Rule(name, rule), Some(counters));
            }
        }
        Ok(())
    }
}
