//! Reports operations that take long.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

use ferroute_core::Escaped;

/// Work that is reported if it takes longer than a second. It ends when this value is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Waiting {
    _running: Sender<()>,
}

impl Waiting {
    /// Starts the work. `what` is a phrase such as "reading manifests".
    pub(crate) fn for_work(what: String) -> Self {
        let (_running, ended) = mpsc::channel();
        let watch = move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                report(&format!("{what}, which takes a while"));
            }
        };
        // Without the thread, there is no report.
        let _ = thread::Builder::new().name("waiting".to_owned()).spawn(watch);
        Self { _running }
    }
}

/// Logs a warning, or writes the line to standard error before logging is started, which the configuration precedes.
#[expect(clippy::print_stderr, reason = "there is no log yet")]
fn report(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
    } else {
        eprintln!("ferroute: {}", Escaped(text));
    }
}

/// The time after which work is reported.
const PATIENCE: Duration = Duration::from_secs(1);
