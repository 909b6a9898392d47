use std::{
    fs::{self, File},
    io::Write,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sched::{CloneFlags, setns, unshare},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A new network namespace with `lo` up. It is removed when this value is dropped and no process or socket uses it.
#[derive(Debug)]
pub struct NetNs {
    handle: File,
}

impl NetNs {
    /// Creates a namespace.
    ///
    /// # Panics
    ///
    /// Panics without the required privileges, because a skipped test would look like a passed one. Unprivileged users
    /// can run tests under `unshare --map-root-user`.
    #[expect(clippy::new_without_default, reason = "it has a side effect and can panic")]
    pub fn new() -> Self {
        let handle = on_new_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .unwrap_or_else(|error| panic!("cannot create a network namespace (this test requires root): {error}"));
            File::open("/proc/thread-self/ns/net").expect("every thread has a network namespace")
        });
        let namespace = Self { handle };
        namespace.command("ip", &["link", "set", "lo", "up"]);
        namespace
    }

    /// Runs `work` in the namespace, on a new thread. Sockets that it opens remain in the namespace, wherever they are
    /// used later. A panic in `work` is propagated.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_new_thread(|| {
            setns(&self.handle, CloneFlags::CLONE_NEWNET)
                .unwrap_or_else(|error| panic!("cannot enter a network namespace: {error}"));
            work()
        })
    }

    /// Runs a program in the namespace and returns its standard output.
    ///
    /// # Panics
    ///
    /// Panics if the program cannot be started or fails, with its standard error.
    pub fn command(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.try_command(program, arguments);
        successful(&output, &format!("{program} {}", arguments.join(" ")))
    }

    /// Runs a program in the namespace and returns its output and exit status.
    ///
    /// # Panics
    ///
    /// Panics if the program cannot be started.
    pub fn try_command(&self, program: &str, arguments: &[&str]) -> Output {
        self.run(|| {
            Command::new(program)
                .args(arguments)
                .output()
                .unwrap_or_else(|error| panic!("cannot start {program}: {error}"))
        })
    }

    /// Runs a program in the namespace with `input` as its standard input, and returns its standard output.
    ///
    /// # Panics
    ///
    /// Panics if the program cannot be started or fails, with its standard error.
    pub fn feed(&self, program: &str, arguments: &[&str], input: &str) -> String {
        let output = self.run(|| {
            let mut child = Command::new(program)
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
            let mut stdin = child.stdin.take().expect("stdin is piped");
            // On a separate thread: a program that prints before it has read all input would block both sides.
            thread::scope(|scope| {
                // Ignores the error of a program that exits without reading its input: its exit status is checked.
                scope.spawn(move || _ = stdin.write_all(input.as_bytes()));
                child.wait_with_output().unwrap_or_else(|error| panic!("cannot wait for {program}: {error}"))
            })
        });
        successful(&output, &format!("{program} {}", arguments.join(" ")))
    }

    /// Connects two namespaces with a veth pair, both ends up: `name` in this namespace, `peer_name` in `peer`.
    pub fn link(&self, name: &str, peer: &Self, peer_name: &str) {
        let peer_path = peer.path();
        let peer_path = peer_path.to_str().expect("the path is ASCII");
        let peer_device = ["peer", "name", peer_name, "netns", peer_path];
        self.command("ip", &[&["link", "add", name, "type", "veth"][..], &peer_device].concat());
        self.command("ip", &["link", "set", name, "up"]);
        peer.command("ip", &["link", "set", peer_name, "up"]);
    }

    /// Adds an address (`192.0.2.1/24`) to a device and waits until it is usable: the kernel activates IPv6 addresses
    /// asynchronously, and drops packets from or to an address before that.
    pub fn add_address(&self, address: &str, device: &str) {
        let ip = address.split('/').next().unwrap_or(address);
        if !ip.contains(':') {
            self.command("ip", &["address", "add", address, "dev", device]);
            return;
        }
        self.command("ip", &["address", "add", address, "dev", device, "nodad"]);
        for _ in 0..READY_TRIES {
            if !self.command("ip", &["-6", "route", "show", "table", "local", ip]).is_empty() {
                return;
            }
            thread::sleep(READY_PAUSE);
        }
        panic!("{address} on {device} is not ready after {:?}", READY_PAUSE * READY_TRIES);
    }

    /// Returns a path to this namespace for other processes (`nsenter --net=…`), valid until this value is dropped.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.handle.as_raw_fd()))
    }
}

impl Drop for NetNs {
    /// Ends the processes of userspace mode in the namespace, which outlive the proxy that started them.
    fn drop(&mut self) {
        let Ok(own) = self.handle.metadata() else { return };
        let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
        for process in processes {
            let is_worker = fs::read(process.path().join("cmdline"))
                .is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"userspace-worker"));
            let is_here = || fs::metadata(process.path().join("ns/net")).is_ok_and(|net| net.ino() == own.ino());
            let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(pid) = pid.filter(|_| is_worker && is_here()) {
                // It may have exited already.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

fn successful(output: &Output, command: &str) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {}\n{error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `work` on a new thread, because the network namespace is an attribute of the thread.
fn on_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// An address may take ten seconds, which suffices on a busy machine.
const READY_TRIES: u32 = 5_000;
const READY_PAUSE: Duration = Duration::from_millis(2);
