use std::num::NonZeroU16;

use clap::{Args, ValueEnum};
use ferroute_core::Protocol;

use super::DesiredArgs;

/// Arguments of `ferroute trace`.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// Who sends the packet: an address, or the name of a node or pod, as NAME or NAMESPACE/NAME. With --local it can be
    /// left out
    #[arg(long, value_name = "ADDRESS|NAME", required_unless_present = "local")]
    pub(crate) from: Option<String>,
    /// Where to: ADDRESS:PORT, or a Service's cluster IP by its name: NAMESPACE/NAME:PORT, of which NAMESPACE/ may be left
    /// out for «default», and :PORT where there is but one
    #[arg(long, value_name = "ADDRESS:PORT|SERVICE")]
    pub(crate) to: String,
    /// The protocol
    #[arg(long, visible_alias = "protocol", value_enum, ignore_case = true, default_value = "tcp")]
    pub(crate) proto: Transport,
    /// The interface that the packet comes in by, in place of the one that leads to its sender
    #[arg(long = "in", value_name = "INTERFACE", conflicts_with = "local")]
    pub(crate) input: Option<String>,
    /// The node itself sends the packet
    #[arg(long)]
    pub(crate) local: bool,
    /// The port that the sender sends from; hardly any rule looks at it
    #[arg(long, value_name = "PORT", default_value = "50000")]
    pub(crate) source_port: NonZeroU16,
    /// What should be true.
    #[command(flatten)]
    pub(crate) desired: DesiredArgs,
    /// Walk through the rules that are in this machine's kernel now, whoever wrote them, in place of those that the proxy
    /// would write. Services then only give names
    #[arg(long)]
    pub(crate) kernel: bool,
    /// Tell every rule that does not match, and every endpoint
    #[arg(short, long)]
    pub(crate) all: bool,
    /// What to print: text for people, JSON for programs, or a Mermaid flowchart
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: TraceOutput,
    /// When to use colours; «auto» does on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,
}

/// A transport protocol on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// What `ferroute trace` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceOutput {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
    /// A Mermaid flowchart.
    Mermaid,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
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
