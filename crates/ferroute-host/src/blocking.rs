use std::{io, thread};

use tokio::sync::oneshot;

/// Runs blocking work on a separate thread and waits for the result. If the future is dropped, the work continues and
/// its result is discarded.
///
/// tokio's `spawn_blocking` panics if no thread can be started, and its runtime waits for work that hangs when it shuts
/// down.
///
/// # Errors
/// If the thread cannot be started, or the work panics. `name` is the name of the thread.
pub async fn run_blocking<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, result) = oneshot::channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The receiver may have been dropped.
        let _ = sender.send(work());
    })?;
    result.await.map_err(|_| io::Error::other(format!("the thread {name} panicked")))
}
