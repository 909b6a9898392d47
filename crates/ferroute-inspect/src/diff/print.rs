//! Reports as text.

use std::fmt;

use ferroute_core::Escaped;

use super::{Answer, DiffReport, Finding, Mismatch, SourceAddress};
use crate::plural;

/// Writes a report with at most `limit` findings, stale frontends and undetermined comparisons each (0: all).
///
/// # Errors
/// Only errors of `out`.
pub fn write_report_into(out: &mut impl fmt::Write, report: &DiffReport, limit: usize) -> fmt::Result {
    let DiffReport {
        family,
        expected,
        actual,
        coverage,
        findings,
        stale,
        structure,
        undetermined,
        limitation,
        intended,
    } = report;
    let limit = if limit == 0 { usize::MAX } else { limit };
    let ports = plural(coverage.service_ports, "service port");
    match actual {
        None => writeln!(out, "{family}: {ports} without {expected} rules")?,
        Some(actual) => {
            let (frontends, packets) = (plural(coverage.frontends, "frontend"), plural(coverage.packets, "packet"));
            writeln!(out, "{family}: {actual} rules in the kernel, compared with planned {expected} rules")?;
            writeln!(out, "  {ports}, {frontends}, {packets}")?;
        }
    }
    structure.iter().try_for_each(|line| writeln!(out, "  {}", Escaped(line)))?;
    let mut last = None;
    for finding in findings.iter().take(limit) {
        if last != Some(&finding.service_port) {
            writeln!(out, "  {}", Escaped(&finding.service_port))?;
            let not_applied = finding.not_applied.iter();
            not_applied.into_iter().try_for_each(|reason| writeln!(out, "    not applied: {}", Escaped(reason)))?;
            last = Some(&finding.service_port);
        }
        write_finding_into(out, finding)?;
    }
    write_rest_into(out, findings.len(), limit, "differences")?;
    for frontend in stale.iter().take(limit) {
        let name = frontend.name.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
        writeln!(out, "  stale: {}{}: no Service has this frontend", frontend.frontend, Escaped(name))?;
    }
    write_rest_into(out, stale.len(), limit, "stale frontends")?;
    for undetermined in undetermined.iter().take(limit) {
        let name = undetermined.service_port.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        writeln!(out, "  unknown: {}{}", Escaped(name), Escaped(&undetermined.reason))?;
    }
    write_rest_into(out, undetermined.len(), limit, "unknown results")?;
    for difference in intended {
        let super::ModeDifference { title, expected, actual, packets, .. } = difference;
        let packets = plural(*packets, "packet");
        writeln!(out, "  intended difference ({packets}): {title}: {actual} (planned: {expected})")?;
    }
    limitation.iter().try_for_each(|text| writeln!(out, "  note: {text}"))?;
    if findings.is_empty() && stale.is_empty() && structure.is_empty() && undetermined.is_empty() {
        writeln!(out, "  no difference")?;
    }
    Ok(())
}

fn write_rest_into(out: &mut impl fmt::Write, all: usize, limit: usize, noun: &str) -> fmt::Result {
    if all > limit { writeln!(out, "  ... and {} more {noun}", all - limit) } else { Ok(()) }
}

fn write_finding_into(out: &mut impl fmt::Write, finding: &Finding) -> fmt::Result {
    let mut place = finding.frontend.map(|frontend| format!("{frontend} ")).unwrap_or_default();
    if !finding.clients.is_empty() {
        let clients = finding.clients.iter().map(ToString::to_string).collect::<Vec<_>>();
        place += &format!("from {}", clients.join(", "));
    }
    let place = place.trim_end();
    let separator = if place.is_empty() { "" } else { ": " };
    writeln!(out, "    {}{separator}{}", Escaped(place), Escaped(&finding.mismatch))
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoints { missing, extra } => {
                let list = |adjective: &str, sockets: &[std::net::SocketAddr]| {
                    let noun = if sockets.len() == 1 { "endpoint" } else { "endpoints" };
                    let some =
                        sockets.iter().take(MAX_ENDPOINTS).map(ToString::to_string).collect::<Vec<_>>().join(", ");
                    match sockets.len().saturating_sub(MAX_ENDPOINTS) {
                        0 => format!("{adjective} {noun} {some}"),
                        more => format!("{adjective} {noun} {some} and {more} more"),
                    }
                };
                let lists = [("missing", missing), ("unexpected", extra)];
                let lists = lists.iter().filter(|(_, sockets)| !sockets.is_empty());
                f.write_str(&lists.map(|(adjective, sockets)| list(adjective, sockets)).collect::<Vec<_>>().join("; "))
            }
            Self::Shares { endpoint, expected, actual } => {
                let (expected, actual) = (expected * 100.0, actual * 100.0);
                write!(f, "{endpoint} receives {actual:.1} % of connections (expected: {expected:.1} %)")
            }
            Self::Source { expected, actual } => write!(f, "endpoints see {actual} address (expected: {expected})"),
            Self::Answer { expected, actual } => write!(f, "{actual} (expected: {expected})"),
            Self::Affinity { expected, actual } => {
                let text = |seconds: &Option<u32>| seconds.map_or("none".to_owned(), |it| format!("{it} s"));
                write!(f, "session affinity: {} (expected: {})", text(actual), text(expected))
            }
        }
    }
}

impl fmt::Display for SourceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "the client's",
            Self::Node => "the node's",
        })
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served(1) => f.write_str("served by 1 endpoint"),
            Self::Served(endpoints) => write!(f, "served by {endpoints} endpoints"),
            Self::Rejected => f.write_str("rejected"),
            Self::Dropped => f.write_str("dropped"),
            Self::Untouched => f.write_str("not handled by any rule"),
            Self::Unreachable => f.write_str("no route"),
            Self::Mixed => f.write_str("served in some cases only"),
        }
    }
}

/// The maximum number of endpoints printed for one finding.
const MAX_ENDPOINTS: usize = 8;
