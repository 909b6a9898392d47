//! From what the API server sends to events.

use std::borrow::Cow;

use ferroute_api::{EndpointSlice, Node, ObjectMeta, Service, ServiceCidr};
use ferroute_source::{Event, ObjectName, Resource};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    kinds::Followed,
    known::{Known, Version},
};

/// One message of a watch.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// An object is new or changed.
    Applied(&'a str),
    /// An object is gone; this is what it was.
    Deleted(&'a str),
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

/// What surrounds the items of a list.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ListShell {
    /// Version and the way on.
    pub(crate) metadata: ListMeta,
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

/// An object does not even tell its name.
#[derive(Debug, thiserror::Error)]
#[error("an object has no name")]
pub(crate) struct Nameless(#[source] Option<serde_json::Error>);

/// Reads a message of a watch.
pub(crate) fn message(json: &[u8]) -> serde_json::Result<Message<'_>> {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let Envelope { r#type, object } = serde_json::from_slice(json)?;
    let object = object.get();
    Ok(match &*r#type {
        "ADDED" | "MODIFIED" => Message::Applied(object),
        "DELETED" => Message::Deleted(object),
        "BOOKMARK" => {
            let HeadOnly { metadata } = serde_json::from_str(object)?;
            let ends_listing = metadata.annotations.get(END_OF_LIST).is_some_and(|value| value == "true");
            Message::Bookmark { version: metadata.resource_version.unwrap_or_default(), ends_listing }
        }
        "ERROR" => Message::Error(serde_json::from_str(object)?),
        _ => Message::Unknown(r#type),
    })
}

/// Reads an object.
///
/// # Errors
///
/// Not even its name can be read.
pub(crate) fn object(resource: Resource, json: &str, known: &mut Known) -> Result<Sent, Nameless> {
    match resource {
        Resource::Services => read::<Service>(json, known),
        Resource::EndpointSlices => read::<EndpointSlice>(json, known),
        Resource::Nodes => read::<Node>(json, known),
        Resource::ServiceCidrs => read::<ServiceCidr>(json, known),
    }
}

/// Reads the name and version of an object.
///
/// # Errors
///
/// They cannot be read.
pub(crate) fn name(json: &str, known: &mut Known) -> Result<(ObjectName, String), Nameless> {
    let HeadOnly { metadata } = serde_json::from_str(json).map_err(|error| Nameless(Some(error)))?;
    let name = named(&metadata, known)?;
    Ok((name, metadata.resource_version.unwrap_or_default()))
}

fn read<T: Followed>(json: &str, known: &mut Known) -> Result<Sent, Nameless> {
    let Ok(mut object) = serde_json::from_str::<T>(json) else {
        let (name, version) = name(json, known)?;
        return Ok(Sent { name, version, applied: Err(fault::<T>(json)) });
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

/// Reads a bad object once more, slower, to tell where it is bad.
fn fault<T: Followed>(json: &str) -> ObjectError {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => ObjectError { path: ".".to_owned(), message: "it cannot be read".to_owned() },
        Err(error) => {
            let path = error.path().to_string();
            let text = error.into_inner().to_string();
            // Places in a text that nobody has seen help nobody.
            let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message).to_owned();
            ObjectError { path, message }
        }
    }
}

/// An object of which only the metadata matters.
#[derive(Deserialize)]
struct HeadOnly {
    #[serde(default)]
    metadata: ObjectMeta,
}

/// Annotation on the bookmark that ends the list of a streaming list (KEP-3157).
const END_OF_LIST: &str = "k8s.io/initial-events-end";

/// Annotation on endpoint slices: when the pods changed that made the slice change.
const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";

#[cfg(test)]
mod tests;
