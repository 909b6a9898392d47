use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use ferroute_core::Protocol;

use super::{ClusterSpec, child_process::ChildProcess};
use crate::{
    net,
    plan::{ClusterPlan, PlannedPod},
    pod::READY,
    state::{ProcessState, StateDirectory},
};

/// The processes of the pods.
pub(super) struct Pods<'a> {
    spec: &'a ClusterSpec,
    directory: StateDirectory,
    /// By [`PlannedPod::short_name`].
    pods: BTreeMap<String, RunningPod>,
    /// Pods that are no longer in the plan but still serve.
    retired: Vec<RunningPod>,
}

struct RunningPod {
    plan: PlannedPod,
    has_network: bool,
    process: ChildProcess,
    /// Whether the cluster considers the pod ready: the end of a process is detected late.
    is_ready: bool,
}

impl<'a> Pods<'a> {
    pub(super) fn new(spec: &'a ClusterSpec) -> Self {
        let directory = StateDirectory::new(&spec.instance);
        Self { spec, directory, pods: BTreeMap::new(), retired: Vec::new() }
    }

    /// Reports whether a pod serves as planned, as far as the cluster knows.
    pub(super) fn is_ready(&self, plan: &PlannedPod) -> bool {
        self.pods.get(&plan.short_name()).is_some_and(|pod| is_same(&pod.plan, plan) && pod.is_ready)
    }

    pub(super) fn states(&self) -> BTreeMap<String, ProcessState> {
        self.pods.iter().map(|(name, pod)| (name.clone(), pod.process.state())).collect()
    }

    /// Retires pods that have changed or are not in the plan; the next [`Self::apply`] stops them.
    pub(super) fn retire_changed(&mut self, plan: &ClusterPlan) {
        let is_current = |pod: &RunningPod| {
            plan.pods.iter().any(|planned| planned.short_name() == pod.plan.short_name() && is_same(planned, &pod.plan))
        };
        let (current, retired) = std::mem::take(&mut self.pods).into_iter().partition(|(_, pod)| is_current(pod));
        self.pods = current;
        self.retired.extend(BTreeMap::into_values(retired));
    }

    /// Stops and starts pods according to the plan. A pod that does not start is retried later.
    pub(super) fn apply(&mut self, plan: &ClusterPlan) {
        self.retire_changed(plan);
        for pod in &self.retired {
            pod.process.terminate();
        }
        for RunningPod { plan, process, .. } in std::mem::take(&mut self.retired) {
            process.wait();
            // Leftovers only affect a new pod with the same name, which then reports the error.
            let _ = net::remove_pod(&self.spec.instance, &plan);
        }
        let new: Vec<&PlannedPod> = plan.pods.iter().filter(|pod| !self.pods.contains_key(&pod.short_name())).collect();
        for plan in new {
            let mut has_network = false;
            let process = self.start(plan, &mut has_network);
            let is_ready = process.is_running();
            self.pods.insert(plan.short_name(), RunningPod { plan: plan.clone(), has_network, process, is_ready });
        }
    }

    /// Restarts pods that have ended, after a delay. Reports whether a state changed.
    pub(super) fn restart(&mut self) -> bool {
        let mut changed = false;
        let mut pods = std::mem::take(&mut self.pods);
        for (name, pod) in &mut pods {
            changed |= pod.process.has_ended(|status| self.reason(name, status));
            if pod.process.is_restart_due() {
                pod.process = self.start(&pod.plan, &mut pod.has_network);
                changed = true;
            }
            let is_ready = pod.process.is_running() || pod.is_ready && !pod.process.is_down_for(NOTICE_DELAY);
            changed |= std::mem::replace(&mut pod.is_ready, is_ready) != is_ready;
        }
        self.pods = pods;
        changed
    }

    fn start(&self, pod: &PlannedPod, has_network: &mut bool) -> ChildProcess {
        ChildProcess::from_spawn(self.add_network(pod, has_network).and_then(|()| self.spawn(pod)))
    }

    fn add_network(&self, pod: &PlannedPod, has_network: &mut bool) -> anyhow::Result<()> {
        if !*has_network {
            net::add_pod(&self.spec.instance, pod).inspect_err(|_| {
                // The next attempt starts from scratch and reports any leftovers.
                let _ = net::remove_pod(&self.spec.instance, pod);
            })?;
            *has_network = true;
        }
        Ok(())
    }

    fn spawn(&self, pod: &PlannedPod) -> anyhow::Result<Child> {
        let name = pod.short_name();
        let mut command = Command::new(&self.spec.program);
        command.args(arguments(pod)).stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(self.directory.open_log(&format!("pod-{name}"))?);
        let namespace = net::pod_namespace(&self.spec.instance, pod);
        let mut child = namespace
            .run_as_machine(&pod.name, || command.spawn())?
            .with_context(|| format!("cannot run {}", self.spec.program.display()))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).context("cannot read the pod's output")?;
        }
        if line.trim_end() != READY {
            let status = child.wait().context("cannot wait for the pod")?;
            bail!(self.reason(&name, &status.to_string()));
        }
        Ok(child)
    }

    /// Returns the last line of the pod's log, or else its exit status.
    fn reason(&self, name: &str, status: &str) -> String {
        let log = self.directory.read_log(&format!("pod-{name}")).unwrap_or_default();
        log.lines().next_back().map_or_else(|| status.to_owned(), str::to_owned)
    }
}

/// Time until the end of a pod's process is detected. A kubelet also checks all containers only once a second. Until
/// then the pod remains an endpoint, and connections to it fail.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// Reports whether two plans differ only in fields that a running pod does not depend on, such as labels.
fn is_same(a: &PlannedPod, b: &PlannedPod) -> bool {
    (a.node, a.host_network, &a.addresses, &a.ports) == (b.node, b.host_network, &b.addresses, &b.ports)
}

fn arguments(pod: &PlannedPod) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["demo".into(), "pod".into(), pod.short_name().into()];
    for address in pod.addresses.iter() {
        arguments.extend(["--address".into(), address.to_string().into()]);
    }
    // There is no SCTP server.
    for port in pod.ports.iter().filter(|port| port.protocol != Protocol::Sctp) {
        arguments.extend(["--listen".into(), format!("{}/{}", port.number, port.protocol).into()]);
    }
    arguments
}
