use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// How far a sync is, for those who look on from other threads. All clones see the same.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    done: AtomicUsize,
    total: AtomicUsize,
}

impl Progress {
    /// Service ports that are in force and that shall be, of the sync that runs or ran last.
    pub fn get(&self) -> (usize, usize) {
        (self.0.done.load(Relaxed), self.0.total.load(Relaxed))
    }

    /// A sync of so many service ports begins.
    pub fn start(&self, total: usize) {
        self.0.done.store(0, Relaxed);
        self.0.total.store(total, Relaxed);
    }

    /// So many of them are in force by now.
    pub fn advance(&self, done: usize) {
        self.0.done.store(done, Relaxed);
    }
}
