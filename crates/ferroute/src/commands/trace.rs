//! `ferroute trace`: shows what happens to a packet, and why.

use std::{
    ffi::OsStr,
    io::{IsTerminal, Write},
    num::NonZeroU16,
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use ferroute_config::flags::DesiredArgs;
use ferroute_core::{Protocol, Style};
use ferroute_inspect::trace::{Question, Report, Scene, load, resolve, write_outline_into};
use ferroute_trace::{Outcome, TextOptions, mermaid, write_trace_into};

/// Arguments of `ferroute trace`.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// Who sends the packet: an address, or the name of a node or pod, as NAME or NAMESPACE/NAME. With --local it can be
    /// left out
    #[arg(long, value_name = "ADDRESS|NAME", required_unless_present = "local")]
    from: Option<String>,
    /// Where to: ADDRESS:PORT, or a Service's cluster IP by its name: NAMESPACE/NAME:PORT, of which NAMESPACE/ may be left
    /// out for «default», and :PORT where there is but one
    #[arg(long, value_name = "ADDRESS:PORT|SERVICE")]
    to: String,
    /// The protocol
    #[arg(long, visible_alias = "protocol", value_enum, ignore_case = true, default_value = "tcp")]
    proto: Transport,
    /// The interface that the packet comes in by, in place of the one that leads to its sender
    #[arg(long = "in", value_name = "INTERFACE", conflicts_with = "local")]
    input: Option<String>,
    /// The node itself sends the packet
    #[arg(long)]
    local: bool,
    /// The port that the sender sends from; hardly any rule looks at it
    #[arg(long, value_name = "PORT", default_value = "50000")]
    source_port: NonZeroU16,
    /// What should be true.
    #[command(flatten)]
    desired: DesiredArgs,
    /// Walk through the rules that are in this machine's kernel now, whoever wrote them, in place of those that the proxy
    /// would write. Services then only give names
    #[arg(long)]
    kernel: bool,
    /// Tell every rule that does not match, and every endpoint
    #[arg(short, long)]
    all: bool,
    /// What to print: text for people, JSON for programs, or a Mermaid flowchart
    #[arg(short, long, value_enum, default_value = "text")]
    output: TraceOutput,
    /// When to use colours; «auto» does on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
}

/// A transport protocol on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// What `ferroute trace` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TraceOutput {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
    /// A Mermaid flowchart.
    Mermaid,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<Transport> for Protocol {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self::Tcp,
            Transport::Udp => Self::Udp,
            Transport::Sctp => Self::Sctp,
        }
    }
}

impl TraceArgs {
    fn question(&self) -> Question {
        Question {
            from: self.from.clone(),
            to: self.to.clone(),
            protocol: self.proto.into(),
            input: self.input.clone(),
            local: self.local,
            source_port: self.source_port,
            desired: self.desired.clone(),
            kernel: self.kernel,
        }
    }
}

/// Traces a packet and prints what happens to it.
///
/// The exit status is 0 if an endpoint receives it in every case, 1 if it is, or may be, rejected, dropped, unroutable or
/// not for a Service, 2 if that is unknown.
pub(crate) fn run(args: &TraceArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let question = args.question();
    let scene = Scene::load(&question, verbosity)?;
    let (packet, arrival) = resolve(&question, &scene)?;
    let rules = load(&question, &scene, packet.family())?;
    let trace = rules.trace(&scene.host, &packet);
    let names = |address| scene.desired.names.at(address).map(ToString::to_string);
    let mut text = String::new();
    match args.output {
        TraceOutput::Text => {
            let style = style(args.color, std::io::stdout().is_terminal(), std::env::var_os("NO_COLOR").as_deref());
            write_outline_into(&mut text, &scene, &packet, &arrival, &rules)?;
            let options = TextOptions { all: args.all, style, names: &names };
            write_trace_into(&mut text, &trace, &packet, options)?;
        }
        TraceOutput::Json => {
            let report = Report::new(&scene, &packet, &rules, &trace);
            text = serde_json::to_string_pretty(&report)? + "\n";
        }
        TraceOutput::Mermaid => mermaid::write_into(&mut text, &trace, &packet, &names)?,
    }
    out.write_all(text.as_bytes())?;
    Ok(match trace.outcome() {
        Outcome::Delivered => ExitCode::SUCCESS,
        Outcome::NotDelivered => ExitCode::from(1),
        Outcome::Unknown => ExitCode::from(2),
    })
}

fn style(choice: ColorChoice, is_terminal: bool, no_color: Option<&OsStr>) -> Style {
    match choice {
        ColorChoice::Always => Style::Terminal,
        ColorChoice::Never => Style::Plain,
        ColorChoice::Auto => Style::for_output(is_terminal, no_color),
    }
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
