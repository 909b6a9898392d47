//! Splits responses of the API server into objects as they arrive, so that no more than one object is held in memory.
//!
//! The objects are decoded by [`crate::decode`].

mod json;
mod protobuf;

use ferroute_config::MediaType;

use self::protobuf::{Frames, Items};
use crate::protobuf::NotProtobuf;

/// A splitter for one response.
#[derive(Debug)]
pub(crate) enum Splitter {
    /// A watch or a list in JSON.
    Json(json::Splitter),
    /// A watch in protobuf.
    Frames(Frames),
    /// A list in protobuf.
    Items(Items),
}

/// A response cannot be split into objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SplitError {
    /// A value other than an object begins, or there is an additional bracket.
    #[error("not JSON")]
    NotJson,
    /// The envelope is unknown, or a length exceeds that of the surrounding message.
    #[error(transparent)]
    NotProtobuf(#[from] NotProtobuf),
    /// An object, or the envelope of a list, is too long.
    #[error("an object is longer than {MAX_OBJECT_BYTES} bytes")]
    TooLong,
}

impl Splitter {
    /// Returns a splitter for consecutive objects, as in a watch.
    pub(crate) fn stream(media_type: MediaType) -> Self {
        match media_type {
            MediaType::Json => Self::Json(json::Splitter::stream()),
            MediaType::Protobuf => Self::Frames(Frames::default()),
        }
    }

    /// Returns a splitter for the items of a list.
    pub(crate) fn list(media_type: MediaType) -> Self {
        match media_type {
            MediaType::Json => Self::Json(json::Splitter::list()),
            MediaType::Protobuf => Self::Items(Items::default()),
        }
    }

    /// Consumes the front of `bytes` and returns the next object; `None` when `bytes` is used up.
    ///
    /// # Errors
    ///
    /// The response cannot be split. The splitter cannot be used any more.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<&[u8]>, SplitError> {
        match self {
            Self::Json(splitter) => splitter.next(bytes),
            Self::Frames(splitter) => splitter.next(bytes),
            Self::Items(splitter) => splitter.next(bytes),
        }
    }

    /// Reports whether an object has begun and not ended.
    pub(crate) fn is_within_object(&self) -> bool {
        match self {
            Self::Json(splitter) => splitter.is_within_object(),
            Self::Frames(splitter) => splitter.is_within_object(),
            Self::Items(splitter) => splitter.is_within_object(),
        }
    }

    /// Returns the envelope of a complete list: in protobuf, only its metadata.
    pub(crate) fn list_envelope(&self) -> Option<&[u8]> {
        match self {
            Self::Json(splitter) => splitter.list_envelope(),
            Self::Frames(_) => None,
            Self::Items(splitter) => splitter.list_envelope(),
        }
    }
}

/// Clears the buffer of an object that has been returned.
fn recycle(object: &mut Vec<u8>) {
    object.clear();
    object.shrink_to(KEPT_BYTES);
}

/// Bytes of one object. The API server accepts at most 3 MiB, and etcd half of that; the rest is for characters that are
/// escaped in JSON.
pub(crate) const MAX_OBJECT_BYTES: usize = 8 << 20;

/// Capacity that is kept for further objects, so that one large object does not hold memory.
const KEPT_BYTES: usize = 64 << 10;
