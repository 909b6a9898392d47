use std::borrow::Cow;

/// A word of a rule's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    /// What it says, without quotes and backslashes.
    pub(super) text: Cow<'a, str>,
    /// Was in quotes, and so is no option's name.
    pub(super) quoted: bool,
    /// Where it begins in the line, quote and all.
    pub(super) start: usize,
    /// Where it ends.
    pub(super) end: usize,
}

impl Word<'_> {
    /// Can be the name of an option (`-s`, `--dport`).
    pub(super) fn is_option(&self) -> bool {
        !self.quoted && self.text.len() > 1 && self.text.starts_with('-')
    }

    /// What it says, if it reads the same without quotes. Most options' values are printed without any.
    pub(super) fn plain(&self) -> Option<&str> {
        let special = |byte: u8| is_blank(byte) || byte == b'"';
        let reads_otherwise =
            self.text.is_empty() || self.text.starts_with(['-', '!']) || self.text.bytes().any(special);
        (!reads_otherwise).then_some(&*self.text)
    }

    /// Says that the next option is meant the other way round.
    pub(super) fn is_not(&self) -> bool {
        !self.quoted && self.text == "!"
    }
}

/// A quote was opened and not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenQuote;

/// Splits a line at blanks, with quotes as `iptables-restore` understands them: within a pair of `"` a backslash takes
/// the next character as it is, and the closing quote ends the word.
pub(super) fn split(line: &str) -> Result<Vec<Word<'_>>, OpenQuote> {
    // Few rules have more words.
    let mut words = Vec::with_capacity(24);
    let mut at = 0;
    while let Some(skip) = line[at..].bytes().position(|byte| !is_blank(byte)) {
        let word = word(line, at + skip)?;
        at = word.end;
        words.push(word);
    }
    Ok(words)
}

/// The word that begins at `start`.
fn word(line: &str, start: usize) -> Result<Word<'_>, OpenQuote> {
    let rest = &line[start..];
    let plain = rest.bytes().position(|byte| is_blank(byte) || byte == b'"').unwrap_or(rest.len());
    if !rest[plain..].starts_with('"') {
        return Ok(Word { text: Cow::Borrowed(&rest[..plain]), quoted: false, start, end: start + plain });
    }
    let inside = &rest[plain + 1..];
    let mut text = String::from(&rest[..plain]);
    let mut chars = inside.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                let end = start + plain + 1 + at + 1;
                return Ok(Word { text: Cow::Owned(text), quoted: true, start, end });
            }
            '\\' => text.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => text.push(c),
        }
    }
    Err(OpenQuote)
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}
