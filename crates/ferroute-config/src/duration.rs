//! Durations in the format of Go's `time` package, which Kubernetes uses in JSON and YAML.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A signed number of nanoseconds: Go's `time.Duration` and Kubernetes' `metav1.Duration`, formatted as `1h30m0s`.
///
/// A configuration may contain negative durations, so this type supports them; [`GoDuration::to_std`] converts
/// non-negative ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// A text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// The format is invalid or the duration exceeds 292 years.
    #[error("invalid duration {text:?} (want a form such as 1h30m or 500ms)")]
    Invalid {
        /// The whole text.
        text: String,
    },
    /// A number other than `0` has no unit.
    #[error("missing unit in duration {text:?}")]
    MissingUnit {
        /// The whole text.
        text: String,
    },
    /// The unit is not one of ns, us, ms, s, m and h.
    #[error("unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// The unknown unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

impl GoDuration {
    /// The zero duration.
    pub const ZERO: Self = Self(0);

    /// Creates a duration of nanoseconds.
    pub const fn from_nanos(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// Creates a duration of whole seconds.
    pub const fn from_secs(seconds: u32) -> Self {
        Self(seconds as i64 * NANOS_PER_SECOND as i64)
    }

    /// Returns the number of nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Reports whether the duration is zero, which means "not set" in most fields.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Converts to a standard duration; returns `None` for a negative one.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    /// Parses an optional sign and one or more numbers with units, such as `1.5h`, `-2m0.5s` or `300ms`; `0` needs no unit.
    /// Fractions of a nanosecond are truncated.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseDurationError::Invalid { text: text.to_owned() };
        let (negative, mut rest) = match text.strip_prefix(['-', '+']) {
            Some(rest) => (text.starts_with('-'), rest),
            None => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (whole, after_whole) = split_digits(rest);
            let (fraction, after_number) = match after_whole.strip_prefix('.') {
                Some(after_point) => split_digits(after_point),
                None => ("", after_whole),
            };
            if whole.is_empty() && fraction.is_empty() {
                return Err(invalid());
            }
            let unit_end = after_number.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after_number.len());
            let (unit, after_unit) = after_number.split_at(unit_end);
            let unit = match unit {
                "ns" => 1,
                // The micro sign and the Greek letter.
                "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
                "ms" => 1_000_000,
                "s" => NANOS_PER_SECOND,
                "m" => 60 * NANOS_PER_SECOND,
                "h" => 3600 * NANOS_PER_SECOND,
                "" => return Err(ParseDurationError::MissingUnit { text: text.to_owned() }),
                unit => {
                    return Err(ParseDurationError::UnknownUnit { unit: unit.to_owned(), text: text.to_owned() });
                }
            };
            let unit = i128::from(unit);
            // A number that overflows u64 overflows the duration in any unit.
            let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| invalid())? };
            let fraction = &fraction[..fraction.len().min(MAX_FRACTION_DIGITS)];
            let scale = fraction.bytes().fold(1_i128, |scale, _| scale * 10);
            let fraction = fraction.bytes().fold(0_i128, |value, digit| value * 10 + i128::from(digit - b'0'));
            total += i128::from(whole) * unit + fraction * unit / scale;
            if total > -i128::from(i64::MIN) {
                return Err(invalid());
            }
            rest = after_unit;
        }
        i64::try_from(if negative { -total } else { total }).map(Self).map_err(|_| invalid())
    }
}

impl fmt::Display for GoDuration {
    /// Formats as Go does: `0s`, `1.5ms`, `15m0s`, `1h30m0.25s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanoseconds {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanoseconds}ns"),
            1_000..1_000_000 => write_fraction(f, nanoseconds, 3, "\u{b5}s"),
            1_000_000..NANOS_PER_SECOND => write_fraction(f, nanoseconds, 6, "ms"),
            _ => {
                let minutes = nanoseconds / (60 * NANOS_PER_SECOND);
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                write_fraction(f, nanoseconds % (60 * NANOS_PER_SECOND), 9, "s")
            }
        }
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    /// Accepts a string, and `null` for zero. Like Kubernetes, rejects a plain number.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 1h30m")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_unit<E: de::Error>(self) -> Result<GoDuration, E> {
                Ok(GoDuration::ZERO)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Writes `value` / 10^`places` without trailing zeros.
fn write_fraction(f: &mut fmt::Formatter<'_>, value: u64, places: u32, unit: &str) -> fmt::Result {
    let scale = 10_u64.pow(places);
    write!(f, "{}", value / scale)?;
    if !value.is_multiple_of(scale) {
        let digits = format!("{:0width$}", value % scale, width = places as usize);
        write!(f, ".{}", digits.trim_end_matches('0'))?;
    }
    f.write_str(unit)
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Further fraction digits have no effect: an hour has 3.6e12 nanoseconds.
const MAX_FRACTION_DIGITS: usize = 18;

#[cfg(test)]
mod tests;
