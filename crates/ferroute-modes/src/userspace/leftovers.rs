//! Objects that userspace mode leaves behind besides its iptables rules: worker processes.

use std::{fmt, thread, time::Duration};

use ferroute_userspace::{DRAIN_DEADLINE, WorkerClient, running_workers};

use crate::cleanup::{Leftovers, RemovalReport};

/// The workers in the network namespace.
pub(super) struct Workers {
    /// The worker that is in use.
    active: Option<WorkerClient>,
    drain: bool,
}

impl Workers {
    /// All workers. With `drain`, their connections may continue for some time.
    pub(super) fn all(drain: bool) -> Self {
        Self { active: None, drain }
    }

    /// The workers of earlier proxies.
    pub(super) fn others_than(active: WorkerClient) -> Self {
        Self { active: Some(active), drain: true }
    }
}

impl Leftovers for Workers {
    fn remove(&mut self, report: &mut RemovalReport) {
        if !self.drain {
            return drain_workers(None, Duration::ZERO, report);
        }
        // Processes of others that bind such names make the search longer, and a worker may hang: syncs do not wait.
        let active = self.active.clone();
        let thread =
            thread::Builder::new().name("drain-search".to_owned()).spawn(move || drain_in_time(active.as_ref()));
        if let Err(error) = thread {
            report.failed(&error);
        }
    }
}

/// Lets the connections of all workers but the active one end, and tries again if some do not respond.
fn drain_in_time(active: Option<&WorkerClient>) {
    for _ in 0..ATTEMPTS {
        let mut report = RemovalReport::default();
        drain_workers(active, DRAIN_DEADLINE, &mut report);
        for removed in &report.removed {
            tracing::info!("removed leftovers of another mode: {removed}");
        }
        if report.remaining.is_empty() {
            return;
        }
        for remaining in &report.remaining {
            tracing::warn!("leftovers of another mode remain: {remaining}");
        }
        thread::sleep(RETRY);
    }
}

/// Requests that all workers but the active one drain.
fn drain_workers(active: Option<&WorkerClient>, deadline: Duration, report: &mut RemovalReport) {
    let workers = match running_workers() {
        Ok(workers) => workers,
        Err(error) => return report.failed(&error),
    };
    let active = active.and_then(WorkerClient::process_id);
    for worker in workers {
        let pid = worker.process_id();
        if active.is_some_and(|active| u32::try_from(pid) == Ok(active)) {
            continue;
        }
        match worker.drain(deadline) {
            Ok(false) => {}
            Ok(true) if deadline.is_zero() => report.removed(format!("userspace proxy {pid}")),
            Ok(true) => {
                let minutes = deadline.as_secs() / 60;
                report.removed(format!(
                    "listeners of userspace proxy {pid}, whose connections may continue for {minutes} minutes"
                ));
            }
            Err(error) => report.failed(&error),
        }
    }
}

/// The number of attempts, and the time between two of them.
const ATTEMPTS: usize = 60;
const RETRY: Duration = Duration::from_secs(60);

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { active, drain } = self;
        f.debug_struct("Workers").field("all", &active.is_none()).field("drain", drain).finish()
    }
}
