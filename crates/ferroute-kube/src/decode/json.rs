//! Decoding of JSON.

use std::borrow::Cow;

use ferroute_api::ObjectMeta;
use ferroute_core::parse::FieldError;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{DecodeError, ListMeta, RawObject, Status};
use crate::resource::ApiObject;

/// Returns the type of a watch event, and its object.
pub(super) fn open(message: &[u8]) -> Result<(Cow<'_, str>, RawObject<'_>), DecodeError> {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let Envelope { r#type, object } = serde_json::from_slice(message)?;
    Ok((r#type, RawObject::Json(object.get())))
}

/// Decodes the metadata of a list without its items.
pub(super) fn list_meta(envelope: &[u8]) -> Result<ListMeta, DecodeError> {
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(default)]
        metadata: ListMeta,
    }
    let Envelope { metadata } = serde_json::from_slice(envelope)?;
    Ok(metadata)
}

/// Decodes a status.
pub(super) fn status(text: &[u8]) -> Result<Status, DecodeError> {
    Ok(serde_json::from_slice(text)?)
}

/// Decodes the metadata of an object of any kind.
pub(super) fn metadata(text: &str) -> Result<ObjectMeta, DecodeError> {
    #[derive(Deserialize)]
    struct MetadataOnly {
        #[serde(default)]
        metadata: ObjectMeta,
    }
    let MetadataOnly { metadata } = serde_json::from_str(text)?;
    Ok(metadata)
}

/// Decodes an object.
pub(super) fn object<T: ApiObject>(text: &str) -> Result<T, FieldError> {
    serde_json::from_str(text).map_err(|_| field_error::<T>(text))
}

/// Decodes an invalid object again, more slowly, to find the invalid field.
fn field_error<T: ApiObject>(text: &str) -> FieldError {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
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
