//! `ferroute explain`: explains how the proxy handles an object.

use std::io::Write;

use clap::{Args, Subcommand};
use ferroute_config::flags::DesiredArgs;
use ferroute_inspect::{
    desired::Desired,
    explain::{explain_on_host, write_explanation_into},
};

use super::Output;

/// Arguments of `ferroute explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// The object.
    #[command(subcommand)]
    object: Explained,
}

/// The kinds of objects that can be explained.
#[derive(Debug, Subcommand)]
enum Explained {
    /// Explain how the proxy handles a Service
    ///
    /// Prints frontends, traffic policies, and endpoints with the reason why each is used or not; as root also the rules,
    /// counters and connections in the kernel.
    Service(ExplainServiceArgs),
}

/// Arguments of `ferroute explain service`.
#[derive(Args, Debug)]
struct ExplainServiceArgs {
    /// Namespace and name of the Service
    #[arg(value_name = "NAMESPACE/NAME", value_parser = parse_name)]
    service: String,
    /// The desired state.
    #[command(flatten)]
    desired: DesiredArgs,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

pub(super) fn parse_name(text: &str) -> Result<String, String> {
    match text.split('/').collect::<Vec<_>>().as_slice() {
        [namespace, name] if !namespace.is_empty() && !name.is_empty() => Ok(text.to_owned()),
        _ => Err("must be NAMESPACE/NAME".to_owned()),
    }
}

/// Explains an object and prints the explanation.
pub(crate) fn run(args: &ExplainArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<()> {
    let Explained::Service(args) = &args.object;
    let desired = Desired::load(&args.desired, verbosity)?;
    let explanation = explain_on_host(&desired, &args.service)?;
    args.output.write_about(out, &desired.about, &explanation, |text| write_explanation_into(text, &explanation))
}
