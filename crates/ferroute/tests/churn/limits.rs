//! Limits on the resources of a process, and failures of its system calls.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A limit on the number of processes and threads, or of open files, which ends on drop.
pub(crate) enum Limit {
    Descriptors { process: u32, before: String },
    Processes(Cgroup),
}

impl Limit {
    /// Lets a process open no more files.
    pub(crate) fn descriptors(process: u32) -> Self {
        let count = fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count);
        let before = prlimit(process, &["--nofile", "--noheadings", "--output=SOFT"]).trim().to_owned();
        // Only the soft limit is set, because containers may not raise the hard limit again.
        prlimit(process, &[&format!("--nofile={count}:")]);
        Self::Descriptors { process, before }
    }

    /// Lets a process start no more processes and threads.
    pub(crate) fn processes(process: u32) -> Self {
        let cgroup = Cgroup::new(process);
        let count = fs::read_to_string(cgroup.path.join("pids.current")).unwrap();
        fs::write(cgroup.path.join("pids.max"), count.trim()).unwrap();
        Self::Processes(cgroup)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        match self {
            Self::Descriptors { process, before } => _ = prlimit(*process, &[&format!("--nofile={before}:")]),
            Self::Processes(cgroup) => _ = fs::write(cgroup.path.join("pids.max"), "max"),
        }
    }
}

/// Failures of system calls of all threads of a process, which end on drop.
pub(crate) struct SocketFaults {
    strace: Child,
}

impl SocketFaults {
    /// Makes one in `every` sends and receptions of a process fail with an error.
    pub(crate) fn start(process: u32, error: &str, every: u32) -> Self {
        let calls = "sendto,sendmsg,recvfrom,recvmsg";
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-p", &process.to_string(), "-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:error={error}:when={every}+{every}")]);
        let strace = command.stdin(Stdio::null()).spawn().expect("strace is installed");
        let mut faults = Self { strace };
        let start = Instant::now();
        while !is_traced(process) {
            let exited = faults.strace.try_wait().unwrap();
            assert!(exited.is_none() && start.elapsed() < TRACE_TIMEOUT, "strace cannot trace {process}: {exited:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        faults
    }
}

impl Drop for SocketFaults {
    fn drop(&mut self) {
        // A regular end waits for all threads to stop, which never happens if a thread waits for a child that is
        // already stopped (vfork). If the tracer is killed, the kernel lets its threads continue. It may have exited
        // already.
        _ = self.strace.kill();
        _ = self.strace.wait();
    }
}

/// Reports whether all threads of a process are traced.
fn is_traced(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        // The thread may have ended.
        status.is_empty() || !status.contains("\nTracerPid:\t0\n")
    })
}

const TRACE_TIMEOUT: Duration = Duration::from_secs(30);

fn prlimit(process: u32, arguments: &[&str]) -> String {
    let output = Command::new("prlimit").args(["--pid", &process.to_string()]).args(arguments).output();
    let output = output.expect("prlimit is installed");
    // The process may have exited.
    String::from_utf8(output.stdout).expect("its output is ASCII")
}

/// A control group of one process, which is removed on drop.
pub(crate) struct Cgroup {
    path: PathBuf,
    /// The group that processes return to.
    parent: PathBuf,
}

impl Cgroup {
    fn new(process: u32) -> Self {
        let parent = parent();
        let path = parent.join(format!("ferroute-churn-{process}"));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        let cgroup = Self { path, parent };
        fs::write(cgroup.path.join("cgroup.procs"), process.to_string()).unwrap();
        cgroup
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let members = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for process in members.lines() {
            // It may have exited already.
            _ = fs::write(self.parent.join("cgroup.procs"), process);
        }
        // A process that is about to exit keeps its group for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Returns this process's group in the hierarchy with the pids controller.
fn parent() -> PathBuf {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let of = |controller: &str| {
        let line = groups
            .lines()
            .find(|line| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == controller)));
        line.and_then(|line| line.splitn(3, ':').nth(2)).map(|path| path.trim_start_matches('/').to_owned())
    };
    match of("pids") {
        Some(path) => PathBuf::from("/sys/fs/cgroup/pids").join(path),
        None => PathBuf::from("/sys/fs/cgroup").join(of("").expect("the kernel has control groups")),
    }
}
