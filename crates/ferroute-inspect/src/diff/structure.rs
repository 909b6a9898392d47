//! What is not there that must be there whatever the Services: jumps, fixed chains, sets. Of what is there in another
//! form only our own table is looked at, for that is nobody else's; in `iptables` other programs may have reasons to add
//! rules to the same chains, and what follows from them is found by walking.

use ferroute_iptables::{
    RuleSet,
    plan::{SharedChain, jumps},
};
use ferroute_nftables::kernel::MemoryTable;

use super::rules::Rules;

/// What lacks in `found`, or is not as it should be; nothing where the two are of different modes.
pub(super) fn differences(wanted: &Rules<'_>, found: &Rules<'_>) -> Vec<String> {
    match (wanted.as_iptables(), found.as_iptables(), wanted.as_nftables(), found.as_nftables()) {
        (Some(wanted), Some(found), _, _) => of_iptables(wanted, found),
        (_, _, Some(wanted), Some(found)) => of_nftables(wanted, found),
        _ => Vec::new(),
    }
}

fn of_iptables(wanted: &RuleSet, found: &RuleSet) -> Vec<String> {
    let mut lines = Vec::new();
    for jump in jumps() {
        let next = jump.rule.next_chain();
        let rules = found.rules(jump.table, jump.from);
        if let Some(to) = next.filter(|_| rules.iter().all(|rule| rule.next_chain() != next)) {
            lines.push(format!("no jump from {} {} to {to}", jump.table, jump.from));
        }
    }
    for (table, of_table) in &wanted.tables {
        let is_fixed = |name: &&ferroute_iptables::ChainName| {
            let shared = SharedChain::ALL.iter().any(|shared| (shared.table(), shared.name()) == (*table, **name));
            // The chains of Services come and go with them; what lacks of them is found by walking.
            shared || !(name.is_builtin() || ferroute_iptables::plan::is_service_chain(**name))
        };
        let missing = of_table.chains.keys().filter(is_fixed).filter(|name| found.chain(*table, **name).is_none());
        lines.extend(missing.map(|name| format!("no chain {table} {name}")));
    }
    lines
}

fn of_nftables(wanted: &MemoryTable, found: &MemoryTable) -> Vec<String> {
    let mut lines = Vec::new();
    for chain in wanted.chains() {
        let name = &chain.chain.name;
        match found.chain(name) {
            None => lines.push(format!("no chain {name}")),
            Some(other) if other.chain.base != chain.chain.base => {
                lines.push(format!("chain {name} is not at the hook or priority where it should be"));
            }
            Some(other) if other.rules.len() != chain.rules.len() => {
                lines.push(format!("chain {name} has {} rules, should have {}", other.rules.len(), chain.rules.len()));
            }
            Some(other) => {
                let unlike = chain.rules.iter().zip(&other.rules).position(|(rule, other)| rule != other);
                lines.extend(unlike.map(|at| format!("rule {} of chain {name} is another one", at + 1)));
            }
        }
    }
    for set in wanted.sets() {
        match found.sets().find(|other| other.name == set.name) {
            None => lines.push(format!("no {} {}", set.keyword(), set.name)),
            Some(other) if (&other.key, &other.holds, other.kind) != (&set.key, &set.holds, set.kind) => {
                lines.push(format!("{} {} is declared in another way", set.keyword(), set.name));
            }
            Some(_) => {}
        }
    }
    lines
}
