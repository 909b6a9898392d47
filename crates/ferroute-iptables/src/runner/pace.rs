//! How often something may be done that costs time, so that it never costs much of it.

use std::time::{Duration, Instant};

/// Lets something happen so seldom that it takes no more than a hundredth of the time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// `None`: at once.
    next: Option<Instant>,
}

impl Pace {
    /// It may be done now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// It was done from `start` to `end`.
    pub(super) fn done(&mut self, start: Instant, end: Instant) {
        let pause = (end.saturating_duration_since(start) * SHARE).clamp(SHORTEST, LONGEST);
        self.next = Some(end + pause);
    }
}

/// The pause is that many times as long as what comes before it.
const SHARE: u32 = 100;
/// Nobody needs it more often.
const SHORTEST: Duration = Duration::from_secs(5);
/// However long it takes, it is not put off for longer.
const LONGEST: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_it_costs_the_seldomer_it_is_done() {
        let start = Instant::now();
        let pause_after = |cost| {
            let mut pace = Pace::default();
            assert!(pace.is_due(start));
            let end = start + cost;
            pace.done(start, end);
            (1..=1000).map(Duration::from_secs).find(|pause| pace.is_due(end + *pause)).unwrap()
        };
        assert_eq!(pause_after(Duration::ZERO), Duration::from_secs(5));
        assert_eq!(pause_after(Duration::from_millis(20)), Duration::from_secs(5));
        assert_eq!(pause_after(Duration::from_millis(700)), Duration::from_secs(70));
        assert_eq!(pause_after(Duration::from_secs(60)), Duration::from_secs(300));
    }
}
