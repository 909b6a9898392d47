//! The bodies of fuzz targets.

use std::time::{Duration, UNIX_EPOCH};

use ferroute_config::MediaType;
use ferroute_core::{parse, rfc3339};
use ferroute_source::{Event, Resource};
use serde_json::{Value, json};

use super::encode;
use crate::{
    decode::{self, RawObject, WatchEvent},
    split::Splitter,
};

/// Parts of a split response.
#[derive(Debug, PartialEq, Eq)]
struct Split {
    /// The objects.
    objects: Vec<Vec<u8>>,
    /// The envelope of the items of a list.
    envelope: Option<Vec<u8>>,
    /// The error that ended it.
    error: Option<String>,
    /// The response ends within an object.
    is_truncated: bool,
}

/// Splits a response into objects and decodes them. The first two bytes select the encoding, whether it is a list, the
/// kind of the objects and the size of the parts in which the response arrives; the rest is the response.
///
/// # Panics
///
/// If the objects depend on the parts in which the response arrives, or are longer than the response; or if the name or
/// version of an object differs between decoding it as a whole and decoding only its metadata.
pub fn split_and_decode(input: &[u8]) {
    let [selector, size, response @ ..] = input else { return };
    let Selected { media_type, is_list, resource } = Selected::from_byte(*selector);
    let whole = split(media_type, is_list, [response]);
    let parts = response.chunks(usize::from(*size) + 1);
    assert_eq!(whole, split(media_type, is_list, parts), "the parts make a difference");
    let bytes: usize = whole.objects.iter().chain(&whole.envelope).map(Vec::len).sum();
    assert!(bytes <= response.len());

    if let Some(envelope) = &whole.envelope {
        let _ = decode::list_meta(media_type, envelope);
    }
    let _ = decode::status(media_type, response);
    for object in &whole.objects {
        if is_list {
            if let Ok(raw) = decode::item(media_type, object) {
                decode_object(resource, raw);
            }
        } else if let Ok(WatchEvent::Applied(raw) | WatchEvent::Deleted(raw)) = decode::watch_event(media_type, object)
        {
            decode_object(resource, raw);
        }
    }
}

/// Returns a response with these objects for [`split_and_decode`], whose first byte is `selector`.
pub fn response(selector: u8, objects: &[Value]) -> Vec<u8> {
    let Selected { media_type, is_list, resource } = Selected::from_byte(selector);
    if is_list {
        return encode::list(media_type, resource, &json!({"resourceVersion": "7"}), objects);
    }
    objects.iter().flat_map(|object| encode::event(media_type, resource, "ADDED", object)).collect()
}

/// Selection by the first byte.
struct Selected {
    media_type: MediaType,
    is_list: bool,
    resource: Resource,
}

impl Selected {
    fn from_byte(byte: u8) -> Self {
        let media_type = if byte & 1 == 0 { MediaType::Json } else { MediaType::Protobuf };
        let resource = Resource::ALL[usize::from(byte >> 2) % Resource::ALL.len()];
        Self { media_type, is_list: byte & 2 != 0, resource }
    }
}

fn split<'a>(media_type: MediaType, is_list: bool, parts: impl IntoIterator<Item = &'a [u8]>) -> Split {
    let mut splitter = if is_list { Splitter::list(media_type) } else { Splitter::stream(media_type) };
    let mut objects = Vec::new();
    let error = parts.into_iter().find_map(|mut part| {
        loop {
            match splitter.next(&mut part) {
                Ok(Some(object)) => objects.push(object.to_vec()),
                Ok(None) => return None,
                Err(error) => return Some(error.to_string()),
            }
        }
    });
    let envelope = splitter.list_envelope().filter(|_| error.is_none()).map(<[u8]>::to_vec);
    let is_truncated = error.is_none() && splitter.is_within_object();
    Split { objects, envelope, error, is_truncated }
}

fn decode_object(resource: Resource, raw: RawObject<'_>) {
    let Ok(decoded) = decode::object(resource, raw) else { return };
    assert!(!decoded.name.name().is_empty());
    let (name, version) = decode::name(raw).expect("an object with a name");
    assert_eq!((&decoded.name, &decoded.version), (&name, &version));
    if let Ok(event) = decoded.event {
        let _ = meaning(&event);
    }
}

/// Encodes the object of a JSON text in both encodings and decodes them. The first byte selects the kind.
///
/// # Panics
///
/// If the encodings have different meanings.
pub fn decode_both_encodings(input: &[u8]) {
    let [selector, text @ ..] = input else { return };
    let resource = Resource::ALL[usize::from(*selector) % Resource::ALL.len()];
    let Ok(text) = str::from_utf8(text) else { return };
    // Only decoded fields are compared, in the form in which the API server would send them.
    let Ok(decoded) = decode::object(resource, RawObject::Json(text)) else { return };
    let Ok(event) = decoded.event else { return };
    let Some(value) = to_value(&event).filter(has_valid_times) else { return };
    let (json, protobuf) = (value.to_string(), encode::object(resource, &value));
    let [json, protobuf] = [RawObject::Json(&json), RawObject::Protobuf(&protobuf)].map(|raw| {
        let decoded = decode::object(resource, raw).expect("it has a name");
        (decoded.name, decoded.version, decoded.event.map(|event| meaning(&event)))
    });
    assert_eq!(json, protobuf);
}

/// Reports whether the times can be encoded in protobuf, as seconds since 1970.
fn has_valid_times(object: &Value) -> bool {
    let is_valid = |field| match &object["metadata"][field] {
        Value::Null => true,
        time => time.as_str().and_then(rfc3339::parse).is_some_and(|time| time > UNIX_EPOCH + Duration::from_secs(1)),
    };
    is_valid("creationTimestamp") && is_valid("deletionTimestamp")
}

fn to_value(event: &Event) -> Option<Value> {
    let value = match event {
        Event::ServiceApplied(service) => serde_json::to_value(service),
        Event::SliceApplied(slice) => serde_json::to_value(slice),
        Event::NodeApplied(node) => serde_json::to_value(node),
        Event::ServiceCidrApplied(cidr) => serde_json::to_value(cidr),
        _ => return None,
    };
    value.ok()
}

/// Returns the meaning of an event to the proxy, or the problem of its object.
fn meaning(event: &Event) -> String {
    match event {
        Event::ServiceApplied(service) => format!("{:?}", parse::parse_service(service)),
        Event::SliceApplied(slice) => format!("{:?}", parse::parse_slice(slice, "node-1")),
        Event::NodeApplied(node) => format!("{:?}", parse::parse_node(node)),
        Event::ServiceCidrApplied(cidr) => format!("{:?}", parse::parse_service_cidr(cidr)),
        other => format!("{other:?}"),
    }
}
