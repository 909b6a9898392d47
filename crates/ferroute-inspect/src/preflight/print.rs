//! A report as text; as JSON it is its fields.

use std::fmt::{self, Write};

use serde::Serialize;

use ferroute_config::ModeName;

use super::Difference;

/// What a switch would change on a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report<'a> {
    pub node: &'a str,
    pub from: ModeName,
    pub to: ModeName,
    pub differences: &'a [Difference],
}

/// Writes a report for people.
pub fn write_report_into(out: &mut impl Write, report: &Report<'_>) -> fmt::Result {
    let Report { node, from, to, differences } = report;
    writeln!(out, "node {node}, from mode {from} to mode {to}")?;
    if differences.is_empty() {
        return writeln!(out, "\nnothing will behave differently");
    }
    for (n, difference) in differences.iter().enumerate() {
        let Difference { kind: _, family, summary, remedy, services, rules } = difference;
        writeln!(out, "\n{}. {family}: {summary}", n + 1)?;
        if let Some(remedy) = remedy {
            writeln!(out, "   if that is not wanted: {remedy}")?;
        }
        if !services.is_empty() {
            writeln!(out, "   Services: {}", services.join(", "))?;
        }
        for rule in rules {
            writeln!(out, "   rule: {rule}")?;
        }
    }
    Ok(())
}
