//! From what the API server sends to events.

mod json;
mod protobuf;

use std::borrow::Cow;

use ferroute_api::{EndpointSlice, Node, ObjectMeta, Service, ServiceCidr};
use ferroute_config::MediaType;
use ferroute_source::{Event, ObjectName, Resource};
use serde::Deserialize;

use crate::{
    kinds::Followed,
    known::{Known, Version},
    protobuf::NotProtobuf,
};

/// An object as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raw<'a> {
    /// As text.
    Json(&'a str),
    /// As its own message, out of its envelopes.
    Protobuf(&'a [u8]),
}

/// One message of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// An object is new or changed.
    Applied(Raw<'a>),
    /// An object is gone; this is what it was.
    Deleted(Raw<'a>),
    /// Everything up to a version has been sent.
    Bookmark {
        /// The version.
        version: String,
        /// It is also the end of the list that the watch has begun with.
        ends_listing: bool,
    },
    /// The watch has come to an end.
    Error(Status),
    /// A type of message that is not known.
    Unknown(Cow<'a, str>),
}

/// What the API server answers in the place of an object (`v1`, `Status`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    /// For people.
    pub(crate) message: String,
    /// The HTTP status, also where it comes within a watch.
    pub(crate) code: u16,
}

/// `metadata` of a list.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ListMeta {
    /// The version that the list shows; a watch goes on from here.
    pub(crate) resource_version: String,
    /// Asks for the next page; empty on the last one.
    pub(crate) r#continue: String,
}

/// An object that was sent.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Its name.
    pub(crate) name: ObjectName,
    /// Its version as text.
    pub(crate) version: String,
    /// Tells of it, if it is good.
    pub(crate) applied: Result<Event, ObjectError>,
}

impl Sent {
    /// Its version.
    pub(crate) fn version(&self) -> Version {
        Version::of(&self.version)
    }
}

/// An object cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub(crate) struct ObjectError {
    /// The field.
    path: String,
    /// What is wrong with its value.
    message: String,
}

/// What was sent cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// It should be JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It should be UTF-8.
    #[error(transparent)]
    Text(#[from] std::str::Utf8Error),
    /// It should be a message of protobuf.
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
    /// It should be in one of the envelopes of Kubernetes.
    #[error(transparent)]
    Envelope(#[from] NotProtobuf),
}

/// An object does not even tell its name.
#[derive(Debug, thiserror::Error)]
#[error("an object has no name")]
pub(crate) struct Nameless(#[source] Option<ReadError>);

impl<'a> Raw<'a> {
    fn metadata(self) -> Result<ObjectMeta, ReadError> {
        match self {
            Self::Json(text) => json::metadata(text),
            Self::Protobuf(message) => protobuf::metadata(message),
        }
    }

    fn status(self) -> Result<Status, ReadError> {
        match self {
            Self::Json(text) => json::status(text.as_bytes()),
            Self::Protobuf(message) => protobuf::status(message),
        }
    }

    fn object<T: Followed>(self) -> Result<T, ObjectError> {
        match self {
            Self::Json(text) => json::object(text),
            Self::Protobuf(message) => protobuf::object(message),
        }
    }
}

/// Reads a message of a watch.
pub(crate) fn message(media_type: MediaType, bytes: &[u8]) -> Result<Message<'_>, ReadError> {
    let (kind, object) = match media_type {
        MediaType::Json => json::open(bytes)?,
        MediaType::Protobuf => protobuf::open(bytes)?,
    };
    Ok(match &*kind {
        "ADDED" | "MODIFIED" => Message::Applied(object),
        "DELETED" => Message::Deleted(object),
        "BOOKMARK" => {
            let metadata = object.metadata()?;
            let ends_listing = metadata.annotations.get(END_OF_LIST).is_some_and(|value| value == "true");
            Message::Bookmark { version: metadata.resource_version.unwrap_or_default(), ends_listing }
        }
        "ERROR" => Message::Error(object.status()?),
        _ => Message::Unknown(kind),
    })
}

/// An item of a list.
pub(crate) fn item(media_type: MediaType, bytes: &[u8]) -> Result<Raw<'_>, ReadError> {
    Ok(match media_type {
        MediaType::Json => Raw::Json(std::str::from_utf8(bytes)?),
        MediaType::Protobuf => Raw::Protobuf(bytes),
    })
}

/// Reads what surrounds the items of a list, as a splitter gives it.
pub(crate) fn list_meta(media_type: MediaType, shell: &[u8]) -> Result<ListMeta, ReadError> {
    match media_type {
        MediaType::Json => json::list_meta(shell),
        MediaType::Protobuf => protobuf::list_meta(shell),
    }
}

/// Reads a status that is a whole answer.
pub(crate) fn status(media_type: MediaType, answer: &[u8]) -> Result<Status, ReadError> {
    match media_type {
        MediaType::Json => json::status(answer),
        MediaType::Protobuf => protobuf::status(crate::protobuf::open(answer)?),
    }
}

/// Reads an object.
///
/// # Errors
///
/// Not even its name can be read.
pub(crate) fn object(resource: Resource, raw: Raw<'_>, known: &mut Known) -> Result<Sent, Nameless> {
    match resource {
        Resource::Services => read::<Service>(raw, known),
        Resource::EndpointSlices => read::<EndpointSlice>(raw, known),
        Resource::Nodes => read::<Node>(raw, known),
        Resource::ServiceCidrs => read::<ServiceCidr>(raw, known),
    }
}

/// Reads the name and version of an object.
///
/// # Errors
///
/// They cannot be read.
pub(crate) fn name(raw: Raw<'_>, known: &mut Known) -> Result<(ObjectName, String), Nameless> {
    let metadata = raw.metadata().map_err(|error| Nameless(Some(error)))?;
    let name = named(&metadata, known)?;
    Ok((name, metadata.resource_version.unwrap_or_default()))
}

fn read<T: Followed>(raw: Raw<'_>, known: &mut Known) -> Result<Sent, Nameless> {
    let mut object: T = match raw.object() {
        Ok(object) => object,
        Err(error) => {
            let (name, version) = name(raw, known)?;
            return Ok(Sent { name, version, applied: Err(error) });
        }
    };
    let metadata = object.metadata();
    // People keep whole copies of the object in annotations; they are not to wait in queues with it.
    metadata.annotations.retain(|key, _| key == LAST_CHANGE);
    let name = named(metadata, known)?;
    let version = metadata.resource_version.clone().unwrap_or_default();
    Ok(Sent { name, version, applied: Ok(object.applied()) })
}

fn named(metadata: &ObjectMeta, known: &mut Known) -> Result<ObjectName, Nameless> {
    if metadata.name.is_empty() { Err(Nameless(None)) } else { Ok(known.name(metadata)) }
}

/// Annotation on the bookmark that ends the list of a streaming list (KEP-3157).
const END_OF_LIST: &str = "k8s.io/initial-events-end";

/// Annotation on endpoint slices: when the pods changed that made the slice change.
const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";
