//! Cuts what the API server sends into objects while it comes in, so that no more than one object needs to be held at a
//! time. Whether an object is good is its reader's to say.

mod frames;
mod items;
mod json;

use ferroute_config::MediaType;

use self::{frames::Frames, items::Items};
use crate::protobuf::NotProtobuf;

/// Cuts one answer.
#[derive(Debug)]
pub(crate) enum Splitter {
    /// A watch or a list in JSON.
    Json(json::Splitter),
    /// A watch in protobuf.
    Frames(Frames),
    /// A list in protobuf.
    Items(Items),
}

/// What comes cannot be cut into objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SplitError {
    /// There is something where an object should begin, or a bracket too many.
    #[error("it is no JSON")]
    NotJson,
    /// A length does not fit into what it is the length of a part of, or the envelope is another one.
    #[error(transparent)]
    NotProtobuf(#[from] NotProtobuf),
    /// An object, or what surrounds the items of a list, has no end.
    #[error("an object is longer than {LONGEST} bytes")]
    TooLong,
}

impl Splitter {
    /// For objects one after the other, as a watch sends them.
    pub(crate) fn stream(media_type: MediaType) -> Self {
        match media_type {
            MediaType::Json => Self::Json(json::Splitter::stream()),
            MediaType::Protobuf => Self::Frames(Frames::default()),
        }
    }

    /// For the items of a list.
    pub(crate) fn list(media_type: MediaType) -> Self {
        match media_type {
            MediaType::Json => Self::Json(json::Splitter::list()),
            MediaType::Protobuf => Self::Items(Items::default()),
        }
    }

    /// The next object, which takes what it needs off the front of `bytes`. `None` when `bytes` has been used up.
    ///
    /// # Errors
    ///
    /// What comes cannot be cut. The splitter is of no use any more then.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<&[u8]>, SplitError> {
        match self {
            Self::Json(splitter) => splitter.next(bytes),
            Self::Frames(splitter) => splitter.next(bytes),
            Self::Items(splitter) => splitter.next(bytes),
        }
    }

    /// Whether an object has begun and not ended.
    pub(crate) fn is_within_object(&self) -> bool {
        match self {
            Self::Json(splitter) => splitter.is_within_object(),
            Self::Frames(splitter) => splitter.is_within_object(),
            Self::Items(splitter) => splitter.is_within_object(),
        }
    }

    /// What surrounds the items of a list, when it is complete: in protobuf, its metadata.
    pub(crate) fn shell(&self) -> Option<&[u8]> {
        match self {
            Self::Json(splitter) => splitter.shell(),
            Self::Frames(_) => None,
            Self::Items(splitter) => splitter.shell(),
        }
    }
}

/// An object that has been given out is gone by now.
fn recycle(object: &mut Vec<u8>) {
    object.clear();
    object.shrink_to(KEPT);
}

/// Bytes that one object may have. The API server takes no object of more than 3 MiB (etcd not even of half that).
const LONGEST: usize = 16 << 20;

/// Bytes that are kept for objects to come, so that one large object does not cost memory for ever.
const KEPT: usize = 64 << 10;
