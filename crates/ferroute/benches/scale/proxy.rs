//! The measured program.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use ferroute_testing::NetNs;
use serde::Deserialize;

/// A process of `ferroute run`, which is killed on drop.
pub(crate) struct Proxy {
    child: Child,
    started: Instant,
    lines: Receiver<(Instant, Line)>,
}

/// A sync that changed IPv4 rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sync {
    /// A full sync.
    pub(crate) full: bool,
    /// The time from its cause to its end.
    pub(crate) waited: Duration,
    /// Duration.
    pub(crate) took: Duration,
    /// The duration of the kernel's part, or of the programs.
    pub(crate) kernel: Duration,
}

/// A line of the log. Fields of other messages are missing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    level: String,
    #[serde(rename = "msg")]
    message: String,
    family: String,
    full: bool,
    took: String,
    kernel: String,
}

impl Proxy {
    /// Starts the proxy in a namespace. `source` are the arguments for the source of objects.
    pub(crate) fn start(namespace: &NetNs, source: &[String], config: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
        command.arg("run").args(source).arg("--config").arg(config);
        command.stderr(Stdio::piped()).env_remove("FERROUTE_LOG");
        let started = Instant::now();
        let mut child = namespace.run(|| command.spawn().unwrap());
        let (log, (sender, lines)) = (child.stderr.take().unwrap(), channel());
        thread::spawn(move || follow(log, &sender));
        Self { child, started, lines }
    }

    /// Returns the process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next sync, measured from the start of the program.
    pub(crate) fn next_sync(&mut self) -> Sync {
        self.wait_for_sync(self.started)
    }

    /// Makes a change and waits for the next sync.
    pub(crate) fn next_sync_after(&mut self, cause: impl FnOnce()) -> Sync {
        let start = Instant::now();
        cause();
        self.wait_for_sync(start)
    }

    /// Waits until the log has been quiet for a while.
    pub(crate) fn wait_until_quiet(&mut self) {
        while self.lines.recv_timeout(QUIET).is_ok() {}
    }

    fn wait_for_sync(&mut self, cause: Instant) -> Sync {
        loop {
            let (at, line) = match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => panic!("no sync within {TIMEOUT:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the proxy exited"),
            };
            assert_ne!(line.level, "error", "{line:?}");
            if line.message == "synced" && line.family == "IPv4" {
                let (took, kernel) = (duration(&line.took), duration(&line.kernel));
                return Sync { full: line.full, waited: at.duration_since(cause), took, kernel };
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn follow(log: ChildStderr, lines: &Sender<(Instant, Line)>) {
    for line in BufReader::new(log).lines() {
        let line = line.unwrap();
        let now = Instant::now();
        let parsed = serde_json::from_str(&line).unwrap_or_else(|_| Line { message: line, ..Line::default() });
        if lines.send((now, parsed)).is_err() {
            return;
        }
    }
}

/// Parses a duration in the format of `{:?}`.
fn duration(text: &str) -> Duration {
    let unit = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap();
    let seconds = match &text[unit..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        "ns" => 1e-9,
        unit => panic!("unknown unit {unit} in {text}"),
    };
    Duration::from_secs_f64(text[..unit].parse::<f64>().unwrap() * seconds)
}

const QUIET: Duration = Duration::from_secs(1);
/// Large clusters on a busy machine take minutes.
const TIMEOUT: Duration = Duration::from_secs(1200);
