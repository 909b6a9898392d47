//! The messages of a watch in protobuf: a length of four bytes, the highest first, then so many bytes.

use super::{LONGEST, SplitError, recycle};

/// Cuts them.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// What has come of the length.
    length: Vec<u8>,
    /// What has come of the message.
    message: Vec<u8>,
    /// Bytes of the message that have not come; `None` before the whole length is there.
    left: Option<usize>,
}

impl Frames {
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<&[u8]>, SplitError> {
        if self.left == Some(0) {
            self.left = None;
            self.length.clear();
            recycle(&mut self.message);
        }
        let left = match self.left {
            Some(left) => left,
            None => {
                let missing = LENGTH - self.length.len();
                take(&mut self.length, missing, bytes);
                let Ok(length) = <[u8; LENGTH]>::try_from(self.length.as_slice()) else { return Ok(None) };
                usize::try_from(u32::from_be_bytes(length))
                    .ok()
                    .filter(|length| *length <= LONGEST)
                    .ok_or(SplitError::TooLong)?
            }
        };
        let left = left - take(&mut self.message, left, bytes);
        self.left = Some(left);
        Ok((left == 0).then_some(&*self.message))
    }

    pub(super) fn is_within_object(&self) -> bool {
        !self.length.is_empty() && self.left != Some(0)
    }
}

/// Moves up to `wanted` bytes from the front of `bytes` to the end of `kept`. How many there were.
pub(super) fn take(kept: &mut Vec<u8>, wanted: usize, bytes: &mut &[u8]) -> usize {
    let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
    kept.extend_from_slice(taken);
    *bytes = rest;
    taken.len()
}

/// Bytes of the length.
const LENGTH: usize = 4;
