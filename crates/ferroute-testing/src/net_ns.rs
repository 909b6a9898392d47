use std::{
    fs::File,
    io::Write,
    os::fd::AsRawFd,
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace of its own, with `lo` up; gone with the last value or process that uses it.
#[derive(Debug)]
pub struct NetNs {
    handle: File,
}

impl NetNs {
    /// Makes a namespace.
    ///
    /// # Panics
    ///
    /// Without the right to do so: such a test must fail, for nobody sees a test that skips itself. An ordinary user
    /// can run tests under `unshare --map-root-user`.
    #[expect(clippy::new_without_default, reason = "it asks the kernel for something and can panic")]
    pub fn new() -> Self {
        let handle = on_new_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .unwrap_or_else(|error| panic!("cannot make a network namespace (this test needs root): {error}"));
            File::open("/proc/thread-self/ns/net").expect("every thread has a network namespace")
        });
        let namespace = Self { handle };
        namespace.command("ip", &["link", "set", "lo", "up"]);
        namespace
    }

    /// Runs `work` inside, on a thread of its own. Sockets that it opens stay inside for ever, wherever they are used
    /// later. A panic inside goes on outside.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_new_thread(|| {
            setns(&self.handle, CloneFlags::CLONE_NEWNET)
                .unwrap_or_else(|error| panic!("cannot enter a network namespace: {error}"));
            work()
        })
    }

    /// Runs a program inside and returns what it printed.
    ///
    /// # Panics
    ///
    /// When it cannot be started or fails, with what it wrote to its standard error.
    pub fn command(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.try_command(program, arguments);
        successful(output, &format!("{program} {}", arguments.join(" ")))
    }

    /// Runs a program inside and returns how it ended, well or not.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn try_command(&self, program: &str, arguments: &[&str]) -> Output {
        self.run(|| {
            Command::new(program)
                .args(arguments)
                .output()
                .unwrap_or_else(|error| panic!("cannot start {program}: {error}"))
        })
    }

    /// Runs a program inside with `input` as its standard input and returns what it printed.
    ///
    /// # Panics
    ///
    /// When it cannot be started or fails, with what it wrote to its standard error.
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
            // On a thread of its own: a program that prints before it has read everything would block both sides.
            thread::scope(|scope| {
                // A program that ends without reading its input tells why by its exit status.
                scope.spawn(move || _ = stdin.write_all(input.as_bytes()));
                child.wait_with_output().unwrap_or_else(|error| panic!("cannot wait for {program}: {error}"))
            })
        });
        successful(output, &format!("{program} {}", arguments.join(" ")))
    }

    /// Joins two namespaces by a pair of virtual Ethernet devices, both up: `name` in this one, `peer_name` in `peer`.
    pub fn link(&self, name: &str, peer: &Self, peer_name: &str) {
        let peer_path = peer.path();
        let peer_path = peer_path.to_str().expect("the path is ASCII");
        let peer_device = ["peer", "name", peer_name, "netns", peer_path];
        self.command("ip", &[&["link", "add", name, "type", "veth"][..], &peer_device].concat());
        self.command("ip", &["link", "set", name, "up"]);
        peer.command("ip", &["link", "set", peer_name, "up"]);
    }

    /// Gives a device an address (`192.0.2.1/24`) that can be used at once: the kernel gets IPv6 addresses ready in the
    /// background, and without this packets to or from a new one may vanish.
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

    /// A path that leads other processes to this namespace while this value lives (`nsenter --net=…`).
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.handle.as_raw_fd()))
    }
}

fn successful(output: Output, command: &str) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {}\n{error}", output.status);
    String::from_utf8(output.stdout).unwrap_or_else(|_| panic!("{command}: output is not UTF-8"))
}

/// The kernel keeps the namespace per thread, so a thread that changes its own must not be anybody else's.
fn on_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How long an address may take to get ready: a long time, for a machine under load.
const READY_TRIES: u32 = 5_000;
const READY_PAUSE: Duration = Duration::from_millis(2);
