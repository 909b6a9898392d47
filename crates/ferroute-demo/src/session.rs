use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context, bail};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::supervisor::{ClusterSpec, DETACH, StartupMessage};

/// A running cluster. It is removed when this value is dropped, when a signal is received, and when this process is killed.
#[derive(Debug)]
pub(crate) struct Session {
    supervisor: Arc<Mutex<Supervisor>>,
}

#[derive(Debug)]
struct Supervisor {
    child: Child,
    /// Standard input of the supervisor; `None` after it was closed.
    stdin: Option<ChildStdin>,
}

impl Session {
    /// Starts a supervisor and waits until the cluster is ready. Calls `on_step` with a description of each step.
    pub(crate) fn start(spec: &ClusterSpec, mut on_step: impl FnMut(&str)) -> anyhow::Result<Self> {
        let mut command = Command::new(&spec.program);
        command.args(["demo", "supervisor", "--proxy-mode", &spec.mode]);
        if let Some(file) = &spec.file {
            command.arg("--file").arg(file);
        }
        command.args(spec.instance.name().into_iter().flat_map(|name| ["--instance", name]));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
        let mut child = command.spawn().with_context(|| format!("cannot run {}", spec.program.display()))?;
        let reports = child.stdout.take().expect("stdout is piped");
        let stdin = child.stdin.take();
        let session = Self { supervisor: Arc::new(Mutex::new(Supervisor { child, stdin })) };
        let supervisor = session.supervisor.clone();
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Held until the end of the process: the main thread must not report on a cluster that is being removed.
                let mut supervisor = supervisor.lock().unwrap_or_else(PoisonError::into_inner);
                // A detached cluster keeps running, and this process is about to exit.
                if supervisor.stop() {
                    // The shell's convention for a program that was ended by a signal.
                    std::process::exit(128 + signal);
                }
            }
        });
        wait_until_ready(reports, &mut on_step)?;
        Ok(session)
    }

    /// Blocks forever if a signal was received: the cluster is being removed, so its state is meaningless.
    pub(crate) fn wait_if_interrupted(&self) {
        drop(self.supervisor.lock());
    }

    /// Keeps the cluster running after this session.
    pub(crate) fn detach(self) -> anyhow::Result<()> {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stdin = supervisor.stdin.take().expect("bug: standard input is open until the end of the session");
        writeln!(stdin, "{DETACH}").context("the cluster was removed: its supervisor has ended")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).stop();
    }
}

impl Supervisor {
    /// Removes the cluster and waits for that. Returns false if it is detached or was removed before.
    fn stop(&mut self) -> bool {
        let was_open = self.stdin.take().is_some();
        if was_open {
            // Cannot fail for a child of this process.
            let _ = self.child.wait();
        }
        was_open
    }
}

fn wait_until_ready(reports: ChildStdout, on_step: &mut impl FnMut(&str)) -> anyhow::Result<()> {
    for line in BufReader::new(reports).lines() {
        let line = line.context("cannot read the output of the demo's supervisor")?;
        match serde_json::from_str(&line).context("invalid output of the demo's supervisor")? {
            StartupMessage::Step(step) => on_step(&step),
            StartupMessage::Ready => return Ok(()),
            StartupMessage::Failed(reason) => bail!(reason),
        }
    }
    bail!("the demo's supervisor ended unexpectedly")
}
