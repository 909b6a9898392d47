use std::{fs, time::Duration};

use anyhow::Context;
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

/// A process, distinct from later ones with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pid: i32,
    /// The start time in clock ticks since boot.
    started: u64,
}

impl ProcessId {
    /// Returns the process that currently has this pid, if there is one.
    pub(crate) fn from_pid(pid: Pid) -> Option<Self> {
        Some(Self { pid: pid.as_raw(), started: start_time(pid)? })
    }

    /// Returns the current process.
    pub(crate) fn own() -> anyhow::Result<Self> {
        Self::from_pid(Pid::this()).context("cannot find this process in /proc")
    }

    pub(crate) fn pid(self) -> i32 {
        self.pid
    }

    pub(crate) fn is_alive(self) -> bool {
        start_time(Pid::from_raw(self.pid)) == Some(self.started)
    }

    /// Sends a signal if the process is still alive.
    pub(crate) fn signal(self, signal: Signal) -> Result<(), Errno> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Err(Errno::ESRCH) => Ok(()),
            sent => sent,
        }
    }

    /// Waits for the end of the process; returns false on timeout.
    pub(crate) fn wait(self, timeout: Duration) -> bool {
        let polls = timeout.as_millis() / POLL_INTERVAL.as_millis();
        for _ in 0..polls {
            if !self.is_alive() {
                return true;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        !self.is_alive()
    }
}

/// Returns the start time; `None` for a process that does not exist or is a zombie.
fn start_time(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may contain spaces and parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let state = *fields.first()?;
    if matches!(state, "Z" | "X") { None } else { fields.get(START_TIME)?.parse().ok() }
}

/// Field 22 of proc_pid_stat(5), counted from the state, which is field 3.
const START_TIME: usize = 22 - 3;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn process_is_alive_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = ProcessId::from_pid(Pid::from_raw(child.id().try_into().unwrap())).unwrap();
        assert!(process.is_alive());
        assert!(!process.wait(Duration::ZERO));
        process.signal(Signal::SIGKILL).unwrap();
        assert!(process.wait(Duration::from_secs(60)));
        child.wait().unwrap();
        assert!(!process.is_alive());
        process.signal(Signal::SIGKILL).unwrap();
    }

    #[test]
    fn later_process_with_same_pid_is_distinct() {
        let own = ProcessId::from_pid(Pid::this()).unwrap();
        assert!(!ProcessId { started: own.started + 1, ..own }.is_alive());
    }
}
