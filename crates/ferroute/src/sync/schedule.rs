//! When to sync: at once after a quiet time, seldom in a storm, again after a failure.

use std::time::Duration;

use tokio::time::Instant;

/// Times that bound how often rules are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// A new token comes this often (`minSyncPeriod`); zero means no limit.
    pub(crate) min_interval: Duration,
    /// Tokens that can be saved up: so many syncs may follow each other at once after a quiet time.
    pub(crate) burst: u32,
    /// First wait after a failure; it doubles with every further failure.
    pub(crate) first_retry: Duration,
    /// Longest wait after a failure.
    pub(crate) longest_retry: Duration,
}

/// Decides when the next sync may start. It holds no timer of its own: [`Schedule::ready`] is awaited by the loop
/// beside everything else that can happen.
#[derive(Debug)]
pub(crate) struct Schedule {
    limits: Limits,
    /// When the token bucket was, or will be, empty: each sync moves it one interval on, so the bucket's level is the
    /// distance from here to now in intervals, at most `burst`.
    empty_at: Instant,
    requested: bool,
    /// Not before then, after a failure.
    retry_at: Option<Instant>,
    failures: u32,
}

impl Schedule {
    /// Starts with a full bucket and nothing to do.
    pub(crate) fn new(limits: Limits) -> Self {
        let mut schedule = Self { limits, empty_at: Instant::now(), requested: false, retry_at: None, failures: 0 };
        schedule.empty_at = schedule.full_bucket(Instant::now());
        schedule
    }

    /// Something has changed: a sync is wanted.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    /// Something that makes waiting after a failure senseless has happened (the input changed): try at once.
    pub(crate) fn forget_failure(&mut self) {
        self.retry_at = None;
    }

    /// When the next sync may start; `None` while none is wanted.
    pub(crate) fn next(&self) -> Option<Instant> {
        if !self.requested {
            return None;
        }
        let token_at = self.empty_at + self.limits.min_interval;
        Some(self.retry_at.map_or(token_at, |retry_at| retry_at.max(token_at)))
    }

    /// Waits until a sync is wanted and allowed. Waits for ever while none is wanted, so it has to be called anew after
    /// each request.
    pub(crate) async fn ready(&self) {
        match self.next() {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// A sync starts now: takes a token. What is requested from here on is for the next one.
    pub(crate) fn begin(&mut self) {
        self.requested = false;
        self.retry_at = None;
        self.empty_at = self.empty_at.max(self.full_bucket(Instant::now())) + self.limits.min_interval;
    }

    /// The sync has succeeded.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The sync has failed: it is wanted again, after a wait that grows. Returns the wait.
    pub(crate) fn failed(&mut self) -> Duration {
        let wait = self.limits.first_retry.saturating_mul(2_u32.saturating_pow(self.failures));
        let wait = wait.min(self.limits.longest_retry);
        self.failures = self.failures.saturating_add(1);
        self.requested = true;
        self.retry_at = Some(Instant::now() + wait);
        wait
    }

    /// `empty_at` of a bucket that is full now.
    fn full_bucket(&self, now: Instant) -> Instant {
        now.checked_sub(self.limits.min_interval * self.limits.burst).unwrap_or(now)
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
