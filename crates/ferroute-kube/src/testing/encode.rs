//! Encoding of objects in JSON and protobuf.
//!
//! Protobuf is encoded from JSON with tables of the field numbers. As in Go, fields that are not pointers are sent even
//! if they are empty. Fields that a table does not have get unknown numbers, and values of another type than the field's
//! are encoded by their own type, so that unknown fields and invalid objects can be sent in both forms.

mod schema;

use ferroute_config::MediaType;
use ferroute_core::rfc3339;
use ferroute_source::Resource;
use serde_json::{Value, json};

use self::schema::{Field, LIST_META, STATUS, Shape};
use crate::protobuf::MAGIC;

/// Encodes an event of a watch. Its object is a Status if its type is `ERROR`.
pub(crate) fn event(media_type: MediaType, resource: Resource, event: &str, object: &Value) -> Vec<u8> {
    if media_type == MediaType::Json {
        // In Go's order of the fields.
        return format!("{{\"type\":\"{event}\",\"object\":{object}}}\n").into_bytes();
    }
    let object = match event {
        "ERROR" => enveloped("v1", "Status", &message(STATUS, object)),
        _ => enveloped(
            resource.kind().api_version(),
            resource.kind().as_str(),
            &message(schema::fields(resource), object),
        ),
    };
    let mut message = Vec::new();
    bytes(1, event.as_bytes(), &mut message);
    let mut extension = Vec::new();
    bytes(1, &object, &mut extension);
    bytes(2, &extension, &mut message);
    let length = u32::try_from(message.len()).expect("a test's object is no longer than 4 GiB");
    [&length.to_be_bytes(), &*message].concat()
}

/// Encodes a list.
pub(crate) fn list(media_type: MediaType, resource: Resource, metadata: &Value, items: &[Value]) -> Vec<u8> {
    let (api_version, kind) = (resource.kind().api_version(), format!("{}List", resource.kind()));
    if media_type == MediaType::Json {
        // As in Go, an empty list is null.
        let items = if items.is_empty() { Value::Null } else { json!(items) };
        let list = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items});
        return list.to_string().into();
    }
    let mut list = Vec::new();
    bytes(1, &message(LIST_META, metadata), &mut list);
    for item in items {
        bytes(2, &message(schema::fields(resource), item), &mut list);
    }
    enveloped(api_version, &kind, &list)
}

/// Encodes the beginning of a watch or list whose first object has this number of further bytes.
pub(super) fn beginning(media_type: MediaType, is_watch: bool, more: usize) -> Vec<u8> {
    match (media_type, is_watch) {
        (MediaType::Json, true) => br#"{"type":"ADDED","object":{"metadata":{"name":""#.to_vec(),
        (MediaType::Json, false) => br#"{"kind":"List","items":[{"metadata":{"name":""#.to_vec(),
        (MediaType::Protobuf, true) => u32::try_from(more).unwrap_or(u32::MAX).to_be_bytes().to_vec(),
        (MediaType::Protobuf, false) => {
            let mut item = Vec::new();
            varint(2 << 3 | 2, &mut item);
            varint(more as u64, &mut item);
            let mut list = MAGIC.to_vec();
            varint(2 << 3 | 2, &mut list);
            varint((item.len() + more) as u64, &mut list);
            list.extend(item);
            list
        }
    }
}

/// Encodes a Status that is a whole response.
pub(super) fn status(media_type: MediaType, status: &Value) -> Vec<u8> {
    match media_type {
        MediaType::Json => status.to_string().into(),
        MediaType::Protobuf => enveloped("v1", "Status", &message(STATUS, status)),
    }
}

/// Encodes an object in protobuf without an envelope.
pub(crate) fn object(resource: Resource, object: &Value) -> Vec<u8> {
    message(schema::fields(resource), object)
}

fn enveloped(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut type_meta = Vec::new();
    bytes(1, api_version.as_bytes(), &mut type_meta);
    bytes(2, kind.as_bytes(), &mut type_meta);
    let mut unknown = MAGIC.to_vec();
    bytes(1, &type_meta, &mut unknown);
    bytes(2, raw, &mut unknown);
    bytes(3, b"", &mut unknown);
    bytes(4, b"", &mut unknown);
    unknown
}

fn message(fields: &[Field], object: &Value) -> Vec<u8> {
    let Value::Object(object) = object else { return raw_bytes(object) };
    let mut output = Vec::new();
    for Field { name, number, shape, is_pointer } in fields {
        match object.get(*name) {
            None | Some(Value::Null) if *is_pointer => {}
            None | Some(Value::Null) => empty(*number, shape, &mut output),
            Some(Value::Array(values)) => values.iter().for_each(|value| field(*number, shape, value, &mut output)),
            Some(value) => field(*number, shape, value, &mut output),
        }
    }
    let unknown = object.iter().filter(|(name, _)| !fields.iter().any(|field| field.name == *name));
    for (number, (_, value)) in (UNKNOWN..).zip(unknown) {
        raw(number, value, &mut output);
    }
    output
}

fn field(number: u32, shape: &Shape, value: &Value, output: &mut Vec<u8>) {
    match (shape, value) {
        (Shape::Text, Value::String(text)) => bytes(number, text.as_bytes(), output),
        (Shape::Number, Value::Number(_)) | (Shape::Bool, Value::Bool(_)) => raw(number, value, output),
        (Shape::Message(fields), value @ Value::Object(_)) => bytes(number, &message(fields, value), output),
        (Shape::Texts, Value::Object(map)) => {
            for (key, value) in map {
                let mut entry = Vec::new();
                bytes(1, key.as_bytes(), &mut entry);
                field(2, &Shape::Text, value, &mut entry);
                bytes(number, &entry, output);
            }
        }
        (Shape::Time, Value::String(text)) => match rfc3339::parse(text) {
            Some(time) => {
                let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                let mut message = Vec::new();
                raw(1, &since.as_secs().into(), &mut message);
                bytes(number, &message, output);
            }
            None => raw(number, value, output),
        },
        (Shape::NumberOrText, value) => {
            let mut message = Vec::new();
            let number_or_text = if value.is_string() { 3 } else { 2 };
            raw(1, &u8::from(value.is_string()).into(), &mut message);
            raw(number_or_text, value, &mut message);
            bytes(number, &message, output);
        }
        (_, value) => raw(number, value, output),
    }
}

/// Encodes an unset field that is not a pointer in Go.
fn empty(number: u32, shape: &Shape, output: &mut Vec<u8>) {
    match shape {
        Shape::Text => bytes(number, b"", output),
        Shape::Number => raw(number, &0.into(), output),
        Shape::Bool => raw(number, &false.into(), output),
        Shape::Message(fields) => bytes(number, &message(fields, &json!({})), output),
        Shape::NumberOrText => field(number, shape, &0.into(), output),
        Shape::Texts | Shape::Time => {}
    }
}

/// Encodes a value by its own type.
fn raw(number: u32, value: &Value, output: &mut Vec<u8>) {
    let as_number = match value {
        Value::Bool(value) => Some(u64::from(*value)),
        Value::Number(value) => value.as_u64().or(value.as_i64().map(i64::cast_unsigned)),
        _ => None,
    };
    match as_number {
        Some(value) => {
            varint(u64::from(number) << 3, output);
            varint(value, output);
        }
        None => bytes(number, &raw_bytes(value), output),
    }
}

fn raw_bytes(value: &Value) -> Vec<u8> {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned).into_bytes()
}

fn bytes(number: u32, value: &[u8], output: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | 2, output);
    varint(value.len() as u64, output);
    output.extend_from_slice(value);
}

fn varint(mut value: u64, output: &mut Vec<u8>) {
    while value >= 0x80 {
        output.push(value as u8 | 0x80);
        value >>= 7;
    }
    output.push(value as u8);
}

/// The first number of unknown fields.
const UNKNOWN: u32 = 10_000;
