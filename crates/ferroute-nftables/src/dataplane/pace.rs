use std::time::Duration;

/// How many changes go into one transaction, so that none keeps others from changing their rules for long.
///
/// The kernel works on one transaction at a time, of whatever program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    size: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { size: FIRST_SIZE }
    }
}

impl Pace {
    /// A transaction of so many changes is large enough.
    pub(super) fn is_full(self, changes: usize) -> bool {
        changes >= self.size
    }

    /// A transaction of so many changes took so long.
    pub(super) fn learn(&mut self, changes: usize, took: Duration) {
        // Small ones say more about the cost of a transaction than about that of a change.
        if changes * 2 < self.size {
            return;
        }
        let per_change = took.as_secs_f64() / changes as f64;
        let fitting = (TARGET.as_secs_f64() / per_change.max(f64::EPSILON)) as usize;
        self.size = fitting.clamp(self.size / 2, self.size * 2).clamp(SMALLEST_SIZE, LARGEST_SIZE);
    }
}

/// Less than a third of the 100 ms that others are to wait at most, for the time varies with what else the host does.
const TARGET: Duration = Duration::from_millis(30);
const FIRST_SIZE: usize = 4_000;
const SMALLEST_SIZE: usize = 500;
/// Limits the memory of a transaction to one megabyte: what a first sync takes for a moment stays with the process
/// in between what lasts.
const LARGEST_SIZE: usize = 4_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_transactions_become_smaller_and_quick_ones_larger() {
        let mut pace = Pace::default();
        pace.learn(FIRST_SIZE, Duration::from_millis(500));
        assert!(pace.is_full(FIRST_SIZE / 2) && !pace.is_full(FIRST_SIZE / 2 - 1));
        for _ in 0..20 {
            pace.learn(40_000, Duration::from_millis(1));
        }
        assert!(pace.is_full(LARGEST_SIZE) && !pace.is_full(LARGEST_SIZE - 1));
        pace.learn(10, Duration::from_secs(1));
        assert!(!pace.is_full(LARGEST_SIZE - 1), "a small transaction says nothing");
    }
}
