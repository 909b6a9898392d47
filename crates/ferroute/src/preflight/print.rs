//! A report as text; as JSON it is its fields.

use std::fmt::{self, Write};

use serde::Serialize;

use super::{Difference, ModeName};

/// What a switch would change on a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report<'a> {
    pub(super) node: &'a str,
    pub(super) from: ModeName,
    pub(super) to: ModeName,
    pub(super) differences: &'a [Difference],
}

/// Writes a report for people.
pub(super) fn write_report_into(out: &mut impl Write, report: &Report<'_>) -> fmt::Result {
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
