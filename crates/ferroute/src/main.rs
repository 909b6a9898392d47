//! The Kubernetes service proxy: the command line.
//!
//! Each subcommand has one file, which holds its arguments and calls the library that does the work: `ferroute-proxy` for
//! the daemon, `ferroute-inspect` for commands that read only.

mod commands;
mod go_runner;
mod kubectl;

use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let result = match program_name().as_str() {
        "go-runner" => go_runner::run(),
        "kube-proxy" => commands::run_kube_proxy(),
        "kubectl-ferroute" => kubectl::run_plugin(),
        "kubectl_complete-ferroute" => kubectl::complete_plugin(),
        _ => commands::run(),
    };
    let status = result.unwrap_or_else(|error| commands::report(&error, ExitCode::FAILURE));
    ferroute_logging::flush(ferroute_logging::EXIT_FLUSH);
    status
}

/// Returns the name by which the program was called. If it is the name of a link, the whole command line belongs to
/// another program: `kube-proxy`, the program that starts it in some clusters, or a plugin of kubectl, which finds
/// plugins and their completions by name.
fn program_name() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned()
}
