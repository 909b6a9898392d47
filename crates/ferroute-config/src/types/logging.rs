use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::null_default;
use crate::{GoDuration, Quantity};

/// `logging`: what is logged, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoggingConfiguration {
    /// Longest time that a line may wait in a buffer.
    #[serde(deserialize_with = "null_default")]
    pub flush_frequency: FlushFrequency,
    /// `text` or `json`; empty for text.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub format: String,
    /// Details per format.
    #[serde(deserialize_with = "null_default")]
    pub options: LogFormatOptions,
    /// Lines up to this level are logged; 0 for the most important ones only.
    #[serde(deserialize_with = "null_default")]
    pub verbosity: u32,
    /// Other levels for single source files.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub vmodule: Vec<VModuleItem>,
}

/// `logging.flushFrequency`: unlike every other duration it can be a plain number, and is printed in the form that it
/// was read in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushFrequency {
    /// Written as a plain number of nanoseconds.
    Nanoseconds(i64),
    /// Written like every other duration.
    Text(GoDuration),
}

/// `logging.options`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LogFormatOptions {
    /// For `format: json`.
    #[serde(deserialize_with = "null_default")]
    pub json: OutputRoutingOptions,
    /// For `format: text`.
    #[serde(deserialize_with = "null_default")]
    pub text: OutputRoutingOptions,
}

/// Where lines of one format go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OutputRoutingOptions {
    /// Bytes of buffer for lines that are not errors.
    #[serde(deserialize_with = "null_default")]
    pub info_buffer_size: Quantity,
    /// Errors go to standard error, everything else to standard output.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "std::ops::Not::not")]
    pub split_stream: bool,
}

/// One item of `logging.vmodule`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VModuleItem {
    /// Name of a source file without its suffix, or a pattern for such names.
    #[serde(deserialize_with = "null_default")]
    pub file_pattern: String,
    /// The level for these files.
    #[serde(deserialize_with = "null_default")]
    pub verbosity: u32,
}

impl FlushFrequency {
    /// The duration, however it was written.
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
