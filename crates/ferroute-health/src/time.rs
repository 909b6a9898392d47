use std::{
    fmt::Write,
    time::{Duration, Instant, SystemTime},
};

/// A moment by two clocks: one to show, and one to measure with, which nobody can set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// By the clock on the wall.
    pub wall: SystemTime,
    /// Time since some fixed moment in the past, the same for all that are compared.
    pub elapsed: Duration,
}

/// Where [`Moment`]s come from outside of tests.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock of which `elapsed` starts now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Now.
    pub fn now(&self) -> Moment {
        Moment { wall: SystemTime::now(), elapsed: self.start.elapsed() }
    }
}

/// A time as Go prints it into JSON, in UTC: RFC 3339 with as many digits of a second as it takes. `None` is Go's zero
/// time, the first moment of year 1.
pub fn rfc3339(wall: Option<SystemTime>) -> String {
    let Some(wall) = wall else {
        return ZERO_TIME.to_owned();
    };
    let mut text = String::new();
    // The library knows the years 1970 to 9999 only: it panics before and fails after. No clock that is set is there.
    if write!(text, "{}", humantime::format_rfc3339_nanos(wall.max(SystemTime::UNIX_EPOCH))).is_err() {
        return ZERO_TIME.to_owned();
    }
    let digits = text.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.').len();
    text.truncate(digits);
    text.push('Z');
    text
}

const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_as_go_prints_them() {
        for (nanoseconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_767_322_800_000_000_000, "2026-01-02T03:00:00Z"),
            (1_767_366_245_123_456_789, "2026-01-02T15:04:05.123456789Z"),
            (1_767_366_245_120_000_000, "2026-01-02T15:04:05.12Z"),
            (1_767_366_250_000_000_010, "2026-01-02T15:04:10.00000001Z"),
        ] {
            assert_eq!(rfc3339(Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds))), text);
        }
    }

    #[test]
    fn no_time_is_the_first_moment_of_year_one() {
        assert_eq!(rfc3339(None), "0001-01-01T00:00:00Z");
    }

    #[test]
    fn a_clock_that_is_far_off_does_not_panic() {
        let before = SystemTime::UNIX_EPOCH.checked_sub(Duration::from_secs(1));
        assert_eq!(rfc3339(before), "1970-01-01T00:00:00Z");
        let after = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(1 << 40));
        assert_eq!(rfc3339(after), "0001-01-01T00:00:00Z");
    }

    #[test]
    fn a_clock_goes_forward() {
        let clock = Clock::start();
        assert!(clock.now().elapsed <= clock.now().elapsed);
    }
}
