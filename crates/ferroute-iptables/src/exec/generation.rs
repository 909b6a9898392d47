//! Detection of rule changes by other programs.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ferroute_core::{IpFamily, error_chain};
use ferroute_host::{GenerationError, KernelGeneration, RuleGeneration};

use super::notifications::ChainNotifications;
use crate::{ChainName, TableName};

/// Distinguishes other programs' changes of nf_tables rules from Ferroute's. All dataplanes of a network namespace share
/// one tracker.
///
/// The kernel's generation id counts the transactions of all programs. The generation id minus Ferroute's own transactions
/// changes exactly if another program commits one. `iptables-legacy` does not change the generation id.
#[derive(Clone)]
pub struct GenerationTracker {
    shared: Arc<Mutex<Generations>>,
}

struct Generations {
    /// Source of the generation id; `None` if the kernel has none.
    kernel: Option<Box<dyn RuleGeneration>>,
    /// Number of transactions that were certainly Ferroute's.
    own: u32,
    /// `None` until they are asked for, and `Some(None)` if the kernel refuses them.
    notifications: Option<Option<ChainNotifications>>,
}

impl GenerationTracker {
    /// Creates a tracker for the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel has nf_tables but the generation id cannot be read.
    pub fn open() -> Result<Self, GenerationError> {
        let kernel = KernelGeneration::open()?.map(|kernel| Box::new(kernel) as Box<dyn RuleGeneration>);
        Ok(Self::new(kernel))
    }

    /// Creates a tracker from a source of the generation id; `None` if there is none.
    pub fn new(kernel: Option<Box<dyn RuleGeneration>>) -> Self {
        Self { shared: Arc::new(Mutex::new(Generations { kernel, own: 0, notifications: None })) }
    }

    /// Returns a number that changes if another program changes rules; `None` if this cannot be detected.
    pub(super) fn external(&self) -> Option<u32> {
        let mut shared = self.lock();
        let own = shared.own;
        Some(shared.generation()?.wrapping_sub(own))
    }

    /// Runs `write`, which returns the number of transactions that it committed. They count as Ferroute's only if the
    /// generation id advanced by the same number; otherwise a transaction of another program may be among them, and
    /// [`GenerationTracker::external`] changes.
    ///
    /// Other dataplanes block in the meantime, because they would mistake these transactions for another program's.
    pub(super) fn count_own<T, E>(&self, write: impl FnOnce() -> Result<(T, u32), E>) -> Result<T, E> {
        let mut shared = self.lock();
        let before = shared.generation();
        let (value, committed) = match &shared.notifications {
            Some(Some(notifications)) => notifications.without(write),
            _ => write(),
        }?;
        if let (Some(before), Some(after)) = (before, shared.generation())
            && after.wrapping_sub(before) == committed
        {
            shared.own = shared.own.wrapping_add(committed);
        }
        Ok(value)
    }

    /// Returns chains of an IP family that other programs changed since the last call, or since the first. Others may have
    /// changed as well.
    pub(super) fn changed_chains(&self, family: IpFamily) -> Vec<(TableName, ChainName)> {
        let open = || ChainNotifications::open().inspect_err(|error| tracing::debug!("{}", error_chain(error))).ok();
        let mut shared = self.lock();
        let notifications = shared.notifications.get_or_insert_with(open);
        notifications.as_mut().map(|notifications| notifications.take(family)).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        // A panic within `count_own` leaves the numbers unchanged, which only causes a superfluous comparison.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn generation(&mut self) -> Option<u32> {
        let generation = self.kernel.as_mut()?.current();
        generation.inspect_err(|error| tracing::debug!(%error, "cannot read the nf_tables generation id")).ok()
    }
}

impl fmt::Debug for GenerationTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerationTracker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Clone, Default)]
    struct FakeGeneration(Arc<AtomicU32>);

    impl RuleGeneration for FakeGeneration {
        fn current(&mut self) -> Result<u32, GenerationError> {
            Ok(self.0.load(Ordering::Relaxed))
        }
    }

    impl FakeGeneration {
        fn commit(&self, transactions: u32) {
            self.0.fetch_add(transactions, Ordering::Relaxed);
        }
    }

    fn tracker() -> (FakeGeneration, GenerationTracker) {
        let generation = FakeGeneration::default();
        // Close to the overflow of the kernel's number.
        generation.commit(u32::MAX - 2);
        (generation.clone(), GenerationTracker::new(Some(Box::new(generation))))
    }

    fn write(tracker: &GenerationTracker, committed: u32, work: impl FnOnce()) {
        let written: Result<(), ()> = tracker.count_own(|| {
            work();
            Ok(((), committed))
        });
        written.unwrap();
    }

    #[test]
    fn own_transactions_are_not_external() {
        let (generation, tracker) = tracker();
        let before = tracker.external();
        let other_family = tracker.clone();
        for _ in 0..4 {
            write(&tracker, 2, || generation.commit(2));
            write(&other_family, 1, || generation.commit(1));
            assert_eq!(tracker.external(), before);
        }
    }

    #[test]
    fn transactions_of_other_programs_are_detected_between_and_during_own_writes() {
        let (generation, tracker) = tracker();
        let before = tracker.external();
        generation.commit(1);
        assert_ne!(tracker.external(), before);

        let before = tracker.external();
        generation.commit(1);
        write(&tracker, 2, || generation.commit(2));
        assert_ne!(tracker.external(), before, "committed before an own write");

        let before = tracker.external();
        write(&tracker, 2, || generation.commit(3));
        assert_ne!(tracker.external(), before, "committed during an own write");
    }

    #[test]
    fn a_failed_write_counts_as_external_because_it_may_be_partially_committed() {
        let (generation, tracker) = tracker();
        let before = tracker.external();
        let failed: Result<(), &str> = tracker.count_own(|| {
            generation.commit(1);
            Err("the second table")
        });
        assert_eq!(failed, Err("the second table"));
        assert_ne!(tracker.external(), before);
    }

    #[test]
    fn without_generation_id_nothing_is_detected() {
        let tracker = GenerationTracker::new(None);
        assert_eq!(tracker.external(), None);
        write(&tracker, 1, || {});
        assert_eq!(tracker.external(), None);
    }
}
