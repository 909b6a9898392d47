//! Kubernetes Events: `kubectl describe` shows them with the Service or Node that they refer to.
//!
//! ```text
//!   Feed (invalid objects), sync loop --> EventRecorder --> EventWriter: counts, limits --> API server
//!                                     (a bounded queue)     checks local sockets
//! ```
//!
//! Recording an Event never blocks. If the queue is full, Events are dropped; their contents are logged as well.

mod correlator;
mod limited;
mod lost_frontends;
mod node_ports;
mod rejected_rules;
mod unsupported;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ferroute_core::{Backoff, NamespacedName, ServicePortName, error_chain, parse::InvalidObject};
use ferroute_host::{SysctlError, run_blocking};
use ferroute_kube::{ApiWriter, EventHandle, EventType, KubeEvent, ObjectReference, WriteError};
use ferroute_modes::Reason;
use ferroute_source::Problem;
use tokio::{sync::mpsc, time::Instant};

pub(crate) use self::node_ports::{ChangedNodePorts, Check, EventsObserver, NodePort, NodePorts};
use self::{
    correlator::{Action, EventCorrelator},
    node_ports::{Conflict, conflicts},
};
use crate::{
    host_setup::{CONNTRACK_BUCKETS, HostSetup, OOM_SCORE},
    process::tasks::{Tasks, Work},
};

/// Queues Events, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct EventRecorder {
    /// Queue of jobs; `None` if no Events are written.
    jobs: Option<mpsc::Sender<Job>>,
    node: Arc<str>,
}

/// A job of the task that writes Events.
#[derive(Debug)]
enum Job {
    /// Write an Event.
    Write(KubeEvent),
    /// Check whether processes of the host use these ports.
    CheckNodePorts(Vec<NodePort>, Check),
}

impl EventRecorder {
    /// Returns a recorder that drops all Events.
    pub(crate) fn none() -> Self {
        Self { jobs: None, node: "".into() }
    }

    /// Starts the task that writes Events on the current runtime. Without a `writer`, its checks are only logged. The task
    /// ends after the last recorder was dropped.
    pub(crate) fn start(writer: Option<ApiWriter>, node: &str, tasks: &Tasks) -> Self {
        let (jobs, receiver) = mpsc::channel(QUEUE);
        let recorder = Self { jobs: Some(jobs), node: node.into() };
        tasks.spawn("task that writes Events", Work::Finite, EventWriter::new(writer).run(receiver));
        recorder
    }

    /// Records the start of the proxy, in a mode for this reason.
    pub(crate) fn starting(&self, setup: &HostSetup, reason: &Reason) {
        self.on_node(EventType::Normal, "Starting", START, String::new());
        if let Some(warning) = reason.warning() {
            self.on_node(EventType::Warning, "ProxyModeUnset", START, warning.to_owned());
        }
        let is_read_only = |error: &SysctlError| match error {
            SysctlError::Write { name, source, .. } => {
                name == CONNTRACK_BUCKETS && source.kind() == std::io::ErrorKind::ReadOnlyFilesystem
            }
            SysctlError::Missing { .. } | SysctlError::Read { .. } => false,
        };
        // A deployment with least privileges is not expected to set the OOM score.
        let is_sysctl = |error: &&SysctlError| error.name() != OOM_SCORE;
        let failed: Vec<&SysctlError> = setup.failed.iter().filter(is_sysctl).collect();
        if failed.is_empty() {
            return;
        }
        // kube-proxy has a separate reason for container runtimes that mount /sys read-only.
        let reason = if failed.iter().all(|error| is_read_only(error)) { "readOnlySysFS" } else { "FailedToSetSysctl" };
        let errors: Vec<String> = failed.iter().map(|error| error_chain(*error)).collect();
        self.on_node(EventType::Warning, reason, START, errors.join("; "));
    }

    /// Records that an object with invalid values is ignored.
    pub(crate) fn invalid(&self, object: &InvalidObject) {
        let regarding = ObjectReference::new(object.kind, object.name.namespace(), object.name.name());
        let errors: Vec<String> = object.errors.iter().map(ToString::to_string).collect();
        self.ignored(regarding, &errors.join("; "));
    }

    /// Records that some fields of an object are ignored.
    pub(crate) fn ignored_fields(&self, kind: &'static str, name: &NamespacedName, fields: &str) {
        let regarding = ObjectReference::new(kind, name.namespace(), name.name());
        self.warn(
            regarding,
            "IgnoredField",
            "Parse",
            format!("node {} ignores fields of the object: {fields}", self.node),
        );
    }

    /// Records a problem of the source, if it concerns an object.
    pub(crate) fn problem(&self, problem: &Problem) {
        if let Problem::InvalidObject { kind, name, error } = problem {
            let regarding = ObjectReference::new(kind.as_str(), name.namespace(), name.name());
            self.ignored(regarding, &error.to_string());
        }
    }

    /// Records that other Services own addresses that a Service claims.
    pub(crate) fn address_conflict(&self, service: &NamespacedName, conflict: &str) {
        let note = format!("node {} does not serve all addresses of the Service: {conflict}", self.node);
        self.on_service(service, "AddressConflict", "AssignAddress", note);
    }

    /// Records that an endpoint of a Service gets no connections for a while, or gets connections again.
    pub(crate) fn endpoint_ejected(
        &self,
        service: &NamespacedName,
        endpoint: SocketAddr,
        ejected_for: Option<Duration>,
    ) {
        let (event_type, reason, note) = match ejected_for {
            Some(pause) => {
                let seconds = pause.as_secs();
                let note =
                    format!("node {} sends endpoint {endpoint} no connections for {seconds} s: they failed", self.node);
                (EventType::Warning, "EndpointEjected", note)
            }
            None => {
                let note = format!("node {} sends endpoint {endpoint} connections again", self.node);
                (EventType::Normal, "EndpointReadmitted", note)
            }
        };
        let regarding = ObjectReference::service(service.namespace(), service.name());
        self.write(KubeEvent { regarding, event_type, reason, action: "Eject", note });
    }

    /// Records that the kernel refused the rules of a Service.
    pub(crate) fn rules_rejected(&self, service: &NamespacedName, error: &str) {
        let note =
            format!("node {} keeps the last rules of the Service that the kernel accepted, if any: {error}", self.node);
        self.on_service(service, "RulesRejected", "Sync", note);
    }

    /// Records that a Service is not served completely, because it exceeds a limit.
    pub(crate) fn limit_exceeded(&self, service: &NamespacedName, excess: &str) {
        let note = format!("node {} does not serve the Service completely: {excess}", self.node);
        self.on_service(service, "LimitExceeded", "Sync", note);
    }

    /// Records that the mode does not support the protocol of a service port.
    pub(crate) fn unsupported_protocol(&self, name: &ServicePortName) {
        let note = format!(
            "node {} does not serve {name} and rejects connections: its proxy mode does not support {}",
            self.node,
            name.protocol.as_str().to_uppercase()
        );
        self.on_service(&name.service, "UnsupportedProtocol", "Sync", note);
    }

    /// Records that a health-check node port cannot be opened.
    pub(crate) fn health_check_failed(&self, service: &NamespacedName, error: &str) {
        let note = format!("node {}: {error}", self.node);
        self.on_service(service, "FailedToStartServiceHealthcheck", "Listen", note);
    }

    /// Records that another service proxy seems to run on the node.
    pub(crate) fn other_proxy(&self, note: String) {
        self.on_node(EventType::Warning, "OtherProxy", "SyncRules", note);
    }

    /// Records that an IP family of the node is not served.
    pub(crate) fn family_disabled(&self, note: String) {
        self.on_node(EventType::Warning, "IPFamilyDisabled", START, note);
    }

    /// Records that no address of the node serves node ports of an IP family.
    pub(crate) fn no_node_port_addresses(&self, note: String) {
        self.on_node(EventType::Warning, "NoNodePortAddresses", "Listen", note);
    }

    /// Records that node ports cannot be held.
    pub(crate) fn node_ports_not_held(&self, error: &str) {
        self.on_node(EventType::Warning, "FailedToHoldNodePorts", "Listen", error.to_owned());
    }

    /// Checks ports for processes of the host that use them, and records each as an Event of the Service.
    pub(crate) fn check_node_ports(&self, ports: Vec<NodePort>, check: Check) {
        self.queue(Job::CheckNodePorts(ports, check));
    }

    fn ignored(&self, regarding: ObjectReference, errors: &str) {
        let note = format!("node {} ignores it and keeps its last valid version: {errors}", self.node);
        self.warn(regarding, "InvalidObject", "Parse", note);
    }

    fn on_service(&self, service: &NamespacedName, reason: &'static str, action: &'static str, note: String) {
        self.warn(ObjectReference::service(service.namespace(), service.name()), reason, action, note);
    }

    fn warn(&self, regarding: ObjectReference, reason: &'static str, action: &'static str, note: String) {
        self.write(KubeEvent { regarding, event_type: EventType::Warning, reason, action, note });
    }

    fn on_node(&self, event_type: EventType, reason: &'static str, action: &'static str, note: String) {
        self.write(KubeEvent { regarding: ObjectReference::node(&self.node), event_type, reason, action, note });
    }

    fn write(&self, event: KubeEvent) {
        self.queue(Job::Write(event));
    }

    fn queue(&self, job: Job) {
        let Some(jobs) = &self.jobs else { return };
        if let Err(error) = jobs.try_send(job) {
            tracing::debug!("dropped an Event: {error}");
        }
    }
}

/// The task that writes Events.
struct EventWriter {
    writer: Option<ApiWriter>,
    correlator: EventCorrelator,
    /// Whether the current series of write errors has been logged.
    error_logged: bool,
}

impl EventWriter {
    fn new(writer: Option<ApiWriter>) -> Self {
        Self { writer, correlator: EventCorrelator::new(Instant::now()), error_logged: false }
    }

    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(job) = jobs.recv().await {
            match job {
                Job::Write(event) => self.record(&event).await,
                Job::CheckNodePorts(ports, check) => self.check_node_ports(ports, check).await,
            }
        }
    }

    async fn check_node_ports(&mut self, ports: Vec<NodePort>, check: Check) {
        let conflicts = match run_blocking("listeners", move || conflicts(ports, check)).await {
            Ok(Ok(conflicts)) => conflicts,
            Ok(Err(error)) => {
                return tracing::debug!("cannot check for listeners on node ports: {}", error_chain(&error));
            }
            Err(error) => return tracing::warn!("cannot check for listeners on node ports: {error}"),
        };
        for conflict in conflicts {
            let note = conflict.to_string();
            tracing::warn!("{note}");
            let Conflict { port: NodePort { service, address, .. }, .. } = conflict;
            let regarding = ObjectReference::service(service.service.namespace(), service.service.name());
            let reason = if address.is_some() { "NodeAddressInUse" } else { "NodePortInUse" };
            let event_type = EventType::Warning;
            self.record(&KubeEvent { regarding, event_type, reason, action: "Listen", note }).await;
        }
    }

    async fn record(&mut self, event: &KubeEvent) {
        let Some(writer) = self.writer.clone() else { return };
        let series = match self.correlator.observe(event, Instant::now()) {
            Action::Skip => return,
            Action::Create => None,
            Action::UpdateSeries(handle, count) => Some((handle, count)),
        };
        let handle = self.write(&writer, event, series).await;
        self.correlator.set_handle(event, handle);
    }

    /// Writes an Event, with a few retries. `series` is the existing Event to update and its new count.
    async fn write(
        &mut self,
        writer: &ApiWriter,
        event: &KubeEvent,
        mut series: Option<(EventHandle, u32)>,
    ) -> Option<EventHandle> {
        let time = SystemTime::now();
        let mut backoff = Backoff::new(FIRST_RETRY, Duration::MAX);
        for attempts_left in (0..ATTEMPTS).rev() {
            let result = match &series {
                None => writer.create_event(event, time).await,
                Some((handle, count)) => writer.update_series(handle, *count, time).await.map(|()| handle.clone()),
            };
            let error = match result {
                Ok(handle) => {
                    self.error_logged = false;
                    return Some(handle);
                }
                // By default, API servers delete Events after an hour.
                Err(error) if error.is_not_found() && series.take().is_some() => continue,
                Err(error) => error,
            };
            self.log_error(&error);
            if attempts_left == 0 || !error.is_transient() {
                break;
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
        None
    }

    fn log_error(&mut self, error: &WriteError) {
        if std::mem::replace(&mut self.error_logged, true) {
            tracing::debug!("cannot write an Event: {}", error_chain(error));
        } else {
            tracing::warn!("cannot write Events, which does not affect Services: {}", error_chain(error));
        }
    }
}

/// Action in kube-proxy's Events about its start.
const START: &str = "StartKubeProxy";

/// Maximum number of queued jobs.
const QUEUE: usize = 64;

const ATTEMPTS: u32 = 4;
const FIRST_RETRY: Duration = Duration::from_secs(1);
