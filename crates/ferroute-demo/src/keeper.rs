//! The process that holds the cluster together while it is up: it makes the machines, runs pods and proxies and starts
//! again those that end, follows the YAML file, writes the manifests that the proxies read, and in the end takes
//! everything away.
//!
//! ```text
//!   YAML file ──► plan ──► pods (start, stop) ──► manifests ──► ferroute run (one per node)
//! ```
//!
//! Whoever starts it holds its standard input as a leash: when that closes before the word [`KEEP`] came, the cluster
//! goes. So a demo that is interrupted, or killed, cleans up after itself.

mod events;
mod pods;
mod proxies;
mod watched;
mod worker;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use clap::ValueEnum;
use nix::unistd::{dup2_stderr, setsid};
use serde::{Deserialize, Serialize};

pub(crate) use events::KEEP;
use events::{Events, Stopped};
use pods::Pods;
pub(crate) use proxies::Health;
use proxies::Proxies;
use watched::Watched;

use crate::{
    instance::Instance,
    net,
    plan::{ClusterPlan, Objects, to_yaml},
    process::ProcessId,
    state::{Owner, StateDirectory, Status},
};

/// What a keeper is to do.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) instance: Instance,
    /// The file to follow, an absolute path; none for a copy of the example.
    pub(crate) file: Option<PathBuf>,
    /// How the proxies write rules.
    pub(crate) mode: ProxyMode,
    /// The program that pods and proxies are part of.
    pub(crate) program: PathBuf,
}

/// How the proxies write rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProxyMode {
    #[default]
    Iptables,
    Nftables,
}

impl ProxyMode {
    /// As flags and configurations spell it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

impl Task {
    /// A task for this very program.
    pub(crate) fn new(instance: Instance, file: Option<&Path>, mode: ProxyMode) -> anyhow::Result<Self> {
        let absolute = |file: &Path| file.canonicalize().with_context(|| format!("cannot read {}", file.display()));
        let file = file.map(absolute).transpose()?;
        let program = std::env::current_exe().context("cannot find this very program")?;
        Ok(Self { instance, file, mode, program })
    }

    /// The file that the cluster follows.
    fn yaml(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| StateDirectory::of(&self.instance).root().join("nginx.yaml"))
    }
}

/// What the keeper tells whoever started it, a line each, until the cluster is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Report {
    /// What it does now.
    Step(String),
    /// The cluster is up.
    Ready,
    /// There will be no cluster; everything is gone again.
    Failed(String),
}

/// Keeps a cluster until it is told to stop.
pub(crate) fn run(task: &Task) -> ExitCode {
    // It leads a group already where somebody starts it by hand.
    let _ = setsid();
    match keep(task) {
        Err(error) if !error.is::<Stopped>() => {
            report(&Report::Failed(format!("{error:#}")));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn keep(task: &Task) -> anyhow::Result<()> {
    let mut events = Events::listen().context("cannot listen for signals")?;
    let yaml = task.yaml();
    let text = match &task.file {
        Some(file) => fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?,
        None => EXAMPLE.to_owned(),
    };
    // Before anything is made: a file that makes no cluster should cost nothing.
    plan(&text, None, net::has_ipv6()).with_context(|| yaml.display().to_string())?;

    let directory = StateDirectory::of(&task.instance);
    let _lock = directory.lock(&Owner { keeper: ProcessId::own()?, yaml: yaml.clone() })?;
    let _removal = Removal(&task.instance);
    directory.clear()?;
    if net::is_any(&task.instance)? {
        net::remove_all(&task.instance)?;
        report(&Report::Step("removed what an earlier demo had left behind".into()));
    }
    directory.prepare()?;
    dup2_stderr(directory.open_log("keeper")?).context("cannot redirect errors to the log")?;
    if task.file.is_none() {
        directory.write(&yaml, EXAMPLE.as_bytes())?;
    }

    let mut watched = Watched::new(yaml.clone());
    let text = watched.read().with_context(|| format!("cannot read {}", yaml.display()))?;
    let (plan, ignored) = plan(&text, None, net::has_ipv6()).with_context(|| yaml.display().to_string())?;
    let mut keeper = Keeper {
        yaml,
        pods: Pods::new(task),
        proxies: Proxies::new(task),
        instance: &task.instance,
        directory,
        plan,
        ignored,
        problem: None,
        published: String::new(),
    };
    keeper.build(&mut events)?;
    report(&Report::Ready);
    loop {
        events.pause(TICK)?;
        keeper.tick(&mut watched)?;
    }
}

struct Keeper<'a> {
    instance: &'a Instance,
    yaml: PathBuf,
    directory: StateDirectory,
    plan: ClusterPlan,
    ignored: Vec<String>,
    problem: Option<String>,
    pods: Pods<'a>,
    proxies: Proxies<'a>,
    /// The manifests that were last written.
    published: String,
}

impl Keeper<'_> {
    fn build(&mut self, events: &mut Events) -> anyhow::Result<()> {
        report(&Report::Step("making the machines".into()));
        net::add_machines(self.instance, self.plan.ipv6)
            .context("no cluster without CAP_SYS_ADMIN and CAP_NET_ADMIN (in a container, try --privileged)")?;
        events.pause(Duration::ZERO)?;
        report(&Report::Step(format!("starting {} pods", self.plan.pods.len())));
        self.publish()?;
        self.pods.follow(&self.plan);
        self.publish()?;
        events.pause(Duration::ZERO)?;
        report(&Report::Step("starting a proxy on each node".into()));
        self.proxies.start(self.plan.ipv6)?;
        self.proxies.wait_until_at_work(self.plan.ipv6, events)?;
        self.write_status()
    }

    /// Looks after everything once.
    fn tick(&mut self, yaml: &mut Watched) -> anyhow::Result<()> {
        let mut changed = self.pods.look_after() | self.proxies.look_after();
        if let Some(text) = yaml.changed() {
            let text = text.with_context(|| format!("cannot read {}", self.yaml.display()));
            let next = text.and_then(|text| plan(&text, Some(&self.plan), self.plan.ipv6));
            match next {
                Ok((plan, ignored)) => {
                    (self.plan, self.ignored, self.problem) = (plan, ignored, None);
                    // Proxies forget the pods that are about to go while these still answer.
                    self.pods.forget_changed(&self.plan);
                    self.publish()?;
                    self.pods.follow(&self.plan);
                }
                Err(error) => self.problem = Some(format!("{error:#}")),
            }
            changed = true;
        }
        if changed {
            self.publish()?;
            self.write_status()?;
        }
        Ok(())
    }

    /// Writes the manifests, if they have changed.
    fn publish(&mut self) -> anyhow::Result<()> {
        let text = to_yaml(&self.plan.objects(|pod| self.pods.is_ready(pod)))?;
        if text != self.published {
            self.directory.write(&self.directory.manifests().join("cluster.yaml"), text.as_bytes())?;
            self.published = text;
        }
        Ok(())
    }

    fn write_status(&self) -> anyhow::Result<()> {
        Ok(self.directory.write_status(&Status {
            yaml: self.yaml.clone(),
            plan: self.plan.clone(),
            pods: self.pods.runs(),
            proxies: self.proxies.runs(),
            ignored: self.ignored.clone(),
            problem: self.problem.clone(),
        })?)
    }
}

/// Takes the cluster away, however its keeper ends.
struct Removal<'a>(&'a Instance);

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        if let Err(error) = remove(self.0) {
            // This may be all that ever tells: what is left is found by the next demo.
            let _ = writeln!(io::stderr(), "{error:#}");
        }
    }
}

/// Removes what an earlier demo has left behind, if its keeper could not do so itself. False when there is nothing.
pub(crate) fn remove_leftovers(instance: &Instance) -> anyhow::Result<bool> {
    let directory = StateDirectory::of(instance);
    let is_any = directory.root().exists() || net::is_any(instance)?;
    if is_any {
        // Somebody may be bringing up a new one just now.
        let _lock = directory.lock(&Owner { keeper: ProcessId::own()?, yaml: PathBuf::new() })?;
        remove(instance)?;
    }
    Ok(is_any)
}

/// Removes everything that an instance has: processes, namespaces, files.
fn remove(instance: &Instance) -> anyhow::Result<()> {
    net::remove_all(instance)?;
    Ok(StateDirectory::of(instance).remove()?)
}

/// The plan that a YAML text asks for, and what in the text the demo has no use for.
fn plan(text: &str, previous: Option<&ClusterPlan>, ipv6: bool) -> anyhow::Result<(ClusterPlan, Vec<String>)> {
    let objects = Objects::parse(text)?;
    let plan = ClusterPlan::new(&objects, previous, ipv6)?;
    Ok((plan, objects.ignored))
}

fn report(report: &Report) {
    let line = serde_json::to_string(report).expect("text can always be written as JSON");
    // Nobody may listen any more; that is told by the leash.
    let _ = writeln!(io::stdout(), "{line}");
}

/// How often the keeper looks at its processes and at the YAML file.
const TICK: Duration = Duration::from_millis(200);

/// What is brought to life when no other file is named.
const EXAMPLE: &str = include_str!("../../../examples/nginx.yaml");
