use std::time::Duration;

/// An exponential back-off: delays that double with each failure, up to a limit.
///
/// It has no clock and no randomness; a caller that shares a server with others adds its own jitter.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    /// Failures since the last success.
    failures: u32,
}

impl Backoff {
    /// Returns a back-off whose first delay is `initial` and whose longest is `max`.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max, failures: 0 }
    }

    /// Counts a failure and returns the delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.initial.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        delay
    }

    /// Starts again from the first delay, after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_start_again_after_success() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        let delays: Vec<_> = (0..7).map(|_| backoff.next_delay().as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
        backoff.reset();
        assert_eq!(backoff.next_delay(), Duration::from_secs(1));
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let mut backoff = Backoff { failures: u32::MAX - 1, ..Backoff::new(Duration::from_secs(1), Duration::MAX) };
        assert!((0..3).all(|_| backoff.next_delay() >= Duration::from_secs(1)));
    }
}
