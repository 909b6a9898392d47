//! Termination of the process by a signal within a second, even if threads hang.
//!
//! A separate thread waits for SIGTERM and SIGINT from the beginning. It requests an orderly shutdown, and ends the
//! process itself if that takes too long: the main thread may be blocked by a program that it starts, the sync thread
//! by the kernel, the log by its reader. The rules stay in the kernel in any case.

use std::{
    process,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use anyhow::Context;
use ferroute_host::program::kill_programs;
use nix::sys::signal::{SigSet, Signal};
use tokio::sync::Notify;

/// The signals that end the process. Clones share their state.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The name of the signal that was received.
    signal: OnceLock<&'static str>,
    notify: Notify,
}

impl Shutdown {
    /// Handles SIGTERM and SIGINT: from now on, either ends the process with status 0 within a second. Must be called
    /// before any other thread is started, because threads inherit the set of blocked signals. Started programs do not
    /// inherit it.
    ///
    /// # Errors
    /// If the signals cannot be blocked, or the thread cannot be started.
    pub fn install() -> anyhow::Result<Self> {
        let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
        signals.thread_block().context("cannot block SIGTERM and SIGINT")?;
        let shutdown = Self(Arc::default());
        let waiting = shutdown.clone();
        let thread = thread::Builder::new().name("signals".to_owned());
        thread.spawn(move || waiting.wait(signals)).context("cannot start the thread that waits for signals")?;
        Ok(shutdown)
    }

    /// Waits for a signal and returns its name. Only one task may wait.
    pub(crate) async fn requested(&self) -> &'static str {
        loop {
            if let Some(signal) = self.0.signal.get() {
                return signal;
            }
            // A notification before this call is kept.
            self.0.notify.notified().await;
        }
    }

    fn wait(&self, signals: SigSet) {
        // The only error is an invalid set.
        let Ok(signal) = signals.wait() else { return };
        let signal = signal.as_str();
        self.0.signal.get_or_init(|| signal);
        self.0.notify.notify_one();
        thread::sleep(GRACE);
        kill_programs();
        tracing::warn!("received {signal}; exiting although the orderly end is blocked, rules stay active");
        ferroute_logging::flush(ferroute_logging::SIGNAL_FLUSH);
        process::exit(0);
    }
}

/// The time for the orderly end. With the wait for the log it is less than a second.
const GRACE: Duration = Duration::from_millis(800);

/// The part of it that a sync in progress may take to complete.
pub(crate) const SYNC_GRACE: Duration = Duration::from_millis(400);
