//! From the API's objects, which anybody may have written, to values that are right by their type.
//!
//! An object is taken whole or not at all, and all that is wrong with it is told at once, by field. The API server
//! checks most of this too, but files never went through one, and a proxy must not trust its input to be right.

mod address;
mod check;
mod name;
mod node;
mod service;
mod service_cidr;
mod slice;
mod stamp;
mod skip;

use std::fmt;

pub use address::{parse_ip, parse_network};
pub use check::check;
pub use name::{check_label, check_subdomain};
pub use node::parse_node;
pub use service::parse_service;
pub use service_cidr::parse_service_cidr;
pub use slice::parse_slice;
pub use stamp::{ObjectVersion, trigger_time, write_time};
pub use skip::SkipReason;

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldFault {
    /// Where: `spec.ports[0].nodePort`.
    pub field: String,
    /// What is wrong there, and what would be right.
    pub problem: String,
}

impl fmt::Display for FieldFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// An object that cannot be used, with everything that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name}: {}", join(.faults))]
pub struct InvalidObject {
    /// Its kind.
    pub kind: &'static str,
    /// `namespace/name`, or just the name for kinds without a namespace.
    pub name: String,
    /// What is wrong; never empty.
    pub faults: Vec<FieldFault>,
}

fn join(faults: &[FieldFault]) -> String {
    faults.iter().map(FieldFault::to_string).collect::<Vec<_>>().join("; ")
}

/// Gathers faults while an object is read to its end.
#[derive(Default)]
struct Faults(Vec<FieldFault>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, problem: impl fmt::Display) {
        self.0.push(FieldFault { field: field.into(), problem: problem.to_string() });
    }

    /// The value of a field, or nothing with its fault noted.
    fn keep<T, E: fmt::Display>(&mut self, field: impl Into<String>, value: Result<T, E>) -> Option<T> {
        value.map_err(|problem| self.add(field, problem)).ok()
    }

    /// The object when nothing was wrong.
    fn finish<T>(self, kind: &'static str, metadata: &ferroute_api::ObjectMeta, value: T) -> Result<T, InvalidObject> {
        if self.0.is_empty() {
            return Ok(value);
        }
        let name = match metadata.namespace.as_str() {
            "" => metadata.name.clone(),
            namespace => format!("{namespace}/{}", metadata.name),
        };
        Err(InvalidObject { kind, name, faults: self.0 })
    }
}

/// A port number that connections can be made to.
fn parse_port(number: i32) -> Result<std::num::NonZeroU16, String> {
    u16::try_from(number)
        .ok()
        .and_then(std::num::NonZeroU16::new)
        .ok_or_else(|| format!("invalid port {number} (want 1 to 65535)"))
}

/// A protocol, TCP where none is given.
fn parse_protocol(text: Option<&str>) -> Result<crate::Protocol, crate::UnknownProtocol> {
    text.filter(|text| !text.is_empty()).map_or(Ok(crate::Protocol::Tcp), str::parse)
}

#[cfg(test)]
mod tests;
