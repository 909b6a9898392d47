use std::{sync::Mutex, time::Duration};

use tokio::time::{Instant, sleep_until};

/// Holds requests so that no more go out than `clientConnection.qps` and `burst` allow. Shared by all that ask the same
/// server.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// `None`: no limit.
    interval: Option<Duration>,
    burst: u32,
    /// When a request could have gone out at the earliest, had none been allowed to burst.
    next: Mutex<Instant>,
}

impl Throttle {
    /// As in client-go, a negative rate means no limit.
    pub(crate) fn new(qps: f32, burst: i32) -> Self {
        let interval = (qps > 0.0).then(|| Duration::try_from_secs_f32(1.0 / qps).unwrap_or(LONGEST).min(LONGEST));
        Self { interval, burst: u32::try_from(burst).unwrap_or(0).max(1), next: Mutex::new(Instant::now()) }
    }

    /// The same limits, with nothing sent yet.
    pub(crate) fn afresh(&self) -> Self {
        Self { interval: self.interval, burst: self.burst, next: Mutex::new(Instant::now()) }
    }

    /// Waits for this caller's turn.
    pub(crate) async fn turn(&self) {
        if let Some(at) = self.book(Instant::now()) {
            sleep_until(at).await;
        }
    }

    /// Takes the next free time; `None`: at once.
    fn book(&self, now: Instant) -> Option<Instant> {
        let interval = self.interval?;
        let mut next = self.next.lock().expect("no code that holds it panics");
        let at = (*next).max(now);
        *next = at + interval;
        let ahead = interval.saturating_mul(self.burst - 1);
        at.checked_sub(ahead).filter(|at| *at > now)
    }
}

/// A rate that is next to nothing still lets a request through now and then.
const LONGEST: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(throttle: &Throttle, count: usize) -> Vec<u64> {
        let now = Instant::now();
        (0..count).map(|_| throttle.book(now).map_or(0, |at| (at - now).as_millis() as u64)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_out_at_once_and_the_rest_at_the_rate() {
        assert_eq!(waits(&Throttle::new(5.0, 3), 6), [0, 0, 0, 200, 400, 600]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_time_allows_one_burst_and_no_more() {
        let throttle = Throttle::new(5.0, 3);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(waits(&throttle, 5), [0, 0, 0, 200, 400]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_negative_rate_is_no_limit() {
        assert_eq!(waits(&Throttle::new(-1.0, 1), 3), [0, 0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_on_when_the_turn_has_come() {
        let throttle = Throttle::new(10.0, 1);
        let start = Instant::now();
        for _ in 0..3 {
            throttle.turn().await;
        }
        // Timers are a little coarse, also where time is not real.
        assert!((200..210).contains(&start.elapsed().as_millis()));
    }
}
