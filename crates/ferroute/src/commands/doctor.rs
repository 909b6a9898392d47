//! `ferroute doctor`: diagnoses Service problems on this host.

use std::{io::Write, process::ExitCode};

use clap::Args;
use ferroute_config::{
    flags::DesiredArgs,
    settings::{self, Settings},
};
use ferroute_inspect::{
    desired::Desired,
    doctor::{Diagnosis, Severity, diagnose, has_api_server, read_inputs, write_diagnosis_into},
};
use ferroute_proxy::{logging, modes::REGISTRY};

use super::Output;

/// Arguments of `ferroute doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The desired state. Without a source, outside of a cluster, only the host is examined.
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
    let settings = settings::load(&args.desired.settings, &REGISTRY.names())?;
    let desired = desired(args, &settings, verbosity)?;
    let diagnosis = diagnose(&read_inputs(&args.desired.source, &settings, desired.as_ref(), !args.no_connect));
    args.output.write(out, &diagnosis, |text| write_diagnosis_into(text, &diagnosis))?;
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

/// Loads the desired state, if there is a source. The host is examined even if the API server is unreachable.
fn desired(args: &DoctorArgs, settings: &Settings, verbosity: Option<u32>) -> anyhow::Result<Option<Desired>> {
    if args.desired.source.manifests.is_some() {
        return Desired::load(&args.desired, verbosity).map(Some);
    }
    if !has_api_server(&args.desired.source, settings) {
        logging::start_for_command(verbosity, settings.resolved.logging.format);
        tracing::info!("examining the host only: use --manifests or --kubeconfig to include Services");
        return Ok(None);
    }
    match Desired::load(&args.desired, verbosity) {
        Ok(desired) => Ok(Some(desired)),
        Err(error) => {
            tracing::warn!("examining the host only: {error:#}");
            Ok(None)
        }
    }
}
