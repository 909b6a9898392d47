use std::{
    process::Child,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::state::ProcessState;

/// A process that is restarted when it ends.
pub(super) enum ChildProcess {
    Running(Child),
    Down { reason: String, since: Instant },
}

impl ChildProcess {
    pub(super) fn from_spawn(spawned: anyhow::Result<Child>) -> Self {
        match spawned {
            Ok(child) => Self::Running(child),
            Err(error) => Self::down(format!("{error:#}")),
        }
    }

    /// Reports whether the process has ended since the last call. `reason` describes the cause, given the exit status.
    pub(super) fn has_ended(&mut self, reason: impl FnOnce(&str) -> String) -> bool {
        let Self::Running(child) = self else { return false };
        match child.try_wait() {
            Ok(None) => false,
            Ok(Some(status)) => {
                *self = Self::down(reason(&status.to_string()));
                true
            }
            Err(error) => {
                *self = Self::down(error.to_string());
                true
            }
        }
    }

    /// Reports whether it is time to restart the process.
    pub(super) fn is_restart_due(&self) -> bool {
        self.is_down_for(RESTART_DELAY)
    }

    /// Reports whether the process ended that long ago.
    pub(super) fn is_down_for(&self, time: Duration) -> bool {
        matches!(self, Self::Down { since, .. } if since.elapsed() >= time)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }

    pub(super) fn state(&self) -> ProcessState {
        match self {
            Self::Running(child) => ProcessState::Running { pid: pid_of(child).as_raw() },
            Self::Down { reason, .. } => ProcessState::Down { reason: reason.clone() },
        }
    }

    /// Sends SIGTERM.
    pub(super) fn terminate(&self) {
        if let Self::Running(child) = self {
            // Fails if the process has ended.
            let _ = kill(pid_of(child), Signal::SIGTERM);
        }
    }

    /// Waits for the end of the process, and kills it after a timeout.
    pub(super) fn wait(self) {
        let Self::Running(mut child) = self else { return };
        let deadline = Instant::now() + TERMINATION_TIMEOUT;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                // Cannot fail for a child that was not waited for.
                let _ = child.kill().and_then(|()| child.wait());
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn down(reason: String) -> Self {
        Self::Down { reason, since: Instant::now() }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().expect("bug: process ids are positive"))
}

/// Delay of a restart: long enough to observe that the Service works without the process, even for a pod whose end is
/// detected late.
const RESTART_DELAY: Duration = Duration::from_secs(3);

/// The time between SIGTERM and SIGKILL.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(3);

const POLL_INTERVAL: Duration = Duration::from_millis(20);
