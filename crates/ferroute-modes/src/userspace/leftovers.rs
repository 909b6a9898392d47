//! Objects that userspace mode leaves behind besides its iptables rules: worker processes.

use std::{fmt, time::Duration};

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
        let workers = match running_workers() {
            Ok(workers) => workers,
            Err(error) => return report.failed(&error),
        };
        let active = self.active.as_ref().and_then(WorkerClient::process_id);
        let deadline = if self.drain { DRAIN_DEADLINE } else { Duration::ZERO };
        for worker in workers {
            let pid = worker.process_id();
            if active.is_some_and(|active| u32::try_from(pid) == Ok(active)) {
                continue;
            }
            match worker.drain(deadline) {
                Ok(false) => {}
                Ok(true) if self.drain => {
                    let minutes = deadline.as_secs() / 60;
                    report.removed(format!(
                        "listeners of userspace proxy {pid}, whose connections may continue for {minutes} minutes"
                    ));
                }
                Ok(true) => report.removed(format!("userspace proxy {pid}")),
                Err(error) => report.failed(&error),
            }
        }
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { active, drain } = self;
        f.debug_struct("Workers").field("all", &active.is_none()).field("drain", drain).finish()
    }
}
