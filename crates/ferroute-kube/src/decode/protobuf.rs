//! Decoding of protobuf.

use std::borrow::Cow;

use ferroute_api::ObjectMeta;
use ferroute_core::parse::FieldError;
use prost::Message;

use super::{DecodeError, ListMeta, RawObject, Status};
use crate::{
    protobuf::{self, MetadataOnly, WatchEvent},
    resource::ApiObject,
};

/// Returns the type of a watch event, and its object.
pub(super) fn open(message: &[u8]) -> Result<(Cow<'_, str>, RawObject<'_>), DecodeError> {
    let WatchEvent { kind, object } = WatchEvent::open(message)?;
    Ok((std::str::from_utf8(kind)?.into(), RawObject::Protobuf(object)))
}

/// Decodes the metadata of a list.
pub(super) fn list_meta(message: &[u8]) -> Result<ListMeta, DecodeError> {
    let protobuf::ListMeta { resource_version, r#continue } = Message::decode(message)?;
    Ok(ListMeta { resource_version, r#continue })
}

/// Decodes a status.
pub(super) fn status(message: &[u8]) -> Result<Status, DecodeError> {
    let protobuf::Status { message, code } = Message::decode(message)?;
    Ok(Status { message, code: u16::try_from(code).unwrap_or_default() })
}

/// Decodes the metadata of an object of any kind.
pub(super) fn metadata(message: &[u8]) -> Result<ObjectMeta, DecodeError> {
    let MetadataOnly { metadata } = Message::decode(message)?;
    Ok(metadata.unwrap_or_default().into())
}

/// Decodes an object.
pub(super) fn object<T: ApiObject>(message: &[u8]) -> Result<T, FieldError> {
    T::Message::decode(message).map(Into::into).map_err(|error| field_error(&error))
}

/// Extracts the path of the invalid field; the library prints `Inner.field: Outer.field: problem`.
fn field_error(error: &prost::DecodeError) -> FieldError {
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
    FieldError { field: fields.join("."), problem: message.to_owned() }
}

#[cfg(test)]
mod tests;
