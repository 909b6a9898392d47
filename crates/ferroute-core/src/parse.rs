//! Validation of API objects.
//!
//! Each function converts an object into a value that is valid by its type, or returns the errors of the object at
//! once, by field. An object is accepted or rejected as a whole. The API server validates most fields as well, but
//! objects in manifest files were never validated by an API server, and rules are built from these values as text.

mod address;
mod balancing;
mod endpoints;
mod metadata;
mod name;
mod node;
mod service;
mod slice;

use std::{fmt, num::NonZeroU16};

use ferroute_api::{Object, ObjectMeta, ServiceCidr};
use ipnet::IpNet;

pub use address::{check_destination, parse_ip, parse_network};
pub use endpoints::{MirroredEndpoints, parse_endpoints};
pub use metadata::{ObjectVersion, trigger_time, write_time};
pub use name::{check_dns_label, check_dns_subdomain};
pub use node::parse_node;
pub use service::{EXTERNAL_IPS, SkipReason, parse_service, unrestricted_families};
pub use slice::{SliceSkipReason, parse_slice};

use crate::{NamespacedName, Protocol, UnknownProtocol};

/// An invalid field of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Path of the field: `spec.ports[0].nodePort`.
    pub field: String,
    /// The problem, and where it helps the valid values. Long values are abbreviated.
    pub problem: String,
}

/// An invalid object, with its errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name}: {}", join(.errors))]
pub struct InvalidObject {
    /// Kind of the object.
    pub kind: &'static str,
    /// Name of the object.
    pub name: NamespacedName,
    /// The invalid fields, [`MAX_ERRORS`] at most; never empty.
    pub errors: Vec<FieldError>,
}

fn join(errors: &[FieldError]) -> String {
    errors.iter().map(FieldError::to_string).collect::<Vec<_>>().join("; ")
}

/// Checks whether a proxy can use an object, on any node. Kinds that proxies do not read are always valid.
///
/// # Errors
///
/// The same as for the function that parses the kind.
pub fn validate(object: &Object) -> Result<(), InvalidObject> {
    // The errors of a slice do not depend on the node.
    let node = "";
    match object {
        Object::Service(service) => parse_service(service).map(drop),
        Object::EndpointSlice(slice) => parse_slice(slice, node).map(drop),
        Object::Endpoints(endpoints) => parse_endpoints(endpoints).map(drop),
        Object::Node(node) => parse_node(node).map(drop),
        Object::ServiceCidr(cidr) => parse_service_cidr(cidr).map(drop),
        Object::Pod(_) | Object::Deployment(_) => Ok(()),
    }
}

/// Parses a ServiceCIDR into the networks that cluster IPs are allocated from.
pub fn parse_service_cidr(cidr: &ServiceCidr) -> Result<Vec<IpNet>, InvalidObject> {
    let mut errors = Errors::default();
    let networks = errors.parse_list("spec.cidrs", &cidr.spec.cidrs, parse_network);
    errors.finish("ServiceCIDR", &cidr.metadata, networks)
}

/// The errors of an object that is being parsed.
#[derive(Default)]
struct Errors {
    /// Errors for which the object is rejected.
    errors: Vec<FieldError>,
    /// Values that are ignored, while the rest of the object is used.
    ignored: Vec<FieldError>,
}

impl Errors {
    fn add(&mut self, field: impl Into<String>, problem: impl fmt::Display) {
        push(&mut self.errors, field, problem);
    }

    /// Returns the valid value of a field, or records that it is ignored.
    fn keep_or_ignore<T, E: fmt::Display>(&mut self, field: impl Into<String>, value: Result<T, E>) -> Option<T> {
        value.map_err(|problem| self.ignore(field, problem)).ok()
    }

    /// Records that a value is ignored.
    fn ignore(&mut self, field: impl Into<String>, problem: impl fmt::Display) {
        push(&mut self.ignored, field, problem);
    }

    /// Returns the parsed value of a field, or adds its error.
    fn keep<T, E: fmt::Display>(&mut self, field: impl Into<String>, value: Result<T, E>) -> Option<T> {
        value.map_err(|problem| self.add(field, problem)).ok()
    }

    /// Parses all elements of a list and returns the valid ones.
    fn parse_list<T>(&mut self, field: &str, texts: &[String], parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let elements = texts.iter().enumerate();
        elements.filter_map(|(i, text)| self.keep(format!("{field}[{i}]"), parse(text))).collect()
    }

    /// Returns `value` if there are no errors.
    fn finish<T>(self, kind: &'static str, metadata: &ObjectMeta, value: T) -> Result<T, InvalidObject> {
        match self.errors {
            errors if errors.is_empty() => Ok(value),
            errors => Err(InvalidObject { kind, name: NamespacedName::from_metadata(metadata), errors }),
        }
    }
}

/// Abbreviates the middle of a text: a value may be a megabyte long, and errors are logged, kept and sent as Events.
fn abbreviated(text: String) -> String {
    if text.len() <= 4 * KEPT_OF_PROBLEM {
        return text;
    }
    let start: String = text.chars().take(KEPT_OF_PROBLEM).collect();
    let end = text.char_indices().rev().nth(KEPT_OF_PROBLEM).map_or(0, |(at, _)| at);
    format!("{start}...{}", &text[end..])
}

/// Errors that are kept of an object.
pub const MAX_ERRORS: usize = 20;

/// Number of characters kept at the start and at the end of a long [`FieldError::problem`].
const KEPT_OF_PROBLEM: usize = 100;

/// Adds an error to a list, which may be full.
fn push(errors: &mut Vec<FieldError>, field: impl Into<String>, problem: impl fmt::Display) {
    if errors.len() < MAX_ERRORS {
        errors.push(FieldError { field: field.into(), problem: abbreviated(problem.to_string()) });
    }
}

/// Parses a port number that is not zero.
fn parse_port(number: i32) -> Result<NonZeroU16, String> {
    u16::try_from(number)
        .ok()
        .and_then(NonZeroU16::new)
        .ok_or_else(|| format!("invalid port {number} (want 1 to 65535)"))
}

/// Parses a protocol as the API server does, in upper case only; the default is TCP.
fn parse_protocol(text: Option<&str>) -> Result<Protocol, UnknownProtocol> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Protocol::Tcp) };
    match text.parse() {
        Ok(protocol) if text == text.to_ascii_uppercase() => Ok(protocol),
        Ok(_) | Err(UnknownProtocol(_)) => Err(UnknownProtocol(text.to_owned())),
    }
}

#[cfg(test)]
mod tests;
