//! JSON.

use std::borrow::Cow;

use ferroute_api::ObjectMeta;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ListMeta, ObjectError, Raw, ReadError, Status};
use crate::kinds::Followed;

/// The type of a watch's message, and its object.
pub(super) fn open(message: &[u8]) -> Result<(Cow<'_, str>, Raw<'_>), ReadError> {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let Envelope { r#type, object } = serde_json::from_slice(message)?;
    Ok((r#type, Raw::Json(object.get())))
}

/// `metadata` of a list without its items.
pub(super) fn list_meta(shell: &[u8]) -> Result<ListMeta, ReadError> {
    #[derive(Deserialize)]
    struct ListShell {
        #[serde(default)]
        metadata: ListMeta,
    }
    let ListShell { metadata } = serde_json::from_slice(shell)?;
    Ok(metadata)
}

/// A status.
pub(super) fn status(text: &[u8]) -> Result<Status, ReadError> {
    Ok(serde_json::from_slice(text)?)
}

/// `metadata` of any object.
pub(super) fn metadata(text: &str) -> Result<ObjectMeta, ReadError> {
    #[derive(Deserialize)]
    struct HeadOnly {
        #[serde(default)]
        metadata: ObjectMeta,
    }
    let HeadOnly { metadata } = serde_json::from_str(text)?;
    Ok(metadata)
}

/// An object.
pub(super) fn object<T: Followed>(text: &str) -> Result<T, ObjectError> {
    serde_json::from_str(text).map_err(|_| fault::<T>(text))
}

/// Reads a bad object once more, slower, to tell where it is bad.
fn fault<T: Followed>(text: &str) -> ObjectError {
    let mut deserializer = serde_json::Deserializer::from_str(text);
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

#[cfg(test)]
mod tests;
