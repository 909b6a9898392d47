use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// The time of the last progress of a thread, for watchers on other threads. Clones share it.
///
/// Long-running code, such as a sync in parts, calls [`Heartbeat::beat_thread`] whether or not its thread is watched.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    start: Instant,
    /// Time of the last beat, in milliseconds after `start`.
    last: Arc<AtomicU64>,
}

thread_local! {
    static OF_THREAD: RefCell<Option<Heartbeat>> = const { RefCell::new(None) };
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { start: Instant::now(), last: Arc::default() }
    }
}

impl Heartbeat {
    /// Makes this the heartbeat of the calling thread.
    pub fn attach_to_thread(&self) {
        OF_THREAD.set(Some(self.clone()));
    }

    /// Records progress of the calling thread, if it has a heartbeat.
    pub fn beat_thread() {
        OF_THREAD.with_borrow(|heartbeat| heartbeat.iter().for_each(Self::beat));
    }

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
