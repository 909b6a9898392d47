use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, bail};
use ferroute_core::Protocol;

use super::{Task, worker::Worker};
use crate::{
    net,
    plan::{ClusterPlan, PlannedPod},
    pod::READY,
    state::{Run, StateDirectory},
};

/// The pods that run, or should.
pub(super) struct Pods<'a> {
    task: &'a Task,
    directory: StateDirectory,
    /// By [`PlannedPod::short_name`].
    pods: BTreeMap<String, RunningPod>,
    /// Those that are not wanted any more, and still answer.
    leaving: Vec<RunningPod>,
}

struct RunningPod {
    plan: PlannedPod,
    has_network: bool,
    worker: Worker,
}

impl<'a> Pods<'a> {
    pub(super) fn new(task: &'a Task) -> Self {
        let directory = StateDirectory::of(&task.instance);
        Self { task, directory, pods: BTreeMap::new(), leaving: Vec::new() }
    }

    /// Takes connections, and is as it is in the plan.
    pub(super) fn is_ready(&self, plan: &PlannedPod) -> bool {
        self.pods.get(&plan.short_name()).is_some_and(|pod| is_same(&pod.plan, plan) && pod.worker.is_running())
    }

    pub(super) fn runs(&self) -> BTreeMap<String, Run> {
        self.pods.iter().map(|(name, pod)| (name.clone(), pod.worker.run())).collect()
    }

    /// Counts the pods that the plan has no more, or has otherwise, as gone; they stop with the next [`Self::follow`].
    pub(super) fn forget_changed(&mut self, plan: &ClusterPlan) {
        let is_wanted = |pod: &RunningPod| {
            plan.pods.iter().any(|wanted| wanted.short_name() == pod.plan.short_name() && is_same(wanted, &pod.plan))
        };
        let (kept, leaving) = std::mem::take(&mut self.pods).into_iter().partition(|(_, pod)| is_wanted(pod));
        self.pods = kept;
        self.leaving.extend(BTreeMap::into_values(leaving));
    }

    /// Stops and starts pods until they are those of the plan. A pod that does not start is down, and tried again.
    pub(super) fn follow(&mut self, plan: &ClusterPlan) {
        self.forget_changed(plan);
        for pod in &self.leaving {
            pod.worker.ask_to_end();
        }
        for RunningPod { plan, worker, .. } in std::mem::take(&mut self.leaving) {
            worker.end();
            // What stays is in the way of nothing but a pod of the same name, which then tells.
            let _ = net::remove_pod(&self.task.instance, &plan);
        }
        let new: Vec<&PlannedPod> = plan.pods.iter().filter(|pod| !self.pods.contains_key(&pod.short_name())).collect();
        for plan in new {
            let mut has_network = false;
            let worker = self.start(plan, &mut has_network);
            self.pods.insert(plan.short_name(), RunningPod { plan: plan.clone(), has_network, worker });
        }
    }

    /// Notices pods that have ended, and starts them again after a while. True when something changed.
    pub(super) fn look_after(&mut self) -> bool {
        let mut changed = false;
        let mut pods = std::mem::take(&mut self.pods);
        for (name, pod) in &mut pods {
            changed |= pod.worker.notice_end(|status| self.reason(name, status));
            if pod.worker.is_due() {
                pod.worker = self.start(&pod.plan, &mut pod.has_network);
                changed = true;
            }
        }
        self.pods = pods;
        changed
    }

    fn start(&self, pod: &PlannedPod, has_network: &mut bool) -> Worker {
        Worker::from_start(self.add_network(pod, has_network).and_then(|()| self.spawn(pod)))
    }

    fn add_network(&self, pod: &PlannedPod, has_network: &mut bool) -> anyhow::Result<()> {
        if !*has_network {
            net::add_pod(&self.task.instance, pod).inspect_err(|_| {
                // The next attempt begins anew; it tells if this was not enough.
                let _ = net::remove_pod(&self.task.instance, pod);
            })?;
            *has_network = true;
        }
        Ok(())
    }

    fn spawn(&self, pod: &PlannedPod) -> anyhow::Result<Child> {
        let name = pod.short_name();
        let mut command = Command::new(&self.task.program);
        command.args(arguments(pod)).stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(self.directory.open_log(&format!("pod-{name}"))?);
        let namespace = net::pod_namespace(&self.task.instance, pod);
        let mut child = namespace
            .run_as_machine(&pod.name, || command.spawn())?
            .with_context(|| format!("cannot run {}", self.task.program.display()))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).context("cannot hear the pod")?;
        }
        if line.trim_end() != READY {
            let status = child.wait().context("cannot wait for the pod")?;
            bail!(self.reason(&name, &status.to_string()));
        }
        Ok(child)
    }

    /// Why a pod is down: its own last words, or how it ended.
    fn reason(&self, name: &str, status: &str) -> String {
        let log = self.directory.read_log(&format!("pod-{name}")).unwrap_or_default();
        log.lines().next_back().map_or_else(|| status.to_owned(), str::to_owned)
    }
}

/// Whether a pod can run on when its plan changes from one to the other. Labels are known to Services only.
fn is_same(a: &PlannedPod, b: &PlannedPod) -> bool {
    (a.node, a.host_network, &a.addresses, &a.ports) == (b.node, b.host_network, &b.addresses, &b.ports)
}

fn arguments(pod: &PlannedPod) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["demo".into(), "pod".into(), pod.short_name().into()];
    for address in pod.addresses.iter() {
        arguments.extend(["--address".into(), address.to_string().into()]);
    }
    // Nobody listens on SCTP ports: there is no server for that here.
    for port in pod.ports.iter().filter(|port| port.protocol != Protocol::Sctp) {
        arguments.extend(["--listen".into(), format!("{}/{}", port.number, port.protocol).into()]);
    }
    arguments
}
