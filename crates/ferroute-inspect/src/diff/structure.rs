//! The parts of the rules that do not depend on Services: jumps, fixed chains, sets. Additional or modified rules are
//! reported only for Ferroute's nftables table. Other programs may add rules to chains of `iptables`; tracing packets
//! shows their effect.

use ferroute_iptables::{
    ChainName, RuleSet,
    plan::{SharedChain, is_service_chain, jumps},
};
use ferroute_nftables::kernel::MemoryTable;

use super::rules::Rules;

/// Returns the missing and modified parts of `actual`; none if the two sets of rules have different formats.
pub(super) fn differences(expected: &Rules<'_>, actual: &Rules<'_>) -> Vec<String> {
    match (expected.as_iptables(), actual.as_iptables(), expected.as_nftables(), actual.as_nftables()) {
        (Some(expected), Some(actual), _, _) => iptables(expected, actual),
        (_, _, Some(expected), Some(actual)) => nftables(expected, actual),
        _ => Vec::new(),
    }
}

fn iptables(expected: &RuleSet, actual: &RuleSet) -> Vec<String> {
    let mut lines = Vec::new();
    for jump in jumps() {
        let next = jump.rule.next_chain();
        let rules = actual.rules(jump.table, jump.from);
        if let Some(to) = next.filter(|_| rules.iter().all(|rule| rule.next_chain() != next)) {
            lines.push(format!("missing jump from {} {} to {to}", jump.table, jump.from));
        }
    }
    for (table, chains) in &expected.tables {
        let is_fixed = |name: &&ChainName| {
            let shared = SharedChain::ALL.iter().any(|shared| (shared.table(), shared.name()) == (*table, **name));
            // Missing chains of Services are found by tracing packets.
            shared || !(name.is_builtin() || is_service_chain(**name))
        };
        let missing = chains.chains.keys().filter(is_fixed).filter(|name| actual.chain(*table, **name).is_none());
        lines.extend(missing.map(|name| format!("missing chain {table} {name}")));
    }
    lines
}

fn nftables(expected: &MemoryTable, actual: &MemoryTable) -> Vec<String> {
    let mut lines = Vec::new();
    for chain in expected.chains() {
        let name = &chain.chain.name;
        match actual.chain(name) {
            None => lines.push(format!("missing chain {name}")),
            Some(other) if other.chain.base != chain.chain.base => {
                lines.push(format!("chain {name} has the wrong hook or priority"));
            }
            Some(other) if other.rules.len() != chain.rules.len() => {
                lines.push(format!("chain {name} has {} rules (expected: {})", other.rules.len(), chain.rules.len()));
            }
            Some(other) => {
                let modified = chain.rules.iter().zip(&other.rules).position(|(rule, other)| rule != other);
                lines.extend(modified.map(|index| format!("rule {} of chain {name} is modified", index + 1)));
            }
        }
    }
    for set in expected.sets() {
        match actual.sets().find(|other| other.name == set.name) {
            None => lines.push(format!("missing {} {}", set.keyword(), set.name)),
            Some(other) if (&other.key, &other.data, other.kind) != (&set.key, &set.data, set.kind) => {
                lines.push(format!("{} {} has the wrong declaration", set.keyword(), set.name));
            }
            Some(_) => {}
        }
    }
    lines
}
