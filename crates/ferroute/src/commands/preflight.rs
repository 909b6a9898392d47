//! `ferroute preflight`: lists the differences in behaviour after a switch of modes.

use std::io::Write;

use clap::Args;
use ferroute_config::{ModeName, flags::DesiredArgs};
use ferroute_inspect::{
    desired::Desired,
    preflight::{preflight, write_report_into},
};
use ferroute_modes::REGISTRY;

use super::Output;

/// Arguments of `ferroute preflight`.
#[derive(Args, Debug)]
pub(crate) struct PreflightArgs {
    /// Old mode; by default, that of the running proxy or of the rules
    #[arg(long, value_name = "MODE", value_parser = modes())]
    from: Option<String>,
    /// The desired state, with the new mode.
    #[command(flatten)]
    desired: DesiredArgs,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

fn modes() -> Vec<&'static str> {
    REGISTRY.names().into_iter().map(ModeName::as_str).collect()
}

/// Prints the differences in behaviour after the switch.
pub(crate) fn run(args: &PreflightArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<()> {
    let desired = Desired::load(&args.desired, verbosity)?;
    let named = |from: &String| REGISTRY.names().into_iter().find(|mode| mode.as_str() == from);
    let report = preflight(&desired, args.from.as_ref().and_then(named))?;
    args.output.write_about(out, &desired.about, &report, |text| write_report_into(text, &report))
}
