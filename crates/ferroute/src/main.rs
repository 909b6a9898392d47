//! The Kubernetes service proxy.
//!
//! This crate alone sees all the others: it reads the command line and the configuration, puts a source, the sync loop,
//! a dataplane and the health servers together, and holds no rule's details.

mod cli;
mod demo;
#[allow(dead_code, reason = "the commands that explain take more of it than render does")]
mod desired;
mod feed;
mod flows;
mod health;
mod logging;
mod observer;
mod planes;
mod render;
mod run;
mod settings;
mod sync;

use std::{io::Write, process::ExitCode};

use clap::Parser;

use self::{
    cli::{Cli, Command},
    planes::CalledAs,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Run(args) => {
            let called_as = CalledAs::of_program(std::env::args_os().next().as_deref());
            run::run(args, called_as, cli.verbosity).map(|()| ExitCode::SUCCESS)
        }
        Command::Render(args) => render_to_stdout(args, cli.verbosity).map(|()| ExitCode::SUCCESS),
        Command::Demo(args) => demo::run(args),
    };
    result.unwrap_or_else(|error| {
        // Standard error may be closed; there is nobody else to tell.
        let _ = writeln!(std::io::stderr(), "ferroute: {error:#}");
        ExitCode::FAILURE
    })
}

/// A reader that has seen enough (`ferroute render … | head`) is no failure.
fn render_to_stdout(args: &cli::RenderArgs, verbosity: Option<u32>) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let rendered = render::render(args, verbosity, &mut out).and_then(|()| Ok(out.flush()?));
    match rendered {
        Err(error) if is_broken_pipe(&error) => Ok(()),
        result => result,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
