//! The API server's objects in protobuf: its envelopes, and of each kind the messages with the fields that a proxy reads.
//!
//! ```text
//!   one answer   magic, Unknown { typeMeta = 1, raw = 2: the object, or a list { metadata = 1, items = 2 } }
//!   a watch      length (4 bytes, big-endian), WatchEvent { type = 1, object = 2 { raw = 1: magic, Unknown … } }, …
//! ```
//!
//! Envelopes are opened where they lie, so that what is in them is not copied; the messages are `prost`'s. Numbers and
//! types of the fields are those of Kubernetes' `generated.proto` files and never change. Fields that are not declared
//! here are passed over. Go leaves out what is nil and sends what is merely empty, while JSON leaves out both: an empty
//! value counts as left out wherever Go's field is no pointer, which here is where it is not `optional`.
//!
//! What is *not* here: cutting a stream into messages ([`crate::split`]).

mod fields;
mod meta;
mod node;
mod service;
mod slice;

pub(crate) use self::{
    fields::{NotProtobuf, Varint, WireType, key},
    meta::{Head, ListMeta, Status},
    node::Node,
    service::{Service, ServiceCidr},
    slice::EndpointSlice,
};

/// What every answer in protobuf begins with; the last byte tells the form of the envelope that follows.
pub(crate) const MAGIC: [u8; 4] = *b"k8s\0";

/// Field of `Unknown`, and of the envelope that is a list's.
pub(crate) const RAW: u32 = 2;

/// A message of a watch, with its object out of its envelopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchEvent<'a> {
    /// What has happened, such as `ADDED`.
    pub(crate) kind: &'a [u8],
    /// The object's own message.
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

/// Opens the envelope of one object, and gives the object's own message.
pub(crate) fn open(answer: &[u8]) -> Result<&[u8], NotProtobuf> {
    let unknown = answer.strip_prefix(&MAGIC).ok_or(NotProtobuf)?;
    fields::find(unknown, RAW)?.ok_or(NotProtobuf)
}

/// A text that Go sends also where it is empty.
fn filled(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// A number that Go sends also where it is 0.
fn set<N: Default + PartialEq>(number: N) -> Option<N> {
    Some(number).filter(|number| *number != N::default())
}

/// The messages of one type as values of another.
fn all<A, B: From<A>>(messages: Vec<A>) -> Vec<B> {
    messages.into_iter().map(B::from).collect()
}
