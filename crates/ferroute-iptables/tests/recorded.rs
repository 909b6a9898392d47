//! What was recorded of kube-proxy is read, printed and planned without a difference.

mod common;

use std::{collections::BTreeMap, fmt::Write};

use ferroute_iptables::{
    ChainName, Match, PlanContext, RuleSet, TableName, Target,
    plan::{Dispatch, chains},
    render,
    text::Line,
};

#[test]
fn every_recorded_rule_set_is_printed_as_it_was_read() {
    for record in common::records::records() {
        let rules = RuleSet::parse_save(record.family, &record.text).unwrap();
        assert_eq!(rules.to_string(), record.text, "{}", record.name());
    }
}

#[test]
fn every_recorded_rule_is_understood() {
    for record in common::records::records() {
        let rules = RuleSet::parse_save(record.family, &record.text).unwrap();
        for rule in rules.tables.values().flat_map(|table| table.chains.values()).flat_map(|chain| &chain.rules) {
            let understood = rule.matches.iter().all(|module| !matches!(module, Match::Other(_)))
                && !matches!(rule.target, Some(Target::Other(_)));
            assert!(understood, "{}: {rule}", record.name());
        }
    }
}

#[test]
fn every_recorded_cluster_is_planned_as_kube_proxy_did() {
    let mut failures = String::new();
    for record in common::records::records() {
        let table = record.table();
        let context = PlanContext::new(&record.settings(), &table, &record.host());
        let planned = comparable(&render(&table, &context));
        let recorded = comparable(&RuleSet::parse_save(record.family, &record.text).unwrap());
        let keys = planned.keys().chain(recorded.keys().filter(|key| !planned.contains_key(*key)));
        for key in keys {
            let (ours, theirs) = (planned.get(key), recorded.get(key));
            if ours != theirs {
                writeln!(failures, "{}: {key:?}\n  planned {ours:#?}\n recorded {theirs:#?}", record.name()).unwrap();
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Each chain's rules. Services come in any order in kube-proxy's dispatch chains, so rules are sorted there, but those
/// that jump to the node ports must be last.
fn comparable(rules: &RuleSet) -> BTreeMap<(TableName, ChainName), Vec<String>> {
    let is_dispatch = |table, chain| Dispatch::ALL.iter().any(|d| d.table() == table && d.chain() == chain);
    let mut all = BTreeMap::new();
    for (table, contents) in &rules.tables {
        for (name, chain) in &contents.chains {
            let mut rules: Vec<_> = chain.rules.iter().collect();
            if is_dispatch(*table, *name) {
                rules.sort_by_key(|rule| (rule.next_chain() == Some(chains::NODE_PORTS), rule.to_string()));
            }
            all.insert((*table, *name), rules.into_iter().map(|rule| Line(*name, rule).to_string()).collect());
        }
    }
    all
}
