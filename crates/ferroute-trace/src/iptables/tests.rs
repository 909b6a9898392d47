mod extensions;
mod matches;
mod nginx;
mod routing;
mod targets;

use ferroute_core::{IpFamily, Protocol};

use super::*;
use crate::{
    Event, Host, Leaf, Origin, Packet, Verdict,
    testing::{from_node, from_outside, from_pod, host, socket},
};

/// Parses rules without their `COMMIT` lines.
fn rules(family: IpFamily, text: &str) -> RuleSet {
    let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tables: Vec<usize> = (1..lines.len()).filter(|n| lines[*n].starts_with('*')).collect();
    tables.into_iter().rev().for_each(|n| lines.insert(n, "COMMIT"));
    lines.push("COMMIT");
    RuleSet::parse_save(family, &(lines.join("\n") + "\n")).unwrap()
}

/// Returns the verdicts for a packet, each with its share and assumptions.
fn verdicts(text: &str, packet: &Packet) -> Vec<String> {
    let leaves = leaves(&rules(packet.family(), text), &host(), packet).into_iter();
    leaves
        .map(|Leaf { verdict, share, assumptions, .. }| {
            let assumptions: String = assumptions.iter().map(|assumption| format!(" ({assumption})")).collect();
            let share = if share < 1.0 { format!("{share:.3} ") } else { String::new() };
            format!("{share}{verdict}{assumptions}")
        })
        .collect()
}

fn leaves(rules: &RuleSet, host: &Host, packet: &Packet) -> Vec<Leaf> {
    Ruleset::from_rules(rules).verdicts(host, packet)
}
