//! `ferroute trace`: what happens to a packet, and why.
//!
//! ```text
//!   Desired ─► rules (planned, or the kernel's) ─┐
//!   arguments ─► Packet, how it comes in ────────┼─► account ─► text, JSON or a flowchart
//!   Host (of the objects, or of this machine) ───┘
//! ```
//!
//! What is *not* here: the walk itself.

mod outline;
mod packet;
mod report;
mod rules;
mod scene;

use std::{
    ffi::OsStr,
    io::{IsTerminal, Write},
    process::ExitCode,
};

use ferroute_trace::{Manner, Outcome, Style, mermaid, write_account_into};

pub(crate) use self::rules::Rules;
use self::{outline::write_outline_into, report::Report, scene::Scene};
use crate::cli::{ColorChoice, TraceArgs, TraceOutput};

/// Traces a packet and prints what happens to it.
///
/// The exit status tells what becomes of it: 0 an endpoint gets it, whatever chance decides; 1 it is, or may be, rejected
/// or dropped, finds no way, or is no Service's; 2 it cannot be told.
pub(crate) fn run(args: &TraceArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let scene = Scene::load(args, verbosity)?;
    let (packet, arrival) = packet::resolve(args, &scene)?;
    let rules = rules::load(args, &scene, packet.family())?;
    let account = rules.account(&scene.host, &packet);
    let names = |address| scene.desired.names.at(address).map(ToString::to_string);
    let mut text = String::new();
    match args.output {
        TraceOutput::Text => {
            let style = style(args.color, std::io::stdout().is_terminal(), std::env::var_os("NO_COLOR").as_deref());
            write_outline_into(&mut text, &scene, &packet, &arrival, &rules)?;
            let manner = Manner { every_rule: args.all, style, names: &names };
            write_account_into(&mut text, &account, &packet, manner)?;
        }
        TraceOutput::Json => {
            let report = Report::new(&scene, &packet, &rules, &account);
            text = serde_json::to_string_pretty(&report)? + "\n";
        }
        TraceOutput::Mermaid => mermaid::write_into(&mut text, &account, &packet, &names)?,
    }
    out.write_all(text.as_bytes())?;
    Ok(match account.outcome() {
        Outcome::Delivered => ExitCode::SUCCESS,
        Outcome::NotDelivered => ExitCode::from(1),
        Outcome::Unknown => ExitCode::from(2),
    })
}

fn style(choice: ColorChoice, is_terminal: bool, no_color: Option<&OsStr>) -> Style {
    let wanted = match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        // An empty value does not count (no-color.org).
        ColorChoice::Auto => is_terminal && no_color.is_none_or(OsStr::is_empty),
    };
    if wanted { Style::Terminal } else { Style::Plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_no_color_or_the_arguments_say_otherwise() {
        let auto = |is_terminal, no_color: Option<&str>| {
            style(ColorChoice::Auto, is_terminal, no_color.map(OsStr::new)) == Style::Terminal
        };
        assert!(auto(true, None) && auto(true, Some("")));
        assert!(!auto(true, Some("1")) && !auto(false, None));
        assert_eq!(style(ColorChoice::Always, false, Some(OsStr::new("1"))), Style::Terminal);
        assert_eq!(style(ColorChoice::Never, true, None), Style::Plain);
    }
}
