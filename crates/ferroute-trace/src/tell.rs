//! Whole stories as text for people, rule by rule.

use std::fmt;

use crate::{
    Account, Choice, Effect, Event, Packet, Story, Told, Verdict,
    print::{MOST_CHOICES, Names, Style, Through, Words},
};

/// How a story is told.
#[derive(Clone, Copy)]
pub struct Manner<'a> {
    /// With every rule that does not match. Without, a run of more than three in a chain is told in one line.
    pub every_rule: bool,
    /// How it looks.
    pub style: Style,
    /// Who has an address.
    pub names: Names<'a>,
}

/// Tells a story in full, every rule of it.
///
/// # Errors
/// Only those of `out`.
pub fn write_story_into(out: &mut impl fmt::Write, story: &Story) -> fmt::Result {
    let manner = Manner { every_rule: true, style: Style::Plain, names: &|_| None };
    Teller { manner, choices: &[] }.write_events_into(out, &story.events)?;
    for assumption in &story.ending.assuming {
        writeln!(out, "assuming: {assumption}")?;
    }
    writeln!(out, "{:.1} %: {}", story.ending.share * 100.0, story.ending.verdict)
}

/// Tells all that can become of `packet`, rule by rule, and what the client will see of the answer.
///
/// # Errors
/// Only those of `out`.
pub fn write_account_into(
    out: &mut impl fmt::Write,
    account: &Account,
    packet: &Packet,
    manner: Manner<'_>,
) -> fmt::Result {
    let style = manner.style;
    for (n, way) in account.ways.iter().enumerate() {
        if n > 0 {
            out.write_char('\n')?;
        }
        if account.ways.len() > 1 {
            writeln!(out, "{}", style.bold(&format!("in {:.1} % of all cases:", way.group.share * 100.0)))?;
        }
        for assumption in &way.group.assuming {
            writeln!(out, "assuming: {assumption}")?;
        }
        let teller = Teller { manner, choices: &way.group.choices };
        teller.write_events_into(out, &way.events)?;
        teller.write_end_into(out, way)?;
        if let Some(reply) = teller.reply(packet, way) {
            writeln!(out, "   {reply}")?;
        }
    }
    Ok(())
}

/// Tells one way.
struct Teller<'a> {
    manner: Manner<'a>,
    /// Where a DNAT may lead.
    choices: &'a [Choice],
}

/// A rule that was met.
struct Met<'a> {
    chain: &'a str,
    number: usize,
    text: &'a str,
    depth: usize,
    mismatch: Option<&'a str>,
    chance: Option<f64>,
}

impl<'a> Met<'a> {
    fn of(event: &'a Event) -> Option<Self> {
        let Event::Rule { chain, number, text, depth, mismatch, chance } = event else { return None };
        let (number, depth, chance) = (*number, *depth, *chance);
        Some(Self { chain, number, text, depth, mismatch: mismatch.as_deref(), chance })
    }
}

impl Teller<'_> {
    fn write_events_into(&self, out: &mut impl fmt::Write, events: &[Event]) -> fmt::Result {
        let mut rest = events;
        while let Some((event, after)) = rest.split_first() {
            let run = run_of_mismatches(rest);
            if run.len() > MOST_MISMATCHES && !self.manner.every_rule {
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
        let Manner { style, names, .. } = self.manner;
        match event {
            Event::Hook { table, chain, .. } => writeln!(out, "{}", style.bold(&format!("{table} {chain}"))),
            Event::Rule { .. } => Met::of(event).map_or(Ok(()), |met| self.write_rule_into(out, &met)),
            Event::Effect { path, effect, .. } => {
                let indent = 2 + 2 * path.len();
                match effect {
                    Effect::Dnat { before, .. } if self.choices.len() > 1 => {
                        let choice = format!("=> DNAT {before} to one of {}:", self.choices.len());
                        writeln!(out, "{:indent$}{}", "", style.notable(&choice))?;
                        self.write_choices_into(out, indent)
                    }
                    effect => {
                        let text = format!("=> {}", Words(names).effect(effect));
                        writeln!(out, "{:indent$}{}", "", style.notable(&text))
                    }
                }
            }
            Event::Policy { chain, policy } => writeln!(out, "  end of {chain}: {policy}"),
            Event::Routed { to: Some(interface) } => {
                writeln!(out, "{}", style.bold(&format!("routed through {interface}")))
            }
            Event::Routed { to: None } => writeln!(out, "{}", style.bold("routed to this host")),
            Event::Discarded { why } => writeln!(out, "{}", style.bad(&format!("dropped by the kernel: {why}"))),
        }
    }

    fn write_rule_into(&self, out: &mut impl fmt::Write, met: &Met<'_>) -> fmt::Result {
        let style = self.manner.style;
        let indent = 2 + 2 * met.depth;
        let rule = format!("{} {}: {}", met.chain, met.number, met.text);
        let chance = met.chance.map(|chance| format!(", with a chance of {:.1} %", chance * 100.0)).unwrap_or_default();
        match met.mismatch {
            Some(why) => {
                writeln!(out, "{:indent$}{}", "", style.dim(&rule))?;
                writeln!(out, "{:indent$}  {}", "", style.dim(&format!("no: {why}{chance}")))
            }
            None => {
                writeln!(out, "{:indent$}{rule}", "")?;
                writeln!(out, "{:indent$}  {}{chance}", "", style.good("yes"))
            }
        }
    }

    /// Rules one after another that do not match, in one line.
    fn write_run_into(&self, out: &mut impl fmt::Write, run: &[Met<'_>]) -> fmt::Result {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let mut reasons: Vec<(&str, usize)> = Vec::new();
        for what in run.iter().filter_map(|met| met.mismatch).map(subject) {
            match reasons.iter_mut().find(|(known, _)| *known == what) {
                Some((_, count)) => *count += 1,
                None => reasons.push((what, 1)),
            }
        }
        let reasons: Vec<String> = reasons.iter().map(|(what, count)| format!("{count} by {what}")).collect();
        let text = format!(
            "{} {} to {}: none of these matches ({})",
            first.chain,
            first.number,
            last.number,
            reasons.join(", ")
        );
        writeln!(out, "{:1$}{2}", "", 2 + 2 * first.depth, self.manner.style.dim(&text))
    }

    /// The endpoints, a line for each. Of very many, the first ones.
    fn write_choices_into(&self, out: &mut impl fmt::Write, indent: usize) -> fmt::Result {
        let Manner { names, every_rule, .. } = self.manner;
        let all = every_rule || self.choices.len() <= MOST_CHOICES;
        let (shown, rest) = self.choices.split_at(if all { self.choices.len() } else { MOST_CHOICES - 1 });
        let same = same_end(self.choices).is_some();
        for Choice { share, chain, to, from, through } in shown {
            let to = Words(names).socket(*to);
            write!(out, "{:indent$}   {:5.1} %  {chain}: {to}", "", share * 100.0)?;
            if !same {
                write!(out, " {}, seen as from {}", Through(through.as_deref()), Words(names).address(*from))?;
            }
            out.write_char('\n')?;
        }
        if !rest.is_empty() {
            let share: f64 = rest.iter().map(|choice| choice.share).sum();
            writeln!(out, "{:indent$}   {:5.1} %  {} more (--all shows them)", "", share * 100.0, rest.len())?;
        }
        if let Some(first) = shown.first() {
            writeln!(out, "{:indent$}   from here with the first, {}", "", first.to)?;
        }
        Ok(())
    }

    fn write_end_into(&self, out: &mut impl fmt::Write, way: &Told) -> fmt::Result {
        let Manner { style, names, .. } = self.manner;
        let verdict = &way.group.verdict;
        let text = match (verdict, self.choices.len()) {
            (Verdict::Delivered { .. }, 2..) => {
                let end = same_end(self.choices).map(|(from, through)| {
                    format!(" {}, seen as from {}", Through(through), Words(names).address(from))
                });
                format!("=> delivered to one of these {}{}", self.choices.len(), end.unwrap_or_default())
            }
            _ => format!("=> {}", Words(names).verdict(verdict)),
        };
        let delivered = matches!(verdict, Verdict::Delivered { translated: true, .. });
        writeln!(out, "{}", if delivered { style.good(&text) } else { style.bad(&text) })
    }

    /// Whom the endpoint sees and why, and what becomes of its answer.
    fn reply(&self, packet: &Packet, way: &Told) -> Option<String> {
        let Verdict::Delivered { to, from, translated: true, .. } = &way.group.verdict else { return None };
        let (client, asked) = (packet.source.ip(), packet.destination);
        let differ = self.choices.iter().any(|choice| choice.from != *from);
        let answer = format!("the client sees the answer come from {asked}");
        Some(match () {
            () if differ => format!("masqueraded or not as told at each endpoint; {answer}"),
            () if *from == client && to.ip() == client => {
                format!("the host calls itself, so there is nothing to masquerade; {answer}")
            }
            () if *from == client => {
                format!("not masqueraded: the endpoint sees the client, and its answer comes back this way; {answer}")
            }
            () if to.ip() == client => {
                format!("masqueraded, because who calls itself would not send its answer this way; {answer}")
            }
            () => format!("masqueraded, so that the answer comes back this way; {answer}"),
        })
    }
}

/// The rules at the start of `events` that do not match, as far as they are in one chain.
fn run_of_mismatches(events: &[Event]) -> Vec<Met<'_>> {
    let mut run: Vec<Met<'_>> = Vec::new();
    for met in events.iter().map_while(Met::of) {
        let same_chain = run.last().is_none_or(|last| (last.chain, last.depth) == (met.chain, met.depth));
        if met.mismatch.is_none() || !same_chain {
            break;
        }
        run.push(met);
    }
    run
}

/// What a mismatch is about: `destination` of `destination is 10.0.0.1, not 10.0.0.2/32`, `chance` of `chance decides
/// otherwise`.
fn subject(mismatch: &str) -> &str {
    if let Some((_, set)) = mismatch.split_once(" is not in ") {
        return set;
    }
    let ends = [" is ", " decides "].into_iter().filter_map(|verb| mismatch.split_once(verb));
    ends.map(|(subject, _)| subject).next().unwrap_or(mismatch)
}

/// What all endpoints see as the source, and the way to them, if these are the same.
fn same_end(choices: &[Choice]) -> Option<(std::net::IpAddr, Option<&str>)> {
    let mut ends = choices.iter().map(|choice| (choice.from, choice.through.as_deref()));
    let first = ends.next()?;
    ends.all(|end| end == first).then_some(first)
}

/// Rules that do not match which are told one by one, where they follow each other.
const MOST_MISMATCHES: usize = 3;

#[cfg(test)]
mod tests;
