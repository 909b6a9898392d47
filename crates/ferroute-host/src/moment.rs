use std::time::{Instant, SystemTime};

/// A point in time by two clocks: one for output, and a monotonic one for decisions and durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic clock.
    pub instant: Instant,
    /// Wall clock, which may be set to any time.
    pub wall: SystemTime,
}

impl Moment {
    /// Returns the current time.
    pub fn now() -> Self {
        Self { instant: Instant::now(), wall: SystemTime::now() }
    }
}
