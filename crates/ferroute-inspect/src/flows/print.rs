use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use ferroute_core::{Escaped, rfc3339};
use ferroute_flows::{ACCURACY, Counts, Edge, Flow, FlowStart, FlowSummary, Losses, Peer};

/// A table of flows, one line each. A column becomes wider with the first text that does not fit, and the titles are
/// repeated.
#[derive(Debug)]
pub struct FlowTable {
    has_nodes: bool,
    widths: [usize; 5],
    /// The nodes whose times are those of receiving events.
    inexact: BTreeSet<String>,
}

/// The texts of a flow, without its numbers.
type Cells = [String; 5];

impl FlowTable {
    /// Creates a table, with a column for the names of nodes if there are several.
    pub fn new(has_nodes: bool) -> Self {
        Self { has_nodes, widths: [12, 31, 24, 30, 24], inexact: BTreeSet::new() }
    }

    /// Notes which data the kernel of a node provides.
    pub fn start(&mut self, node: &str, start: &FlowStart) {
        if start.timestamps {
            self.inexact.remove(node);
        } else {
            self.inexact.insert(node.to_owned());
        }
    }

    /// Widens the columns, so that the titles need not be repeated for this flow.
    pub fn fit(&mut self, node: &str, flow: &Flow) {
        self.widen(&cells(node, flow));
    }

    /// Writes the titles.
    ///
    /// # Errors
    /// Only errors of `out`.
    pub fn write_titles_into(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let titles = ["NODE", "CLIENT", "SERVICE", "FRONTEND", "ENDPOINT"].map(str::to_owned);
        let numbers = ["ANSWER", "DURATION", "PACKETS", "BYTES"].map(str::to_owned);
        self.write_row_into(out, "TIME (UTC)", "STATE", &titles, &numbers)
    }

    /// Writes a flow of a node.
    ///
    /// # Errors
    /// Only errors of `out`.
    pub fn write_into(&mut self, out: &mut impl fmt::Write, node: &str, flow: &Flow) -> fmt::Result {
        let cells = cells(node, flow);
        if self.widen(&cells) {
            self.write_titles_into(out)?;
        }
        let time = flow.time.and_then(|time| rfc3339::format(time, 3));
        let time = time.as_deref().and_then(|text| text.get(11..23)).unwrap_or(NOTHING);
        let is_exact = !self.inexact.contains(node);
        let answer = answer(flow.answer_seconds, is_exact);
        let duration = match flow.duration_seconds {
            Some(seconds) if !is_exact && seconds < ACCURACY => "<1ms".to_owned(),
            seconds => seconds.map_or(NOTHING.to_owned(), duration),
        };
        let [packets, bytes] =
            [flow.packets, flow.bytes].map(|count| count.map_or(NOTHING.to_owned(), |count| count.to_string()));
        self.write_row_into(out, time, flow.state.as_str(), &cells, &[answer, duration, packets, bytes])
    }

    /// Writes a summary of all nodes: each service port, and under it its clients and endpoints.
    ///
    /// # Errors
    /// Only errors of `out`.
    pub fn write_summary_into(&self, out: &mut impl fmt::Write, summary: &FlowSummary) -> fmt::Result {
        write_summary(out, summary, self.inexact.is_empty())
    }

    fn widen(&mut self, cells: &Cells) -> bool {
        let needed: [usize; 5] = std::array::from_fn(|i| self.widths[i].max(cells[i].chars().count()));
        std::mem::replace(&mut self.widths, needed) != needed
    }

    fn write_row_into(
        &self,
        out: &mut impl fmt::Write,
        time: &str,
        state: &str,
        cells: &Cells,
        [answer, duration, packets, bytes]: &[String; 4],
    ) -> fmt::Result {
        let [node, client, service, frontend, endpoint] =
            std::array::from_fn(|i| format!("{:<width$}", cells[i], width = self.widths[i]));
        let node = if self.has_nodes { format!("{node}  ") } else { String::new() };
        let line = format!(
            "{node}{time:<12}  {state:<10}  {client}  {service}  {frontend}  {endpoint}  {answer:>8}  {duration:>8}  {packets:>7}  \
             {bytes:>8}"
        );
        writeln!(out, "{}", line.trim_end())
    }
}

fn cells(node: &str, flow: &Flow) -> Cells {
    let frontend = match flow.kind {
        Some(kind) => format!("{kind} {}/{}", flow.destination, flow.protocol),
        None => format!("{}/{}", flow.destination, flow.protocol),
    };
    let endpoint = match (&flow.endpoint, &flow.reason) {
        (Some(endpoint), _) => endpoint.to_string(),
        (None, Some(reason)) => format!("({})", Escaped(reason)),
        (None, None) => NOTHING.to_owned(),
    };
    let service = Escaped(flow.service_port.as_deref().unwrap_or(NOTHING)).to_string();
    [Escaped(node).to_string(), client(&flow.client), service, frontend, endpoint]
}

/// Writes the data that the kernel does not provide.
pub fn write_start_into(out: &mut impl fmt::Write, start: &FlowStart) -> fmt::Result {
    if !start.counts {
        writeln!(out, "packets and bytes are unknown: net.netfilter.nf_conntrack_acct is 0")?;
    }
    if !start.timestamps {
        writeln!(out, "times are those of receiving the events: net.netfilter.nf_conntrack_timestamp is 0")?;
    }
    if !start.refusals {
        writeln!(
            out,
            "packets that rules reject or drop are unknown: there are no Services, or the kernel cannot log them for a program"
        )?;
    }
    Ok(())
}

/// Writes the losses so far.
pub fn write_losses_into(out: &mut impl fmt::Write, losses: &Losses) -> fmt::Result {
    let Losses { overruns, untracked, unread, missed } = losses;
    writeln!(
        out,
        "missing so far: {missed} lines (this reader is too slow), {untracked} connections (too many are open), {unread} refused packets, \
         and what the kernel discarded {overruns} times (events were read too slowly)"
    )
}

/// Writes a summary: each service port, and under it its clients and endpoints. `is_exact` reports whether times are the
/// kernel's.
fn write_summary(out: &mut impl fmt::Write, summary: &FlowSummary, is_exact: bool) -> fmt::Result {
    writeln!(out, "{:.0} s of the last five minutes", summary.window_seconds)?;
    let mut services: BTreeMap<Option<&Arc<str>>, (Counts, Vec<&Edge>)> = BTreeMap::new();
    for edge in &summary.edges {
        let (counts, edges) = services.entry(edge.service_port.as_ref()).or_default();
        counts.merge(&edge.counts);
        edges.push(edge);
    }
    let mut services: Vec<_> = services.into_iter().collect();
    // The sort is stable, so that Services with equal numbers stay in the order of their names.
    services.sort_by_key(|(_, (counts, _))| std::cmp::Reverse(counts.connections));
    writeln!(out, "{:<60} {COLUMNS}", "SERVICE, CLIENT -> ENDPOINT")?;
    for (service, (counts, edges)) in services {
        write_row(
            out,
            &Escaped(service.map_or("(no known Service)", AsRef::as_ref)).to_string(),
            summary,
            &counts,
            is_exact,
        )?;
        for (name, counts) in rows(&edges) {
            write_row(out, &name, summary, &counts, is_exact)?;
        }
    }
    match summary.omitted {
        0 => Ok(()),
        omitted => writeln!(out, "not listed, because there are too many clients: {omitted} connections"),
    }
}

/// Returns the rows of a service port. Edges between the same names, with addresses of both IP families, are one row.
fn rows(edges: &[&Edge]) -> Vec<(String, Counts)> {
    let (mut rows, mut numbers) = (Vec::<(String, Counts)>::new(), HashMap::new());
    for edge in edges {
        let endpoint = edge.endpoint.as_ref().map_or("(none)".to_owned(), Peer::to_string);
        let name = format!("  {} -> {endpoint}", client(&edge.client));
        let number = *numbers.entry(name).or_insert_with_key(|name| {
            rows.push((name.clone(), Counts::default()));
            rows.len() - 1
        });
        rows[number].1.merge(&edge.counts);
    }
    rows.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.connections));
    rows
}

fn write_row(
    out: &mut impl fmt::Write,
    name: &str,
    summary: &FlowSummary,
    counts: &Counts,
    is_exact: bool,
) -> fmt::Result {
    let average = answer(counts.average_answer_seconds(), is_exact);
    let longest = answer((counts.answered > 0).then_some(counts.longest_answer_seconds), is_exact);
    let Counts { connections, unanswered, refused, reset, rejected, dropped, .. } = counts;
    writeln!(
        out,
        "{name:<60} {connections:>8} {:>8.1} {unanswered:>10} {refused:>7} {reset:>6} {rejected:>8} {dropped:>7} {average:>8} \
         {longest:>8}",
        summary.per_second(counts)
    )
}

fn client(peer: &Peer) -> String {
    match peer.kind {
        Some(kind) => format!("{} {peer}", kind.as_str()),
        None => peer.to_string(),
    }
}

/// Returns the time to an answer. Both events of a quick one arrive together, so that without the kernel's times it is
/// unknown.
fn answer(seconds: Option<f64>, is_exact: bool) -> String {
    seconds.filter(|seconds| is_exact || *seconds >= ACCURACY).map_or(NOTHING.to_owned(), duration)
}

/// Returns a time with three digits at most.
fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.001 => format!("{:.0}us", seconds * 1e6),
        seconds if seconds < 0.1 => format!("{:.1}ms", seconds * 1e3),
        seconds if seconds < 1.0 => format!("{:.0}ms", seconds * 1e3),
        seconds if seconds < 100.0 => format!("{seconds:.1}s"),
        seconds => format!("{:.0}m", seconds / 60.0),
    }
}

const NOTHING: &str = "-";
const COLUMNS: &str = "    CONN       /S UNANSWERED REFUSED  RESET REJECTED DROPPED   ANSWER  LONGEST";

#[cfg(test)]
mod tests;
