//! When to sync: at once after a quiet time, at a bounded rate under load, and again after a failure.

use std::time::Duration;

use ferroute_core::{Backoff, TokenBucket};
use tokio::time::Instant;

/// Times that bound how often rules are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A new token is added this often (`minSyncPeriod`); zero means no limit.
    pub min_interval: Duration,
    /// Tokens that can be saved up: this many further syncs may follow the first one at once after a quiet time.
    pub burst: u32,
    /// Delay after the first failure; it doubles with every further one.
    pub first_retry: Duration,
    /// Longest delay after a failure.
    pub longest_retry: Duration,
}

/// Decides when the next sync may start. It holds no timer of its own: the sync loop awaits [`Schedule::ready`] beside
/// its other inputs.
#[derive(Debug)]
pub struct Schedule {
    tokens: TokenBucket,
    backoff: Backoff,
    requested: bool,
    /// The earliest time of the next sync, after a failure.
    retry_at: Option<Instant>,
}

impl Schedule {
    /// Returns a schedule with all tokens available and no sync requested.
    pub fn new(limits: Limits) -> Self {
        Self {
            tokens: TokenBucket::new(limits.min_interval, limits.burst, Instant::now().into_std()),
            backoff: Backoff::new(limits.first_retry, limits.longest_retry),
            requested: false,
            retry_at: None,
        }
    }

    /// Requests a sync.
    pub fn request(&mut self) {
        self.requested = true;
    }

    /// Lifts the delay after a failure, because the input has changed.
    pub fn forget_failure(&mut self) {
        self.retry_at = None;
    }

    /// Returns when the next sync may start; `None` if none is requested.
    pub fn next(&self) -> Option<Instant> {
        if !self.requested {
            return None;
        }
        let token_at = Instant::from_std(self.tokens.available_at(Instant::now().into_std()));
        Some(self.retry_at.map_or(token_at, |retry_at| retry_at.max(token_at)))
    }

    /// Waits until a sync is requested and allowed. While none is requested it never returns, so it has to be called
    /// again after each request.
    pub async fn ready(&self) {
        match self.next() {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Takes a token for a sync that starts now. Later requests are for the next sync.
    pub fn begin(&mut self) {
        self.requested = false;
        self.retry_at = None;
        self.tokens.take(Instant::now().into_std());
    }

    /// Ends the series of failures.
    pub fn succeeded(&mut self) {
        self.backoff.reset();
    }

    /// Requests another sync after a failure. Returns the delay before it.
    pub fn failed(&mut self) -> Duration {
        let delay = self.backoff.next_delay();
        self.requested = true;
        self.retry_at = Some(Instant::now() + delay);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        min_interval: Duration::from_secs(1),
        burst: 2,
        first_retry: Duration::from_millis(100),
        longest_retry: Duration::from_secs(30),
    };

    /// Requests and runs syncs until `end` has passed since the start; tells when each ran, in milliseconds.
    async fn storm(schedule: &mut Schedule, end: Duration) -> Vec<u128> {
        let start = Instant::now();
        let mut ran = Vec::new();
        loop {
            schedule.request();
            schedule.ready().await;
            if start.elapsed() > end {
                return ran;
            }
            schedule.begin();
            ran.push(start.elapsed().as_millis());
            schedule.succeeded();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_runs_that_was_not_requested() {
        let schedule = Schedule::new(LIMITS);
        assert!(tokio::time::timeout(Duration::from_secs(3600), schedule.ready()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_change_after_a_quiet_time_runs_at_once_and_a_storm_is_bounded() {
        let mut schedule = Schedule::new(LIMITS);
        assert_eq!(storm(&mut schedule, Duration::from_secs(4)).await, [0, 0, 1000, 2000, 3000, 4000]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_burst_is_saved_up() {
        let mut schedule = Schedule::new(LIMITS);
        storm(&mut schedule, Duration::from_secs(2)).await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(storm(&mut schedule, Duration::from_millis(2500)).await, [0, 0, 1000, 2000]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_requests_before_a_sync_are_one() {
        let mut schedule = Schedule::new(LIMITS);
        for _ in 0..1000 {
            schedule.request();
        }
        schedule.ready().await;
        schedule.begin();
        assert_eq!(schedule.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_during_a_sync_is_kept_for_the_next() {
        let mut schedule = Schedule::new(LIMITS);
        schedule.request();
        schedule.begin();
        schedule.request();
        schedule.succeeded();
        assert!(schedule.next().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_and_longer_up_to_the_limit_until_one_succeeds() {
        let mut schedule = Schedule::new(LIMITS);
        schedule.request();
        let mut waits = Vec::new();
        for _ in 0..11 {
            schedule.ready().await;
            schedule.begin();
            waits.push(schedule.failed().as_millis());
        }
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        schedule.begin();
        schedule.succeeded();
        assert_eq!(schedule.failed().as_millis(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_delays_even_a_new_request_unless_it_is_forgotten() {
        let mut schedule = Schedule::new(LIMITS);
        schedule.begin();
        for _ in 0..6 {
            schedule.failed();
        }
        schedule.request();
        assert_eq!(schedule.next(), Some(Instant::now() + Duration::from_millis(3200)));
        schedule.forget_failure();
        assert!(schedule.next() <= Some(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_minimum_interval_every_request_runs_at_once() {
        let mut schedule = Schedule::new(Limits { min_interval: Duration::ZERO, ..LIMITS });
        for _ in 0..100 {
            schedule.request();
            assert!(schedule.next() <= Some(Instant::now()));
            schedule.begin();
        }
    }
}
