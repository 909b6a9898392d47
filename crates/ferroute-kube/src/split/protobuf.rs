//! Splitting of protobuf: the length-prefixed messages of a watch, and the items of a list.

use super::{MAX_OBJECT_BYTES, SplitError, recycle};
use crate::protobuf::{MAGIC, NotProtobuf, RAW, Varint, WireType, key};

/// A splitter for the messages of a watch: four bytes of length, big-endian, then the message.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// The length, received so far.
    length: Vec<u8>,
    /// The message, received so far.
    message: Vec<u8>,
    /// Number of missing bytes of the message; `None` before its length is complete.
    missing: Option<usize>,
}

impl Frames {
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<&[u8]>, SplitError> {
        if self.missing == Some(0) {
            self.missing = None;
            self.length.clear();
            recycle(&mut self.message);
        }
        let missing = match self.missing {
            Some(missing) => missing,
            None => {
                let missing = LENGTH_BYTES - self.length.len();
                take(&mut self.length, missing, bytes);
                let Ok(length) = <[u8; LENGTH_BYTES]>::try_from(self.length.as_slice()) else { return Ok(None) };
                usize::try_from(u32::from_be_bytes(length))
                    .ok()
                    .filter(|length| *length <= MAX_OBJECT_BYTES)
                    .ok_or(SplitError::TooLong)?
            }
        };
        let missing = missing - take(&mut self.message, missing, bytes);
        self.missing = Some(missing);
        Ok((missing == 0).then_some(&*self.message))
    }

    pub(super) fn is_within_object(&self) -> bool {
        !self.length.is_empty() && self.missing != Some(0)
    }
}

/// Moves up to `count` bytes from the front of `bytes` to the end of `buffer`. Returns the number of bytes moved.
fn take(buffer: &mut Vec<u8>, count: usize, bytes: &mut &[u8]) -> usize {
    let (taken, rest) = bytes.split_at(count.min(bytes.len()));
    buffer.extend_from_slice(taken);
    *bytes = rest;
    taken.len()
}

const LENGTH_BYTES: usize = 4;

/// A splitter for the items of a list. The list is one message within its envelope, so keys and lengths are parsed on two
/// levels.
#[derive(Debug, Default)]
pub(crate) struct Items {
    step: Step,
    /// Number of missing bytes of the list; `None` outside of it.
    list: Option<usize>,
    /// Whether the list has arrived completely.
    is_complete: bool,
    /// The current item, received so far.
    item: Vec<u8>,
    /// The metadata of the list.
    metadata: Vec<u8>,
}

/// The next element of the response.
#[derive(Debug)]
enum Step {
    /// The rest of [`MAGIC`], of which this number of bytes has been received.
    Magic(usize),
    Key(Varint),
    Length(Part, Varint),
    /// A number that is ignored.
    Number(Varint),
    /// This many bytes of a part.
    Bytes(Part, usize),
    /// The element after the item that has been returned.
    Returned,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    List,
    Metadata,
    Item,
    Ignored,
}

impl Default for Step {
    fn default() -> Self {
        Self::Magic(0)
    }
}

impl Items {
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<&[u8]>, SplitError> {
        if matches!(self.step, Step::Returned) {
            recycle(&mut self.item);
            self.step = Step::Key(Varint::default());
        }
        loop {
            if self.is_between_fields() && self.list == Some(0) {
                self.list = None;
                self.is_complete = true;
            }
            match self.step {
                Step::Bytes(Part::Item, 0) => {
                    self.step = Step::Returned;
                    return Ok(Some(&self.item));
                }
                Step::Bytes(_, 0) => self.step = Step::Key(Varint::default()),
                _ if bytes.is_empty() => return Ok(None),
                Step::Bytes(part, missing) => {
                    let taken = self.take_bytes(part, missing, bytes)?;
                    self.step = Step::Bytes(part, missing - taken);
                }
                _ => self.take_byte(bytes)?,
            }
        }
    }

    pub(super) fn is_within_object(&self) -> bool {
        matches!(self.step, Step::Bytes(Part::Item, _))
    }

    pub(super) fn list_envelope(&self) -> Option<&[u8]> {
        let is_over = self.is_complete && self.list.is_none() && self.is_between_fields();
        is_over.then_some(&*self.metadata)
    }

    fn is_between_fields(&self) -> bool {
        matches!(self.step, Step::Key(key) if key.is_new())
    }

    /// Consumes bytes of a part and returns their number.
    fn take_bytes(&mut self, part: Part, missing: usize, bytes: &mut &[u8]) -> Result<usize, NotProtobuf> {
        let taken = match part {
            Part::Item => take(&mut self.item, missing, bytes),
            Part::Metadata => take(&mut self.metadata, missing, bytes),
            Part::List | Part::Ignored => {
                let taken = missing.min(bytes.len());
                *bytes = &bytes[taken..];
                taken
            }
        };
        self.count(taken)?;
        Ok(taken)
    }

    /// Consumes one byte of the magic number, a key, a length or a number.
    fn take_byte(&mut self, bytes: &mut &[u8]) -> Result<(), SplitError> {
        let Some((&byte, rest)) = bytes.split_first() else { return Ok(()) };
        *bytes = rest;
        self.count(1)?;
        match &mut self.step {
            Step::Magic(taken) => {
                if byte != MAGIC[*taken] {
                    return Err(NotProtobuf.into());
                }
                *taken += 1;
                if *taken == MAGIC.len() {
                    self.step = Step::Key(Varint::default());
                }
            }
            Step::Key(varint) => {
                if let Some(number) = varint.take(byte)? {
                    self.step = self.field(number)?;
                }
            }
            Step::Number(varint) => {
                if varint.take(byte)?.is_some() {
                    self.step = Step::Key(Varint::default());
                }
            }
            Step::Length(part, varint) => {
                let part = *part;
                if let Some(length) = varint.take(byte)? {
                    self.enter(part, usize::try_from(length).map_err(|_| NotProtobuf)?)?;
                }
            }
            Step::Bytes(..) | Step::Returned => {}
        }
        Ok(())
    }

    /// Returns the step after the key of a field.
    fn field(&self, number: u64) -> Result<Step, NotProtobuf> {
        let (number, wire_type) = key(number)?;
        Ok(match wire_type {
            WireType::Varint => Step::Number(Varint::default()),
            WireType::Fixed(length) => Step::Bytes(Part::Ignored, length),
            WireType::Bytes => {
                let part = match (self.list, number) {
                    (None, RAW) => Part::List,
                    (Some(_), METADATA) => Part::Metadata,
                    (Some(_), ITEMS) => Part::Item,
                    _ => Part::Ignored,
                };
                Step::Length(part, Varint::default())
            }
        })
    }

    /// Begins the value of a field.
    fn enter(&mut self, part: Part, length: usize) -> Result<(), SplitError> {
        if self.list.is_some_and(|missing| length > missing) {
            return Err(NotProtobuf.into());
        }
        let buffered = match part {
            Part::List => {
                self.list = Some(length);
                self.step = Step::Key(Varint::default());
                return Ok(());
            }
            Part::Item => length,
            Part::Metadata => self.metadata.len() + length,
            Part::Ignored => 0,
        };
        if buffered > MAX_OBJECT_BYTES {
            return Err(SplitError::TooLong);
        }
        self.step = Step::Bytes(part, length);
        Ok(())
    }

    /// Subtracts consumed bytes from the length of the list.
    fn count(&mut self, taken: usize) -> Result<(), NotProtobuf> {
        if let Some(missing) = &mut self.list {
            *missing = missing.checked_sub(taken).ok_or(NotProtobuf)?;
        }
        Ok(())
    }
}

/// Field of a list.
const METADATA: u32 = 1;

/// Field of a list.
const ITEMS: u32 = 2;

#[cfg(test)]
mod tests;
