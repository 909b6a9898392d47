//! Rules recorded from kube-proxy parse, print and are planned without a difference.

mod common;

use std::{collections::BTreeMap, fmt::Write};

use ferroute_iptables::{
    ChainName, IptablesContext, Match, RuleSet, TableName, Target,
    plan::{SharedChain, chains},
    render,
    text::Line,
};

#[test]
fn every_recorded_rule_set_prints_unchanged() {
    for record in common::records::records() {
        let rules = RuleSet::parse_save(record.family, &record.text).unwrap();
        assert_eq!(rules.to_string(), record.text, "{}", record.name());
    }
}

#[test]
fn every_recorded_rule_is_fully_supported() {
    for record in common::records::records() {
        let rules = RuleSet::parse_save(record.family, &record.text).unwrap();
        for rule in rules.tables.values().flat_map(|table| table.chains.values()).flat_map(|chain| &chain.rules) {
            let supported = rule.matches.iter().all(|module| !matches!(module, Match::Other(_)))
                && !matches!(rule.target, Some(Target::Other(_)));
            assert!(supported, "{}: {rule}", record.name());
        }
    }
}

#[test]
fn every_recorded_cluster_is_planned_as_by_kube_proxy() {
    let mut failures = String::new();
    for record in common::records::records() {
        let table = record.table();
        let context = IptablesContext::new(&record.settings(), &table, &record.host());
        let planned = comparable(&render(&table, &context));
        let recorded = comparable(&RuleSet::parse_save(record.family, &record.text).unwrap());
        let keys = planned.keys().chain(recorded.keys().filter(|key| !planned.contains_key(*key)));
        for key in keys {
            let (planned, recorded) = (planned.get(key), recorded.get(key));
            if planned != recorded {
                writeln!(failures, "{}: {key:?}\n  planned {planned:#?}\n recorded {recorded:#?}", record.name())
                    .unwrap();
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Returns the rules of each chain. kube-proxy writes Services into shared chains in any order, so their rules are
/// sorted, with the jumps to the node ports last.
fn comparable(rules: &RuleSet) -> BTreeMap<(TableName, ChainName), Vec<String>> {
    let is_shared =
        |table, chain| SharedChain::ALL.iter().any(|shared| shared.table() == table && shared.name() == chain);
    let mut all = BTreeMap::new();
    for (table, contents) in &rules.tables {
        for (name, chain) in &contents.chains {
            let mut rules: Vec<_> = chain.rules.iter().collect();
            if is_shared(*table, *name) {
                rules.sort_by_key(|rule| (rule.next_chain() == Some(chains::NODE_PORTS), rule.to_string()));
            }
            all.insert((*table, *name), rules.into_iter().map(|rule| Line(*name, rule).to_string()).collect());
        }
    }
    all
}
