//! Splitting of JSON text.

use super::{MAX_OBJECT_BYTES, SplitError, recycle};

/// A splitter that parses strings and brackets only.
#[derive(Debug)]
pub(crate) struct Splitter {
    layout: Layout,
    /// The number of open brackets.
    depth: usize,
    in_string: bool,
    /// Whether the previous byte was an unescaped backslash, within a string.
    escaped: bool,
    /// The current object, received so far.
    object: Vec<u8>,
}

/// The position of the objects in the text.
#[derive(Debug)]
enum Layout {
    /// Consecutive.
    Stream,
    /// In the field `items` of one object, whose other fields are the envelope.
    List { envelope: Vec<u8>, in_items: bool },
}

impl Splitter {
    /// Returns a splitter for consecutive objects, as in a watch.
    pub(crate) fn stream() -> Self {
        Self::new(Layout::Stream)
    }

    /// Returns a splitter for the items of a list.
    pub(crate) fn list() -> Self {
        Self::new(Layout::List { envelope: Vec::new(), in_items: false })
    }

    fn new(layout: Layout) -> Self {
        Self { layout, depth: 0, in_string: false, escaped: false, object: Vec::new() }
    }

    /// Consumes the front of `text` and returns the next object; `None` when `text` is used up.
    ///
    /// # Errors
    ///
    /// The text cannot be split. The splitter cannot be used any more.
    pub(crate) fn next(&mut self, text: &mut &[u8]) -> Result<Option<&[u8]>, SplitError> {
        if self.depth == self.base() {
            recycle(&mut self.object);
        }
        while let Some((&byte, rest)) = text.split_first() {
            *text = rest;
            if self.take(byte)? {
                return Ok(Some(&self.object));
            }
        }
        Ok(None)
    }

    /// Reports whether an object has begun and not ended.
    pub(crate) fn is_within_object(&self) -> bool {
        self.depth > self.base()
    }

    /// Returns the envelope of a complete list.
    pub(crate) fn list_envelope(&self) -> Option<&[u8]> {
        match &self.layout {
            Layout::List { envelope, .. } if self.depth == 0 && !envelope.is_empty() => Some(envelope),
            Layout::List { .. } | Layout::Stream => None,
        }
    }

    /// Returns the number of open brackets around the objects.
    fn base(&self) -> usize {
        match self.layout {
            Layout::Stream => 0,
            Layout::List { in_items: true, .. } => 2,
            // No object can begin yet.
            Layout::List { in_items: false, .. } => usize::MAX,
        }
    }

    /// Consumes one byte and reports whether it ends an object.
    fn take(&mut self, byte: u8) -> Result<bool, SplitError> {
        let before = self.depth;
        if self.in_string {
            let ends = byte == b'"' && !self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            self.in_string = !ends;
        } else {
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.checked_sub(1).ok_or(SplitError::NotJson)?,
                _ => {}
            }
        }
        let base = self.base();
        if before > base || self.depth > base {
            push(&mut self.object, byte)?;
            return Ok(self.depth == base);
        }
        let outside = self.depth == 0 && before == 0;
        if outside && (self.in_string || !byte.is_ascii_whitespace()) {
            return Err(SplitError::NotJson);
        }
        if let Layout::List { envelope, in_items } = &mut self.layout {
            // Between the items there are only commas and white space.
            if !*in_items || self.depth < 2 {
                *in_items = before == 1 && byte == b'[' && ends_with_items(envelope);
                push(envelope, byte)?;
            }
        }
        Ok(false)
    }
}

fn push(text: &mut Vec<u8>, byte: u8) -> Result<(), SplitError> {
    if text.len() == MAX_OBJECT_BYTES {
        return Err(SplitError::TooLong);
    }
    text.push(byte);
    Ok(())
}

/// Reports whether the next value is that of the field `items`.
fn ends_with_items(envelope: &[u8]) -> bool {
    let key = envelope.trim_ascii_end().strip_suffix(b":").map(<[u8]>::trim_ascii_end);
    // After a backslash it is the end of another name.
    key.and_then(|key| key.strip_suffix(br#""items""#)).is_some_and(|before| !before.ends_with(b"\\"))
}

#[cfg(test)]
mod tests;
