//! Splitting a file into documents while it is being read, so that a large file is never in memory as a whole.

use std::io::{self, Read};

use ferroute_api::manifest::{Document, Position, documents_at};
use ferroute_core::FileFormat;

use super::Closed;

/// An error that ends [`for_each_part`].
#[derive(Debug)]
pub(super) enum TextError {
    Read(io::Error),
    /// The file has another format.
    NotText(FileFormat),
    /// The file is not UTF-8 from this byte on.
    InvalidUtf8(u64),
    /// The document that starts at this line is longer than [`MAX_DOCUMENT`].
    TooLong(usize),
    Closed,
}

impl From<Closed> for TextError {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

/// Calls `each` with the documents of each part of the file, as soon as they have been read completely. A part has `size` bytes
/// unless a document is longer.
pub(super) fn for_each_part(
    mut file: impl Read,
    size: usize,
    each: &mut dyn FnMut(&[Document<'_>]) -> Result<(), Closed>,
) -> Result<(), TextError> {
    let mut buffer = Vec::new();
    let mut position = Position::START;
    let mut offset = 0;
    loop {
        // Doubling the buffer bounds how often a large document is scanned.
        let want = buffer.len().clamp(size, MAX_DOCUMENT);
        let read = file.by_ref().take(want as u64).read_to_end(&mut buffer).map_err(TextError::Read)?;
        let at_end = read < want;
        if offset == 0
            && let Some(format) = FileFormat::of(&buffer)
        {
            return Err(TextError::NotText(format));
        }
        // Only complete lines can be split: a part of a line may look like a marker.
        let complete =
            if at_end { buffer.len() } else { buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        let text = std::str::from_utf8(&buffer[..complete])
            .map_err(|error| TextError::InvalidUtf8(offset + error.valid_up_to() as u64))?;
        let mut documents = documents_at(text, position);
        let mut part = Vec::new();
        loop {
            let before = documents.clone();
            let document = documents.next();
            if documents.rest().is_empty() && !at_end {
                // The document may continue in the next chunk.
                documents = before;
                break;
            }
            let Some(document) = document else { break };
            if document.text.len() > MAX_DOCUMENT {
                return Err(TextError::TooLong(document.line));
            }
            part.push(document);
        }
        each(&part)?;
        if at_end {
            return Ok(());
        }
        position = documents.position();
        let consumed = complete - documents.rest().len();
        offset += consumed as u64;
        buffer.drain(..consumed);
        if buffer.len() > MAX_DOCUMENT {
            return Err(TextError::TooLong(position.line()));
        }
    }
}

/// Maximum length of a document in bytes, because it is in memory as a whole: a list with all objects of a large
/// cluster is shorter.
pub(super) const MAX_DOCUMENT: usize = 64 << 20;

/// Size of a part whose documents are handled one by one.
pub(super) const CHUNK: usize = 256 * 1024;

#[cfg(test)]
mod tests;
