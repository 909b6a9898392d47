//! Answers to the questions of those who look after Services.
//!
//! ```text
//!   Service, Tracker ──► service::explain ──► Explanation ──┬──► text for people, serde for programs
//!   two sets of rules ─► diff::compare ─────► Report ───────┤
//!   counters, twice ───► top::rates ────────► Row ──────────┘
//! ```
//!
//! Everything is a pure function of its input. What is *not* here: how rules, counters and flows are read, how Services
//! are loaded, terminals.

pub mod diff;
mod names;
pub mod service;
pub mod top;

pub use names::near_names;
use serde::{Serialize, Serializer};

/// Serializes as its text.
fn text<S: Serializer>(value: &impl std::fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// The same, where there is one.
fn optional_text<S: Serializer>(value: &Option<impl std::fmt::Display>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(serializer)
}

/// A number with what it is of.
fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
