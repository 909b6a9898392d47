use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The progress of the current or last sync, readable from other threads. Clones share the same counters.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    done: AtomicUsize,
    total: AtomicUsize,
}

impl Progress {
    /// Returns the number of applied service ports and the number of all service ports in the current or last sync.
    pub fn get(&self) -> (usize, usize) {
        (self.0.done.load(Relaxed), self.0.total.load(Relaxed))
    }

    /// Starts a sync of `total` service ports.
    pub fn start(&self, total: usize) {
        self.0.done.store(0, Relaxed);
        self.0.total.store(total, Relaxed);
    }

    /// Sets the number of applied service ports.
    pub fn advance(&self, done: usize) {
        self.0.done.store(done, Relaxed);
    }
}
