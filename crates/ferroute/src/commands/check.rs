//! `ferroute check`: checks manifests for what the proxy would not serve as written.

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::Args;
use ferroute_config::{LogFormat, flags::SettingsArgs};
use ferroute_inspect::check::{check, write_report_into};

use super::Output;

/// Arguments of `ferroute check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Files or directories of manifests, as YAML or JSON
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The settings that the objects are checked for.
    #[command(flatten)]
    settings: SettingsArgs,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// Prints the problems. The exit status is 1 if there are any.
pub(crate) fn run(args: &CheckArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (about, report) = check(&args.files, &args.settings)?;
    // Not before: the warnings of the source and the parser are in the report, with more details.
    ferroute_logging::start_for_command(verbosity, LogFormat::Text);
    args.output.write_about(out, &about, &report, |text| write_report_into(text, &report))?;
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
