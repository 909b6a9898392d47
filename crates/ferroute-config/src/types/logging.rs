use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::null_default;
use crate::{GoDuration, Quantity};

/// `logging`: level and format of log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoggingConfiguration {
    /// The maximum time that lines are buffered.
    #[serde(deserialize_with = "null_default")]
    pub flush_frequency: FlushFrequency,
    /// `text` or `json`; empty for text.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub format: String,
    /// Options of each format.
    #[serde(deserialize_with = "null_default")]
    pub options: LogFormatOptions,
    /// The log level; 0 logs only the most important lines.
    #[serde(deserialize_with = "null_default")]
    pub verbosity: u32,
    /// Log levels of single source files.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub vmodule: Vec<VModuleItem>,
}

/// `logging.flushFrequency`: unlike other durations it may be a plain number; its form is preserved when encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushFrequency {
    /// A plain number of nanoseconds.
    Nanoseconds(i64),
    /// A duration string.
    Text(GoDuration),
}

/// `logging.options`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LogFormatOptions {
    /// Options of `format: json`.
    #[serde(deserialize_with = "null_default")]
    pub json: OutputRoutingOptions,
    /// Options of `format: text`.
    #[serde(deserialize_with = "null_default")]
    pub text: OutputRoutingOptions,
}

/// Output options of a format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OutputRoutingOptions {
    /// The buffer size for lines other than errors, in bytes.
    #[serde(deserialize_with = "null_default")]
    pub info_buffer_size: Quantity,
    /// Write errors to standard error and other lines to standard output.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "std::ops::Not::not")]
    pub split_stream: bool,
}

/// One item of `logging.vmodule`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VModuleItem {
    /// The name of a source file without its suffix, or a pattern.
    #[serde(deserialize_with = "null_default")]
    pub file_pattern: String,
    /// The log level of these files.
    #[serde(deserialize_with = "null_default")]
    pub verbosity: u32,
}

impl FlushFrequency {
    /// Returns the duration in either form.
    pub fn duration(self) -> GoDuration {
        match self {
            Self::Nanoseconds(nanoseconds) => GoDuration::from_nanos(nanoseconds),
            Self::Text(duration) => duration,
        }
    }
}

impl Default for FlushFrequency {
    fn default() -> Self {
        Self::Nanoseconds(0)
    }
}

impl Serialize for FlushFrequency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nanoseconds(nanoseconds) => serializer.serialize_i64(*nanoseconds),
            Self::Text(duration) => duration.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = FlushFrequency;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 5s, or a number of nanoseconds")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<FlushFrequency, E> {
                text.parse().map(FlushFrequency::Text).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, nanoseconds: i64) -> Result<FlushFrequency, E> {
                Ok(FlushFrequency::Nanoseconds(nanoseconds))
            }

            fn visit_u64<E: de::Error>(self, nanoseconds: u64) -> Result<FlushFrequency, E> {
                i64::try_from(nanoseconds)
                    .map(FlushFrequency::Nanoseconds)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(nanoseconds), &self))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
