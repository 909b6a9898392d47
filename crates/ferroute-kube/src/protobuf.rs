//! The API server's protobuf messages: envelopes, and of each kind the fields that a proxy reads.
//!
//! ```text
//!   a response   magic, Unknown { typeMeta = 1, raw = 2: the object, or a list { metadata = 1, items = 2 } }
//!   a watch      length (4 bytes, big-endian), WatchEvent { type = 1, object = 2 { raw = 1: magic, Unknown … } }, …
//! ```
//!
//! Envelopes are opened in place, without a copy; the messages are decoded by `prost`. Field numbers and types are
//! those of Kubernetes' `generated.proto` files and never change. Other fields are ignored. Go omits nil values and
//! sends empty ones, while JSON omits both: an empty value counts as unset if Go's field is not a pointer, which
//! corresponds to a field that is not `optional`.
//!
//! Responses are split into messages by [`crate::split`].

mod fields;
mod meta;
mod node;
mod service;
mod slice;

pub(crate) use self::{
    fields::{NotProtobuf, Varint, WireType, key},
    meta::{ListMeta, MetadataOnly, Status},
    node::Node,
    service::{Service, ServiceCidr},
    slice::EndpointSlice,
};

/// The start of every protobuf response; the last byte is the encoding of the envelope.
pub(crate) const MAGIC: [u8; 4] = *b"k8s\0";

/// Field of `Unknown`.
pub(crate) const RAW: u32 = 2;

/// An event of a watch, with its object out of its envelopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchEvent<'a> {
    /// The type, such as `ADDED`.
    pub(crate) kind: &'a [u8],
    /// The message of the object.
    pub(crate) object: &'a [u8],
}

impl<'a> WatchEvent<'a> {
    /// Opens the envelopes.
    pub(crate) fn open(event: &'a [u8]) -> Result<Self, NotProtobuf> {
        let (kind, extension) = (fields::find(event, 1)?, fields::find(event, 2)?);
        let object = fields::find(extension.ok_or(NotProtobuf)?, 1)?;
        Ok(Self { kind: kind.ok_or(NotProtobuf)?, object: open(object.ok_or(NotProtobuf)?)? })
    }
}

/// Opens the envelope of one object and returns its message.
pub(crate) fn open(response: &[u8]) -> Result<&[u8], NotProtobuf> {
    let unknown = response.strip_prefix(&MAGIC).ok_or(NotProtobuf)?;
    fields::find(unknown, RAW)?.ok_or(NotProtobuf)
}

/// Returns a text that Go sends even if it is unset.
fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Returns a number that Go sends even if it is unset.
fn non_zero<N: Default + PartialEq>(number: N) -> Option<N> {
    Some(number).filter(|number| *number != N::default())
}

/// Converts messages.
fn convert_all<A, B: From<A>>(messages: Vec<A>) -> Vec<B> {
    messages.into_iter().map(B::from).collect()
}
