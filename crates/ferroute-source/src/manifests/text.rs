//! The documents of a file, while it is read: of a file with very many only some are there at a time.

use std::io::{self, Read};

use ferroute_api::manifest::{Document, Position, documents_from};

use super::Stopped;

/// Why not all documents were given.
#[derive(Debug)]
pub(super) enum TextError {
    Read(io::Error),
    /// The bytes from here on are no UTF-8.
    NotText(u64),
    Stopped,
}

impl From<Stopped> for TextError {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

/// Gives each document as soon as it has been read to its end.
pub(super) fn for_each_document(
    mut file: impl Read,
    each: &mut dyn FnMut(&Document<'_>) -> Result<(), Stopped>,
) -> Result<(), TextError> {
    let mut buffer = Vec::new();
    let mut position = Position::START;
    let mut offset = 0;
    loop {
        // At least as much as is there, so that a large document is not looked through too often.
        let more = buffer.len().max(CHUNK);
        let read = file.by_ref().take(more as u64).read_to_end(&mut buffer).map_err(TextError::Read)?;
        let at_end = read < more;
        // Whole lines only, since half of one may look like something else.
        let lines =
            if at_end { buffer.len() } else { buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        let text = std::str::from_utf8(&buffer[..lines])
            .map_err(|error| TextError::NotText(offset + error.valid_up_to() as u64))?;
        let mut documents = documents_from(text, position);
        loop {
            let before = documents.clone();
            let document = documents.next();
            if documents.rest().is_empty() && !at_end {
                // It may go on.
                documents = before;
                break;
            }
            let Some(document) = document else { break };
            each(&document)?;
        }
        if at_end {
            return Ok(());
        }
        position = documents.position();
        let done = lines - documents.rest().len();
        offset += done as u64;
        buffer.drain(..done);
    }
}

/// Bytes to read at a time.
const CHUNK: usize = 256 * 1024;

#[cfg(test)]
mod tests;
