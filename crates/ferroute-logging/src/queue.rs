//! The queue between the threads that log and standard error, so that a blocked reader does not delay these threads.
//!
//! ```text
//!   any thread --> LogQueue (bounded) --> thread "log" --> standard error
//! ```
//!
//! `tracing-appender` does the same with a channel that allocates each line; its crates (`crossbeam-channel`, `time`) cost more
//! than this file.

use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// The queue. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct LogQueue(Arc<LineBuffer>);

#[derive(Debug, Default)]
struct LineBuffer {
    state: Mutex<WaitingLines>,
    /// Notified when there are lines to write.
    filled: Condvar,
    /// Notified when all lines have been written.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct WaitingLines {
    /// Lines that have not been passed to the output.
    lines: Vec<u8>,
    /// Whether earlier lines are being written.
    is_writing: bool,
    /// The number of lines that did not fit.
    dropped: u64,
    /// Number of dropped lines that the log has not reported yet.
    unreported: u64,
}

impl LogQueue {
    /// Starts the thread that writes to `output`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        let queue = Self::default();
        let thread = queue.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || thread.write_all(output))?;
        Ok(queue)
    }

    /// Adds lines, or drops and counts them if the queue is full. It never waits for the output.
    pub(super) fn push(&self, lines: &[u8]) {
        let mut state = self.state();
        if state.lines.len() + lines.len() > CAPACITY && !state.lines.is_empty() {
            state.dropped += 1;
            state.unreported += 1;
            return;
        }
        state.lines.extend_from_slice(lines);
        self.0.filled.notify_one();
    }

    /// Waits until everything has been written, but not longer than `at_most`.
    pub(super) fn flush(&self, at_most: Duration) {
        let is_busy = |state: &mut WaitingLines| state.is_writing || !state.lines.is_empty();
        // Only the return matters, not the result.
        let _ = self.0.emptied.wait_timeout_while(self.state(), at_most, is_busy);
    }

    /// Returns the number of lines dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.state().dropped
    }

    fn write_all(&self, mut output: impl Write) {
        let mut batch = Vec::new();
        loop {
            let mut state = self.state();
            state.is_writing = false;
            if state.lines.is_empty() {
                self.0.emptied.notify_all();
            }
            while state.lines.is_empty() {
                state = self.0.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.is_writing = true;
            std::mem::swap(&mut batch, &mut state.lines);
            let unreported = std::mem::take(&mut state.unreported);
            drop(state);
            // There is no other place to report an error to.
            let _ = output.write_all(&batch);
            batch.clear();
            batch.shrink_to(KEPT);
            if unreported > 0 {
                // Follows the lines that fit and precedes those after the gap, unless new lines were added first.
                tracing::warn!(lines = unreported, "log lines were dropped because standard error was blocked");
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, WaitingLines> {
        // No operation leaves an inconsistent state behind when it panics.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for LogQueue {
    /// The subscriber passes each message as a whole.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.push(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes that wait for a blocked output: some thousand lines.
const CAPACITY: usize = 256 * 1024;

/// Bytes of memory that an idle queue keeps.
const KEPT: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// An output that is blocked until it receives permission for each write.
    struct Blocked {
        permission: mpsc::Receiver<()>,
        written: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.permission.recv().map_err(io::Error::other)?;
            self.written.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn blocked() -> (LogQueue, mpsc::Sender<()>, mpsc::Receiver<Vec<u8>>) {
        let ((permit, permission), (written, output)) = (mpsc::channel(), mpsc::channel());
        (LogQueue::start(Blocked { permission, written }).unwrap(), permit, output)
    }

    #[test]
    fn a_blocked_output_delays_nobody_and_loses_only_what_exceeds_the_capacity() {
        let (queue, permit, output) = blocked();
        let line = |number: usize| format!("{number:0>1023}\n").into_bytes();
        let count = 2 * CAPACITY / 1024;
        queue.push(&line(0));
        // The thread takes the first line at a time that is not determined. Later, it would take others with it, and
        // leave space for lines after the gap.
        while !queue.state().is_writing {
            thread::yield_now();
        }
        (1..count).for_each(|number| queue.push(&line(number)));
        queue.flush(Duration::from_millis(10));
        assert!(queue.dropped() > 0);
        permit.send(()).unwrap();
        permit.send(()).unwrap();
        let mut written = output.recv().unwrap();
        written.extend(output.recv().unwrap());
        let expected: Vec<u8> = (0..written.len() / 1024).flat_map(line).collect();
        assert!(written == expected, "in order and without a gap");
        assert_eq!(written.len() / 1024 + usize::try_from(queue.dropped()).unwrap(), count);
    }

    #[test]
    fn flush_waits_for_the_last_line() {
        let (queue, permit, output) = blocked();
        permit.send(()).unwrap();
        queue.push(b"last\n");
        queue.flush(Duration::from_secs(60));
        assert_eq!(output.try_recv().unwrap(), b"last\n");
    }
}
