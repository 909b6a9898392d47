//! Stories and summaries as text for people, 80 to 100 columns wide.

use std::fmt;

use crate::{Choice, Effect, Ending, Event, Group, Step, Story, Summary, Verdict};

/// Tells a story in full, rule by rule.
///
/// # Errors
/// Only those of `out`.
pub fn write_story_into(out: &mut impl fmt::Write, story: &Story) -> fmt::Result {
    for event in &story.events {
        match event {
            Event::Hook { table, chain, .. } => writeln!(out, "{table} {chain}")?,
            Event::Rule { chain, number, text, depth, mismatch, chance } => {
                let indent = 2 + 2 * depth;
                writeln!(out, "{:indent$}{chain} {number}: {text}", "")?;
                write!(out, "{:indent$}  {}", "", if mismatch.is_some() { "no" } else { "yes" })?;
                if let Some(why) = mismatch {
                    write!(out, ": {why}")?;
                }
                match chance {
                    Some(chance) => writeln!(out, ", with a chance of {:.1} %", chance * 100.0)?,
                    None => out.write_char('\n')?,
                }
            }
            Event::Effect { path, effect, .. } => writeln!(out, "{:1$}=> {effect}", "", 2 + 2 * path.len())?,
            Event::Policy { chain, policy } => writeln!(out, "  end of {chain}: {policy}")?,
            Event::Routed { to: Some(interface) } => writeln!(out, "routed through {interface}")?,
            Event::Routed { to: None } => writeln!(out, "routed to this host")?,
            Event::Discarded { why } => writeln!(out, "dropped by the kernel: {why}")?,
        }
    }
    write_ending_into(out, &story.ending)
}

/// Tells what changes and what is decided on the way, chain by chain, and between which endpoints chance chooses.
///
/// # Errors
/// Only those of `out`.
pub fn write_summary_into(out: &mut impl fmt::Write, summary: &Summary) -> fmt::Result {
    for group in &summary.groups {
        if summary.groups.len() > 1 {
            writeln!(out, "in {:.1} % of all cases:", group.share * 100.0)?;
        }
        for assumption in &group.assuming {
            writeln!(out, "assuming: {assumption}")?;
        }
        write_group_into(out, group)?;
    }
    Ok(())
}

fn write_ending_into(out: &mut impl fmt::Write, ending: &Ending) -> fmt::Result {
    for assumption in &ending.assuming {
        writeln!(out, "assuming: {assumption}")?;
    }
    writeln!(out, "{:.1} %: {}", ending.share * 100.0, ending.verdict)
}

fn write_group_into(out: &mut impl fmt::Write, group: &Group) -> fmt::Result {
    let mut rest = group.steps.as_slice();
    while let Some(first) = rest.first() {
        let here = rest.iter().take_while(|step| step.place() == first.place()).count();
        let (block, after) = rest.split_at(here);
        write_block_into(out, block, &group.choices)?;
        rest = after;
    }
    match (&group.verdict, group.choices.len()) {
        (Verdict::Delivered { .. }, 2..) => {
            let ends = || group.choices.iter().map(|choice| (choice.from, choice.through.as_deref()));
            let first = ends().next();
            match first.filter(|first| ends().all(|end| end == *first)) {
                Some((from, through)) => {
                    writeln!(out, "=> delivered {}, seen as from {from}", Through(through))
                }
                None => writeln!(out, "=> delivered"),
            }
        }
        (verdict, _) => writeln!(out, "=> {verdict}"),
    }
}

/// Steps at one hook in one table: the chains that all of them have in common, and under that what each does.
fn write_block_into(out: &mut impl fmt::Write, steps: &[Step], choices: &[Choice]) -> fmt::Result {
    let Some((_, table, _)) = steps.first().and_then(Step::place) else {
        for step in steps {
            writeln!(out, "{}", Deed { step, choices })?;
        }
        return Ok(());
    };
    let common = steps.iter().map(Step::path).reduce(common_start).unwrap_or_default();
    write_chains_into(out, table, common)?;
    let all_there = steps.iter().all(|step| step.path().len() == common.len());
    let mut before: Option<&[String]> = all_there.then_some(&[]);
    for step in steps {
        let below = &step.path()[common.len()..];
        match before {
            Some(same) if same == below => out.write_str(if step.is_first_of(steps) { ": " } else { ", " })?,
            _ if below.is_empty() => write!(out, "\n{BELOW}")?,
            _ => write!(out, "\n{BELOW}{}: ", below.join(ARROW))?,
        }
        before = Some(below);
        write!(out, "{}", Deed { step, choices })?;
        if matches!(step, Step::Choice { .. }) {
            write_choices_into(out, choices)?;
        }
    }
    out.write_char('\n')
}

fn write_chains_into(out: &mut impl fmt::Write, table: &str, chains: &[String]) -> fmt::Result {
    write!(out, "{table} ")?;
    let mut column = table.len() + 1;
    for (n, chain) in chains.iter().enumerate() {
        if n > 0 && column + chain.len() + 3 > WIDTH {
            write!(out, "\n{:1$}", "", table.len())?;
            column = table.len();
        }
        out.write_str(if n > 0 { ARROW } else { "" })?;
        out.write_str(chain)?;
        column += chain.len() + 3;
    }
    Ok(())
}

/// The endpoints, a line for each. Of very many, the first ones.
fn write_choices_into(out: &mut impl fmt::Write, choices: &[Choice]) -> fmt::Result {
    let differ =
        choices.iter().any(|choice| (&choice.from, &choice.through) != (&choices[0].from, &choices[0].through));
    let shown = if choices.len() > MOST_CHOICES { MOST_CHOICES - 1 } else { choices.len() };
    for choice in &choices[..shown] {
        let Choice { share, chain, to, from, through } = choice;
        write!(out, "\n{BELOW}{:6.1} %  {chain}: {to}", share * 100.0)?;
        if differ {
            write!(out, " {}, seen as from {from}", Through(through.as_deref()))?;
        }
    }
    match choices.len() - shown {
        0 => Ok(()),
        more => {
            let rest: f64 = choices[shown..].iter().map(|choice| choice.share).sum();
            write!(out, "\n{BELOW}{:6.1} %  {more} more", rest * 100.0)
        }
    }
}

fn common_start<'a>(one: &'a [String], other: &'a [String]) -> &'a [String] {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    &one[..same]
}

impl Step {
    /// The hook, the table and the hook's own chain: nftables may have several of these at one hook.
    fn place(&self) -> Option<(crate::Hook, &str, Option<&str>)> {
        match self {
            Self::Effect { hook, table, path, .. }
            | Self::Choice { hook, table, path, .. }
            | Self::Masquerade { hook, table, path, .. } => Some((*hook, table, path.first().map(String::as_str))),
            Self::Discarded { .. } => None,
        }
    }

    fn path(&self) -> &[String] {
        match self {
            Self::Effect { path, .. } | Self::Choice { path, .. } | Self::Masquerade { path, .. } => path,
            Self::Discarded { .. } => &[],
        }
    }

    fn is_first_of(&self, steps: &[Self]) -> bool {
        steps.first().is_some_and(|first| std::ptr::eq(first, self))
    }
}

/// What a step does.
struct Deed<'a> {
    step: &'a Step,
    choices: &'a [Choice],
}

impl fmt::Display for Deed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Step::Effect { effect, .. } => effect.fmt(f),
            Step::Choice { before, .. } => write!(f, "DNAT {before} to one of {}", self.choices.len()),
            Step::Masquerade { before, .. } => write!(f, "masquerade {before}"),
            Step::Discarded { why } => write!(f, "dropped by the kernel: {why}"),
        }
    }
}

/// Where a packet goes on.
struct Through<'a>(Option<&'a str>);

impl fmt::Display for Through<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(interface) => write!(f, "through {interface}"),
            None => f.write_str("on this host"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delivered { to, from, translated, through } => {
                f.write_str(if *translated { "delivered to" } else { "not ours, goes on to" })?;
                write!(f, " {to} {}, seen as from {from}", Through(through.as_deref()))
            }
            Self::Rejected { with } => write!(f, "rejected with {with}"),
            Self::Dropped => f.write_str("dropped"),
            Self::NoRoute => f.write_str("no route to its destination"),
            Self::Unknown { why } => write!(f, "cannot be told: {why}"),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mark { before, after } => write!(f, "mark {before:#x} becomes {after:#x}"),
            Self::Dnat { before, after } => write!(f, "DNAT {before} to {after}"),
            Self::Masquerade { before, after } => write!(f, "masquerade {before} as {after}"),
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Reject { with } => write!(f, "reject with {with}"),
        }
    }
}

const ARROW: &str = " → ";

/// Before what is in chains under those that were named.
const BELOW: &str = "    ";

/// Columns after which the chains of a path go on in the next line.
const WIDTH: usize = 90;

/// How many endpoints are listed.
const MOST_CHOICES: usize = 12;
