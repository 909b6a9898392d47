use std::time::SystemTime;

use ferroute_core::rfc3339;

/// Formats a time as Go's JSON encoder does: RFC 3339 in UTC with as many digits of a second as needed. `None`, and any
/// time after the year 9999, is Go's zero time.
pub(crate) fn go_time(time: Option<SystemTime>) -> String {
    time.and_then(rfc3339::format_exact).unwrap_or_else(|| ZERO_TIME.to_owned())
}

const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_formatted_as_by_go() {
        for (nanoseconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_767_322_800_000_000_000, "2026-01-02T03:00:00Z"),
            (1_767_366_245_123_456_789, "2026-01-02T15:04:05.123456789Z"),
            (1_767_366_245_120_000_000, "2026-01-02T15:04:05.12Z"),
            (1_767_366_250_000_000_010, "2026-01-02T15:04:10.00000001Z"),
        ] {
            assert_eq!(go_time(Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds))), text);
        }
        assert_eq!(go_time(None), "0001-01-01T00:00:00Z");
    }

    #[test]
    fn times_far_off_are_formatted_without_panic() {
        let before = SystemTime::UNIX_EPOCH.checked_sub(Duration::from_secs(1));
        assert_eq!(go_time(before), "1969-12-31T23:59:59Z");
        let after = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(1 << 40));
        assert_eq!(go_time(after), "0001-01-01T00:00:00Z");
    }
}
