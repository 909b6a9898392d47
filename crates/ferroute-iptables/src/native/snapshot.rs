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
    /// Reads all tables with names of `iptables`, with their counters. Tables with chains or expressions that
    /// `iptables-save` would not print are [`SavedRules::partial`]: their foreign rules have conditions and targets
    /// without a defined meaning, and chains that `iptables` cannot name are left out.
    ///
    /// # Errors
    /// If the kernel refuses, or if other programs change rules continuously.
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
        let mut is_partial = false;
        for chain in listed {
            is_partial |= !is_of_iptables(table, &chain);
            let Some(name) = chain.name else { continue };
            let rules = self.rules_of(table, name)?;
            is_partial |= rules.iter().any(|rule| rule.is_foreign);
            chains.push((name, chain.head, rules));
        }
        if is_partial {
            reader.add_partial(table);
        }
        if chains.is_empty() {
            return Ok(());
        }
        // As `iptables-save` prints them, including builtin chains that no program has needed yet.
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

/// Reports whether `iptables` would have created a chain with this name and hook.
fn is_of_iptables(table: TableName, chain: &ListedChain) -> bool {
    let expected = |name| base_chain(table, name).map(|base| (base.hook, base.priority));
    chain.name.is_some_and(|name| expected(name) == chain.hook)
}
