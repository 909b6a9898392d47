//! The Kubernetes service proxy: the command line.
//!
//! Each subcommand has one file, which holds its arguments and calls the library that does the work: `ferroute-proxy` for
//! the daemon, `ferroute-inspect` for commands that read only.

mod commands;

use std::{path::Path, process::ExitCode};

use ferroute_proxy::logging;

fn main() -> ExitCode {
    ferroute_netlink::tune_allocator();
    let result = if is_called_kube_proxy() { commands::run_kube_proxy() } else { commands::run() };
    let status = result.unwrap_or_else(|error| commands::report(&error, ExitCode::FAILURE));
    logging::flush(logging::EXIT_FLUSH);
    status
}

/// Reports whether the program was called by the name `kube-proxy`, such as by a link: then the whole command line is
/// kube-proxy's.
fn is_called_kube_proxy() -> bool {
    let program = std::env::args_os().next().unwrap_or_default();
    Path::new(&program).file_name().is_some_and(|name| name == "kube-proxy")
}
