//! Reading objects from text: YAML and JSON, as many documents as there are, as `kubectl` reads them.
//!
//! ```text
//!   text ──► documents ──► values with lines ──► objects
//!            (split at     (YAML or JSON)        (kind, version, fields by path)
//!             `---`)
//! ```
//!
//! Documents are split before they are parsed, so that a bad one does not take its neighbours with it, and so that a
//! caller can pass over those that it has seen before. Lists give their items one by one.
//!
//! What is *not* here: files, and whether a value makes sense. Only what comes before anything else is done here: each
//! object has a name, the namespace is `default` where none is given, and the version is one that is still served.

mod decode;
mod error;
mod json;
mod object;
mod scalar;
mod split;
mod value;
mod yaml;

pub use error::{Cause, DocumentError};
pub use object::{Found, Ignored};
pub use split::{Document, Documents, Position, documents, documents_from};

/// Everything in a text, in its order.
pub fn read(text: &str) -> Vec<Result<Found, DocumentError>> {
    documents(text).flat_map(|document| document.read()).collect()
}

#[cfg(test)]
mod tests;
