//! Limits of the connections to a Service, as its annotations request.

use std::{fmt, num::NonZeroU32, str::FromStr};

use serde::{Deserialize, Serialize};

/// The limits of a Service. They apply to each of its ports, in each IP family and on each node by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionLimits {
    /// Maximum number of open connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<NonZeroU32>,
    /// Maximum number of open connections of a client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_connections: Option<NonZeroU32>,
    /// Maximum rate of new connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<ConnectionRate>,
    /// Maximum rate of new connections of a client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_rate: Option<ConnectionRate>,
    /// Handling of connections beyond the limits.
    pub over_limit: OverLimit,
}

/// Handling of a connection beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverLimit {
    /// Rejected.
    #[default]
    Reject,
    /// Dropped.
    Drop,
}

/// The limit that a connection exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// [`ConnectionLimits::client_rate`].
    ClientRate,
    /// [`ConnectionLimits::client_connections`].
    ClientConnections,
    /// [`ConnectionLimits::rate`].
    Rate,
    /// [`ConnectionLimits::connections`].
    Connections,
}

/// A rate of new connections: `100/second`, or `100/second burst 200`. Serialized as this text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionRate {
    /// Connections per unit.
    count: NonZeroU32,
    unit: RateUnit,
    /// Maximum burst: tokens of a bucket that the rate refills.
    burst: NonZeroU32,
}

/// The unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum RateUnit {
    Second,
    Minute,
    Hour,
}

impl ConnectionLimits {
    /// Returns the limits that exist, in the order in which they are checked. The limit per client comes first, so that
    /// a client that exceeds it does not use up the limit of the Service.
    pub fn kinds(&self) -> impl Iterator<Item = LimitKind> + use<> {
        let Self { connections, client_connections, rate, client_rate, over_limit: _ } = *self;
        let kinds = [
            client_rate.map(|_| LimitKind::ClientRate),
            client_connections.map(|_| LimitKind::ClientConnections),
            rate.map(|_| LimitKind::Rate),
            connections.map(|_| LimitKind::Connections),
        ];
        kinds.into_iter().flatten()
    }

    /// The largest number of open connections. The kernel walks a list of them, at most once per tick of its clock.
    pub const MAX_CONNECTIONS: u32 = 100_000;
}

impl OverLimit {
    /// Returns the value of the annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Drop => "drop",
        }
    }
}

impl LimitKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::ClientRate, Self::ClientConnections, Self::Rate, Self::Connections];

    /// Returns the name in metrics and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientRate => "client-rate",
            Self::ClientConnections => "client-connections",
            Self::Rate => "rate",
            Self::Connections => "connections",
        }
    }
}

impl ConnectionRate {
    /// Returns the connections per day.
    pub fn per_day(self) -> u64 {
        u64::from(self.count.get()) * SECONDS_PER_DAY / self.unit.seconds()
    }

    /// Returns how many connections may come at once.
    pub fn burst(self) -> NonZeroU32 {
        self.burst
    }

    /// Returns the seconds after which the full burst is available again to a client without new connections.
    fn seconds_to_refill(self) -> u64 {
        (u64::from(self.burst.get()) * SECONDS_PER_DAY).div_ceil(self.per_day())
    }

    /// The largest number of connections per unit, and in a burst.
    pub const MAX: u32 = 1_000_000;
    /// The longest time in which a burst fills up again, in seconds.
    const MAX_REFILL: u64 = SECONDS_PER_DAY;
}

const SECONDS_PER_DAY: u64 = 86_400;

impl RateUnit {
    fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
        }
    }
}

impl FromStr for ConnectionRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "invalid rate {text:?} (want NUMBER/second, /minute or /hour, and optionally burst NUMBER, up to {})",
                Self::MAX
            )
        };
        let number = |text: &str| text.parse().ok().filter(|number: &NonZeroU32| number.get() <= Self::MAX);
        let words: Vec<&str> = text.split_whitespace().collect();
        let (rate, burst) = match words[..] {
            [rate] => (rate, None),
            [rate, "burst", burst] => (rate, Some(number(burst).ok_or_else(invalid)?)),
            _ => return Err(invalid()),
        };
        let (count, unit) = rate.split_once('/').ok_or_else(invalid)?;
        let count = number(count).ok_or_else(invalid)?;
        let unit = match unit {
            "s" | "second" => RateUnit::Second,
            "m" | "minute" => RateUnit::Minute,
            "h" | "hour" => RateUnit::Hour,
            _ => return Err(invalid()),
        };
        let rate = Self { count, unit, burst: burst.unwrap_or(count) };
        if rate.seconds_to_refill() > Self::MAX_REFILL {
            return Err(format!("invalid rate {text:?} (the burst has to fill up within a day)"));
        }
        Ok(rate)
    }
}

impl fmt::Display for ConnectionRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, unit, burst } = self;
        write!(f, "{count}/{}", unit.as_str())?;
        if burst == count { Ok(()) } else { write!(f, " burst {burst}") }
    }
}

impl Serialize for ConnectionRate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ConnectionRate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_and_printed() {
        for (text, printed, per_day, burst) in [
            ("100/s", "100/second", 8_640_000, 100),
            ("5/minute burst 20", "5/minute burst 20", 7_200, 20),
            (" 2/h  burst 2 ", "2/hour", 48, 2),
        ] {
            let rate: ConnectionRate = text.parse().unwrap();
            assert_eq!((rate.to_string(), rate.per_day(), rate.burst().get()), (printed.to_owned(), per_day, burst));
            assert_eq!(printed.parse(), Ok(rate));
        }
        for text in ["", "5", "0/s", "5/s burst", "5/s burst 0", "5/day", "-1/s", "9999999/s", "1/h burst 25"] {
            assert!(text.parse::<ConnectionRate>().is_err(), "{text}");
        }
    }

    #[test]
    fn limits_are_checked_for_the_client_first() {
        let limits = ConnectionLimits {
            connections: NonZeroU32::new(9),
            client_rate: "1/s".parse().ok(),
            ..ConnectionLimits::default()
        };
        assert_eq!(limits.kinds().collect::<Vec<_>>(), [LimitKind::ClientRate, LimitKind::Connections]);
    }
}
