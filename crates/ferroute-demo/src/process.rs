use std::{fs, time::Duration};

use anyhow::Context;
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

/// A process, told apart from later ones that get the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pid: i32,
    /// When it was started, in the kernel's ticks since boot.
    started: u64,
}

impl ProcessId {
    /// The process with that number now, if there is one.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        Some(Self { pid: pid.as_raw(), started: start_time(pid)? })
    }

    /// This very process.
    pub(crate) fn own() -> anyhow::Result<Self> {
        Self::of(Pid::this()).context("cannot find this very process in /proc")
    }

    pub(crate) fn pid(self) -> i32 {
        self.pid
    }

    pub(crate) fn is_alive(self) -> bool {
        start_time(Pid::from_raw(self.pid)) == Some(self.started)
    }

    /// Sends a signal, if it is still alive.
    pub(crate) fn signal(self, signal: Signal) -> Result<(), Errno> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Err(Errno::ESRCH) => Ok(()),
            sent => sent,
        }
    }

    /// Waits until it is gone; false when it is still there after that time.
    pub(crate) fn wait(self, time: Duration) -> bool {
        let pauses = time.as_millis() / PAUSE.as_millis();
        for _ in 0..pauses {
            if !self.is_alive() {
                return true;
            }
            std::thread::sleep(PAUSE);
        }
        !self.is_alive()
    }
}

/// `None` for a process that is gone, or has ended and is only waiting for its parent to notice.
fn start_time(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may hold spaces and parentheses itself.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let state = *fields.first()?;
    if matches!(state, "Z" | "X") { None } else { fields.get(START_TIME)?.parse().ok() }
}

/// Field 22 of proc_pid_stat(5), counted from the state, which is field 3.
const START_TIME: usize = 22 - 3;

const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_alive_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = ProcessId::of(Pid::from_raw(child.id().try_into().unwrap())).unwrap();
        assert!(process.is_alive());
        assert!(!process.wait(Duration::ZERO));
        process.signal(Signal::SIGKILL).unwrap();
        assert!(process.wait(Duration::from_secs(60)));
        child.wait().unwrap();
        assert!(!process.is_alive());
        process.signal(Signal::SIGKILL).unwrap();
    }

    #[test]
    fn a_later_process_with_the_same_number_is_another() {
        let own = ProcessId::of(Pid::this()).unwrap();
        assert!(!ProcessId { started: own.started + 1, ..own }.is_alive());
    }
}
