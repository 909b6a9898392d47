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

use crate::keeper::{KEEP, Report, Task};

/// A cluster whose keeper we have on a leash: it goes when this value goes, when a signal comes, and when this process
/// is killed.
#[derive(Debug)]
pub(crate) struct Session {
    keeper: Arc<Mutex<Keeper>>,
}

#[derive(Debug)]
struct Keeper {
    child: Child,
    /// `None` once it was let go.
    leash: Option<ChildStdin>,
}

impl Session {
    /// Has a keeper make the cluster, and waits until it is up. `on_step` hears what it does.
    pub(crate) fn start(task: &Task, mut on_step: impl FnMut(&str)) -> anyhow::Result<Self> {
        let mut command = Command::new(&task.program);
        command.args(["demo", "keeper", "--proxy-mode", task.mode.as_str()]);
        if let Some(file) = &task.file {
            command.arg("--file").arg(file);
        }
        command.args(task.instance.name().into_iter().flat_map(|name| ["--instance", name]));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
        let mut child = command.spawn().with_context(|| format!("cannot run {}", task.program.display()))?;
        let reports = child.stdout.take().expect("stdout is piped");
        let leash = child.stdin.take();
        let session = Self { keeper: Arc::new(Mutex::new(Keeper { child, leash })) };
        let keeper = session.keeper.clone();
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Held to the end, so that nobody else speaks about a cluster that is going.
                let mut keeper = keeper.lock().unwrap_or_else(PoisonError::into_inner);
                // Once the cluster is to stay there is nothing to interrupt: we are as good as done.
                if keeper.stop() {
                    // As a shell reports a program that a signal has ended.
                    std::process::exit(128 + signal);
                }
            }
        });
        wait_until_up(reports, &mut on_step)?;
        Ok(session)
    }

    /// Comes back only if no signal has come yet: otherwise the cluster is going, and what one sees of it means nothing.
    pub(crate) fn wait_if_interrupted(&self) {
        drop(self.keeper.lock());
    }

    /// Leaves the cluster up.
    pub(crate) fn keep(self) -> anyhow::Result<()> {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        let mut leash = keeper.leash.take().expect("it is let go at the end of a session only");
        writeln!(leash, "{KEEP}").context("the cluster is gone: its keeper has ended")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner).stop();
    }
}

impl Keeper {
    /// Lets go and waits until the cluster is gone. False when it is to stay, or is gone already.
    fn stop(&mut self) -> bool {
        let was_held = self.leash.take().is_some();
        if was_held {
            // A child can always be waited for.
            let _ = self.child.wait();
        }
        was_held
    }
}

fn wait_until_up(reports: ChildStdout, on_step: &mut impl FnMut(&str)) -> anyhow::Result<()> {
    for line in BufReader::new(reports).lines() {
        let line = line.context("cannot hear the demo's keeper")?;
        match serde_json::from_str(&line).context("cannot understand the demo's keeper")? {
            Report::Step(step) => on_step(&step),
            Report::Ready => return Ok(()),
            Report::Failed(reason) => bail!(reason),
        }
    }
    bail!("the demo's keeper has ended without a word")
}
