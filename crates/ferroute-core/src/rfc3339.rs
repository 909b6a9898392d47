//! RFC 3339 times, as the Kubernetes API and Go's JSON encoder write them.
//!
//! All conversions between [`SystemTime`] and `jiff` are here.

use std::time::SystemTime;

use jiff::Timestamp;

/// Parses a time. `None` if the text is not an RFC 3339 time.
pub fn parse(text: &str) -> Option<SystemTime> {
    Some(text.parse::<Timestamp>().ok()?.into())
}

/// Formats a time in UTC, with this many digits of a second; further digits are cut off. `None` after the year 9999.
pub fn format(time: SystemTime, digits: usize) -> Option<String> {
    Some(format!("{:.digits$}", Timestamp::try_from(time).ok()?))
}

/// Formats a time in UTC with as many digits of a second as it has, as Go does (`time.RFC3339Nano`). `None` after the year
/// 9999.
pub fn format_exact(time: SystemTime) -> Option<String> {
    Some(Timestamp::try_from(time).ok()?.to_string())
}

/// Parses the date of an HTTP header (`Sun, 06 Nov 1994 08:49:37 GMT`). `None` if the text is not such a date.
pub fn parse_http_date(text: &str) -> Option<SystemTime> {
    Some(jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn time() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::new(1_767_366_245, 123_456_789)
    }

    #[test]
    fn digits_of_a_second_are_cut_off() {
        let texts = [0, 3, 6, 9].map(|digits| format(time(), digits).unwrap());
        assert_eq!(
            texts.each_ref().map(|text| text.strip_prefix("2026-01-02T15:04:05").unwrap()),
            ["Z", ".123Z", ".123456Z", ".123456789Z"]
        );
    }

    #[test]
    fn exact_times_have_as_many_digits_as_needed() {
        let start = SystemTime::UNIX_EPOCH;
        assert_eq!(format_exact(start).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(format_exact(start + Duration::from_millis(1500)).as_deref(), Some("1970-01-01T00:00:01.5Z"));
        assert_eq!(format_exact(time()).as_deref(), Some("2026-01-02T15:04:05.123456789Z"));
        assert_eq!(format_exact(start + Duration::from_secs(400_000_000_000)), None);
    }

    #[test]
    fn parsed_times_are_those_that_were_formatted() {
        assert_eq!(parse(&format_exact(time()).unwrap()), Some(time()));
        assert_eq!(parse("2026-01-02T16:04:05.123456789+01:00"), Some(time()));
        assert_eq!(["", "yesterday", "2026-13-40T00:00:00Z"].map(parse), [None; 3]);
    }

    #[test]
    fn http_dates_are_parsed() {
        let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(expected));
        assert_eq!(parse_http_date("today"), None);
    }
}
