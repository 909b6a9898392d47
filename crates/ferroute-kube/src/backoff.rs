use std::time::Duration;

/// How long to wait after failures: twice as long each time, up to a limit, and by chance somewhat less, so that many
/// nodes that fail at once do not come back at once.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Things work again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// How long to wait after one more failure. `asked` is what the server asks for at least; waits beyond ten times
    /// the longest one are not believed.
    pub(crate) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        let own = doubled.min(self.longest);
        self.failures = self.failures.saturating_add(1);
        let asked = asked.unwrap_or_default().min(self.longest.saturating_mul(10));
        // From a quarter on, and on top of what the server has asked all others for too.
        asked + own.mul_f64(0.25 + 0.75 * fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(30);

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew_after_success() {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        for limit in [1, 2, 4, 8, 16, 30, 30] {
            let wait = backoff.next(None);
            assert!((limit * 250..=limit * 1000).contains(&wait.as_millis()), "{wait:?} for {limit} s");
        }
        backoff.reset();
        assert!(backoff.next(None) <= FIRST);
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let mut backoff = Backoff { failures: u32::MAX - 1, ..Backoff::new(FIRST, LONGEST) };
        assert!((0..3).all(|_| backoff.next(None) <= LONGEST));
    }

    #[test]
    fn two_nodes_do_not_wait_equally_long() {
        let waits: std::collections::BTreeSet<_> = (0..8).map(|_| Backoff::new(FIRST, LONGEST).next(None)).collect();
        assert!(waits.len() > 1);
    }

    #[test]
    fn what_the_server_asks_for_is_the_least_within_reason() {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        assert!(backoff.next(Some(Duration::from_secs(20))) > Duration::from_secs(20));
        assert!(backoff.next(Some(Duration::from_secs(1_000_000))) < Duration::from_secs(332));
    }
}
