//! Protobuf.

use std::borrow::Cow;

use ferroute_api::ObjectMeta;
use prost::Message;

use super::{ListMeta, ObjectError, Raw, ReadError, Status};
use crate::{
    kinds::Followed,
    protobuf::{self, Head, WatchEvent},
};

/// The type of a watch's message, and its object.
pub(super) fn open(message: &[u8]) -> Result<(Cow<'_, str>, Raw<'_>), ReadError> {
    let WatchEvent { kind, object } = WatchEvent::open(message)?;
    Ok((std::str::from_utf8(kind)?.into(), Raw::Protobuf(object)))
}

/// `metadata` of a list.
pub(super) fn list_meta(message: &[u8]) -> Result<ListMeta, ReadError> {
    let protobuf::ListMeta { resource_version, r#continue } = Message::decode(message)?;
    Ok(ListMeta { resource_version, r#continue })
}

/// A status.
pub(super) fn status(message: &[u8]) -> Result<Status, ReadError> {
    let protobuf::Status { message, code } = Message::decode(message)?;
    Ok(Status { message, code: u16::try_from(code).unwrap_or_default() })
}

/// `metadata` of any object.
pub(super) fn metadata(message: &[u8]) -> Result<ObjectMeta, ReadError> {
    let Head { metadata } = Message::decode(message)?;
    Ok(metadata.unwrap_or_default().into())
}

/// An object.
pub(super) fn object<T: Followed>(message: &[u8]) -> Result<T, ObjectError> {
    T::Wire::decode(message).map(Into::into).map_err(|error| fault(&error))
}

/// Where an object is bad. The library tells it as `Inner.field: Outer.field: what is wrong`.
fn fault(error: &prost::DecodeError) -> ObjectError {
    let text = error.to_string();
    let mut message = text.rsplit_once("message: ").map_or(text.as_str(), |(_, rest)| rest);
    let mut fields = Vec::new();
    while let Some((place, rest)) = message.split_once(": ")
        && let Some((_, field)) = place.split_once('.')
        && !place.contains(' ')
    {
        fields.insert(0, field);
        message = rest;
    }
    ObjectError { path: fields.join("."), message: message.to_owned() }
}

#[cfg(test)]
mod tests;
