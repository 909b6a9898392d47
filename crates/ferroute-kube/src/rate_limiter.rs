use std::{sync::Mutex, time::Duration};

use ferroute_core::TokenBucket;
use tokio::time::{Instant, sleep_until};

/// Limits the requests to `clientConnection.qps` and `burst`.
#[derive(Debug)]
pub(crate) struct RateLimiter(Option<Mutex<TokenBucket>>);

impl RateLimiter {
    /// As in client-go, a negative rate means no limit.
    pub(crate) fn new(qps: f32, burst: i32) -> Self {
        let bucket = (qps > 0.0).then(|| {
            let interval = Duration::try_from_secs_f32(1.0 / qps).unwrap_or(MAX_INTERVAL).min(MAX_INTERVAL);
            let burst = u32::try_from(burst).unwrap_or(0);
            Mutex::new(TokenBucket::new(interval, burst, Instant::now().into_std()))
        });
        Self(bucket)
    }

    pub(crate) fn copy(&self) -> Self {
        Self(self.0.as_ref().map(|bucket| Mutex::new(bucket.lock().expect(NO_PANIC).clone())))
    }

    /// Waits until a request may be sent.
    pub(crate) async fn acquire(&self) {
        let Some(bucket) = &self.0 else { return };
        let now = Instant::now();
        let at = Instant::from_std(bucket.lock().expect(NO_PANIC).take(now.into_std()));
        if at > now {
            sleep_until(at).await;
        }
    }
}

const NO_PANIC: &str = "no code that holds it panics";

/// The interval of rates that are nearly zero: now and then a request is sent.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_burst_wait() {
        let limiter = RateLimiter::new(10.0, 1);
        let start = Instant::now();
        for _ in 0..3 {
            limiter.acquire().await;
        }
        // Timers are a little coarse, also in paused time.
        assert!((200..210).contains(&start.elapsed().as_millis()));
    }

    #[tokio::test(start_paused = true)]
    async fn negative_rate_is_no_limit() {
        let limiter = RateLimiter::new(-1.0, 1);
        let start = Instant::now();
        for _ in 0..3 {
            limiter.acquire().await;
        }
        assert!(start.elapsed().is_zero());
    }
}
