//! `ferroute crash`: panics on purpose, so that the crash report of the released program can be tested.

use std::{process::ExitCode, thread};

use anyhow::anyhow;
use clap::Args;
use ferroute_config::LogFormat;

/// The arguments.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct CrashArgs {
    /// Write log lines in JSON
    #[arg(long)]
    json: bool,
}

/// Panics in a thread, with the log of the daemon.
pub(crate) fn run(args: &CrashArgs) -> anyhow::Result<ExitCode> {
    ferroute_logging::start(0, if args.json { LogFormat::Json } else { LogFormat::Text });
    let thread = thread::Builder::new().name("crash".to_owned()).spawn(panic_on_purpose)?;
    // Builds for development return from a panic.
    thread.join().map_err(|_| anyhow!("the thread panicked"))
}

#[inline(never)]
fn panic_on_purpose() -> ExitCode {
    panic!("requested by the command line")
}
