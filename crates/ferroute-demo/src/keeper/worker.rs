use std::{
    process::Child,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::state::Run;

/// A process that should always run.
pub(super) enum Worker {
    Running(Child),
    Down { reason: String, since: Instant },
}

impl Worker {
    pub(super) fn from_start(started: anyhow::Result<Child>) -> Self {
        match started {
            Ok(child) => Self::Running(child),
            Err(error) => Self::down(format!("{error:#}")),
        }
    }

    /// Notices when the process has ended. `reason` says why, from how it ended.
    pub(super) fn notice_end(&mut self, reason: impl FnOnce(&str) -> String) -> bool {
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

    /// Is down, and has been for long enough to try again.
    pub(super) fn is_due(&self) -> bool {
        matches!(self, Self::Down { since, .. } if since.elapsed() >= RESTART_PAUSE)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }

    pub(super) fn run(&self) -> Run {
        match self {
            Self::Running(child) => Run::Running { pid: pid_of(child).as_raw() },
            Self::Down { reason, .. } => Run::Down { reason: reason.clone() },
        }
    }

    /// Asks the process to end.
    pub(super) fn ask_to_end(&self) {
        if let Self::Running(child) = self {
            // It may have ended by itself.
            let _ = kill(pid_of(child), Signal::SIGTERM);
        }
    }

    /// Waits for the end of a process that was asked to, and ends it when it takes too long.
    pub(super) fn end(self) {
        let Self::Running(mut child) = self else { return };
        let deadline = Instant::now() + PATIENCE;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                // Neither can fail for a child that was not waited for.
                let _ = child.kill().and_then(|()| child.wait());
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn down(reason: String) -> Self {
        Self::Down { reason, since: Instant::now() }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().expect("the kernel's process numbers are positive"))
}

/// How long a process that ended stays down: a moment in which one can see that its Service does without.
const RESTART_PAUSE: Duration = Duration::from_secs(2);

/// How long a process that was asked to end may take.
const PATIENCE: Duration = Duration::from_secs(3);

const PAUSE: Duration = Duration::from_millis(20);
