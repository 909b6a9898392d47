//! The items of a list in protobuf. The list is one message within its envelope, so keys and lengths are followed on two
//! levels; what is within an item is its reader's.

use super::{LONGEST, SplitError, frames::take, recycle};
use crate::protobuf::{MAGIC, NotProtobuf, RAW, Varint, WireType, key};

/// Cuts them.
#[derive(Debug, Default)]
pub(crate) struct Items {
    step: Step,
    /// Bytes of the list that have not come; `None` outside it.
    list: Option<usize>,
    /// The list has come as a whole.
    is_complete: bool,
    /// What has come of the present item.
    item: Vec<u8>,
    /// The list's own metadata.
    metadata: Vec<u8>,
}

/// What comes next.
#[derive(Debug)]
enum Step {
    /// The rest of [`MAGIC`], of which so many bytes have come.
    Magic(usize),
    Key(Varint),
    Length(Part, Varint),
    /// A number that means nothing here.
    Number(Varint),
    /// So many bytes of a part.
    Bytes(Part, usize),
    /// What follows the item that has been given out.
    Given,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    List,
    Metadata,
    Item,
    /// Nothing that matters here.
    Other,
}

impl Default for Step {
    fn default() -> Self {
        Self::Magic(0)
    }
}

impl Items {
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<&[u8]>, SplitError> {
        if matches!(self.step, Step::Given) {
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
                    self.step = Step::Given;
                    return Ok(Some(&self.item));
                }
                Step::Bytes(_, 0) => self.step = Step::Key(Varint::default()),
                _ if bytes.is_empty() => return Ok(None),
                Step::Bytes(part, left) => {
                    let taken = self.bytes(part, left, bytes)?;
                    self.step = Step::Bytes(part, left - taken);
                }
                _ => self.byte(bytes)?,
            }
        }
    }

    pub(super) fn is_within_object(&self) -> bool {
        matches!(self.step, Step::Bytes(Part::Item, _))
    }

    pub(super) fn shell(&self) -> Option<&[u8]> {
        let is_over = self.is_complete && self.list.is_none() && self.is_between_fields();
        is_over.then_some(&*self.metadata)
    }

    fn is_between_fields(&self) -> bool {
        matches!(self.step, Step::Key(key) if key.is_new())
    }

    /// Takes bytes of a part, and gives their number.
    fn bytes(&mut self, part: Part, left: usize, bytes: &mut &[u8]) -> Result<usize, NotProtobuf> {
        let taken = match part {
            Part::Item => take(&mut self.item, left, bytes),
            Part::Metadata => take(&mut self.metadata, left, bytes),
            Part::List | Part::Other => {
                let taken = left.min(bytes.len());
                *bytes = &bytes[taken..];
                taken
            }
        };
        self.count(taken)?;
        Ok(taken)
    }

    /// Takes one byte of the magic, a key, a length or a number.
    fn byte(&mut self, bytes: &mut &[u8]) -> Result<(), SplitError> {
        let Some((&byte, rest)) = bytes.split_first() else { return Ok(()) };
        *bytes = rest;
        self.count(1)?;
        match &mut self.step {
            Step::Magic(come) => {
                if byte != MAGIC[*come] {
                    return Err(NotProtobuf.into());
                }
                *come += 1;
                if *come == MAGIC.len() {
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
            Step::Bytes(..) | Step::Given => {}
        }
        Ok(())
    }

    /// A field begins.
    fn field(&self, number: u64) -> Result<Step, NotProtobuf> {
        let (number, wire_type) = key(number)?;
        Ok(match wire_type {
            WireType::Varint => Step::Number(Varint::default()),
            WireType::Fixed(length) => Step::Bytes(Part::Other, length),
            WireType::Bytes => {
                let part = match (self.list, number) {
                    (None, RAW) => Part::List,
                    (Some(_), METADATA) => Part::Metadata,
                    (Some(_), ITEMS) => Part::Item,
                    _ => Part::Other,
                };
                Step::Length(part, Varint::default())
            }
        })
    }

    /// What a field holds begins.
    fn enter(&mut self, part: Part, length: usize) -> Result<(), SplitError> {
        if self.list.is_some_and(|left| length > left) {
            return Err(NotProtobuf.into());
        }
        let kept = match part {
            Part::List => {
                self.list = Some(length);
                self.step = Step::Key(Varint::default());
                return Ok(());
            }
            Part::Item => length,
            Part::Metadata => self.metadata.len() + length,
            Part::Other => 0,
        };
        if kept > LONGEST {
            return Err(SplitError::TooLong);
        }
        self.step = Step::Bytes(part, length);
        Ok(())
    }

    /// Counts what has come of the list.
    fn count(&mut self, taken: usize) -> Result<(), NotProtobuf> {
        if let Some(left) = &mut self.list {
            *left = left.checked_sub(taken).ok_or(NotProtobuf)?;
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
