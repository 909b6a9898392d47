//! `ferroute demo`: its arguments, and what each of its commands does.

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    net::IpAddr,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use nix::{sys::signal::Signal, unistd::Uid};

use crate::{
    instance::Instance,
    keeper::{self, Health, ProxyMode, Task},
    layout::{LAN, NodeId, OUTSIDE},
    net::{self, Namespace, check_programs, search_path},
    overview,
    pod::{self, Listen},
    session::Session,
    state::{StateDirectory, Status},
    story::{self, PathTeller},
    text::Style,
};

/// Arguments of `ferroute demo`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    #[command(subcommand)]
    command: Option<DemoCommand>,
    #[command(flatten)]
    story: StoryArgs,
    /// Another demo than the machine's one; for tests
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    instance: Option<Instance>,
}

/// Arguments of `ferroute demo` without a command: it plays a story.
#[derive(Args, Clone, Debug)]
struct StoryArgs {
    /// Deployments, Pods and Services to bring to life, in place of the example with nginx
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Connections of each kind, at least; there are always enough to tell whether every pod gets its share
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    connections: usize,
    #[command(flatten)]
    mode: ModeArgs,
}

/// How the proxies write rules.
#[derive(Args, Clone, Copy, Debug)]
struct ModeArgs {
    /// How the proxies write rules
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    proxy_mode: ProxyMode,
}

#[derive(Clone, Debug, Subcommand)]
enum DemoCommand {
    /// Bring the cluster up and leave it up; edit the file, and the cluster follows
    Up {
        /// Deployments, Pods and Services, in place of the example with nginx
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        mode: ModeArgs,
    },
    /// Run a command in a pod or on a machine: POD, node, node2 or outside
    Exec {
        /// Where
        #[arg(value_name = "POD")]
        machine: String,
        /// What; without it, a shell
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Show pods, addresses, Services, and how the proxies are
    Status,
    /// Take the cluster down, and remove what a demo that crashed has left behind
    Down,
    /// Hold a cluster together; started by the other commands
    #[command(hide = true)]
    Keeper {
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        mode: ModeArgs,
    },
    /// Be a pod; started by the keeper
    #[command(hide = true)]
    Pod {
        name: String,
        #[arg(long, value_name = "ADDRESS")]
        address: Vec<IpAddr>,
        #[arg(long, value_name = "PORT/PROTOCOL")]
        listen: Vec<Listen>,
    },
}

/// Does what `ferroute demo` was asked for. `teller` knows the way of a connection through the rules.
///
/// Needs to be called from a thread that is in no async runtime, and from a program whose `demo` and `run` commands are
/// those of Ferroute, because the demo starts pods and proxies as processes of the same program.
///
/// # Errors
///
/// Everything that keeps a command from being carried out. That connections of the story failed is no error but an exit
/// code.
pub fn run(args: DemoArgs, teller: &dyn PathTeller) -> anyhow::Result<ExitCode> {
    let DemoArgs { command, story, instance } = args;
    let instance = instance.unwrap_or_default();
    // Being a pod is the one thing that takes no root: it only opens ports.
    if !matches!(command, Some(DemoCommand::Pod { .. })) && !Uid::effective().is_root() {
        bail!("the demo makes network namespaces, and that takes root: call it with sudo");
    }
    match command {
        None => {
            check_programs()?;
            let task = Task::new(instance, story.file.as_deref(), story.mode.proxy_mode)?;
            story::play(&task, story.connections, teller, style(), &mut io::stdout())
        }
        Some(DemoCommand::Up { file, mode }) => {
            check_programs()?;
            up(&Task::new(instance, file.as_deref(), mode.proxy_mode)?)
        }
        Some(DemoCommand::Exec { machine, command }) => exec(&instance, &machine, &command),
        Some(DemoCommand::Status) => status(&instance),
        Some(DemoCommand::Down) => down(&instance),
        Some(DemoCommand::Keeper { file, mode }) => {
            Ok(keeper::run(&Task::new(instance, file.as_deref(), mode.proxy_mode)?))
        }
        Some(DemoCommand::Pod { name, address, listen }) => {
            Ok(pod::run(&name, &address, &listen).map(|()| ExitCode::SUCCESS)?)
        }
    }
}

fn up(task: &Task) -> anyhow::Result<ExitCode> {
    let style = style();
    let session = Session::start(task, |step| _ = writeln!(io::stderr(), "{}", style.dim(&format!("… {step}"))))?;
    let status = StateDirectory::of(&task.instance).read_status()?;
    session.keep()?;
    print(&overview::all(&status, &[], style))
}

fn exec(instance: &Instance, machine: &str, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let status = current_status(instance)?;
    let namespace = namespace(instance, &status, machine)?;
    let (program, arguments) = match command.split_first() {
        Some((program, arguments)) => (program.clone(), arguments),
        None => (std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()), &[][..]),
    };
    let mut command = Command::new(&program);
    command.args(arguments).env("PATH", search_path());
    // The command takes this process's place, with its terminal and its exit status.
    let error = namespace.run_as_machine(machine, || command.exec())?;
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

fn status(instance: &Instance) -> anyhow::Result<ExitCode> {
    let status = current_status(instance)?;
    let healthy = NodeId::ALL.map(|node| (node, Health::ask(instance, node).is_some_and(|health| health.healthy)));
    print(&overview::all(&status, &healthy, style()))
}

fn down(instance: &Instance) -> anyhow::Result<ExitCode> {
    let directory = StateDirectory::of(instance);
    let owner = directory.current_owner()?;
    if let Some(owner) = &owner {
        owner.keeper.signal(Signal::SIGTERM).context("cannot stop the demo's keeper")?;
        if !owner.keeper.wait(PATIENCE) {
            owner.keeper.signal(Signal::SIGKILL).context("cannot end the demo's keeper")?;
            owner.keeper.wait(PATIENCE);
        }
    }
    let left = keeper::remove_leftovers(instance)?;
    print(match (owner, left) {
        (Some(_), _) => "the demo is down\n",
        (None, true) => "removed what an earlier demo had left behind\n",
        (None, false) => "no demo is up\n",
    })
}

fn current_status(instance: &Instance) -> anyhow::Result<Status> {
    let directory = StateDirectory::of(instance);
    match directory.current_owner()? {
        Some(_) => directory.read_status().context("the demo is on its way up or down"),
        None => bail!("no demo is up (ferroute demo up brings one up)"),
    }
}

fn namespace(instance: &Instance, status: &Status, machine: &str) -> anyhow::Result<Namespace> {
    if NodeId::from_name(machine).is_some() || [OUTSIDE, LAN].contains(&machine) {
        return Ok(Namespace::named(instance.namespace(machine)));
    }
    let pods = &status.plan.pods;
    match pods.iter().find(|pod| pod.short_name() == machine) {
        Some(pod) => Ok(net::pod_namespace(instance, pod)),
        None => {
            let names = pods.iter().map(|pod| pod.short_name()).collect::<Vec<_>>().join(", ");
            bail!("there is no {machine:?} (there are node, node2, outside, {names})")
        }
    }
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn style() -> Style {
    let wants_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if io::stdout().is_terminal() && wants_colour { Style::Terminal } else { Style::Plain }
}

/// How long a keeper may take to take everything down.
const PATIENCE: Duration = Duration::from_secs(15);
