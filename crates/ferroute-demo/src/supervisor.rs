//! The supervisor process: creates the machines, runs and restarts pods and proxies, applies changes of the YAML file,
//! writes the manifests that the proxies read, and removes all objects at the end.
//!
//! ```text
//!   YAML file ──► plan ──► pods (start, stop) ──► manifests ──► ferroute run (one per node)
//! ```
//!
//! The supervisor removes the cluster when its standard input closes, unless it has read [`DETACH`] before. A demo that
//! is interrupted or killed is therefore removed as well.

mod child_process;
mod dns;
mod events;
mod file_watcher;
mod pods;
mod proxies;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use nix::unistd::{dup2_stderr, setsid};
use serde::{Deserialize, Serialize};

use dns::Dns;
pub(crate) use dns::resolver_configuration;
pub(crate) use events::DETACH;
use events::{Events, Stopped};
use file_watcher::FileWatcher;
use pods::Pods;
pub(crate) use proxies::Health;
use proxies::Proxies;

use crate::{
    instance::Instance,
    net,
    plan::{ClusterPlan, Objects, PlannedPod, to_yaml},
    process::ProcessId,
    state::{Adjustments, Owner, StateDirectory, Status},
};

/// The cluster to create.
#[derive(Clone, Debug)]
pub(crate) struct ClusterSpec {
    pub(crate) instance: Instance,
    /// The absolute path of the YAML file; `None` for a copy of the example.
    pub(crate) file: Option<PathBuf>,
    /// The proxy mode of the nodes.
    pub(crate) mode: String,
    /// The executable of pods and proxies.
    pub(crate) program: PathBuf,
}

impl ClusterSpec {
    /// Creates the specification of a cluster whose pods and proxies run this executable.
    pub(crate) fn new(instance: Instance, file: Option<&Path>, mode: String) -> anyhow::Result<Self> {
        let absolute = |file: &Path| file.canonicalize().with_context(|| format!("cannot read {}", file.display()));
        let file = file.map(absolute).transpose()?;
        let program = std::env::current_exe().context("cannot find the path of this executable")?;
        Ok(Self { instance, file, mode, program })
    }

    /// Returns the path of the cluster's YAML file.
    fn yaml(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| StateDirectory::new(&self.instance).root().join("nginx.yaml"))
    }
}

/// A message of the supervisor to the command that started it, one per line, until the cluster is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StartupMessage {
    /// The supervisor begins a step.
    Step(String),
    /// The cluster is ready.
    Ready,
    /// The cluster could not be created and has been removed.
    Failed(String),
}

/// Creates a cluster and supervises it until it is stopped.
pub(crate) fn run(spec: &ClusterSpec) -> ExitCode {
    // Fails for a process group leader, such as a supervisor started manually.
    let _ = setsid();
    match supervise(spec) {
        Err(error) if !error.is::<Stopped>() => {
            report(&StartupMessage::Failed(format!("{error:#}")));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn supervise(spec: &ClusterSpec) -> anyhow::Result<()> {
    let mut events = Events::listen().context("cannot listen for signals")?;
    let yaml = spec.yaml();
    let text = match &spec.file {
        Some(file) => fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?,
        None => EXAMPLE.to_owned(),
    };
    // An invalid file is reported before anything is created.
    plan(&text, &Adjustments::default(), None, net::has_ipv6()).with_context(|| yaml.display().to_string())?;

    let directory = StateDirectory::new(&spec.instance);
    let _lock = directory.lock(&Owner { supervisor: ProcessId::own()?, yaml: yaml.clone() })?;
    let _removal = Removal(&spec.instance);
    directory.clear()?;
    if net::any_exists(&spec.instance)? {
        net::remove_all(&spec.instance)?;
        report(&StartupMessage::Step("removed leftovers of an earlier demo".into()));
    }
    directory.prepare()?;
    dup2_stderr(directory.open_log("supervisor")?).context("cannot redirect errors to the log")?;
    if spec.file.is_none() {
        directory.write(&yaml, EXAMPLE.as_bytes())?;
    }

    let mut watcher = FileWatcher::new(yaml.clone());
    let text = watcher.read().with_context(|| format!("cannot read {}", yaml.display()))?;
    let adjustments = Adjustments::default();
    let (plan, ignored) =
        plan(&text, &adjustments, None, net::has_ipv6()).with_context(|| yaml.display().to_string())?;
    let mut supervisor = Supervisor {
        yaml,
        pods: Pods::new(spec),
        proxies: Proxies::new(spec),
        instance: &spec.instance,
        adjustments_file: FileWatcher::new(directory.adjustments_file()),
        adjustments,
        directory,
        text,
        plan,
        ignored,
        problem: None,
        published: String::new(),
        dns: None,
        program: spec.program.clone(),
    };
    supervisor.create(&mut events)?;
    report(&StartupMessage::Ready);
    loop {
        events.wait(INTERVAL)?;
        supervisor.check(&mut watcher)?;
    }
}

struct Supervisor<'a> {
    instance: &'a Instance,
    yaml: PathBuf,
    directory: StateDirectory,
    /// The YAML file as it was last read.
    text: String,
    adjustments: Adjustments,
    adjustments_file: FileWatcher,
    plan: ClusterPlan,
    ignored: Vec<String>,
    problem: Option<String>,
    pods: Pods<'a>,
    proxies: Proxies<'a>,
    /// The manifests as last written.
    published: String,
    /// The cluster's DNS, once the machines exist.
    dns: Option<Dns>,
    program: PathBuf,
}

impl Supervisor<'_> {
    fn create(&mut self, events: &mut Events) -> anyhow::Result<()> {
        report(&StartupMessage::Step("creating the machines".into()));
        net::add_machines(self.instance, self.plan.ipv6)
            .context("the demo requires CAP_SYS_ADMIN and CAP_NET_ADMIN (for a container, --privileged)")?;
        self.directory.link_program(&self.program)?;
        self.dns = Some(Dns::start(self.instance)?);
        events.wait(Duration::ZERO)?;
        report(&StartupMessage::Step(format!("starting {} pods", self.plan.pods.len())));
        self.publish()?;
        self.pods.apply(&self.plan);
        self.publish()?;
        events.wait(Duration::ZERO)?;
        report(&StartupMessage::Step("starting a proxy on each node".into()));
        self.proxies.start(self.plan.ipv6)?;
        self.proxies.wait_until_ready(self.plan.ipv6, events)?;
        self.write_status()
    }

    /// Restarts processes that have ended, and applies a changed file.
    fn check(&mut self, yaml: &mut FileWatcher) -> anyhow::Result<()> {
        let mut changed = self.pods.restart() | self.proxies.restart();
        let text = yaml.changed();
        if let Some(Ok(adjustments)) = self.adjustments_file.changed() {
            self.adjustments = serde_json::from_str(&adjustments).unwrap_or_default();
            self.plan_again(Ok(self.text.clone()))?;
            changed = true;
        }
        if let Some(text) = text {
            self.plan_again(text.with_context(|| format!("cannot read {}", self.yaml.display())))?;
            changed = true;
        }
        if changed {
            self.publish()?;
            self.write_status()?;
        }
        Ok(())
    }

    /// Plans the cluster of this YAML text and applies the plan. After an error, the cluster does not change.
    fn plan_again(&mut self, text: anyhow::Result<String>) -> anyhow::Result<()> {
        let next = text.and_then(|text| {
            let planned = plan(&text, &self.adjustments, Some(&self.plan), self.plan.ipv6)?;
            Ok((text, planned))
        });
        match next {
            Ok((text, (plan, ignored))) => {
                (self.text, self.plan, self.ignored, self.problem) = (text, plan, ignored, None);
                // Proxies stop using obsolete pods before these end.
                self.pods.retire_changed(&self.plan);
                self.publish()?;
                self.pods.apply(&self.plan);
            }
            Err(error) => self.problem = Some(format!("{error:#}")),
        }
        Ok(())
    }

    /// Writes the manifests, if they have changed.
    fn publish(&mut self) -> anyhow::Result<()> {
        let not_ready = &self.adjustments.not_ready;
        let is_ready = |pod: &PlannedPod| self.pods.is_ready(pod) && !not_ready.contains(&pod.short_name());
        let objects = self.plan.objects(is_ready);
        if let Some(dns) = &self.dns {
            dns.update(&objects);
        }
        let text = to_yaml(&objects)?;
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
            pods: self.pods.states(),
            proxies: self.proxies.states(),
            ignored: self.ignored.clone(),
            problem: self.problem.clone(),
        })?)
    }
}

/// Removes the cluster on drop, whether the supervisor is stopped or fails.
struct Removal<'a>(&'a Instance);

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        if let Err(error) = remove(self.0) {
            // The next demo removes leftovers.
            let _ = writeln!(io::stderr(), "{error:#}");
        }
    }
}

/// Removes the leftovers of a demo whose supervisor was killed. Reports whether there were any.
pub(crate) fn remove_leftovers(instance: &Instance) -> anyhow::Result<bool> {
    let directory = StateDirectory::new(instance);
    let exists = directory.root().exists() || net::any_exists(instance)?;
    if exists {
        // Another command may be starting a new demo.
        let _lock = directory.lock(&Owner { supervisor: ProcessId::own()?, yaml: PathBuf::new() })?;
        remove(instance)?;
    }
    Ok(exists)
}

/// Removes the processes, namespaces and files of an instance.
fn remove(instance: &Instance) -> anyhow::Result<()> {
    net::remove_all(instance)?;
    Ok(StateDirectory::new(instance).remove()?)
}

/// Plans the cluster of a YAML text. Also returns the objects that the demo ignores.
fn plan(
    text: &str,
    adjustments: &Adjustments,
    previous: Option<&ClusterPlan>,
    ipv6: bool,
) -> anyhow::Result<(ClusterPlan, Vec<String>)> {
    let mut objects = Objects::parse(text)?;
    adjustments.apply(&mut objects);
    let plan = ClusterPlan::new(&objects, previous, ipv6)?;
    Ok((plan, objects.ignored))
}

fn report(report: &StartupMessage) {
    let line = serde_json::to_string(report).expect("bug: a report is always serializable");
    // If the command has ended, standard input closes too.
    let _ = writeln!(io::stdout(), "{line}");
}

/// The interval at which processes and the YAML file are checked.
const INTERVAL: Duration = Duration::from_millis(200);

/// The default YAML file, through a link in this crate, because packages of crates contain only their own files.
const EXAMPLE: &str = include_str!("../nginx.yaml");
