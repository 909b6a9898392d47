//! Traces as text, rule by rule, and summaries.

mod summary;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::{Escaped, Style};

pub use self::summary::write_summary_into;
use crate::{Branch, Choice, Effect, Event, Leaf, Packet, Trace, Verdict};

/// A lookup of the name of an address's owner, such as `pod default/web-1`.
pub type Names<'a> = &'a dyn Fn(IpAddr) -> Option<String>;

/// Options for [`write_trace_into`].
#[derive(Clone, Copy)]
pub struct TextOptions<'a> {
    /// Show every rule and endpoint. Otherwise long runs of rules that do not match, and of endpoints, are abbreviated.
    pub all: bool,
    /// The appearance.
    pub style: Style,
    /// Names to show beside addresses.
    pub names: Names<'a>,
}

/// Writes a trace of `packet`, rule by rule, and the source of the reply that the client will see.
///
/// # Errors
/// Errors of `out`.
pub fn write_trace_into(
    out: &mut impl fmt::Write,
    trace: &Trace,
    packet: &Packet,
    options: TextOptions<'_>,
) -> fmt::Result {
    for (n, branch) in trace.branches.iter().enumerate() {
        if n > 0 {
            out.write_char('\n')?;
        }
        if n == MAX_BRANCHES && !options.all {
            let more = trace.branches.len() - n;
            writeln!(out, "{more} more branches, which depend on other assumptions (--all shows them)")?;
            let hidden = trace.branches.iter().skip(n);
            let mut unknown = hidden.filter(|branch| matches!(branch.verdict, Verdict::Unknown { .. }));
            let writer = BranchWriter { options, choices: &[] };
            return unknown.next().map_or(Ok(()), |branch| writer.write_verdict_into(out, branch));
        }
        write_header_into(out, trace, branch, options.style)?;
        let writer = BranchWriter { options, choices: &branch.choices };
        writer.write_events_into(out, &branch.events)?;
        writer.write_verdict_into(out, branch)?;
        if let Some(reply) = writer.reply(packet, branch) {
            writeln!(out, "   {reply}")?;
        }
    }
    Ok(())
}

/// Writes all events of a leaf.
///
/// # Errors
/// Errors of `out`.
pub fn write_leaf_into(out: &mut impl fmt::Write, leaf: &Leaf) -> fmt::Result {
    let options = TextOptions { all: true, style: Style::Plain, names: &|_| None };
    BranchWriter { options, choices: &[] }.write_events_into(out, &leaf.events)?;
    for assumption in &leaf.assumptions {
        writeln!(out, "assuming: {}", Escaped(assumption))?;
    }
    writeln!(out, "{:.1} %: {}", leaf.share * 100.0, Escaped(&leaf.verdict))
}

/// Writes the share of a branch and its assumptions. A share counts the cases in which the assumptions are true.
pub(crate) fn write_header_into(
    out: &mut impl fmt::Write,
    trace: &Trace,
    branch: &Branch,
    style: Style,
) -> fmt::Result {
    let is_certain = branch.assumptions.is_empty();
    if trace.branches.len() > 1 && (is_certain || branch.share < 1.0 - f64::EPSILON) {
        let which = if is_certain { "all cases" } else { "the cases with these assumptions" };
        writeln!(out, "{}", style.bold(&format!("in {:.1} % of {which}:", branch.share * 100.0)))?;
    }
    for assumption in &branch.assumptions {
        writeln!(out, "assuming: {}", Escaped(assumption))?;
    }
    for alternative in branch.alternatives.iter().take(MAX_ALTERNATIVES) {
        let all = alternative.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        writeln!(out, "or assuming: {}", Escaped(all))?;
    }
    match branch.alternatives.len().saturating_sub(MAX_ALTERNATIVES) {
        0 => Ok(()),
        more => writeln!(out, "or {more} other combinations of assumptions"),
    }
}

struct BranchWriter<'a> {
    options: TextOptions<'a>,
    /// The endpoints of the branch's DNAT.
    choices: &'a [Choice],
}

/// The fields of an [`Event::Rule`].
struct EvaluatedRule<'a> {
    chain: &'a str,
    number: usize,
    text: &'a str,
    depth: usize,
    mismatch: Option<&'a str>,
    chance: Option<f64>,
}

impl<'a> EvaluatedRule<'a> {
    fn from_event(event: &'a Event) -> Option<Self> {
        let Event::Rule { chain, number, text, depth, mismatch, chance } = event else { return None };
        let (number, depth, chance) = (*number, *depth, *chance);
        Some(Self { chain, number, text, depth, mismatch: mismatch.as_deref(), chance })
    }
}

impl BranchWriter<'_> {
    fn write_events_into(&self, out: &mut impl fmt::Write, events: &[Event]) -> fmt::Result {
        let mut rest = events;
        while let Some((event, after)) = rest.split_first() {
            let run = run_of_mismatches(rest);
            if run.len() > MAX_MISMATCHES && !self.options.all {
                self.write_run_into(out, &run)?;
                rest = &rest[run.len()..];
                continue;
            }
            self.write_event_into(out, event)?;
            rest = after;
        }
        Ok(())
    }

    fn write_event_into(&self, out: &mut impl fmt::Write, event: &Event) -> fmt::Result {
        let TextOptions { style, names, .. } = self.options;
        match event {
            Event::Hook { table, chain, .. } => writeln!(out, "{}", style.bold(&format!("{table} {chain}"))),
            Event::Rule { .. } => {
                EvaluatedRule::from_event(event).map_or(Ok(()), |rule| self.write_rule_into(out, &rule))
            }
            Event::Effect { path, effect, .. } => {
                let indent = 2 + 2 * path.len();
                match effect {
                    Effect::Dnat { before, after }
                        if self.choices.len() > 1 && self.choices.iter().any(|choice| choice.to == *after) =>
                    {
                        let choice = format!("=> DNAT {before} to one of {}:", self.choices.len());
                        writeln!(out, "{:indent$}{}", "", style.highlight(&choice))?;
                        self.write_choices_into(out, indent)
                    }
                    Effect::Connect { before, .. } if self.choices.len() > 1 => {
                        let choice = format!("=> accept at {before} and connect to one of {}:", self.choices.len());
                        writeln!(out, "{:indent$}{}", "", style.highlight(&choice))?;
                        self.write_choices_into(out, indent)
                    }
                    effect => {
                        let text = format!("=> {}", Phrases(names).effect(effect));
                        writeln!(out, "{:indent$}{}", "", style.highlight(&text))
                    }
                }
            }
            Event::Policy { chain, policy } => writeln!(out, "  end of {}: policy {policy}", Escaped(chain)),
            Event::Routed { interface: Some(interface) } => {
                writeln!(out, "{}", style.bold(&format!("routed through {interface}")))
            }
            Event::Routed { interface: None } => writeln!(out, "{}", style.bold("routed to this host")),
            Event::Discarded { reason } => {
                writeln!(out, "{}", style.failure(&format!("dropped by the kernel: {reason}")))
            }
        }
    }

    fn write_rule_into(&self, out: &mut impl fmt::Write, rule: &EvaluatedRule<'_>) -> fmt::Result {
        let style = self.options.style;
        let indent = 2 + 2 * rule.depth;
        let text = format!("{} {}: {}", rule.chain, rule.number, rule.text);
        let chance = rule.chance.map(|chance| format!(", with probability {:.1} %", chance * 100.0));
        let chance = chance.unwrap_or_default();
        match rule.mismatch {
            Some(reason) => {
                writeln!(out, "{:indent$}{}", "", style.dim(&text))?;
                writeln!(out, "{:indent$}  {}", "", style.dim(&format!("no: {reason}{chance}")))
            }
            None => {
                writeln!(out, "{:indent$}{}", "", Escaped(&text))?;
                writeln!(out, "{:indent$}  {}{chance}", "", style.success("yes"))
            }
        }
    }

    /// Writes a run of rules that do not match in one line.
    fn write_run_into(&self, out: &mut impl fmt::Write, run: &[EvaluatedRule<'_>]) -> fmt::Result {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let mut reasons: Vec<(&str, usize)> = Vec::new();
        for subject in run.iter().filter_map(|rule| rule.mismatch).map(subject) {
            match reasons.iter_mut().find(|(counted, _)| *counted == subject) {
                Some((_, count)) => *count += 1,
                None => reasons.push((subject, 1)),
            }
        }
        let reasons: Vec<String> = reasons.iter().map(|(subject, count)| format!("{count} by {subject}")).collect();
        let text = format!("{} {} to {}: no match ({})", first.chain, first.number, last.number, reasons.join(", "));
        writeln!(out, "{:1$}{2}", "", 2 + 2 * first.depth, self.options.style.dim(&text))
    }

    /// Writes the endpoints, one per line.
    fn write_choices_into(&self, out: &mut impl fmt::Write, indent: usize) -> fmt::Result {
        let TextOptions { names, all, .. } = self.options;
        let (shown, rest) =
            if all { (self.choices, Default::default()) } else { self.choices.split_at(shown_choices(self.choices)) };
        let same = common_end(self.choices).is_some();
        for Choice { share, chain, to, from, interface } in shown {
            let to = Phrases(names).socket(*to);
            write!(out, "{:indent$}   {:5.1} %  {}: {}", "", share * 100.0, Escaped(chain), Escaped(to))?;
            if !same {
                write!(out, " {}, with source {}", Via(interface.as_deref()), Escaped(Phrases(names).address(*from)))?;
            }
            out.write_char('\n')?;
        }
        if !rest.is_empty() {
            let share: f64 = rest.iter().map(|choice| choice.share).sum();
            writeln!(out, "{:indent$}   {:5.1} %  {} more (--all shows them)", "", share * 100.0, rest.len())?;
        }
        if let Some(first) = shown.first() {
            writeln!(out, "{:indent$}   continuing with the first, {}", "", first.to)?;
        }
        Ok(())
    }

    fn write_verdict_into(&self, out: &mut impl fmt::Write, branch: &Branch) -> fmt::Result {
        let TextOptions { style, names, .. } = self.options;
        let text = match (&branch.verdict, self.choices.len()) {
            (Verdict::Delivered { .. }, 2..) => {
                let end = common_end(self.choices).map(|(from, interface)| {
                    format!(" {}, with source {}", Via(interface), Phrases(names).address(from))
                });
                format!("=> delivered to one of these {}{}", self.choices.len(), end.unwrap_or_default())
            }
            (verdict, _) => format!("=> {}", Phrases(names).verdict(verdict)),
        };
        let is_delivered = matches!(branch.verdict, Verdict::Delivered { translated: true, .. });
        writeln!(out, "{}", if is_delivered { style.success(&text) } else { style.failure(&text) })
    }

    /// Describes the source that the endpoint sees, the reason for it, and the reply.
    fn reply(&self, packet: &Packet, branch: &Branch) -> Option<String> {
        let Verdict::Delivered { to, from, translated: true, .. } = &branch.verdict else { return None };
        let client = packet.source.ip();
        let source = if self.choices.iter().any(|choice| choice.from != *from) {
            "masqueraded as shown for each endpoint"
        } else if *from == client && to.ip() == client {
            "client and endpoint are this host: nothing to masquerade"
        } else if *from == client {
            "not masqueraded: the endpoint sees the client's address, and replies return through this node"
        } else if to.ip() == client {
            "masqueraded: the client is the endpoint, and its replies would not return through this node otherwise"
        } else {
            "masqueraded: replies return through this node"
        };
        Some(format!("{source}; the client sees replies from {}", packet.destination))
    }
}

/// Returns the rules at the start of `events` that do not match, within one chain.
fn run_of_mismatches(events: &[Event]) -> Vec<EvaluatedRule<'_>> {
    let mut run: Vec<EvaluatedRule<'_>> = Vec::new();
    for rule in events.iter().map_while(EvaluatedRule::from_event) {
        let same_chain = run.last().is_none_or(|last| (last.chain, last.depth) == (rule.chain, rule.depth));
        if rule.mismatch.is_none() || !same_chain {
            break;
        }
        run.push(rule);
    }
    run
}

/// Returns the subject of a mismatch: `destination` of `destination is 10.0.0.1, not 10.0.0.2/32`, `chance` of `chance
/// decides otherwise`.
fn subject(mismatch: &str) -> &str {
    if let Some((_, set)) = mismatch.split_once(" is not in ") {
        return set;
    }
    if mismatch.ends_with(", but the rule has no effect") {
        return "no effect";
    }
    let parts = [" is ", " decides "].into_iter().filter_map(|verb| mismatch.split_once(verb));
    parts.map(|(subject, _)| subject).next().unwrap_or(mismatch)
}

/// Returns the source that all endpoints see and the output interface, if they are the same for all.
fn common_end(choices: &[Choice]) -> Option<(IpAddr, Option<&str>)> {
    let mut ends = choices.iter().map(|choice| (choice.from, choice.interface.as_deref()));
    let first = ends.next()?;
    ends.all(|end| end == first).then_some(first)
}

/// Returns the number of endpoints to show; the others are summarised in one line.
pub(crate) fn shown_choices(choices: &[Choice]) -> usize {
    if choices.len() > MAX_CHOICES { MAX_CHOICES - 1 } else { choices.len() }
}

/// The output interface of a packet.
pub(crate) struct Via<'a>(pub(crate) Option<&'a str>);

impl fmt::Display for Via<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(interface) => write!(f, "through {}", Escaped(interface)),
            None => f.write_str("on this host"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Phrases::WITHOUT_NAMES.verdict(self))
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Phrases::WITHOUT_NAMES.effect(self))
    }
}

/// Descriptions of verdicts and effects, with names beside addresses.
#[derive(Clone, Copy)]
pub(crate) struct Phrases<'a>(pub(crate) Names<'a>);

impl Phrases<'_> {
    const WITHOUT_NAMES: Phrases<'static> = Phrases(&|_| None);

    pub(crate) fn verdict(self, verdict: &Verdict) -> String {
        match verdict {
            Verdict::Delivered { to, from, translated, interface } => {
                let delivered = if *translated { "delivered to" } else { "not translated, delivered to" };
                let via = Via(interface.as_deref());
                format!("{delivered} {} {via}, with source {}", self.socket(*to), self.address(*from))
            }
            Verdict::Rejected { with } => format!("rejected with {with}"),
            Verdict::Dropped => "dropped".to_owned(),
            Verdict::NoRoute => "no route to the destination".to_owned(),
            Verdict::Unknown { reason } => format!("unknown: {reason}"),
        }
    }

    pub(crate) fn effect(self, effect: &Effect) -> String {
        match effect {
            Effect::Mark { before, after } => format!("mark {before:#x} becomes {after:#x}"),
            Effect::Dnat { before, after } => format!("DNAT {before} to {}", self.socket(*after)),
            Effect::Connect { before, after } => format!("accept at {before} and connect to {}", self.socket(*after)),
            Effect::Masquerade { before, after } => format!("masquerade {before} as {}", self.address(*after)),
            Effect::Accept => "accept".to_owned(),
            Effect::Drop => "drop".to_owned(),
            Effect::Reject { with } => format!("reject with {with}"),
        }
    }

    pub(crate) fn socket(self, socket: SocketAddr) -> String {
        self.with_name(socket.to_string(), socket.ip())
    }

    pub(crate) fn address(self, address: IpAddr) -> String {
        self.with_name(address.to_string(), address)
    }

    fn with_name(self, text: String, address: IpAddr) -> String {
        match self.0(address) {
            Some(name) => format!("{text} ({name})"),
            None => text,
        }
    }
}

/// Maximum number of consecutive mismatches that are shown separately.
const MAX_MISMATCHES: usize = 3;

/// The maximum number of branches that are shown.
const MAX_BRANCHES: usize = 12;

/// The maximum number of lines for other assumptions with the same result.
const MAX_ALTERNATIVES: usize = 3;

/// The maximum number of lines for endpoints.
const MAX_CHOICES: usize = 12;

#[cfg(test)]
mod tests;
