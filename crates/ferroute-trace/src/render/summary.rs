use std::fmt;

use ferroute_core::{Escaped, Style};

use super::{Via, common_end, shown_choices, write_header_into};
use crate::{Branch, Choice, Hook, Step, Trace, Verdict};

/// Writes the changes and verdicts of a trace, chain by chain, in lines of up to 100 columns.
///
/// # Errors
/// Errors of `out`.
pub fn write_summary_into(out: &mut impl fmt::Write, trace: &Trace) -> fmt::Result {
    for branch in &trace.branches {
        write_header_into(out, trace, branch, Style::Plain)?;
        write_branch_into(out, branch)?;
    }
    Ok(())
}

fn write_branch_into(out: &mut impl fmt::Write, branch: &Branch) -> fmt::Result {
    for steps in branch.steps.chunk_by(|one, next| one.base_chain() == next.base_chain()) {
        write_steps_into(out, steps, &branch.choices)?;
    }
    match (&branch.verdict, branch.choices.len()) {
        (Verdict::Delivered { .. }, 2..) => match common_end(&branch.choices) {
            Some((from, interface)) => writeln!(out, "=> delivered {}, with source {from}", Via(interface)),
            None => writeln!(out, "=> delivered"),
        },
        (verdict, _) => writeln!(out, "=> {}", Escaped(verdict)),
    }
}

/// Writes the steps in one base chain: the call stack that they have in common, and below it each step.
fn write_steps_into(out: &mut impl fmt::Write, steps: &[Step], choices: &[Choice]) -> fmt::Result {
    let Some((_, table, _)) = steps.first().and_then(Step::base_chain) else {
        for step in steps {
            writeln!(out, "{}", Escaped(StepText { step, choices }))?;
        }
        return Ok(());
    };
    let common = steps.iter().map(Step::path).reduce(common_prefix).unwrap_or_default();
    write_chains_into(out, table, common)?;
    let all_in_common = steps.iter().all(|step| step.path().len() == common.len());
    let mut previous: Option<&[String]> = all_in_common.then_some(&[]);
    for (n, step) in steps.iter().enumerate() {
        let below = &step.path()[common.len()..];
        match previous {
            Some(same) if same == below => out.write_str(if n == 0 { ": " } else { ", " })?,
            _ if below.is_empty() => write!(out, "\n{INDENT}")?,
            _ => write!(out, "\n{INDENT}{}: ", Escaped(below.join(ARROW)))?,
        }
        previous = Some(below);
        write!(out, "{}", Escaped(StepText { step, choices }))?;
        if matches!(step, Step::Choice { .. }) {
            write_choices_into(out, choices)?;
        }
    }
    out.write_char('\n')
}

fn write_chains_into(out: &mut impl fmt::Write, table: &str, chains: &[String]) -> fmt::Result {
    write!(out, "{} ", Escaped(table))?;
    let mut column = table.len() + 1;
    for (n, chain) in chains.iter().enumerate() {
        if n > 0 && column + chain.len() + 3 > WIDTH {
            write!(out, "\n{:1$}", "", table.len())?;
            column = table.len();
        }
        out.write_str(if n > 0 { ARROW } else { "" })?;
        write!(out, "{}", Escaped(chain))?;
        column += chain.len() + 3;
    }
    Ok(())
}

/// Writes the endpoints, one per line.
fn write_choices_into(out: &mut impl fmt::Write, choices: &[Choice]) -> fmt::Result {
    let differ = common_end(choices).is_none();
    let (shown, rest) = choices.split_at(shown_choices(choices));
    for Choice { share, chain, to, from, interface } in shown {
        write!(out, "\n{INDENT}{:6.1} %  {}: {to}", share * 100.0, Escaped(chain))?;
        if differ {
            write!(out, " {}, with source {from}", Via(interface.as_deref()))?;
        }
    }
    if !rest.is_empty() {
        let share: f64 = rest.iter().map(|choice| choice.share).sum();
        write!(out, "\n{INDENT}{:6.1} %  {} more", share * 100.0, rest.len())?;
    }
    Ok(())
}

fn common_prefix<'a>(one: &'a [String], other: &'a [String]) -> &'a [String] {
    let length = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    &one[..length]
}

impl Step {
    /// Returns the hook, table and base chain; nftables tables may have several base chains at one hook.
    fn base_chain(&self) -> Option<(Hook, &str, Option<&str>)> {
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
}

struct StepText<'a> {
    step: &'a Step,
    choices: &'a [Choice],
}

impl fmt::Display for StepText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Step::Effect { effect, .. } => effect.fmt(f),
            Step::Choice { before, relayed: false, .. } => {
                write!(f, "DNAT {before} to one of {}", self.choices.len())
            }
            Step::Choice { before, relayed: true, .. } => {
                write!(f, "accept at {before} and connect to one of {}", self.choices.len())
            }
            Step::Masquerade { before, .. } => write!(f, "masquerade {before}"),
            Step::Discarded { reason } => write!(f, "dropped by the kernel: {reason}"),
        }
    }
}

const ARROW: &str = " → ";

const INDENT: &str = "    ";

/// The column after which a call stack continues in the next line.
const WIDTH: usize = 90;
