//! What was recorded of kube-proxy's rules is read and printed without a difference.

mod common;

use ferroute_iptables::{Match, RuleSet, Target};

#[test]
fn every_recorded_rule_set_is_printed_as_it_was_read() {
    let recorded = common::recorded_rules();
    for record in &recorded {
        let rules = RuleSet::parse_save(record.family, &record.text).unwrap();
        assert_eq!(rules.to_string(), record.text, "{}", record.path.display());
    }
}

#[test]
fn every_recorded_rule_is_understood() {
    for record in common::recorded_rules() {
        let rules = RuleSet::parse_save(record.family, &record.text).unwrap();
        for rule in rules.tables.values().flat_map(|table| table.chains.values()).flat_map(|chain| &chain.rules) {
            let understood = rule.matches.iter().all(|module| !matches!(module, Match::Other(_)))
                && !matches!(rule.target, Some(Target::Other(_)));
            assert!(understood, "{}: {rule}", record.path.display());
        }
    }
}
