//! `ferroute explain`: explains how the proxy handles an object.

use std::{io::Write, mem::ManuallyDrop};

use clap::{Args, Subcommand};
use ferroute_config::flags::DesiredArgs;
use ferroute_inspect::{
    desired::{Desired, service_name},
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
    /// The kind may be left out: `ferroute explain shop/web`. Prints frontends, traffic policies, and endpoints with the reason why each is used or not; as root also the rules,
    /// counters and connections in the kernel.
    #[command(visible_alias = "svc")]
    Service(ExplainServiceArgs),
}

/// Arguments of `ferroute explain service`.
#[derive(Args, Debug)]
struct ExplainServiceArgs {
    /// Service: NAME, NAMESPACE/NAME or NAME.NAMESPACE.svc, with :PORT
    ///
    /// NAME and NAMESPACE/NAME may follow svc/. Without a port, all are explained.
    #[arg(value_name = "SERVICE")]
    service: String,
    /// Namespace of a Service that is named without one
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,
    /// The desired state.
    #[command(flatten)]
    desired: DesiredArgs,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// Explains an object and prints the explanation.
pub(crate) fn run(args: &ExplainArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<()> {
    let Explained::Service(args) = &args.object;
    let (name, port) = args.service.rsplit_once(':').map_or((&*args.service, None), |(name, port)| (name, Some(port)));
    let service = service_name(name, &args.namespace).map_err(anyhow::Error::msg)?;
    // The process ends after this: to free the objects of a large cluster one by one would take tenths of a second.
    let mut desired = ManuallyDrop::new(Desired::load_for_service(&args.desired, verbosity, &service)?);
    desired.complete_for(&service);
    let mut explanation = explain_on_host(&desired, &service.to_string())?;
    if let Some(port) = port {
        explanation.select_port(port).map_err(anyhow::Error::msg)?;
    }
    args.output.write_about(out, &desired.about, &explanation, |text| write_explanation_into(text, &explanation))
}
