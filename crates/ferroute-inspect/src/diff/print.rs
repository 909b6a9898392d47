//! A report as text for people.

use std::fmt;

use super::{Answer, Change, Finding, Report, Seen};
use crate::plural;

/// Tells how rules differ; at most `most` findings, leftovers and doubts each (0: all).
///
/// # Errors
/// Only those of `out`.
pub fn write_report_into(out: &mut impl fmt::Write, report: &Report, most: usize) -> fmt::Result {
    let Report { family, wanted, found, compared, findings, leftovers, structure, doubts, blind_spot, named } = report;
    let most = if most == 0 { usize::MAX } else { most };
    let ports = plural(compared.service_ports, "service port");
    match found {
        None => writeln!(out, "{family}: {ports} should be served by {wanted} rules")?,
        Some(found) => {
            let (frontends, packets) = (plural(compared.frontends, "frontend"), plural(compared.packets, "packet"));
            writeln!(out, "{family}: {found} rules in the kernel against {wanted} rules as they should be")?;
            writeln!(out, "  {ports}, {frontends}, {packets}")?;
        }
    }
    structure.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
    let mut last = None;
    for finding in findings.iter().take(most) {
        if last != Some(&finding.service_port) {
            writeln!(out, "  {}", finding.service_port)?;
            last = Some(&finding.service_port);
        }
        write_finding_into(out, finding)?;
    }
    write_rest_into(out, findings.len(), most, "differences")?;
    for leftover in leftovers.iter().take(most) {
        let name = leftover.name.as_ref().map(|name| format!(", once of {name}")).unwrap_or_default();
        writeln!(out, "  left over: {}{name}: no Service has it", leftover.frontend)?;
    }
    write_rest_into(out, leftovers.len(), most, "frontends left over")?;
    for doubt in doubts.iter().take(most) {
        let name = doubt.service_port.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        writeln!(out, "  cannot tell: {name}{}", doubt.why)?;
    }
    write_rest_into(out, doubts.len(), most, "doubts")?;
    for named in named {
        writeln!(out, "  as it is meant, {}: {}", plural(named.packets, "packet"), named.difference)?;
    }
    blind_spot.iter().try_for_each(|text| writeln!(out, "  {text}"))?;
    if findings.is_empty() && leftovers.is_empty() && structure.is_empty() && doubts.is_empty() {
        writeln!(out, "  no difference")?;
    }
    Ok(())
}

fn write_rest_into(out: &mut impl fmt::Write, all: usize, most: usize, what: &str) -> fmt::Result {
    if all > most { writeln!(out, "  … and {} more {what}", all - most) } else { Ok(()) }
}

fn write_finding_into(out: &mut impl fmt::Write, finding: &Finding) -> fmt::Result {
    let mut place = finding.frontend.map(|frontend| format!("{frontend} ")).unwrap_or_default();
    if !finding.clients.is_empty() {
        let clients = finding.clients.iter().map(ToString::to_string).collect::<Vec<_>>();
        place += &format!("from {}", clients.join(", "));
    }
    let place = place.trim_end();
    let separator = if place.is_empty() { "" } else { ": " };
    writeln!(out, "    {place}{separator}{}", finding.change)
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoints { missing, extra } => {
                let list = |sockets: &[std::net::SocketAddr]| {
                    let some = sockets.iter().take(MOST_ENDPOINTS).map(ToString::to_string).collect::<Vec<_>>();
                    let more = sockets.len().saturating_sub(MOST_ENDPOINTS);
                    if more > 0 { format!("{} and {more} more", some.join(", ")) } else { some.join(", ") }
                };
                if !missing.is_empty() {
                    write!(f, "does not reach {}", list(missing))?;
                }
                if !(missing.is_empty() || extra.is_empty()) {
                    f.write_str("; ")?;
                }
                if !extra.is_empty() {
                    write!(f, "reaches {} in addition", list(extra))?;
                }
                Ok(())
            }
            Self::Shares { endpoint, wanted, found } => {
                let (wanted, found) = (wanted * 100.0, found * 100.0);
                write!(f, "reaches {endpoint} in {found:.1} % of all cases, should in {wanted:.1} %")
            }
            Self::Source { wanted, found } => write!(f, "endpoints see {found} address, should see {wanted}"),
            Self::Answer { wanted, found } => write!(f, "is {found}, should be {wanted}"),
            Self::Affinity { wanted, found } => {
                let text = |seconds: &Option<u32>| seconds.map_or("not at all".to_owned(), |it| format!("for {it} s"));
                write!(f, "clients keep their endpoint {}, should {}", text(found), text(wanted))
            }
        }
    }
}

impl fmt::Display for Seen {
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
            Self::Refused => f.write_str("refused"),
            Self::Dropped => f.write_str("dropped"),
            Self::Ignored => f.write_str("left alone by all rules"),
            Self::Unreachable => f.write_str("without a route"),
            Self::Mixed => f.write_str("served in some cases only"),
        }
    }
}

/// Endpoints of one finding that are told by name.
const MOST_ENDPOINTS: usize = 8;
