//! Decoding of the API server's responses, in JSON and protobuf.

mod json;
mod protobuf;

use std::borrow::Cow;

use ferroute_api::{EndpointSlice, Node, ObjectMeta, Service, ServiceCidr, labels};
use ferroute_config::MediaType;
use ferroute_core::{NamespacedName, parse::FieldError};
use ferroute_source::{Event, Resource};
use serde::Deserialize;

use crate::{protobuf::NotProtobuf, resource::ApiObject};

/// An encoded object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawObject<'a> {
    /// JSON text.
    Json(&'a str),
    /// The object's protobuf message, without envelopes.
    Protobuf(&'a [u8]),
}

/// An event of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WatchEvent<'a> {
    /// An object was added or modified.
    Applied(RawObject<'a>),
    /// An object was deleted; this is its last state.
    Deleted(RawObject<'a>),
    /// All changes up to a version have been sent.
    Bookmark {
        version: String,
        /// Whether it ends the list at the beginning of the watch.
        ends_list: bool,
    },
    /// The server ends the watch.
    Error(Status),
    /// An event of an unknown type.
    Unknown(Cow<'a, str>),
}

/// Object that the API server returns instead of the requested one (`v1`, `Status`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) message: String,
    /// The HTTP status, also within a watch.
    pub(crate) code: u16,
}

/// The metadata of a list.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ListMeta {
    /// The version of the list, from which a watch resumes.
    pub(crate) resource_version: String,
    /// The token of the next page; empty on the last one.
    pub(crate) r#continue: String,
}

/// A decoded object.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) name: NamespacedName,
    pub(crate) version: String,
    /// The event that adds or changes the object, if it is valid.
    pub(crate) event: Result<Event, FieldError>,
}

/// Data from the API server cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Utf8(#[from] std::str::Utf8Error),
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
    #[error(transparent)]
    Envelope(#[from] NotProtobuf),
}

/// An object has no name, or its name cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("an object has no name")]
pub(crate) struct MissingName(#[source] Option<DecodeError>);

impl<'a> RawObject<'a> {
    fn metadata(self) -> Result<ObjectMeta, DecodeError> {
        match self {
            Self::Json(text) => json::metadata(text),
            Self::Protobuf(message) => protobuf::metadata(message),
        }
    }

    fn status(self) -> Result<Status, DecodeError> {
        match self {
            Self::Json(text) => json::status(text.as_bytes()),
            Self::Protobuf(message) => protobuf::status(message),
        }
    }

    fn object<T: ApiObject>(self) -> Result<T, FieldError> {
        match self {
            Self::Json(text) => json::object(text),
            Self::Protobuf(message) => protobuf::object(message),
        }
    }
}

/// Decodes an event of a watch.
pub(crate) fn watch_event(media_type: MediaType, bytes: &[u8]) -> Result<WatchEvent<'_>, DecodeError> {
    let (kind, object) = match media_type {
        MediaType::Json => json::open(bytes)?,
        MediaType::Protobuf => protobuf::open(bytes)?,
    };
    Ok(match &*kind {
        "ADDED" | "MODIFIED" => WatchEvent::Applied(object),
        "DELETED" => WatchEvent::Deleted(object),
        "BOOKMARK" => {
            let metadata = object.metadata()?;
            let ends_list = metadata.annotations.get(INITIAL_EVENTS_END).is_some_and(|value| value == "true");
            WatchEvent::Bookmark { version: metadata.resource_version.unwrap_or_default(), ends_list }
        }
        "ERROR" => WatchEvent::Error(object.status()?),
        _ => WatchEvent::Unknown(kind),
    })
}

/// Returns an item of a list, not decoded yet.
pub(crate) fn item(media_type: MediaType, bytes: &[u8]) -> Result<RawObject<'_>, DecodeError> {
    Ok(match media_type {
        MediaType::Json => RawObject::Json(std::str::from_utf8(bytes)?),
        MediaType::Protobuf => RawObject::Protobuf(bytes),
    })
}

/// Decodes the metadata of a list, from the envelope that a splitter returns.
pub(crate) fn list_meta(media_type: MediaType, envelope: &[u8]) -> Result<ListMeta, DecodeError> {
    match media_type {
        MediaType::Json => json::list_meta(envelope),
        MediaType::Protobuf => protobuf::list_meta(envelope),
    }
}

/// Decodes a status that is a whole response.
pub(crate) fn status(media_type: MediaType, body: &[u8]) -> Result<Status, DecodeError> {
    match media_type {
        MediaType::Json => json::status(body),
        MediaType::Protobuf => protobuf::status(crate::protobuf::open(body)?),
    }
}

/// Decodes an object.
///
/// # Errors
///
/// Not even its name can be decoded.
pub(crate) fn object(resource: Resource, raw: RawObject<'_>) -> Result<Decoded, MissingName> {
    match resource {
        Resource::Services => decode::<Service>(raw),
        Resource::EndpointSlices => decode::<EndpointSlice>(raw),
        Resource::Nodes => decode::<Node>(raw),
        Resource::ServiceCidrs => decode::<ServiceCidr>(raw),
    }
}

/// Decodes the name and version of an object.
pub(crate) fn name(raw: RawObject<'_>) -> Result<(NamespacedName, String), MissingName> {
    let metadata = raw.metadata().map_err(|error| MissingName(Some(error)))?;
    Ok((name_of(&metadata)?, metadata.resource_version.unwrap_or_default()))
}

fn decode<T: ApiObject>(raw: RawObject<'_>) -> Result<Decoded, MissingName> {
    let mut object: T = match raw.object() {
        Ok(object) => object,
        Err(error) => {
            let (name, version) = name(raw)?;
            return Ok(Decoded { name, version, event: Err(error) });
        }
    };
    let metadata = object.metadata();
    // Some tools keep whole copies of the object in annotations, which must not wait in queues with it.
    metadata.annotations.retain(|key, _| labels::keeps_annotation(key));
    let name = name_of(metadata)?;
    let version = metadata.resource_version.clone().unwrap_or_default();
    Ok(Decoded { name, version, event: Ok(object.into_event()) })
}

fn name_of(metadata: &ObjectMeta) -> Result<NamespacedName, MissingName> {
    if metadata.name.is_empty() { Err(MissingName(None)) } else { Ok(NamespacedName::from_metadata(metadata)) }
}

/// The annotation on the bookmark that ends a streaming list (KEP-3157).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
