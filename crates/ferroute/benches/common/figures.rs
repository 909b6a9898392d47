use std::time::Duration;

/// Formats the median and the 99th percentile.
pub(crate) fn percentiles(times: &mut [Duration]) -> String {
    let (median, late) = quantiles(times);
    format!("{} / {}", time(median), time(late))
}

/// Returns the median and the 99th percentile.
pub(crate) fn quantiles(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// Returns a quantile of times in ascending order: 0 is the shortest, 1 the longest.
pub(crate) fn quantile(ascending: &[Duration], part: f64) -> Duration {
    let last = ascending.len() - 1;
    ascending[(last as f64 * part).round() as usize]
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Formats a duration with three digits.
pub(crate) fn time(time: Duration) -> String {
    let (value, unit) = match time.as_secs_f64() {
        seconds if seconds >= 1.0 => (seconds, "s"),
        seconds if seconds >= 1e-3 => (seconds * 1e3, "ms"),
        seconds => (seconds * 1e6, "µs"),
    };
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

/// Formats a size in megabytes (1,000,000 bytes).
pub(crate) fn megabytes(bytes: usize) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
