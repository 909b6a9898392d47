use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// The time of the last progress of a thread, for watchers on other threads. Clones share it.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    start: Instant,
    /// Time of the last beat, in milliseconds after `start`.
    last: Arc<AtomicU64>,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { start: Instant::now(), last: Arc::default() }
    }
}

impl Heartbeat {
    /// Records progress.
    pub fn beat(&self) {
        self.last.store(self.milliseconds(), Relaxed);
    }

    /// Returns the time since the last progress, in milliseconds.
    pub fn silence(&self) -> Duration {
        Duration::from_millis(self.milliseconds().saturating_sub(self.last.load(Relaxed)))
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
