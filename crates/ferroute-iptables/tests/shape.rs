//! What holds for the rules of every cluster.

mod common;

use std::collections::BTreeMap;

use common::{
    arbitrary::{family, surroundings},
    kernel::chains_of,
};
use ferroute_core::testing::arbitrary;
use ferroute_iptables::{ChainName, RuleSet, TableName, render};
use proptest::prelude::*;

proptest! {
    // Each case is a whole cluster.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_jump_leads_to_a_chain_of_the_same_table_and_never_back(
        cluster in arbitrary::cluster(), surroundings in surroundings(true), family in family(),
    ) {
        let table = cluster.table(family);
        let rules = render(&table, &surroundings.context(&table));
        for (name, table) in &rules.tables {
            let next: BTreeMap<ChainName, Vec<ChainName>> = table
                .chains
                .iter()
                .map(|(name, chain)| (*name, chain.rules.iter().filter_map(|rule| rule.next_chain()).collect()))
                .collect();
            let mut done = BTreeMap::new();
            for chain in next.keys() {
                prop_assert!(ends(*chain, &next, &mut done), "{name} {chain} leads nowhere or in a circle");
            }
        }
    }

    #[test]
    fn every_chain_but_the_fixed_ones_is_reached(
        cluster in arbitrary::cluster(), surroundings in surroundings(true), family in family(),
    ) {
        let table = cluster.table(family);
        let rules = render(&table, &surroundings.context(&table));
        let nat = &rules.tables[&TableName::Nat].chains;
        for chain in nat.keys().filter(|chain| ferroute_iptables::plan::is_service_chain(**chain)) {
            let reached = nat.values().flat_map(|from| &from.rules).any(|rule| rule.next_chain() == Some(*chain));
            prop_assert!(reached, "nothing leads to {chain}");
        }
    }

    #[test]
    fn planning_twice_gives_the_same_and_printing_loses_nothing(
        cluster in arbitrary::cluster(), surroundings in surroundings(true), family in family(),
    ) {
        let table = cluster.table(family);
        let context = surroundings.context(&table);
        let rules = render(&table, &context);
        prop_assert_eq!(&rules, &render(&table, &context));
        let printed = rules.to_string();
        let read = RuleSet::parse_save(family, &printed).unwrap();
        prop_assert_eq!(chains_of(&read), chains_of(&rules));
        prop_assert_eq!(read.to_string(), printed);
    }
}

/// Every way from `chain` ends; `done` tells of chains that were looked at (false: not to the end yet).
fn ends(chain: ChainName, next: &BTreeMap<ChainName, Vec<ChainName>>, done: &mut BTreeMap<ChainName, bool>) -> bool {
    if let Some(ends) = done.get(&chain) {
        return *ends;
    }
    done.insert(chain, false);
    let all = next.get(&chain).is_some_and(|ways| ways.iter().all(|way| ends(*way, next, done)));
    done.insert(chain, all);
    all
}
