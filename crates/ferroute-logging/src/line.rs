//! Lines of text without invisible characters.

use std::io::{self, Write};

/// An output for messages as text. The subscriber escapes characters that control a terminal, but not invisible
/// characters or those that change the direction of text, which names in objects may contain.
pub(super) struct TextLine<W>(pub(super) W);

impl<W: Write> Write for TextLine<W> {
    /// The subscriber passes each message as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if line.is_ascii() {
            return self.0.write(line);
        }
        let text = String::from_utf8_lossy(line);
        let mut visible = String::with_capacity(text.len());
        for c in text.chars() {
            // Only the escapes of invisible characters have several characters. Colours are ASCII.
            if c.is_ascii() { visible.push(c) } else { visible.extend(c.escape_debug()) }
        }
        self.0.write_all(visible.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped_and_colours_are_not() {
        let mut written = Vec::new();
        let line = "\x1b[31mWARN\x1b[0m Stra\u{df}e \u{6771}\u{4eac}: user\u{202e}toor\u{2066}\u{200b}\n";
        TextLine(&mut written).write_all(line.as_bytes()).unwrap();
        let expected = "\x1b[31mWARN\x1b[0m Stra\u{df}e \u{6771}\u{4eac}: user\\u{202e}toor\\u{2066}\\u{200b}\n";
        assert_eq!(String::from_utf8(written).unwrap(), expected);
    }
}
