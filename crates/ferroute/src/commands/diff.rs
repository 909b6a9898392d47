//! `ferroute diff`: compares the rules in the kernel with the desired state by their effect on packets.

use std::{io::Write, process::ExitCode};

use clap::Args;
use ferroute_config::flags::DesiredArgs;
use ferroute_inspect::{
    about::About,
    desired::Desired,
    diff::{Comparison, Conclusion, compare_settled, compare_with_kernel, write_report_into},
};
use ferroute_proxy::host_setup::require_net_admin;

use super::Output;

/// Arguments of `ferroute diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The desired state.
    #[command(flatten)]
    desired: DesiredArgs,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
    /// Print all differences, not only the first ones of each kind
    #[arg(long)]
    all: bool,
}

/// Prints the differences. The exit status is 0 if there are none, 1 if there are some, 2 if that cannot be determined.
pub(crate) fn run(args: &DiffArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let mut first = Some(Desired::load(&args.desired, verbosity)?);
    require_net_admin()?;
    let load = || first.take().map_or_else(|| Desired::load_again(&args.desired), Ok);
    let (desired, comparison) = compare_settled(load, compare_with_kernel)?;
    let status = match comparison.conclusion {
        Conclusion::Equal => ExitCode::SUCCESS,
        Conclusion::Different => ExitCode::from(1),
        Conclusion::Unclear => ExitCode::from(super::UNCLEAR),
    };
    match write(&desired.about, &comparison, args, out) {
        // The status is valid even if the reader closes the pipe early (`ferroute diff | head`).
        Err(error) if super::is_broken_pipe(&error) => Ok(status),
        written => written.map(|()| status),
    }
}

fn write(about: &About, comparison: &Comparison, args: &DiffArgs, out: &mut impl Write) -> anyhow::Result<()> {
    args.output.write_about(out, about, comparison, |text| {
        let limit = if args.all { 0 } else { PRINTED };
        comparison.reports.iter().try_for_each(|report| write_report_into(text, report, limit))?;
        if comparison.reports.is_empty() {
            text.push_str("no Services, and no rules of a service proxy\n");
        }
        Ok(())
    })?;
    Ok(out.flush()?)
}

/// The maximum number of differences of a kind without `--all`.
const PRINTED: usize = 20;
