//! A running demo that can be queried and changed, for the page of `ferroute demo --ui`.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, bail, ensure};
use ferroute_core::Protocol;
use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use serde::Serialize;

use crate::{
    instance::Instance,
    layout::{NodeId, OUTSIDE},
    net::Namespace,
    plan::{ClusterPlan, Objects, PlannedPod, Workload},
    session::Session,
    state::{Adjustments, ProcessState, StateDirectory, Status},
    supervisor::ClusterSpec,
    tour::measure,
};

/// A running demo. It is removed when this value is dropped, unless another command started it.
#[derive(Debug)]
pub struct Cluster {
    instance: Instance,
    _session: Option<Session>,
    adjustments: Mutex<Adjustments>,
}

/// A Deployment of the demo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeploymentStatus {
    /// `namespace/name`.
    pub name: String,
    /// The number of pods.
    pub replicas: i32,
}

/// A pod of the demo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// `namespace/name`.
    pub name: String,
    /// The name for [`Cluster::connect`].
    pub short_name: String,
    /// The name of its node.
    pub node: &'static str,
    /// Whether it receives connections.
    pub ready: bool,
    /// Whether its process runs.
    pub running: bool,
}

/// The results of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Connections {
    /// The connections by the short name of the pod that answered.
    pub pods: BTreeMap<String, usize>,
    /// The connections by the source address that the pods saw.
    pub sources: BTreeMap<IpAddr, usize>,
    /// The failures by reason.
    pub failures: BTreeMap<String, usize>,
}

impl Cluster {
    /// Creates a cluster. Calls `on_step` with a description of each step.
    pub(crate) fn start(spec: ClusterSpec, on_step: impl FnMut(&str)) -> anyhow::Result<Self> {
        let session = Session::start(&spec, on_step)?;
        Ok(Self { instance: spec.instance, _session: Some(session), adjustments: Mutex::default() })
    }

    /// Returns the cluster that another command has started.
    pub(crate) fn attach(instance: Instance) -> Self {
        let adjustments = StateDirectory::new(&instance).read_adjustments();
        Self { instance, _session: None, adjustments: Mutex::new(adjustments) }
    }

    /// Returns the directory of the manifests that the proxies read.
    pub fn manifests(&self) -> PathBuf {
        self.directory().manifests()
    }

    /// Returns the configuration file of a node's proxy.
    pub fn proxy_config(&self, node: NodeId) -> PathBuf {
        self.directory().proxy_config(node)
    }

    /// Runs `work` on a new thread in the network namespace of a node.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn on_node<T: Send>(&self, node: NodeId, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        Ok(self.machine(node.name()).run(work)?)
    }

    /// Returns the planned cluster.
    ///
    /// # Errors
    /// If the demo's files cannot be read.
    pub fn plan(&self) -> anyhow::Result<ClusterPlan> {
        Ok(self.status()?.plan)
    }

    /// Returns the pods.
    ///
    /// # Errors
    /// If the demo's files cannot be read.
    pub fn pods(&self) -> anyhow::Result<Vec<PodStatus>> {
        let status = self.status()?;
        let adjustments = self.adjustments().clone();
        let pod = |pod: &PlannedPod| {
            let short_name = pod.short_name();
            let running = matches!(status.pods.get(&short_name), Some(ProcessState::Running { .. }));
            let ready = running && !adjustments.not_ready.contains(&short_name);
            PodStatus { name: full_name(pod), short_name, node: pod.node.name(), ready, running }
        };
        Ok(status.plan.pods.iter().map(pod).collect())
    }

    /// Returns the Deployments.
    ///
    /// # Errors
    /// If the YAML file cannot be read.
    pub fn deployments(&self) -> anyhow::Result<Vec<DeploymentStatus>> {
        let mut objects = self.objects()?;
        self.adjustments().apply(&mut objects);
        let deployment = |workload| match workload {
            Workload::Deployment(deployment) => Some(DeploymentStatus {
                name: format!("{}/{}", deployment.metadata.namespace, deployment.metadata.name),
                replicas: deployment.spec.replicas.unwrap_or(1),
            }),
            Workload::Pod(_) => None,
        };
        Ok(objects.workloads.into_iter().filter_map(deployment).collect())
    }

    /// Returns the machines and pods that can connect to Services.
    ///
    /// # Errors
    /// If the demo's files cannot be read.
    pub fn clients(&self) -> anyhow::Result<Vec<String>> {
        let machines = NodeId::ALL.map(NodeId::name).into_iter().chain([OUTSIDE]).map(str::to_owned);
        let plan = self.plan()?;
        // Pods that only send come first: the path of a connection of an endpoint to itself is the most complicated
        // one.
        let (idle, endpoints): (Vec<_>, Vec<_>) =
            plan.pods.iter().filter(|pod| !pod.host_network).partition(|pod| plan.is_idle(pod));
        Ok(idle.into_iter().chain(endpoints).map(PlannedPod::short_name).chain(machines).collect())
    }

    /// Makes up to [`MAX_CONNECTIONS`] connections from a machine or pod.
    ///
    /// # Errors
    /// If there is no such client, or the protocol is SCTP, which the pods do not support.
    pub fn connect(
        &self,
        client: &str,
        destination: SocketAddr,
        protocol: Protocol,
        count: usize,
    ) -> anyhow::Result<Connections> {
        ensure!(protocol != Protocol::Sctp, "the demo's pods do not speak SCTP");
        let clients = self.clients()?;
        ensure!(clients.iter().any(|name| name == client), "no client {client} (there are {})", clients.join(", "));
        let count = count.clamp(1, MAX_CONNECTIONS);
        let tally = measure::measure(&self.machine(client), destination, protocol, count)?;
        Ok(Connections { pods: tally.pods, sources: tally.sources, failures: tally.failures })
    }

    /// Sets the number of a Deployment's pods, on top of the YAML file.
    ///
    /// # Errors
    /// If there is no such Deployment, or it cannot have that many pods.
    pub fn scale(&self, deployment: &str, replicas: i32) -> anyhow::Result<()> {
        let deployments = self.deployments()?;
        ensure!(deployments.iter().any(|known| known.name == deployment), "no Deployment {deployment}");
        let mut adjusted = self.adjustments().clone();
        adjusted.replicas.insert(deployment.to_owned(), replicas);
        let mut objects = self.objects()?;
        adjusted.apply(&mut objects);
        let plan = self.plan()?;
        ClusterPlan::new(&objects, Some(&plan), plan.ipv6)?;
        self.adjust(adjusted)
    }

    /// Makes a pod ready or not ready. It serves in both cases, as a pod does whose readiness probe fails.
    ///
    /// # Errors
    /// If there is no such pod.
    pub fn set_ready(&self, pod: &str, ready: bool) -> anyhow::Result<()> {
        let plan = self.plan()?;
        let Some(planned) = plan.pods.iter().find(|planned| full_name(planned) == pod) else { bail!("no pod {pod}") };
        let mut adjusted = self.adjustments().clone();
        match ready {
            true => adjusted.not_ready.remove(&planned.short_name()),
            false => adjusted.not_ready.insert(planned.short_name()),
        };
        self.adjust(adjusted)
    }

    /// Kills the process of a pod, which the demo starts again after a while, as a kubelet does.
    ///
    /// # Errors
    /// If there is no such pod, or it does not run.
    pub fn kill(&self, pod: &str) -> anyhow::Result<()> {
        let status = self.status()?;
        let Some(planned) = status.plan.pods.iter().find(|planned| full_name(planned) == pod) else {
            bail!("no pod {pod}")
        };
        match status.pods.get(&planned.short_name()) {
            Some(ProcessState::Running { pid }) => {
                Ok(signal::kill(Pid::from_raw(*pid), Signal::SIGKILL).with_context(|| format!("cannot kill {pod}"))?)
            }
            _ => bail!("the pod {pod} does not run"),
        }
    }

    fn adjust(&self, adjusted: Adjustments) -> anyhow::Result<()> {
        self.directory().write_adjustments(&adjusted)?;
        *self.adjustments() = adjusted;
        Ok(())
    }

    fn objects(&self) -> anyhow::Result<Objects> {
        let yaml = self.status()?.yaml;
        let text = fs::read_to_string(&yaml).with_context(|| format!("cannot read {}", yaml.display()))?;
        Ok(Objects::parse(&text)?)
    }

    fn status(&self) -> anyhow::Result<Status> {
        self.directory().read_status().context("the demo is stopping")
    }

    fn directory(&self) -> StateDirectory {
        StateDirectory::new(&self.instance)
    }

    fn machine(&self, name: &str) -> Namespace {
        Namespace::named(self.instance.namespace(name))
    }

    /// Locks the adjustments. No operation under the lock leaves an inconsistent state behind when it panics.
    fn adjustments(&self) -> std::sync::MutexGuard<'_, Adjustments> {
        self.adjustments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn full_name(pod: &PlannedPod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// The maximum number of connections at once, a fraction of a second's work.
pub const MAX_CONNECTIONS: usize = 500;
