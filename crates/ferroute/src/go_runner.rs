//! The program in kube-proxy's image that writes another program's output to a log file: `/go-runner`.
//!
//! kOps starts kube-proxy with it: `/go-runner --log-file=/var/log/kube-proxy.log --also-stdout
//! /usr/local/bin/kube-proxy …`. Images of Ferroute have a link with this name. Flags, output and signals are as in
//! Kubernetes' `kube-log-runner` (component-base/logs/kube-log-runner); unlike there, the exit status is that of the
//! program, every signal is forwarded, a log file that cannot be written does not end the program, and times in the
//! names of renamed files are in UTC.

mod arguments;
mod log_file;
mod output;

use std::{
    io::Write as _,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitCode, ExitStatus},
};

use anyhow::Context;
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use signal_hook::iterator::Signals;

use self::{arguments::Arguments, output::Output};

/// Executes the command line of a program with the name `go-runner`.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let Arguments { options, program, arguments } = Arguments::parse(std::env::args_os().skip(1))?;
    // Must come first: an earlier signal would end only this process. The program does not inherit handlers, as it would
    // inherit blocked signals.
    let signals = FORWARDED.into_iter().chain([Signal::SIGCHLD]).map(|signal| signal as i32);
    let mut signals = Signals::new(signals).context("cannot handle signals")?;
    let mut command = Command::new(&program);
    command.args(arguments);
    let output = Output::of(&options, &mut command)?;
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    // It holds the other end of the pipe, so that the end of its output would not be detected.
    drop(command);
    let status =
        supervise(&mut child, &mut signals).with_context(|| format!("cannot wait for {}", program.display()))?;
    output.finish();
    Ok(exit_code(status))
}

/// Forwards signals to the child until it ends. It cannot be confused with another process, because only this thread waits for it.
fn supervise(child: &mut Child, signals: &mut Signals) -> anyhow::Result<ExitStatus> {
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        for signal in signals.wait() {
            match Signal::try_from(signal)? {
                Signal::SIGCHLD => {}
                signal => match kill(pid, signal) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(error) => report(&format!("cannot send {signal} to process {pid}: {error}")),
                },
            }
        }
    }
}

/// Returns the exit status of the child or, as shells do, 128 plus the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Prints a message to standard error, unless that is not possible.
fn report(message: &str) {
    let _ = writeln!(std::io::stderr(), "go-runner: {message}");
}

const FORWARDED: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
