//! The running children of this process, so that another thread can kill them when the process ends.

use std::{
    io,
    process::{Child, Command, ExitStatus},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

/// The children.
#[derive(Debug)]
struct Children {
    /// The leaders of their process groups. An entry is removed in the same step in which its process is reaped, so that its
    /// number cannot have passed to another process.
    running: Vec<Pid>,
    /// Killed children that had not exited yet, because the kernel was working for them. They are reaped later.
    killed: Vec<Child>,
}

static CHILDREN: Mutex<Children> = Mutex::new(Children { running: Vec::new(), killed: Vec::new() });

/// Set when no further program may run.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

fn children() -> MutexGuard<'static, Children> {
    // No operation leaves an inconsistent state behind when it panics.
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all running programs and prevents further ones, because this process is about to exit.
///
/// A program that is left behind is worse than one that is killed: `iptables-restore` applies each table atomically either
/// way, but one that waits for the xtables lock could overwrite the rules of the next proxy with outdated ones later.
pub fn kill_programs() {
    // Set first, so that a program that starts in the meantime is killed by its own thread.
    IS_CLOSED.store(true, SeqCst);
    children().running.iter().for_each(|leader| kill_group(*leader));
}

fn kill_group(leader: Pid) {
    // It may have exited already.
    let _ = killpg(leader, Signal::SIGKILL);
}

/// A child that is killed on drop, together with its process group.
#[derive(Debug)]
pub(super) struct Registered {
    /// The child; `None` after it has been reaped or handed over.
    child: Option<Child>,
    leader: Pid,
}

/// Starts a command that becomes the leader of a process group.
pub(super) fn spawn(command: &mut Command) -> io::Result<Registered> {
    // An error means that there is no child to wait for.
    children().killed.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    let closed = || io::Error::other("the proxy is exiting");
    if IS_CLOSED.load(SeqCst) {
        return Err(closed());
    }
    // Without the lock: the program's file may be on a file system that hangs.
    let child = command.spawn()?;
    let leader = Pid::from_raw(child.id().cast_signed());
    children().running.push(leader);
    let registered = Registered { child: Some(child), leader };
    // On an error it is killed by its drop.
    if IS_CLOSED.load(SeqCst) { Err(closed()) } else { Ok(registered) }
}

impl Registered {
    /// Returns the child, which has not been waited for.
    pub(super) fn get_mut(&mut self) -> &mut Child {
        self.child.as_mut().expect("bug: the child was reaped")
    }

    /// Returns the exit status if the child has exited, and reaps it.
    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let mut children = children();
        let status = self.child.as_mut().map_or(Ok(None), Child::try_wait)?;
        if status.is_some() {
            children.running.retain(|leader| *leader != self.leader);
            self.child = None;
        }
        Ok(status)
    }

    /// Kills the child and all processes of its group, and reaps it, now or later.
    pub(super) fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        {
            let mut children = children();
            kill_group(self.leader);
            children.running.retain(|leader| *leader != self.leader);
        }
        for _ in 0..KILL_CHECKS {
            // An error means that there is no child to wait for.
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(KILL_PAUSE);
        }
        children().killed.push(child);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The wait for the exit of a killed program. It exits at once, unless the kernel is working for it.
const KILL_CHECKS: u32 = 100;
const KILL_PAUSE: Duration = Duration::from_millis(1);
