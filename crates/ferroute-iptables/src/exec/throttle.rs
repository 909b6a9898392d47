use std::time::{Duration, Instant};

/// Limits an action to about 1 % of the time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Throttle {
    /// The earliest time of the next run; `None` for any time.
    next: Option<Instant>,
}

impl Throttle {
    /// The pause after a run, as a multiple of its duration.
    const PAUSE_FACTOR: u32 = 100;
    const MIN_PAUSE: Duration = Duration::from_secs(5);
    const MAX_PAUSE: Duration = Duration::from_secs(300);

    /// Reports whether the action may run.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Records a run from `start` to `end`.
    pub fn record(&mut self, start: Instant, end: Instant) {
        let pause = end.saturating_duration_since(start) * Self::PAUSE_FACTOR;
        self.next = Some(end + pause.clamp(Self::MIN_PAUSE, Self::MAX_PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_the_duration_of_the_run() {
        let start = Instant::now();
        let pause_after = |duration| {
            let mut throttle = Throttle::default();
            assert!(throttle.is_due(start));
            let end = start + duration;
            throttle.record(start, end);
            (1..=1000).map(Duration::from_secs).find(|pause| throttle.is_due(end + *pause)).unwrap()
        };
        assert_eq!(pause_after(Duration::ZERO), Duration::from_secs(5));
        assert_eq!(pause_after(Duration::from_millis(20)), Duration::from_secs(5));
        assert_eq!(pause_after(Duration::from_millis(700)), Duration::from_secs(70));
        assert_eq!(pause_after(Duration::from_secs(60)), Duration::from_secs(300));
    }
}
