//! JSON text.

use super::{LONGEST, SplitError, recycle};

/// Looks at strings and brackets only.
#[derive(Debug)]
pub(crate) struct Splitter {
    form: Form,
    /// How many brackets are open.
    depth: usize,
    in_string: bool,
    /// The byte before was a backslash that counts, within a string.
    escaped: bool,
    /// What has come of the present object.
    object: Vec<u8>,
}

/// How the objects are laid out in the text.
#[derive(Debug)]
enum Form {
    /// One after the other.
    Stream,
    /// In the field `items` of one object; the rest of that object is kept here.
    List { shell: Vec<u8>, in_items: bool },
}

impl Splitter {
    /// For objects one after the other, as a watch sends them.
    pub(crate) fn stream() -> Self {
        Self::new(Form::Stream)
    }

    /// For the items of a list.
    pub(crate) fn list() -> Self {
        Self::new(Form::List { shell: Vec::new(), in_items: false })
    }

    fn new(form: Form) -> Self {
        Self { form, depth: 0, in_string: false, escaped: false, object: Vec::new() }
    }

    /// The next object, which takes what it needs off the front of `text`. `None` when `text` has been used up.
    ///
    /// # Errors
    ///
    /// What comes cannot be cut. The splitter is of no use any more then.
    pub(crate) fn next(&mut self, text: &mut &[u8]) -> Result<Option<&[u8]>, SplitError> {
        // An object that was given out before has been used by now.
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

    /// Whether an object has begun and not ended.
    pub(crate) fn is_within_object(&self) -> bool {
        self.depth > self.base()
    }

    /// What surrounds the items of a list, when it is complete.
    pub(crate) fn shell(&self) -> Option<&[u8]> {
        match &self.form {
            Form::List { shell, .. } if self.depth == 0 && !shell.is_empty() => Some(shell),
            Form::List { .. } | Form::Stream => None,
        }
    }

    /// How many brackets are open around the objects.
    fn base(&self) -> usize {
        match self.form {
            Form::Stream => 0,
            Form::List { in_items: true, .. } => 2,
            // Nothing is an object yet.
            Form::List { in_items: false, .. } => usize::MAX,
        }
    }

    /// Takes one byte; true when it ends an object.
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
            keep(&mut self.object, byte)?;
            return Ok(self.depth == base);
        }
        let outside = self.depth == 0 && before == 0;
        if outside && (self.in_string || !byte.is_ascii_whitespace()) {
            return Err(SplitError::NotJson);
        }
        if let Form::List { shell, in_items } = &mut self.form {
            // Within the items there are only commas and blanks between the objects.
            if !*in_items || self.depth < 2 {
                *in_items = before == 1 && byte == b'[' && ends_with_items(shell);
                keep(shell, byte)?;
            }
        }
        Ok(false)
    }
}

fn keep(text: &mut Vec<u8>, byte: u8) -> Result<(), SplitError> {
    if text.len() == LONGEST {
        return Err(SplitError::TooLong);
    }
    text.push(byte);
    Ok(())
}

/// Whether the value that comes next is that of the field `items`.
fn ends_with_items(shell: &[u8]) -> bool {
    let key = shell.trim_ascii_end().strip_suffix(b":").map(<[u8]>::trim_ascii_end);
    // A backslash before it would make it the tail of another name.
    key.and_then(|key| key.strip_suffix(br#""items""#)).is_some_and(|before| !before.ends_with(b"\\"))
}

#[cfg(test)]
mod tests;
