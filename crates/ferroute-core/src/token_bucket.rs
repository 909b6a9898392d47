use std::time::{Duration, Instant};

/// A token bucket: `burst` tokens after a quiet time, then one token each `interval`.
///
/// It reads no clock; the caller passes the current time. All of its state is one instant, as in the generic cell rate
/// algorithm: each token that is taken moves it one interval on.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    interval: Duration,
    burst: u32,
    /// When the bucket is full, if no further token is taken.
    full_at: Instant,
}

impl TokenBucket {
    /// Returns a bucket that is full. A zero `interval` means no limit; a zero `burst` counts as 1.
    pub fn new(interval: Duration, burst: u32, now: Instant) -> Self {
        Self { interval, burst: burst.max(1), full_at: now }
    }

    /// Returns when a token is available: `now` or later.
    pub fn available_at(&self, now: Instant) -> Instant {
        let refill = self.interval.saturating_mul(self.burst - 1);
        self.full_at.checked_sub(refill).map_or(now, |at| at.max(now))
    }

    /// Takes a token and returns the time at which it may be used: `now`, or later if all tokens up to then are taken.
    pub fn take(&mut self, now: Instant) -> Instant {
        let at = self.available_at(now);
        self.full_at = self.full_at.max(now) + self.interval;
        at
    }

    /// Takes a token if one is available now, and reports whether it did.
    pub fn try_take(&mut self, now: Instant) -> bool {
        let is_available = self.available_at(now) <= now;
        if is_available {
            self.take(now);
        }
        is_available
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(200);

    /// Returns the waiting time of each of `count` takers, in milliseconds.
    fn waits(bucket: &mut TokenBucket, now: Instant, count: usize) -> Vec<u128> {
        (0..count).map(|_| (bucket.take(now) - now).as_millis()).collect()
    }

    #[test]
    fn burst_is_available_at_once_and_further_tokens_at_the_rate() {
        let now = Instant::now();
        assert_eq!(waits(&mut TokenBucket::new(INTERVAL, 3, now), now, 6), [0, 0, 0, 200, 400, 600]);
    }

    #[test]
    fn quiet_time_saves_one_burst_and_no_more() {
        let now = Instant::now();
        let mut bucket = TokenBucket::new(INTERVAL, 3, now);
        assert_eq!(waits(&mut bucket, now, 4), [0, 0, 0, 200]);
        assert_eq!(waits(&mut bucket, now + Duration::from_secs(60), 5), [0, 0, 0, 200, 400]);
    }

    #[test]
    fn tokens_are_refused_until_the_next_refill() {
        let now = Instant::now();
        let mut bucket = TokenBucket::new(INTERVAL, 2, now);
        assert_eq!([0; 4].map(|_| bucket.try_take(now)), [true, true, false, false]);
        assert!(bucket.try_take(now + INTERVAL));
        assert!(!bucket.try_take(now + INTERVAL));
    }

    #[test]
    fn zero_interval_is_no_limit_and_zero_burst_is_one() {
        let now = Instant::now();
        assert_eq!(waits(&mut TokenBucket::new(Duration::ZERO, 0, now), now, 3), [0, 0, 0]);
        assert_eq!(waits(&mut TokenBucket::new(INTERVAL, 0, now), now, 3), [0, 200, 400]);
    }
}
