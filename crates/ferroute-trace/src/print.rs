//! What happens, in words, and summaries as text for people, 80 to 100 columns wide.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use crate::{Choice, Effect, Group, Step, Summary, Verdict};

/// Tells who has an address, for people; `None` if nobody knows.
pub type Names<'a> = &'a dyn Fn(IpAddr) -> Option<String>;

/// How text may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Letters only: for files, pipes and logs.
    Plain,
    /// Bold type and colours.
    Terminal,
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
pub(crate) struct Through<'a>(pub(crate) Option<&'a str>);

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
        f.write_str(&Words::PLAIN.verdict(self))
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Words::PLAIN.effect(self))
    }
}

/// What happens, in words, with names beside addresses.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(pub(crate) Names<'a>);

impl Words<'_> {
    const PLAIN: Words<'static> = Words(&|_| None);

    pub(crate) fn verdict(self, verdict: &Verdict) -> String {
        match verdict {
            Verdict::Delivered { to, from, translated, through } => {
                let how = if *translated { "delivered to" } else { "not ours, goes on to" };
                let through = Through(through.as_deref());
                format!("{how} {} {through}, seen as from {}", self.socket(*to), self.address(*from))
            }
            Verdict::Rejected { with } => format!("rejected with {with}"),
            Verdict::Dropped => "dropped".to_owned(),
            Verdict::NoRoute => "no route to its destination".to_owned(),
            Verdict::Unknown { why } => format!("cannot be told: {why}"),
        }
    }

    pub(crate) fn effect(self, effect: &Effect) -> String {
        match effect {
            Effect::Mark { before, after } => format!("mark {before:#x} becomes {after:#x}"),
            Effect::Dnat { before, after } => format!("DNAT {before} to {}", self.socket(*after)),
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

impl Style {
    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    pub(crate) fn notable(self, text: &str) -> String {
        self.wrap("36", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Terminal => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

const ARROW: &str = " → ";

/// Before what is in chains under those that were named.
const BELOW: &str = "    ";

/// Columns after which the chains of a path go on in the next line.
const WIDTH: usize = 90;

/// How many endpoints are listed.
pub(crate) const MOST_CHOICES: usize = 12;
