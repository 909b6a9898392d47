use super::{DocumentError, Found, object};

/// One document of a text, not yet parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document<'t> {
    /// Its number, from 1. Empty documents are counted too, so that people can count the `---` lines.
    pub number: usize,
    /// The line that its text begins on, from 1.
    pub line: usize,
    /// Its text, with the `---` that begins it.
    pub text: &'t str,
}

impl Document<'_> {
    /// All objects in it: none in an empty document, one for most, many in a list. Where the text is no YAML or JSON,
    /// one error and nothing else; otherwise each item of a list succeeds or fails by itself.
    pub fn read(&self) -> Vec<Result<Found, DocumentError>> {
        let mut all = Vec::new();
        match self.read_each(&mut |found| all.push(found)) {
            Ok(()) => all,
            Err(error) => vec![Err(error)],
        }
    }

    /// The same, but gives the objects one by one, so that a list of very many is never there as a whole.
    ///
    /// # Errors
    ///
    /// The text is no YAML or JSON. What was given before must be forgotten then.
    pub fn read_each(&self, each: &mut dyn FnMut(Result<Found, DocumentError>)) -> Result<(), DocumentError> {
        object::read_each(self, each)
    }
}

/// How much of a text has been split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line that the rest begins on, from 1.
    line: usize,
    /// How many documents came before.
    documents: usize,
}

impl Position {
    /// At the beginning.
    pub const START: Self = Self { line: 1, documents: 0 };
}

/// The documents of a text, in order. Those with nothing but comments are left out.
///
/// YAML ends a document at a line that begins with `---` or `...`, wherever it stands, even in a quoted or block text;
/// so lines can be looked at without parsing anything.
pub fn documents(text: &str) -> Documents<'_> {
    documents_from(text, Position::START)
}

/// The documents of a text of which what came before `position` has been split already. It must go on with the beginning
/// of a document, as [`Documents::rest`] does.
pub fn documents_from(text: &str, position: Position) -> Documents<'_> {
    let at_start = position == Position::START;
    let rest = if at_start { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text };
    Documents { rest, position }
}

/// Iterator over the [`documents`] of a text.
#[derive(Clone, Debug)]
pub struct Documents<'t> {
    rest: &'t str,
    position: Position,
}

impl<'t> Documents<'t> {
    /// What has not been split yet. If it is empty, the last document may go on in text that follows.
    pub fn rest(&self) -> &'t str {
        self.rest
    }

    /// Where the rest begins.
    pub fn position(&self) -> Position {
        self.position
    }
}

impl<'t> Iterator for Documents<'t> {
    type Item = Document<'t>;

    fn next(&mut self) -> Option<Document<'t>> {
        while !self.rest.is_empty() {
            let piece = Piece::cut(self.rest);
            let (text, rest) = self.rest.split_at(piece.length);
            let Position { line, documents } = self.position;
            self.rest = rest;
            let documents = documents + usize::from(piece.marked || piece.content);
            self.position = Position { line: line + piece.lines, documents };
            if piece.content {
                return Some(Document { number: documents, line, text });
            }
        }
        None
    }
}

/// What stands before the next document.
#[derive(Default)]
struct Piece {
    /// In bytes.
    length: usize,
    lines: usize,
    /// It has a `---` of its own.
    marked: bool,
    /// It has more than comments.
    content: bool,
}

impl Piece {
    fn cut(text: &str) -> Self {
        let mut piece = Self::default();
        for line in text.split_inclusive('\n') {
            let mut content = line;
            if let Some(after) = after_marker(line, "---") {
                // Comments and directives before the marker belong to the document that it begins.
                if piece.marked || piece.content {
                    break;
                }
                piece.marked = true;
                content = after;
            }
            let ends = after_marker(line, "...").is_some();
            piece.content |= !ends && has_content(content);
            piece.length += line.len();
            piece.lines += 1;
            if ends {
                break;
            }
        }
        piece
    }
}

/// What follows a marker on its line. The marker must stand alone: `---x` is text.
fn after_marker<'l>(line: &'l str, marker: &str) -> Option<&'l str> {
    line.strip_prefix(marker).filter(|after| after.is_empty() || after.starts_with([' ', '\t', '\r', '\n']))
}

/// More than a comment, white space, or a directive (`%YAML 1.2`).
fn has_content(line: &str) -> bool {
    // YAML allows a byte order mark before each document.
    let line = line.trim_start_matches('\u{feff}');
    !line.starts_with('%') && line.trim_start().chars().next().is_some_and(|first| first != '#')
}
