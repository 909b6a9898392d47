use std::time::{Duration, Instant};

/// Limits an action to about 1 % of a processor's time.
///
/// It reads no clock; the caller passes the current time.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    min_pause: Duration,
    /// The earliest time of the next run; `None` for any time.
    next: Option<Instant>,
}

impl Throttle {
    /// The pause after a run, as a multiple of its processor time.
    const PAUSE_FACTOR: u32 = 100;
    const MAX_PAUSE: Duration = Duration::from_secs(300);

    /// Returns a throttle that allows the first run at once, and then requires a pause of at least this length after
    /// each run.
    pub fn new(min_pause: Duration) -> Self {
        Self { min_pause, next: None }
    }

    /// Reports whether the action may run.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Records a run that ends now and took this processor time. Its duration is not used: on a busy host it includes
    /// the time of other programs, and a pause in proportion could leave changes of rules unnoticed for minutes.
    pub fn record(&mut self, now: Instant, processor_time: Duration) {
        let pause = processor_time.saturating_mul(Self::PAUSE_FACTOR);
        self.next = Some(now + pause.clamp(self.min_pause, Self::MAX_PAUSE.max(self.min_pause)));
    }
}

impl Default for Throttle {
    /// Returns a throttle with a pause of at least 5 s.
    fn default() -> Self {
        Self::new(Duration::from_secs(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_the_processor_time_of_the_run() {
        let start = Instant::now();
        let pause_after = |mut throttle: Throttle, processor_time| {
            assert!(throttle.is_due(start));
            throttle.record(start, processor_time);
            (0..=1000).map(Duration::from_secs).find(|pause| throttle.is_due(start + *pause)).unwrap()
        };
        let after = |processor_time| pause_after(Throttle::default(), processor_time);
        assert_eq!(after(Duration::ZERO), Duration::from_secs(5));
        assert_eq!(after(Duration::from_millis(20)), Duration::from_secs(5));
        assert_eq!(after(Duration::from_millis(700)), Duration::from_secs(70));
        assert_eq!(after(Duration::from_secs(60)), Duration::from_secs(300));
        assert_eq!(pause_after(Throttle::new(Duration::ZERO), Duration::ZERO), Duration::ZERO);
        assert_eq!(pause_after(Throttle::new(Duration::ZERO), Duration::from_millis(20)), Duration::from_secs(2));
    }
}
