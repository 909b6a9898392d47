mod matches;
mod nginx;
mod routing;
mod targets;

use ferroute_core::{IpFamily, Protocol};

use super::*;
use crate::{
    Event, Origin, Verdict,
    testing::{from_node, from_outside, from_pod, host, socket},
};

/// Reads rules, without the last line of each table.
fn rules(family: IpFamily, text: &str) -> RuleSet {
    let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tables: Vec<usize> = (1..lines.len()).filter(|n| lines[*n].starts_with('*')).collect();
    tables.into_iter().rev().for_each(|n| lines.insert(n, "COMMIT"));
    lines.push("COMMIT");
    RuleSet::parse_save(family, &(lines.join("\n") + "\n")).unwrap()
}

/// The ends of a walk through rules, each with its share and assumptions.
fn ends(text: &str, packet: &Packet) -> Vec<String> {
    let endings = endings(&rules(packet.family(), text), &host(), packet).into_iter();
    endings
        .map(|Ending { verdict, share, assuming }| {
            let assuming: String = assuming.iter().map(|assumption| format!(" ({assumption})")).collect();
            let share = if share < 1.0 { format!("{share:.3} ") } else { String::new() };
            format!("{share}{verdict}{assuming}")
        })
        .collect()
}
