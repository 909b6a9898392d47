//! The arguments and commands of `ferroute demo`.

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    net::{IpAddr, SocketAddr},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use ferroute_core::Style;
use nix::{sys::signal::Signal, unistd::Uid};

use crate::{
    cluster::Cluster,
    instance::Instance,
    layout::{LAN, NodeId, OUTSIDE},
    net::{self, Namespace, check_programs},
    overview,
    pod::{self, Listen},
    session::Session,
    state::{StateDirectory, Status},
    supervisor::{self, ClusterSpec, Health, resolver_configuration},
    tour::{self, TracePath},
};

/// Arguments of `ferroute demo`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    #[command(subcommand)]
    command: Option<DemoCommand>,
    #[command(flatten)]
    tour: TourArgs,
    /// Name of a separate demo, for tests
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    instance: Option<Instance>,
}

/// Arguments of `ferroute demo` without a subcommand: the guided tour.
#[derive(Args, Clone, Debug)]
struct TourArgs {
    /// YAML file with Deployments, Pods and Services; by default, nginx
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Minimum number of connections to each address
    ///
    /// The tour makes more connections where that many do not reach every pod.
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    connections: usize,
    #[command(flatten)]
    mode: ModeArgs,
    /// Show the cluster in a browser instead, until this command ends
    #[arg(long)]
    ui: bool,
    /// Address and port of the page
    #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_LISTEN, requires = "ui")]
    listen: SocketAddr,
}

/// The default address of the page in the browser.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8249";

/// Serves the page of a cluster at an address, until the process ends.
pub type PageServer<'a> = &'a dyn Fn(Cluster, SocketAddr) -> anyhow::Result<()>;

/// The proxy mode of the nodes.
#[derive(Args, Clone, Debug)]
struct ModeArgs {
    /// Proxy mode of the nodes
    #[arg(long, value_name = "MODE", default_value = "iptables")]
    proxy_mode: String,
}

impl ModeArgs {
    /// Returns the mode, which must be one of `modes`.
    fn checked(self, modes: &[&str]) -> anyhow::Result<String> {
        let Self { proxy_mode } = self;
        ensure!(
            modes.contains(&proxy_mode.as_str()),
            "invalid --proxy-mode {proxy_mode}: must be {}",
            modes.join(" or ")
        );
        Ok(proxy_mode)
    }
}

#[derive(Clone, Debug, Subcommand)]
enum DemoCommand {
    /// Create the cluster, keep it running and apply edits of the file
    Up {
        /// YAML file with Deployments, Pods and Services; by default, nginx
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        mode: ModeArgs,
    },
    /// Run a command in a pod or on a machine
    Exec {
        /// Name of a pod, or one of the machines node, node2 and outside
        #[arg(value_name = "POD")]
        machine: String,
        /// Command to run; by default, a shell
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Show the cluster of `ferroute demo up` in a browser
    Ui {
        /// Address and port of the page
        #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_LISTEN)]
        listen: SocketAddr,
    },
    /// Show pods, addresses, Services and proxies
    Status,
    /// Remove the cluster, or the leftovers of a demo that crashed
    Down,
    /// Create and supervise a cluster; started by the other commands
    #[command(hide = true)]
    Supervisor {
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        mode: ModeArgs,
    },
    /// Run a pod; started by the supervisor
    #[command(hide = true)]
    Pod {
        name: String,
        #[arg(long, value_name = "ADDRESS")]
        address: Vec<IpAddr>,
        #[arg(long, value_name = "PORT/PROTOCOL")]
        listen: Vec<Listen>,
    },
}

/// Runs `ferroute demo`. `trace_path` describes the path of a connection through the rules, and `serve_page` shows the cluster
/// in a browser.
///
/// Must be called outside of an async runtime, from a program with Ferroute's `demo` and `run` commands: the demo starts
/// pods and proxies as processes of the same program.
///
/// # Errors
///
/// If the command fails. Failed connections of the tour are reported by the exit code instead.
pub fn run(
    args: DemoArgs,
    modes: &[&str],
    trace_path: TracePath<'_>,
    serve_page: PageServer<'_>,
) -> anyhow::Result<ExitCode> {
    let DemoArgs { command, tour, instance } = args;
    let instance = instance.unwrap_or_default();
    // Only pods run without root: they just open ports.
    if !matches!(command, Some(DemoCommand::Pod { .. })) && !Uid::effective().is_root() {
        bail!("the demo requires root to create network namespaces: run it with sudo");
    }
    match command {
        None => {
            check_programs()?;
            let spec = ClusterSpec::new(instance, tour.file.as_deref(), tour.mode.checked(modes)?)?;
            if tour.ui {
                let cluster = Cluster::start(spec, |step| print_step(step, style()))?;
                return serve_page(cluster, tour.listen).map(|()| ExitCode::SUCCESS);
            }
            tour::run(&spec, tour.connections, trace_path, style(), &mut io::stdout())
        }
        Some(DemoCommand::Up { file, mode }) => {
            check_programs()?;
            up(&ClusterSpec::new(instance, file.as_deref(), mode.checked(modes)?)?)
        }
        Some(DemoCommand::Exec { machine, command }) => exec(&instance, &machine, &command),
        Some(DemoCommand::Ui { listen }) => {
            current_status(&instance)?;
            serve_page(Cluster::attach(instance), listen).map(|()| ExitCode::SUCCESS)
        }
        Some(DemoCommand::Status) => status(&instance),
        Some(DemoCommand::Down) => down(&instance),
        Some(DemoCommand::Supervisor { file, mode }) => {
            Ok(supervisor::run(&ClusterSpec::new(instance, file.as_deref(), mode.checked(modes)?)?))
        }
        Some(DemoCommand::Pod { name, address, listen }) => {
            Ok(pod::run(&name, &address, &listen).map(|()| ExitCode::SUCCESS)?)
        }
    }
}

fn up(spec: &ClusterSpec) -> anyhow::Result<ExitCode> {
    let style = style();
    let session = Session::start(spec, |step| print_step(step, style))?;
    let status = StateDirectory::new(&spec.instance).read_status()?;
    session.detach()?;
    print(&overview::all(&status, &[], style))
}

/// Prints a step of the cluster's creation.
pub(crate) fn print_step(step: &str, style: Style) {
    let _ = writeln!(io::stderr(), "{}", style.dim(&format!("… {step}")));
}

fn exec(instance: &Instance, machine: &str, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let status = current_status(instance)?;
    let namespace = namespace(instance, &status, machine)?;
    let (program, arguments) = match command.split_first() {
        Some((program, arguments)) => (program.clone(), arguments),
        None => (std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()), &[][..]),
    };
    let directory = StateDirectory::new(instance);
    let resolver = resolver(&status, machine);
    let mut command = Command::new(&program);
    command.args(arguments).env("PATH", directory.search_path());
    // The command replaces this process and keeps its terminal and exit status.
    let error = namespace.run_as_machine(machine, || {
        if let Some(resolver) = resolver {
            net::use_resolver(directory.root(), &resolver);
        }
        command.exec()
    })?;
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// Returns the resolver's configuration of a pod or node; `None` for machines outside of the cluster, which do not use its DNS.
fn resolver(status: &Status, machine: &str) -> Option<String> {
    if let Some(node) = NodeId::from_name(machine) {
        return Some(resolver_configuration(node, "default"));
    }
    let pod = status.plan.pods.iter().find(|pod| pod.short_name() == machine)?;
    Some(resolver_configuration(pod.node, &pod.namespace))
}

fn status(instance: &Instance) -> anyhow::Result<ExitCode> {
    let status = current_status(instance)?;
    let healthy = NodeId::ALL.map(|node| (node, Health::fetch(instance, node).is_some_and(|health| health.healthy)));
    print(&overview::all(&status, &healthy, style()))
}

fn down(instance: &Instance) -> anyhow::Result<ExitCode> {
    let directory = StateDirectory::new(instance);
    let owner = directory.current_owner()?;
    if let Some(owner) = &owner {
        owner.supervisor.signal(Signal::SIGTERM).context("cannot stop the demo's supervisor")?;
        if !owner.supervisor.wait(STOP_TIMEOUT) {
            owner.supervisor.signal(Signal::SIGKILL).context("cannot kill the demo's supervisor")?;
            owner.supervisor.wait(STOP_TIMEOUT);
        }
    }
    let removed = supervisor::remove_leftovers(instance)?;
    print(match (owner, removed) {
        (Some(_), _) => "removed the demo\n",
        (None, true) => "removed leftovers of an earlier demo\n",
        (None, false) => "no demo is running\n",
    })
}

fn current_status(instance: &Instance) -> anyhow::Result<Status> {
    let directory = StateDirectory::new(instance);
    match directory.current_owner()? {
        Some(_) => directory.read_status().context("the demo is starting or stopping"),
        None => bail!("no demo is running (start one with `ferroute demo up`)"),
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
            bail!("no pod or machine {machine:?} (there are node, node2, outside, {names})")
        }
    }
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn style() -> Style {
    Style::for_output(io::stdout().is_terminal(), std::env::var_os("NO_COLOR").as_deref())
}

/// The time for the supervisor to remove the cluster.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
