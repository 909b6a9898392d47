//! Tasks and threads whose loss ends the process.
//!
//! All tasks and threads of the daemon are started here. If a task or thread ended, the proxy would appear to work
//! although a part of its work is not done. The process therefore ends with an error: its supervisor restarts it, and
//! the rules stay active in the meantime. (In release builds, a panic ends the process at once; a task that returns
//! does not.)

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    thread::{self, JoinHandle},
};

use tokio::sync::mpsc;

/// Starts tasks and threads. Clones report to the same [`LostTasks`].
#[derive(Clone, Debug)]
pub(crate) struct Tasks(mpsc::UnboundedSender<Lost>);

/// The tasks and threads that were lost.
#[derive(Debug)]
pub(crate) struct LostTasks(mpsc::UnboundedReceiver<Lost>);

/// A task or thread that has ended although its work is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lost the {name}, which {}", if *.panicked { "panicked" } else { "ended unexpectedly" })]
pub(crate) struct Lost {
    name: &'static str,
    panicked: bool,
}

/// Whether a task is expected to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The task works until the process ends.
    Endless,
    /// The task ends once its work is done.
    Finite,
}

impl Tasks {
    /// Creates a starter without tasks.
    pub(crate) fn new() -> (Self, LostTasks) {
        let (lost, receiver) = mpsc::unbounded_channel();
        (Self(lost), LostTasks(receiver))
    }

    /// Starts a task on the current runtime. `name` continues "lost the".
    pub(crate) fn spawn(&self, name: &'static str, work: Work, future: impl Future<Output = ()> + Send + 'static) {
        let task = tokio::spawn(future);
        let tasks = self.clone();
        tokio::spawn(async move {
            match task.await {
                Ok(()) if work == Work::Finite => {}
                Ok(()) => tasks.report(name, false),
                // The runtime is shutting down.
                Err(error) if error.is_cancelled() => {}
                Err(_) => tasks.report(name, true),
            }
        });
    }

    /// Starts a thread that works until the process ends.
    ///
    /// # Errors
    /// If it cannot be started, for example because no further thread is permitted.
    pub(crate) fn thread(
        &self,
        name: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let tasks = self.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // No data of the work is used after a panic.
            let panicked = catch_unwind(AssertUnwindSafe(work)).is_err();
            tasks.report(name, panicked);
        })
    }

    /// Reports a loss that was detected elsewhere.
    pub(crate) fn report(&self, name: &'static str, panicked: bool) {
        // Without a receiver the process is ending anyway.
        let _ = self.0.send(Lost { name, panicked });
    }
}

impl LostTasks {
    /// Waits until a task or thread is lost. This method is cancel safe.
    pub(crate) async fn next(&mut self) -> Lost {
        match self.0.recv().await {
            Some(lost) => lost,
            // No task has been started that could be lost.
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lost_tasks_and_threads_are_reported_and_completed_ones_are_not() {
        let (tasks, mut lost) = Tasks::new();
        tasks.spawn("completed task", Work::Finite, async {});
        tasks.spawn("endless task", Work::Endless, std::future::pending());
        tokio::task::yield_now().await;
        let mut check = async |name, panicked| assert_eq!(lost.next().await, Lost { name, panicked });
        tasks.spawn("ended task", Work::Endless, async {});
        check("ended task", false).await;
        tasks.spawn("panicking task", Work::Finite, async { panic!("of a test") });
        check("panicking task", true).await;
        tasks.thread("ended thread", || ()).unwrap();
        check("ended thread", false).await;
        tasks.thread("panicking thread", || panic!("of a test")).unwrap();
        check("panicking thread", true).await;
    }
}
