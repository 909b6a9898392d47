//! The subcommands: the arguments of each, exactly as typed, beside its execution.

mod bundle;
mod demo;
mod diff;
mod doctor;
mod documents;
mod explain;
mod preflight;
mod render;
mod replay;
mod run;
mod top;
mod trace;

use std::{
    fmt,
    io::{BufWriter, StdoutLock, Write},
    process::{ExitCode, Termination},
};

use clap::{Parser, Subcommand, ValueEnum};
use ferroute_admin::version;
use ferroute_config::flags::{KubeProxy, RunArgs, RawArgs};
use ferroute_proxy::modes::CalledAs;
use serde::Serialize;

/// The Kubernetes service proxy: turns a Service's stable address into one of its endpoints.
#[derive(Debug, Parser)]
#[command(name = "ferroute", version = version::LONG, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: Command,
    /// Log verbosity, in place of the configured one: 2 adds every sync, 4 every event
    #[arg(short = 'v', long = "v", visible_alias = "verbosity", global = true, value_name = "LEVEL")]
    verbosity: Option<u32>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the proxy on this node
    #[command(disable_version_flag = true)]
    Run(Box<RawArgs<RunArgs>>),
    /// Print the rules that the proxy would write, without root
    Render(render::RenderArgs),
    /// Explain how the proxy handles an object, and why
    Explain(explain::ExplainArgs),
    /// Diagnose Service problems on this host and suggest fixes
    Doctor(doctor::DoctorArgs),
    /// List what a switch of modes changes on this node
    Preflight(preflight::PreflightArgs),
    /// Compare the kernel's rules with the desired state
    ///
    /// The exit status is 0 if they are equal, 1 if they differ, 2 if that is unclear.
    Diff(diff::DiffArgs),
    /// Show the busiest Services and their endpoints
    Top(top::TopArgs),
    /// Save the recent syncs of the running proxy for later analysis
    Bundle(bundle::BundleArgs),
    /// Repeat the decisions of a saved bundle, without root
    Replay(replay::ReplayArgs),
    /// Show what happens to a packet, rule by rule, and why
    Trace(Box<trace::TraceArgs>),
    /// Run a small cluster of network namespaces on this machine
    Demo(ferroute_demo::DemoArgs),
    /// Print the completion script of a shell
    Completions(documents::CompletionsArgs),
    /// Print the manual page, or write all pages to a directory
    Man(documents::ManArgs),
}

/// An output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl Output {
    /// Writes a value as JSON, or as the text that `print` makes of it.
    fn write(
        self,
        out: &mut impl Write,
        value: &impl Serialize,
        print: impl FnOnce(&mut String) -> Result<(), fmt::Error>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Text => {
                let mut text = String::new();
                print(&mut text)?;
                out.write_all(text.as_bytes())?;
            }
            Self::Json => {
                serde_json::to_writer_pretty(&mut *out, value)?;
                writeln!(out)?;
            }
        }
        Ok(())
    }
}

/// Runs what `kube-proxy` was called for.
pub(crate) fn run_kube_proxy() -> anyhow::Result<ExitCode> {
    run::run(&KubeProxy::parse().run, CalledAs::KubeProxy)
}

/// Runs what `ferroute` was called for.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let Cli { command, verbosity } = Cli::parse();
    match &command {
        Command::Run(args) => run::run(args, CalledAs::Ferroute),
        Command::Render(args) => to_stdout(|out| render::run(args, verbosity, out)),
        Command::Explain(args) => to_stdout(|out| explain::run(args, verbosity, out)),
        Command::Trace(args) => Ok(or_unclear(to_stdout(|out| trace::run(args, verbosity, out)))),
        Command::Doctor(args) => Ok(or_unclear(to_stdout(|out| doctor::run(args, verbosity, out)))),
        Command::Preflight(args) => to_stdout(|out| preflight::run(args, verbosity, out)),
        Command::Diff(args) => Ok(or_unclear(to_stdout(|out| diff::run(args, verbosity, out)))),
        Command::Top(args) => top::run(args).map(|()| ExitCode::SUCCESS),
        Command::Bundle(args) => bundle::run(args).map(|()| ExitCode::SUCCESS),
        Command::Replay(args) => Ok(or_unclear(to_stdout(|out| replay::run(args, out)))),
        Command::Demo(args) => demo::run(args),
        Command::Completions(args) => to_stdout(|out| documents::completions(args, out)),
        Command::Man(args) => to_stdout(|out| documents::man(args, out)),
    }
}

/// Prints an error that ends the program with this status.
pub(crate) fn report(error: &anyhow::Error, status: ExitCode) -> ExitCode {
    // Standard error may be closed, and there is no other place to report to.
    let _ = writeln!(std::io::stderr(), "ferroute: {error:#}");
    status
}

/// The status of a command that answers yes or no: an error is neither.
fn or_unclear(answer: anyhow::Result<ExitCode>) -> ExitCode {
    answer.unwrap_or_else(|error| report(&error, ExitCode::from(UNCLEAR)))
}

/// Prints to standard output. A reader that closes the pipe early (`ferroute render | head`) is no failure.
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

/// The exit status of a command that answers yes or no, if it cannot.
const UNCLEAR: u8 = 2;

#[cfg(test)]
mod deploy_tests;
#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use ferroute_config::KubeProxyConfiguration;

    use super::*;

    #[test]
    fn names_of_commands_and_flags_are_unique() {
        Cli::command().debug_assert();
    }

    #[test]
    fn verbosity_may_precede_the_subcommand() {
        for line in [["ferroute", "-v=3", "run"], ["ferroute", "run", "-v=3"]] {
            let Command::Run(run) = Cli::parse_from(line).command else { panic!("not run") };
            let mut config = KubeProxyConfiguration::default();
            run.args.proxy.logging.merge_given_into(&run.flags, &mut config.logging);
            assert_eq!(config.logging.verbosity, 3, "{line:?}");
        }
    }
}
