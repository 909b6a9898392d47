//! Decoding of JSON.

use std::{borrow::Cow, fmt, marker::PhantomData};

use ferroute_api::ObjectMeta;
use ferroute_core::parse::FieldError;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::value::RawValue;

use super::{DecodeError, ListMeta, RawObject, Status};
use crate::resource::ApiObject;

/// A value that is decoded from a JSON object only. Derived implementations also accept an array, by position.
struct FromObject<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FromObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = T;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

/// Returns the type of a watch event, and its object.
pub(super) fn open(message: &[u8]) -> Result<(Cow<'_, str>, RawObject<'_>), DecodeError> {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let FromObject(Envelope { r#type, object }) = serde_json::from_slice(message)?;
    Ok((r#type, RawObject::Json(object.get())))
}

/// Decodes the metadata of a list without its items.
pub(super) fn list_meta(envelope: &[u8]) -> Result<ListMeta, DecodeError> {
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(default)]
        metadata: ListMeta,
    }
    let FromObject(Envelope { metadata }) = serde_json::from_slice(envelope)?;
    Ok(metadata)
}

/// Decodes a status.
pub(super) fn status(text: &[u8]) -> Result<Status, DecodeError> {
    let FromObject(status) = serde_json::from_slice(text)?;
    Ok(status)
}

/// Decodes the metadata of an object of any kind.
pub(super) fn metadata(text: &str) -> Result<ObjectMeta, DecodeError> {
    #[derive(Deserialize)]
    struct MetadataOnly {
        #[serde(default)]
        metadata: ObjectMeta,
    }
    let FromObject(MetadataOnly { metadata }) = serde_json::from_str(text)?;
    Ok(metadata)
}

/// Decodes an object.
pub(super) fn object<T: ApiObject>(text: &str) -> Result<T, FieldError> {
    serde_json::from_str(text).map(|FromObject(object)| object).map_err(|_| field_error::<T>(text))
}

/// Decodes an invalid object again, more slowly, to find the invalid field.
fn field_error<T: ApiObject>(text: &str) -> FieldError {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, FromObject<T>>(&mut deserializer) {
        Ok(_) => FieldError { field: ".".to_owned(), problem: "cannot be decoded".to_owned() },
        Err(error) => {
            let path = error.path().to_string();
            let text = error.into_inner().to_string();
            // The position in the response is of no use.
            let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message).to_owned();
            FieldError { field: path, problem: message }
        }
    }
}

#[cfg(test)]
mod tests;
