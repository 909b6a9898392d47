//! Text of unknown origin on a terminal: names in objects and bundles, comments of kernel rules.

use std::fmt::{self, Display, Write};

/// A value whose text is written on one line without characters that control a terminal.
///
/// Control characters, line breaks, bidirectional overrides and other invisible characters are written as escapes such
/// as `\n` and `\u{1b}`; all other characters, including backslashes and quotation marks, are written unchanged. For
/// human-readable output; JSON has its own escapes.
///
/// ```
/// use ferroute_core::Escaped;
///
/// let name = "web\x1b[2J\nService other";
/// assert_eq!(Escaped(name).to_string(), r"web\u{1b}[2J\nService other");
/// assert_eq!(format!("{}", Escaped(format_args!("Service {name}"))), r"Service web\u{1b}[2J\nService other");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Escaped<T>(pub T);

/// Like [`Escaped`], but keeps line feeds, for text of several lines.
#[derive(Clone, Copy, Debug)]
pub struct EscapedLines<T>(pub T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `f.pad` would need the whole text.
        write!(Writer { out: f, keeps_lines: false }, "{}", self.0)
    }
}

impl<T: Display> Display for EscapedLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Writer { out: f, keeps_lines: true }, "{}", self.0)
    }
}

struct Writer<'a, 'f> {
    out: &'a mut fmt::Formatter<'f>,
    keeps_lines: bool,
}

impl Writer<'_, '_> {
    fn is_written_as_is(&self, c: char) -> bool {
        match c {
            ' '..='~' => true,
            '\n' => self.keeps_lines,
            // Among the characters that have escapes in Rust, those above have been written. The others are invisible.
            c => !c.is_ascii() && c.escape_debug().len() == 1,
        }
    }
}

impl Write for Writer<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| !self.is_written_as_is(*c)) {
            self.out.write_str(&rest[..at])?;
            write!(self.out, "{}", c.escape_debug())?;
            rest = &rest[at + c.len_utf8()..];
        }
        self.out.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_text_is_unchanged() {
        for text in ["shop/web:http", r#"a "quoted" \ 'word' ~"#, "Straße 東京 → 😀", ""] {
            assert_eq!(Escaped(text).to_string(), text);
            assert_eq!(EscapedLines(text).to_string(), text);
        }
    }

    #[test]
    fn characters_that_control_a_terminal_are_escaped() {
        let hostile = [
            ("\x1b]0;title\x07", r"\u{1b}]0;title\u{7}"),
            ("a\r\tb\0\x08\x7f", r"a\r\tb\0\u{8}\u{7f}"),
            ("\u{9b}2J\u{85}", r"\u{9b}2J\u{85}"),
            ("user\u{202e}toor\u{2066}", r"user\u{202e}toor\u{2066}"),
            ("\u{2028}\u{2029}\u{200b}\u{feff}", r"\u{2028}\u{2029}\u{200b}\u{feff}"),
        ];
        for (text, expected) in hostile {
            assert_eq!(Escaped(text).to_string(), expected);
            assert_eq!(EscapedLines(text).to_string(), expected);
        }
    }

    #[test]
    fn only_lines_keep_line_feeds() {
        assert_eq!(Escaped("a\nb\x1b").to_string(), r"a\nb\u{1b}");
        assert_eq!(EscapedLines("a\nb\x1b").to_string(), "a\nb\\u{1b}");
    }
}
