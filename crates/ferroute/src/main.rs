//! The Kubernetes service proxy.
//!
//! This crate alone sees all the others: it reads the command line and the configuration, puts a source, the sync loop,
//! a dataplane and the health servers together, and holds no rule's details.

mod bundle;
mod cleanup;
mod cli;
mod config_watch;
mod demo;
#[cfg(test)]
mod deploy;
mod desired;
mod diff;
mod doctor;
mod documents;
mod events;
mod explain;
mod feed;
mod firewalld;
mod flows;
mod gate;
mod health;
mod kernel_settings;
mod logging;
mod metrics;
mod node_wait;
mod observer;
mod planes;
mod preflight;
mod proxy;
mod recording;
mod render;
mod replay;
mod run;
mod serving;
mod settings;
mod status;
mod sync;
mod top;
mod trace;
mod version;

use std::{
    io::{BufWriter, StdoutLock, Write},
    path::Path,
    process::{ExitCode, Termination},
};

use clap::Parser;

use self::{
    cli::{Cli, Command, KubeProxy},
    planes::CalledAs,
};

fn main() -> ExitCode {
    ferroute_netlink::keep_little_memory();
    let result = if is_called_kube_proxy() {
        proxy::run(&KubeProxy::parse().run, CalledAs::KubeProxy)
    } else {
        dispatch(&Cli::parse())
    };
    result.unwrap_or_else(|error| tell(&error, ExitCode::FAILURE))
}

/// Tells of an error that ends the program with this status.
fn tell(error: &anyhow::Error, status: ExitCode) -> ExitCode {
    // Standard error may be closed; there is nobody else to tell.
    let _ = writeln!(std::io::stderr(), "ferroute: {error:#}");
    status
}

/// The end of a command that answers yes or no with its status: an error is neither.
fn or_could_not_tell(answer: anyhow::Result<ExitCode>) -> ExitCode {
    answer.unwrap_or_else(|error| tell(&error, ExitCode::from(COULD_NOT_TELL)))
}

fn dispatch(cli: &Cli) -> anyhow::Result<ExitCode> {
    match &cli.command {
        Command::Run(args) => proxy::run(args, CalledAs::Ferroute),
        Command::Render(args) => to_stdout(|out| render::render(args, cli.verbosity, out)),
        Command::Explain(args) => to_stdout(|out| explain::run(args, cli.verbosity, out)),
        Command::Trace(args) => Ok(or_could_not_tell(to_stdout(|out| trace::run(args, cli.verbosity, out)))),
        Command::Doctor(args) => Ok(or_could_not_tell(to_stdout(|out| doctor::run(args, cli.verbosity, out)))),
        Command::Preflight(args) => to_stdout(|out| preflight::run(args, cli.verbosity, out)),
        Command::Diff(args) => Ok(or_could_not_tell(to_stdout(|out| diff::run(args, cli.verbosity, out)))),
        Command::Top(args) => top::run(args).map(|()| ExitCode::SUCCESS),
        Command::Bundle(args) => bundle::run(args).map(|()| ExitCode::SUCCESS),
        Command::Replay(args) => Ok(or_could_not_tell(to_stdout(|out| replay::run(args, out).map(ExitCode::from)))),
        Command::Demo(args) => demo::run(args),
        Command::Completions(args) => to_stdout(|out| documents::completions(args, out)),
        Command::Man(args) => to_stdout(|out| documents::man(args, out)),
    }
}

/// Under this name, which a link gives, the whole command line is kube-proxy's.
fn is_called_kube_proxy() -> bool {
    let program = std::env::args_os().next().unwrap_or_default();
    Path::new(&program).file_name().is_some_and(|name| name == "kube-proxy")
}

/// A reader that has seen enough (`ferroute render … | head`) is no failure.
fn to_stdout<T: Termination>(
    print: impl FnOnce(&mut BufWriter<StdoutLock<'_>>) -> anyhow::Result<T>,
) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    match print(&mut out).and_then(|status| Ok(out.flush().map(|()| status)?)) {
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        status => status.map(Termination::report),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Status of a command that compares, when it cannot.
const COULD_NOT_TELL: u8 = 2;
