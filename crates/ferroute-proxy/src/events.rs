//! What people should know, as Events on the API: `kubectl describe` shows them with the Service or Node that they are
//! about.
//!
//! ```text
//!   Feed (bad objects), sync loop ──► Events ──► a task: counts, limits ──► API server
//!                                  (a bounded     looks at local sockets
//!                                   queue)
//! ```
//!
//! Nobody waits for any of this: what does not fit into the queue is dropped, since all of it stands in the log too.

mod series;
mod sockets;
mod task;
mod watcher;

use std::sync::Arc;

use ferroute_core::{NamespacedName, parse::InvalidObject};
use ferroute_host::SysctlError;
use ferroute_kube::{ApiWriter, EventType, KubeEvent, ObjectReference};
use ferroute_source::Problem;
use tokio::sync::mpsc;

pub(crate) use self::watcher::EventsWatcher;
use self::{sockets::Claim, task::Task};
use crate::{
    host_setup::{CONNTRACK_BUCKETS, HostSetup, OOM_SCORE},
    logging::chain,
};

/// Takes what happened, from any thread, and never waits.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    /// `None`: nobody is to know.
    jobs: Option<mpsc::Sender<Job>>,
    node: Arc<str>,
}

/// Something for the task to do.
#[derive(Debug)]
enum Job {
    /// Write an Event.
    Write(KubeEvent),
    /// See whether local processes listen on these node ports, which are new.
    Look(Vec<Claim>),
}

impl Events {
    /// For those who only look.
    pub(crate) fn none() -> Self {
        Self { jobs: None, node: "".into() }
    }

    /// Starts the task, in tokio's context. Without a `writer` it only logs what it finds itself. It ends with the last
    /// of those who could give it something to do.
    pub(crate) fn start(writer: Option<ApiWriter>, node: &str) -> Self {
        let (jobs, receiver) = mpsc::channel(QUEUE);
        let events = Self { jobs: Some(jobs), node: node.into() };
        tokio::spawn(Task::new(writer).run(receiver));
        events
    }

    /// The proxy starts.
    pub(crate) fn starting(&self, setup: &HostSetup) {
        self.on_node(EventType::Normal, "Starting", START, String::new());
        let is_read_only = |error: &SysctlError| match error {
            SysctlError::Write { name, source, .. } => {
                name == CONNTRACK_BUCKETS && source.kind() == std::io::ErrorKind::ReadOnlyFilesystem
            }
            SysctlError::Missing { .. } | SysctlError::Read { .. } => false,
        };
        // Not the OOM score: who gives the proxy as few rights as it needs knows that it cannot be set.
        let is_setting = |error: &&SysctlError| error.name() != OOM_SCORE;
        let failed: Vec<&SysctlError> = setup.failed.iter().filter(is_setting).collect();
        if failed.is_empty() {
            return;
        }
        // kube-proxy has a reason of its own for a container runtime that lets nobody write there.
        let reason = if failed.iter().all(|error| is_read_only(error)) { "readOnlySysFS" } else { "FailedToSetSysctl" };
        let told: Vec<String> = failed.iter().map(|error| chain(*error)).collect();
        self.on_node(EventType::Warning, reason, START, told.join("; "));
    }

    /// An object is passed over because of its values.
    pub(crate) fn invalid(&self, object: &InvalidObject) {
        let regarding = ObjectReference::new(object.kind, object.name.namespace(), object.name.name());
        let errors: Vec<String> = object.errors.iter().map(ToString::to_string).collect();
        self.passed_over(regarding, &errors.join("; "));
    }

    /// The source has a problem; only those with objects are told.
    pub(crate) fn problem(&self, problem: &Problem) {
        if let Problem::InvalidObject { kind, name, error } = problem {
            let regarding = ObjectReference::new(kind.as_str(), name.namespace(), name.name());
            self.passed_over(regarding, &error.to_string());
        }
    }

    /// A health-check node port cannot be opened.
    pub(crate) fn no_health_check(&self, service: &NamespacedName, error: &str) {
        let regarding = ObjectReference::service(service.namespace(), service.name());
        let note = format!("node {}: {error}", self.node);
        self.send(KubeEvent {
            regarding,
            event_type: EventType::Warning,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            note,
        });
    }

    fn passed_over(&self, regarding: ObjectReference, faults: &str) {
        let note = format!("node {} passes it over, what was known before stays in force: {faults}", self.node);
        self.send(KubeEvent { regarding, event_type: EventType::Warning, reason: "InvalidObject", action: "Parse", note });
    }

    fn on_node(&self, event_type: EventType, reason: &'static str, action: &'static str, note: String) {
        self.send(KubeEvent { regarding: ObjectReference::node(&self.node), event_type, reason, action, note });
    }

    fn send(&self, report: KubeEvent) {
        self.give(Job::Write(report));
    }

    fn give(&self, job: Job) {
        let Some(jobs) = &self.jobs else { return };
        if let Err(error) = jobs.try_send(job) {
            tracing::debug!("too much happens to tell it all as Events: {error}");
        }
    }
}

/// kube-proxy's word for what it does at its start.
const START: &str = "StartKubeProxy";

/// Jobs that may wait.
const QUEUE: usize = 64;
