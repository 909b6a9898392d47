//! Schedule of syncs: immediately while they cost little, at a limited rate otherwise, and with retries after a
//! failure.

use std::time::Duration;

use ferroute_core::{Backoff, TokenBucket};
use tokio::time::Instant;

/// The limits of the sync rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// A new token is added this often (`minSyncPeriod`); zero means no limit.
    pub(crate) min_interval: Duration,
    /// Whether short syncs may also start without a token, as long as they took less than a tenth of a processor's
    /// recent time.
    pub(crate) by_cost: bool,
    /// Maximum number of saved tokens: after a quiet time, this many syncs may follow the first one without delay.
    pub(crate) burst: u32,
    /// Delay after the first failure; it doubles with every further one.
    pub(crate) first_retry: Duration,
    /// Maximum delay after a failure.
    pub(crate) longest_retry: Duration,
}

/// Decides when the next sync may start.
///
/// It has no timer: the sync loop awaits [`Schedule::ready`] together with its other inputs.
#[derive(Debug)]
pub(super) struct Schedule {
    tokens: TokenBucket,
    /// The costs of syncs, if these matter.
    costs: Option<Costs>,
    backoff: Backoff,
    requested: bool,
    /// The earliest time of the next sync, after a failure.
    retry_at: Option<Instant>,
}

impl Schedule {
    /// Returns a schedule with all tokens available and no sync requested.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            tokens: TokenBucket::new(limits.min_interval, limits.burst, Instant::now().into_std()),
            costs: limits.by_cost.then(|| Costs::new(limits.min_interval, Instant::now().into_std())),
            backoff: Backoff::new(limits.first_retry, limits.longest_retry),
            requested: false,
            retry_at: None,
        }
    }

    /// Requests a sync.
    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    /// Cancels the delay after a failure, because the input has changed.
    pub(super) fn forget_failure(&mut self) {
        self.retry_at = None;
    }

    /// Returns the time at which the next sync may start; `None` if none is requested.
    pub(super) fn next(&self) -> Option<Instant> {
        if !self.requested {
            return None;
        }
        let now = Instant::now().into_std();
        let token_at = self.tokens.available_at(now);
        let at = self.costs.as_ref().and_then(|costs| costs.available_at(now)).map_or(token_at, |at| at.min(token_at));
        let at = Instant::from_std(at);
        Some(self.retry_at.map_or(at, |retry_at| retry_at.max(at)))
    }

    /// Waits until the requested sync may start. Without a request it never returns, and must be called again after
    /// each request.
    pub(super) async fn ready(&self) {
        match self.next() {
            // A timer for the present would fire at the next tick of the runtime's clock, up to a millisecond late.
            Some(at) if at <= Instant::now() => {}
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Takes a token for a sync that starts now, if there is one; short syncs do not need one. Later requests are for
    /// the next sync.
    pub(super) fn begin(&mut self) {
        self.requested = false;
        self.retry_at = None;
        self.tokens.try_take(Instant::now().into_std());
    }

    /// Records the processor time of the sync that ends now. Its duration would include waiting, which can be long on a
    /// busy node.
    pub(super) fn took(&mut self, took: Duration) {
        if let Some(costs) = &mut self.costs {
            costs.add(took, Instant::now().into_std());
        }
    }

    /// Resets the delay after failures.
    pub(super) fn succeeded(&mut self) {
        self.backoff.reset();
    }

    /// Requests another sync after a failure. Returns the delay before it.
    pub(super) fn failed(&mut self) -> Duration {
        let delay = self.backoff.next_delay();
        self.requested = true;
        self.retry_at = Some(Instant::now() + delay);
        delay
    }
}

/// Processor time that syncs have taken recently. Reads no clock.
///
/// Syncs that take up to [`SHORT`] take at most a tenth of a processor over a minute and half of it at any time: a
/// rollout of a few seconds does not wait, and half of the processor remains for other programs. Longer syncs need a
/// token.
#[derive(Debug)]
struct Costs {
    /// A tenth of the last minute, and half of the last moment.
    shares: [Share; 2],
    /// The last sync.
    took: Duration,
}

/// A part of a processor's time.
///
/// Each sync blocks the time after it for `divisor` times as long, and up to `recent` may be blocked in advance. The
/// syncs in any period of this length therefore take at most that part, and slightly more after a quiet time.
#[derive(Debug)]
struct Share {
    divisor: u32,
    /// The time over which it applies.
    recent: Duration,
    /// The end of the blocked time.
    blocked_until: std::time::Instant,
    /// The time after which syncs may start in any case.
    longest_delay: Duration,
}

impl Costs {
    /// `longest_delay` is the time after which syncs may start in any case.
    fn new(longest_delay: Duration, now: std::time::Instant) -> Self {
        let share = |divisor, recent| Share { divisor, recent, blocked_until: now, longest_delay };
        Self { shares: [share(10, 60 * SECOND), share(2, SECOND / 10)], took: Duration::ZERO }
    }

    /// Returns the time at which the next sync may start without a token, `now` or later; `None` if it needs a token.
    fn available_at(&self, now: std::time::Instant) -> Option<std::time::Instant> {
        let at = || self.shares.iter().map(|share| share.available_at(now)).fold(now, std::time::Instant::max);
        (self.took <= SHORT).then(at)
    }

    /// Adds a sync that ends now.
    fn add(&mut self, took: Duration, now: std::time::Instant) {
        self.took = took;
        self.shares.iter_mut().for_each(|share| share.add(took, now));
    }
}

impl Share {
    fn available_at(&self, now: std::time::Instant) -> std::time::Instant {
        self.blocked_until.checked_sub(self.recent).map_or(now, |at| at.max(now))
    }

    fn add(&mut self, took: Duration, now: std::time::Instant) {
        // One long sync must not slow down many short ones later.
        let blocked = took.saturating_mul(self.divisor).min(SECOND + self.longest_delay);
        self.blocked_until = (self.blocked_until.max(now) + blocked).min(now + self.recent + self.longest_delay);
    }
}

/// Maximum length of syncs of which several may follow each other without a token. For longer ones, the usual rate of
/// one token per second already takes a tenth of a processor's time or more.
const SHORT: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

/// Limits for tests.
#[cfg(test)]
pub(super) const LIMITS: Limits = Limits {
    min_interval: Duration::from_secs(1),
    by_cost: false,
    burst: 2,
    first_retry: Duration::from_millis(100),
    longest_retry: Duration::from_secs(30),
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests and runs syncs for the duration `end`; returns the start time of each in milliseconds.
    async fn request_continuously(schedule: &mut Schedule, end: Duration) -> Vec<u128> {
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
    async fn no_sync_runs_without_request() {
        let schedule = Schedule::new(LIMITS);
        assert!(tokio::time::timeout(Duration::from_secs(3600), schedule.ready()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn syncs_start_at_once_after_quiet_time_and_at_limited_rate_under_load() {
        let mut schedule = Schedule::new(LIMITS);
        assert_eq!(request_continuously(&mut schedule, Duration::from_secs(4)).await, [0, 0, 1000, 2000, 3000, 4000]);
    }

    #[tokio::test(start_paused = true)]
    async fn saved_tokens_are_limited_to_burst() {
        let mut schedule = Schedule::new(LIMITS);
        request_continuously(&mut schedule, Duration::from_secs(2)).await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(request_continuously(&mut schedule, Duration::from_millis(2500)).await, [0, 0, 1000, 2000]);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_before_sync_are_merged() {
        let mut schedule = Schedule::new(LIMITS);
        for _ in 0..1000 {
            schedule.request();
        }
        schedule.ready().await;
        schedule.begin();
        assert_eq!(schedule.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn request_during_sync_is_kept_for_next_sync() {
        let mut schedule = Schedule::new(LIMITS);
        schedule.request();
        schedule.begin();
        schedule.request();
        schedule.succeeded();
        assert!(schedule.next().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn delay_doubles_after_each_failure_until_success() {
        let mut schedule = Schedule::new(LIMITS);
        schedule.request();
        let mut delays = Vec::new();
        for _ in 0..11 {
            schedule.ready().await;
            schedule.begin();
            delays.push(schedule.failed().as_millis());
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        schedule.begin();
        schedule.succeeded();
        assert_eq!(schedule.failed().as_millis(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn failure_delays_requests_until_it_is_forgotten() {
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
    async fn zero_minimum_interval_disables_rate_limit() {
        let mut schedule = Schedule::new(Limits { min_interval: Duration::ZERO, ..LIMITS });
        for _ in 0..100 {
            schedule.request();
            assert!(schedule.next() <= Some(Instant::now()));
            schedule.begin();
        }
    }

    /// Runs requested syncs that take `cost` each, with a request every `every`. Returns the number of syncs and the longest wait
    /// of a request.
    async fn run_by_cost(
        schedule: &mut Schedule,
        cost: Duration,
        every: Duration,
        time: Duration,
    ) -> (usize, Duration) {
        let end = Instant::now() + time;
        let (mut syncs, mut longest, mut waiting) = (0, Duration::ZERO, None::<Instant>);
        let mut arrives_at = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(end) => return (syncs, longest),
                () = tokio::time::sleep_until(arrives_at) => {
                    waiting.get_or_insert(arrives_at);
                    arrives_at += every;
                    schedule.request();
                }
                () = schedule.ready() => {
                    longest = longest.max(waiting.take().map_or(Duration::ZERO, |since| since.elapsed()));
                    schedule.begin();
                    tokio::time::sleep(cost).await;
                    schedule.took(cost);
                    schedule.succeeded();
                    syncs += 1;
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cheap_syncs_start_at_once_and_expensive_ones_at_the_limited_rate() {
        let by_cost = Limits { by_cost: true, ..LIMITS };
        let (every, minute) = (Duration::from_millis(50), Duration::from_secs(60));
        let run = async |cost: u64| {
            run_by_cost(&mut Schedule::new(by_cost), Duration::from_millis(cost), every, minute).await
        };
        // One sync for each change, and no change waits.
        let (syncs, longest) = run(1).await;
        assert!(syncs >= 1_190 && longest <= Duration::from_millis(1), "{syncs} {longest:?}");
        // The same as without regard to the cost, including after many short syncs.
        for cost in [110, 600] {
            let mut schedule = Schedule::new(by_cost);
            run_by_cost(&mut schedule, Duration::from_millis(1), every, minute).await;
            let (syncs, longest) = run_by_cost(&mut schedule, Duration::from_millis(cost), every, minute).await;
            assert!((59..=64).contains(&syncs), "{syncs}");
            assert!(longest <= Duration::from_millis(1_050), "{longest:?}");
        }
    }

    /// Like iptables mode with 1,000 Services, while 20 endpoints change per second.
    #[tokio::test(start_paused = true)]
    async fn short_syncs_may_take_the_share_of_a_minute_at_once_and_half_of_a_processor() {
        let mut schedule = Schedule::new(Limits { by_cost: true, ..LIMITS });
        let (cost, every) = (Duration::from_millis(20), Duration::from_millis(50));
        let (syncs, longest) = run_by_cost(&mut schedule, cost, every, Duration::from_secs(15)).await;
        assert!(syncs >= 295 && longest <= cost, "{syncs} {longest:?}");
        // After that minute, there is one sync every 200 ms.
        run_by_cost(&mut schedule, cost, every, Duration::from_secs(45)).await;
        let (syncs, longest) = run_by_cost(&mut schedule, cost, every, Duration::from_secs(60)).await;
        assert!((290..=320).contains(&syncs), "{syncs}");
        assert!(longest <= Duration::from_millis(250), "{longest:?}");
        // Changes all the time.
        let mut schedule = Schedule::new(Limits { by_cost: true, ..LIMITS });
        let (syncs, _) = run_by_cost(&mut schedule, cost, cost / 20, Duration::from_secs(10)).await;
        assert!((240..=260).contains(&syncs), "{syncs}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_long_sync_does_not_delay_short_ones_for_longer_than_the_minimum_interval() {
        let mut schedule = Schedule::new(Limits { by_cost: true, burst: 1, ..LIMITS });
        schedule.begin();
        tokio::time::sleep(Duration::from_secs(30)).await;
        schedule.took(Duration::from_secs(30));
        tokio::time::sleep(LIMITS.min_interval).await;
        let millisecond = Duration::from_millis(1);
        let (syncs, _) =
            run_by_cost(&mut schedule, millisecond, Duration::from_millis(50), Duration::from_secs(10)).await;
        assert!(syncs >= 190, "{syncs}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_delays_cheap_syncs_as_well() {
        let mut schedule = Schedule::new(Limits { by_cost: true, ..LIMITS });
        schedule.begin();
        schedule.took(Duration::ZERO);
        let delay = schedule.failed();
        assert_eq!(schedule.next(), Some(Instant::now() + delay));
    }
}
