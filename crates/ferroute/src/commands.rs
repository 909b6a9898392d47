//! The subcommands: the arguments of each, exactly as typed, beside its execution.

mod bundle;
mod check;
mod crash;
mod demo;
mod diff;
mod doctor;
mod documents;
mod explain;
mod flows;
pub(crate) mod manual;
pub(crate) mod packet_ends;
mod preflight;
mod render;
mod replay;
mod run;
mod status;
mod top;
mod trace;
mod ui;
mod userspace_worker;

use std::{
    ffi::OsString,
    fmt,
    io::{BufWriter, StdoutLock, Write},
    process::{ExitCode, Termination},
};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, builder::PossibleValuesParser};
use ferroute_admin::version;
use ferroute_config::{
    ModeName,
    flags::{DesiredArgs, KubeProxy, RawArgs, RunArgs},
};
use ferroute_core::EscapedLines;
use ferroute_inspect::{about::About, report::Versioned};
use ferroute_modes::{CalledAs, REGISTRY, WORKER_COMMAND};
use serde::Serialize;

pub(crate) use self::{flows::SelectArgs, top::parse_interval, ui::announce};
use crate::kubectl::{self, KubectlArgs};

/// The Kubernetes service proxy: turns a Service's stable address into one of its endpoints.
#[derive(Debug, Parser)]
#[command(name = "ferroute", version = version::LONG, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    command: Command,
    /// Log verbosity: up to 3 for operators, 4 and more for developers
    ///
    /// It replaces the configured verbosity. By default, commands other than run log warnings only.
    #[arg(short = 'v', long = "v", visible_alias = "verbosity", global = true, value_name = "LEVEL")]
    verbosity: Option<u32>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the proxy on this node, with kube-proxy's flags
    #[command(disable_version_flag = true)]
    Run(Box<RawArgs<RunArgs>>),
    /// Print the rules that the proxy would write, without root
    Render(render::RenderArgs),
    /// Check manifests for what the proxy would not serve as written
    ///
    /// Prints everything in the files that `ferroute run --manifests` would skip, ignore, limit or reject, with its line. Before
    /// kubectl apply, expect a line for each Service without spec.clusterIP, which the API server assigns. The exit status is 0 if
    /// there is nothing, 1 if there is something, and 2 if that cannot be determined.
    Check(check::CheckArgs),
    /// Explain how the proxy handles an object, and why
    Explain(explain::ExplainArgs),
    /// Show the state of the proxy that runs on this node
    ///
    /// The exit status is 0 if the proxy is ready or, with --service, if it has applied the versions it has received.
    Status(status::StatusArgs),
    /// Diagnose Service problems on this host and suggest fixes
    Doctor(doctor::DoctorArgs),
    /// List what a switch of modes changes on this node
    Preflight(preflight::PreflightArgs),
    /// Compare the rules in the kernel with the desired state
    ///
    /// The exit status is 0 if they are equivalent, 1 if they differ, and 2 if that cannot be determined.
    Diff(diff::DiffArgs),
    /// Show the busiest Services and their endpoints
    Top(top::TopArgs),
    /// Show connections through Services as they happen
    Flows(Box<flows::FlowsArgs>),
    /// Save the recent syncs of the running proxy to a file
    Bundle(bundle::BundleArgs),
    /// Replay the syncs of a saved bundle on any machine, without root
    Replay(replay::ReplayArgs),
    /// Trace a packet through the rules, rule by rule
    ///
    /// The exit status is 0 if an endpoint receives the packet in all cases, 1 if the packet is or may be rejected, dropped,
    /// unroutable or not addressed to a Service, and 2 if that cannot be determined.
    Trace(Box<trace::TraceArgs>),
    /// Show the node in a browser: Services, paths of packets, syncs
    Ui(Box<ui::UiArgs>),
    /// Inspect all nodes of a cluster, as kubectl ferroute does
    #[command(arg_required_else_help = true)]
    Kubectl(Box<KubectlArgs>),
    /// Run a small cluster in network namespaces on this machine
    Demo(ferroute_demo::DemoArgs),
    /// Print the completion script of a shell
    Completions(documents::CompletionsArgs),
    /// Print the main manual page, or write all pages to a directory
    Man(documents::ManArgs),
    /// Relay connections in userspace mode; started by the proxy
    #[command(hide = true, name = WORKER_COMMAND)]
    UserspaceWorker(userspace_worker::UserspaceWorkerArgs),
    /// Print the names of all Services, for completion scripts
    #[command(hide = true, name = documents::COMPLETE_SERVICES)]
    CompleteServices(Box<DesiredArgs>),
    /// Panic on purpose, to check that crash reports are complete
    #[command(hide = true)]
    Crash(crash::CrashArgs),
}

/// An output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl Output {
    /// Like [`write`](Self::write), with what the value is about: in the first line, or in a field.
    pub(crate) fn write_about(
        self,
        out: &mut impl Write,
        about: &About,
        value: &impl Serialize,
        print: impl FnOnce(&mut String) -> Result<(), fmt::Error>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Text => {
                writeln!(out, "{about}")?;
                self.write(out, value, print)
            }
            Self::Json => write_json(out, &Versioned::new(about, value)),
        }
    }

    /// Writes a value as JSON, or as the text from `print`.
    pub(crate) fn write(
        self,
        out: &mut impl Write,
        value: &impl Serialize,
        print: impl FnOnce(&mut String) -> Result<(), fmt::Error>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Text => {
                let mut text = String::new();
                print(&mut text)?;
                // Names are escaped where they are written; this is for any other text.
                write!(out, "{}", EscapedLines(text))?;
            }
            Self::Json => write_json(out, &Versioned::from(value))?,
        }
        Ok(())
    }
}

fn write_json(out: &mut impl Write, value: &impl Serialize) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    Ok(writeln!(out)?)
}

/// Returns the definition of the command line, where commands that inspect accept the modes of the registry.
///
/// `run` reports an invalid mode as kube-proxy does, with all other errors of the configuration.
fn command() -> clap::Command {
    Cli::command().mut_subcommands(|command| match command.get_name() {
        "run" => command,
        _ => with_modes(command),
    })
}

fn with_modes(command: clap::Command) -> clap::Command {
    let modes = || PossibleValuesParser::new(REGISTRY.names().into_iter().map(ModeName::as_str));
    let is_mode = |flag: &clap::Arg| flag.get_id() == "proxy_mode";
    command.mut_args(|flag| if is_mode(&flag) { flag.value_parser(modes()) } else { flag }).mut_subcommands(with_modes)
}

/// Executes the command line of a program with the name `kube-proxy`. Its exit status for invalid arguments is
/// kube-proxy's, 1 instead of 2.
pub(crate) fn run_kube_proxy() -> anyhow::Result<ExitCode> {
    match KubeProxy::try_parse() {
        Ok(parsed) => {
            ferroute_netlink::tune_allocator();
            run::run(&parsed.run, CalledAs::KubeProxy)
        }
        Err(error) => {
            // Also the help, which is no error. There is no other place for a message that cannot be written.
            let _ = error.print();
            Ok(if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

/// Executes the command line of `ferroute`.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut cli = manual::with_examples(self::command(), "");
    let arguments = with_kind(std::env::args_os().collect());
    let parsed =
        Cli::from_arg_matches_mut(&mut cli.try_get_matches_from_mut(arguments).unwrap_or_else(|error| error.exit()));
    let Cli { command, verbosity } = parsed.unwrap_or_else(|error| error.format(&mut cli).exit());
    // Commands that soon end rather have the time that it costs: an eighth with 100,000 Services.
    if let Command::Run(_) | Command::UserspaceWorker(_) | Command::Ui(_) = command {
        ferroute_netlink::tune_allocator();
    }
    match &command {
        Command::Run(args) => run::run(args, CalledAs::Ferroute),
        Command::Render(args) => to_stdout(|out| render::run(args, verbosity, out)),
        Command::Check(args) => Ok(or_unclear(to_stdout(|out| check::run(args, verbosity, out)))),
        Command::Explain(args) => to_stdout(|out| explain::run(args, verbosity, out)),
        Command::Trace(args) => Ok(or_unclear(to_stdout(|out| trace::run(args, verbosity, out)))),
        Command::Status(args) => Ok(or_unclear(to_stdout(|out| status::run(args, out)))),
        Command::Doctor(args) => Ok(or_unclear(to_stdout(|out| doctor::run(args, verbosity, out)))),
        Command::Preflight(args) => to_stdout(|out| preflight::run(args, verbosity, out)),
        Command::Diff(args) => Ok(or_unclear(to_stdout(|out| diff::run(args, verbosity, out)))),
        Command::Top(args) => top::run(args).map(|()| ExitCode::SUCCESS),
        Command::Flows(args) => to_stdout(|out| flows::run(args, verbosity, out)),
        Command::Bundle(args) => bundle::run(args).map(|()| ExitCode::SUCCESS),
        Command::Replay(args) => Ok(or_unclear(to_stdout(|out| replay::run(args, out)))),
        Command::Ui(args) => ui::run(args, verbosity).map(|()| ExitCode::SUCCESS),
        Command::Kubectl(args) => Ok(kubectl::run(args, verbosity)),
        Command::Demo(args) => demo::run(args),
        Command::Completions(args) => to_stdout(|out| documents::completions(args, out)),
        Command::Man(args) => to_stdout(|out| documents::man(args, out)),
        Command::UserspaceWorker(args) => userspace_worker::run(args, verbosity).map(|()| ExitCode::SUCCESS),
        Command::CompleteServices(args) => to_stdout(|out| documents::complete_services(args, out)),
        Command::Crash(args) => crash::run(args),
    }
}

/// Inserts the kind of object into `explain shop/web`, as in the plugin of kubectl, which explains nothing but Services.
fn with_kind(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let word = |at: usize| arguments.get(at).and_then(|word| word.to_str()).unwrap_or_default();
    let object = word(2);
    let is_kind = ["service", "svc", "help"].contains(&object);
    if word(1) == "explain" && !object.is_empty() && !object.starts_with('-') && !is_kind {
        arguments.insert(2, "service".into());
    }
    arguments
}

/// Prints an error and returns `status`.
pub(crate) fn report(error: &anyhow::Error, status: ExitCode) -> ExitCode {
    ferroute_logging::print_error(error);
    status
}

/// Returns the exit status of a command that answers yes or no. An error is neither.
fn or_unclear(answer: anyhow::Result<ExitCode>) -> ExitCode {
    answer.unwrap_or_else(|error| report(&error, ExitCode::from(UNCLEAR)))
}

/// Prints to standard output. A closed pipe (`ferroute render | head`) is not an error.
pub(crate) fn to_stdout<T: Termination>(
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

/// The exit status of a yes-or-no command without an answer.
pub(crate) const UNCLEAR: u8 = 2;

#[cfg(test)]
mod deploy_tests;
#[cfg(test)]
mod examples_tests;
#[cfg(test)]
mod forge_tests;
#[cfg(test)]
mod named_tests;
#[cfg(test)]
mod pages_tests;
#[cfg(test)]
mod tests {
    use ferroute_config::KubeProxyConfiguration;

    use super::*;

    #[test]
    fn names_of_commands_and_flags_are_unique() {
        command().debug_assert();
    }

    #[test]
    fn service_is_explained_without_its_kind() {
        for (arguments, expected) in [
            (&["explain", "svc/web", "-n", "shop"][..], &["explain", "service", "svc/web", "-n", "shop"][..]),
            (&["explain", "web"], &["explain", "service", "web"]),
            (&["explain", "service", "web"], &["explain", "service", "web"]),
            (&["explain", "svc", "web"], &["explain", "svc", "web"]),
            (&["explain", "--help"], &["explain", "--help"]),
            (&["explain"], &["explain"]),
            (&["trace", "web"], &["trace", "web"]),
        ] {
            let words = |arguments: &[&str]| ["ferroute"].iter().chain(arguments).map(OsString::from).collect();
            assert_eq!(with_kind(words(arguments)), words(expected));
        }
    }

    #[test]
    fn every_command_and_flag_has_one_short_line_of_help() {
        #[track_caller]
        fn check(name: &str, help: &str) {
            assert!((10..70).contains(&help.len()) && !help.ends_with('.') && !help.contains('\n'), "{name}: {help:?}");
        }
        fn check_command(command: &clap::Command) {
            for flag in command.get_arguments().filter(|flag| !command.is_hide_set() && !flag.is_hide_set()) {
                check(flag.get_id().as_str(), &flag.get_help().unwrap_or_default().to_string());
            }
            for subcommand in command.get_subcommands() {
                check(subcommand.get_name(), &subcommand.get_about().unwrap_or_default().to_string());
                check_command(subcommand);
            }
        }
        check_command(&command());
    }

    #[test]
    fn commands_that_inspect_accept_the_modes_of_the_registry() {
        let parse = |arguments: &[&str], mode| {
            command().try_get_matches_from([&["ferroute"], arguments, &["--proxy-mode", mode]].concat())
        };
        let commands: [&[&str]; 11] = [
            &["check", "a.yaml"],
            &["render"],
            &["explain", "service", "shop/web"],
            &["trace", "--from", "a", "--to", "b"],
            &["diff"],
            &["preflight"],
            &["doctor"],
            &["flows"],
            &["ui"],
            &["demo"],
            &["demo", "up"],
        ];
        for arguments in commands {
            for mode in REGISTRY.names() {
                parse(arguments, mode.as_str()).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
            }
            let error = parse(arguments, "no-such-mode").expect_err("an unknown mode");
            assert_eq!((error.kind(), error.exit_code()), (clap::error::ErrorKind::InvalidValue, 2), "{arguments:?}");
        }
        // It is an error of the configuration there.
        assert!(parse(&["run"], "no-such-mode").is_ok());
    }

    #[test]
    fn verbosity_may_precede_the_subcommand() {
        for line in [["ferroute", "-v=3", "run"], ["ferroute", "run", "-v=3"]] {
            let Command::Run(run) = Cli::parse_from(line).command else { panic!("not the command run") };
            let mut config = KubeProxyConfiguration::default();
            run.args.proxy.logging.merge_given_into(&run.flags, &mut config.logging);
            assert_eq!(config.logging.verbosity, 3, "{line:?}");
        }
    }
}
