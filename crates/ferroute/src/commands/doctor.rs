//! `ferroute doctor`: diagnoses Service problems on this host.

use std::{io::Write, process::ExitCode};

use clap::Args;
use ferroute_config::flags::DesiredArgs;
use ferroute_inspect::{
    desired::Desired,
    doctor::{Diagnosis, Severity, diagnose, read_inputs, write_diagnosis_into},
};

use super::Output;

/// Arguments of `ferroute doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The desired state. Without a proxy and a source, outside of a cluster, only the host is examined.
    #[command(flatten)]
    desired: DesiredArgs,
    /// Do not connect to endpoints
    #[arg(long)]
    no_connect: bool,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// Examines the host and prints the findings. The exit status is 1 if there are findings worse than notes, otherwise 2 if
/// a check was impossible, otherwise 0.
pub(crate) fn run(args: &DoctorArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let mut desired = Desired::load_for_host(&args.desired, verbosity)?;
    desired.complete();
    let diagnosis = diagnose(&read_inputs(&desired, !args.no_connect));
    args.output.write_about(out, &desired.about, &diagnosis, |text| write_diagnosis_into(text, &diagnosis))?;
    Ok(status(&diagnosis))
}

fn status(diagnosis: &Diagnosis) -> ExitCode {
    let bad = diagnosis.findings.iter().any(|finding| finding.severity < Severity::Note);
    match (bad, diagnosis.unknown.is_empty()) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(super::UNCLEAR),
    }
}
