use super::{DocumentError, Parsed, Place, object};

/// A document of a text, not yet parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document<'t> {
    /// Number, from 1. Empty documents are counted, so that the number corresponds to the `---` lines.
    pub number: usize,
    /// Line on which the text starts, from 1.
    pub line: usize,
    /// Text, including its `---` line.
    pub text: &'t str,
}

impl Document<'_> {
    /// Returns all objects of the document: usually one object, none if it is empty, any number if it is a list.
    ///
    /// Invalid syntax results in a single error. Otherwise each item of a list succeeds or fails by itself.
    pub fn read(&self) -> Vec<Result<Parsed, DocumentError>> {
        let mut all = Vec::new();
        match self.read_each(&mut |_, parsed| all.push(parsed)) {
            Ok(()) => all,
            Err(error) => vec![Err(error)],
        }
    }

    /// Passes the objects to `each` one by one, with their places, so that a long list is never in memory as a whole.
    ///
    /// # Errors
    ///
    /// The syntax is invalid. The caller must then discard all objects passed before.
    pub fn read_each(&self, each: &mut dyn FnMut(&Place, Result<Parsed, DocumentError>)) -> Result<(), DocumentError> {
        object::read_each(self, each, None)
    }

    /// Returns the line of the file with the first mapping key of this name, in any mapping; `None` if the text has no
    /// such key.
    pub fn line_of_key(&self, key: &str) -> Option<usize> {
        let is_key = |line: &str| {
            let after = line.split_once(key).map(|(_, after)| after.trim_start_matches(['"', '\'']).trim_start());
            !line.trim_start().starts_with('#') && after.is_some_and(|after| after.starts_with(':'))
        };
        self.text.lines().position(is_key).map(|index| self.line + index)
    }

    /// Reads all objects of the document, and the parts of it that are ignored. Kinds of Kubernetes that a proxy does not
    /// read, and kinds of extensions, are not unknown.
    pub fn check(&self) -> CheckedDocument {
        let mut checked = CheckedDocument::default();
        let CheckedDocument { objects, unknown } = &mut checked;
        let mut each = |place: &Place, parsed| objects.push((place.clone(), parsed));
        match object::read_each(self, &mut each, Some(&mut |error| unknown.push(error))) {
            Ok(()) => checked,
            Err(error) => CheckedDocument { objects: vec![(Place::default(), Err(error))], unknown: Vec::new() },
        }
    }
}

/// The contents of a document, as returned by [`Document::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedDocument {
    /// The objects with their places, as returned by [`Document::read`].
    pub objects: Vec<(Place, Result<Parsed, DocumentError>)>,
    /// The unknown fields of objects, and the objects of unknown kinds.
    pub unknown: Vec<DocumentError>,
}

/// A position between two documents of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line of the next document, from 1.
    line: usize,
    /// Number of documents before.
    documents: usize,
}

impl Position {
    /// The start of a text.
    pub const START: Self = Self { line: 1, documents: 0 };

    /// Returns the line of the next document, from 1.
    pub fn line(self) -> usize {
        self.line
    }
}

/// Returns an iterator over the documents of a text. Documents without content are skipped.
///
/// A line that starts with `---` or `...` ends a document, even inside of a quoted or block scalar, so splitting does not
/// require parsing.
pub fn documents(text: &str) -> Documents<'_> {
    documents_at(text, Position::START)
}

/// Like [`documents`], for the part of a text from `position` on, as returned by [`Documents::rest`] and
/// [`Documents::position`].
pub fn documents_at(text: &str, position: Position) -> Documents<'_> {
    let at_start = position == Position::START;
    let rest = if at_start { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text };
    Documents { rest, position }
}

/// An iterator over the [`documents`] of a text.
#[derive(Clone, Debug)]
pub struct Documents<'t> {
    rest: &'t str,
    position: Position,
}

impl<'t> Documents<'t> {
    /// Returns the text that has not been split yet. If it is empty, the last document may continue in text that follows.
    pub fn rest(&self) -> &'t str {
        self.rest
    }

    /// Returns the position of [`Self::rest`].
    pub fn position(&self) -> Position {
        self.position
    }
}

impl<'t> Iterator for Documents<'t> {
    type Item = Document<'t>;

    fn next(&mut self) -> Option<Document<'t>> {
        while !self.rest.is_empty() {
            let chunk = Chunk::from_start(self.rest);
            let (text, rest) = self.rest.split_at(chunk.bytes);
            let Position { line, documents } = self.position;
            self.rest = rest;
            let documents = documents + usize::from(chunk.has_marker || chunk.has_content);
            self.position = Position { line: line + chunk.lines, documents };
            if chunk.has_content {
                return Some(Document { number: documents, line, text });
            }
        }
        None
    }
}

/// The text up to the start of the next document.
#[derive(Default)]
struct Chunk {
    bytes: usize,
    lines: usize,
    /// The chunk contains a `---` line.
    has_marker: bool,
    /// The chunk contains more than comments and directives.
    has_content: bool,
}

impl Chunk {
    fn from_start(text: &str) -> Self {
        let mut chunk = Self::default();
        for line in text.split_inclusive('\n') {
            let mut content = line;
            if let Some(after) = after_marker(line, "---") {
                // Comments and directives before the marker belong to the document that it starts.
                if chunk.has_marker || chunk.has_content {
                    break;
                }
                chunk.has_marker = true;
                content = after;
            }
            let ends = after_marker(line, "...").is_some();
            chunk.has_content |= !ends && has_content(content);
            chunk.bytes += line.len();
            chunk.lines += 1;
            if ends {
                break;
            }
        }
        chunk
    }
}

/// Returns the rest of a line after a marker. The marker must be followed by white space: `---x` is content.
fn after_marker<'l>(line: &'l str, marker: &str) -> Option<&'l str> {
    line.strip_prefix(marker).filter(|after| after.is_empty() || after.starts_with([' ', '\t', '\r', '\n']))
}

/// Reports whether a line contains more than a comment, white space, or a directive (`%YAML 1.2`).
fn has_content(line: &str) -> bool {
    // YAML allows a byte order mark before each document.
    let line = line.trim_start_matches('\u{feff}');
    !line.starts_with('%') && line.trim_start().chars().next().is_some_and(|first| first != '#')
}
