//! `ferroute trace`: shows what happens to a packet, and why.

use std::{
    ffi::OsStr,
    io::{IsTerminal, Write},
    num::NonZeroU16,
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use ferroute_config::flags::DesiredArgs;
use ferroute_core::{Protocol, Style};
use ferroute_inspect::{
    report::Versioned,
    trace::{Request, TraceNode, TraceReport, load, resolve, write_outline_into},
};
use ferroute_trace::{Outcome, TextOptions, mermaid, write_trace_into};

use super::packet_ends::PacketEnds;

/// Arguments of `ferroute trace`.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// Source and destination.
    #[command(flatten)]
    ends: PacketEnds,
    /// Namespace of a Service or pod that is named without one
    ///
    /// By default, that of Services is "default", and pods are those of any namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Transport protocol; by default, that of the Service's port
    ///
    /// For addresses, and Services with a port of several protocols, it is TCP.
    #[arg(long, visible_alias = "protocol", value_enum, ignore_case = true)]
    proto: Option<Transport>,
    /// Input interface; by default, the one with the route to the source
    #[arg(long = "in", value_name = "INTERFACE", conflicts_with = "local")]
    input: Option<String>,
    /// Trace a packet sent by the node itself
    #[arg(long)]
    local: bool,
    /// Source port of the packet
    #[arg(long, value_name = "PORT", default_value = "50000")]
    source_port: NonZeroU16,
    /// The desired state.
    #[command(flatten)]
    desired: DesiredArgs,
    /// Trace through the rules in this host's kernel; requires root
    ///
    /// By default, the trace uses the rules that the proxy would write. With this flag, it uses the active rules of all
    /// programs, and Services provide names only.
    #[arg(long)]
    kernel: bool,
    /// Trace through the rules in a file, of any host
    ///
    /// The file has the output of iptables-save, ip6tables-save, nft list ruleset, ipset save or ipvsadm -Sn, or of several of
    /// them. Repeat for more files; - is standard input. Neither root nor a cluster is required. Services provide names only.
    #[arg(long, value_name = "FILE", conflicts_with = "kernel")]
    rules: Vec<PathBuf>,
    /// Addresses and routes of the host of --rules
    ///
    /// The file has the output of ip address, ip route and ip -6 route. By default, they follow from the Node in --manifests;
    /// without one, all addresses are assumed to be behind one interface.
    #[arg(long, value_name = "FILE", requires = "rules")]
    routes: Option<PathBuf>,
    /// Print all rules that do not match, and all endpoints
    #[arg(short, long)]
    all: bool,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: TraceOutput,
    /// When to use colors
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

/// An output format of `ferroute trace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TraceOutput {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
    /// A Mermaid flowchart.
    Mermaid,
}

/// When to use colors.
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
    fn request(&self) -> anyhow::Result<Request> {
        let (from, to) = if self.local {
            self.ends.resolve_local()?
        } else {
            let (from, to) = self.ends.resolve()?;
            (Some(from), to)
        };
        Ok(Request {
            from,
            to,
            namespace: self.namespace.clone(),
            protocol: self.proto.map(Into::into),
            input: self.input.clone(),
            local: self.local,
            source_port: self.source_port,
            desired: self.desired.clone(),
            kernel: self.kernel,
            rules: self.rules.clone(),
            routes: self.routes.clone(),
        })
    }
}

/// Traces a packet and prints what happens to it.
///
/// The exit status is 0 if an endpoint receives it in every case, 1 if it is, or may be, rejected, dropped, unroutable or
/// not for a Service, 2 if that is unknown.
pub(crate) fn run(args: &TraceArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let request = args.request()?;
    let node = TraceNode::load(&request, verbosity)?;
    let (packet, arrival) = resolve(&request, &node)?;
    let rules = load(&request, &node, packet.family())?;
    let trace = rules.trace(&node.host, &packet);
    let names = |address| node.desired.names.owner(address).map(ToString::to_string);
    let mut text;
    match args.output {
        TraceOutput::Text => {
            let style = style(args.color, std::io::stdout().is_terminal(), std::env::var_os("NO_COLOR").as_deref());
            text = format!("{}\n", node.desired.about);
            write_outline_into(&mut text, &node, &packet, &arrival, &rules)?;
            let options = TextOptions { all: args.all, style, names: &names };
            write_trace_into(&mut text, &trace, &packet, options)?;
        }
        TraceOutput::Json => {
            let report = TraceReport::new(&node, &packet, &rules, &trace);
            text = serde_json::to_string_pretty(&Versioned::new(&node.desired.about, report))? + "\n";
        }
        TraceOutput::Mermaid => {
            let mut chart = String::new();
            mermaid::write_into(&mut chart, &trace, &packet, &names)?;
            // Comments are not permitted before the type of the diagram in all versions of Mermaid.
            let (head, body) = chart.split_once('\n').unwrap_or((&chart, ""));
            text = format!("{head}\n    %% {}\n{body}", node.desired.about);
        }
    }
    out.write_all(text.as_bytes())?;
    Ok(match rules.outcome(&trace, packet.family()) {
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
    fn auto_uses_colors_on_terminals_unless_no_color_is_set() {
        let auto = |is_terminal, no_color: Option<&str>| {
            style(ColorChoice::Auto, is_terminal, no_color.map(OsStr::new)) == Style::Terminal
        };
        assert!(auto(true, None) && auto(true, Some("")));
        assert!(!auto(true, Some("1")) && !auto(false, None));
        assert_eq!(style(ColorChoice::Always, false, Some(OsStr::new("1"))), Style::Terminal);
        assert_eq!(style(ColorChoice::Never, true, None), Style::Plain);
    }
}
