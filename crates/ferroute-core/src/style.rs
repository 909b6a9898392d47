//! The appearance of text on a terminal.

use std::ffi::OsStr;

use anstyle::AnsiColor;

use crate::Escaped;

/// The appearance of human-readable output. Painted text is one line or a part of one, and is escaped ([`Escaped`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// No escape sequences: for files, pipes and logs.
    Plain,
    /// Bold text and colours.
    Terminal,
}

impl Style {
    /// Returns the default for an output stream, given the value of the environment variable `NO_COLOR`. An empty value
    /// has no effect (no-color.org).
    pub fn for_output(is_terminal: bool, no_color: Option<&OsStr>) -> Self {
        if is_terminal && no_color.is_none_or(OsStr::is_empty) { Self::Terminal } else { Self::Plain }
    }

    /// Bold text: a heading.
    pub fn bold(self, text: &str) -> String {
        self.paint(anstyle::Style::new().bold(), text)
    }

    /// Dimmed text: a detail.
    pub fn dim(self, text: &str) -> String {
        self.paint(anstyle::Style::new().dimmed(), text)
    }

    /// Green text: a success.
    pub fn success(self, text: &str) -> String {
        self.paint(AnsiColor::Green.on_default(), text)
    }

    /// Red text: a failure.
    pub fn failure(self, text: &str) -> String {
        self.paint(AnsiColor::Red.on_default(), text)
    }

    /// Cyan text: a highlight.
    pub fn highlight(self, text: &str) -> String {
        self.paint(AnsiColor::Cyan.on_default(), text)
    }

    fn paint(self, style: anstyle::Style, text: &str) -> String {
        match self {
            Self::Plain => Escaped(text).to_string(),
            Self::Terminal => format!("{style}{}{style:#}", Escaped(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_terminals_without_no_color_get_colours() {
        let style = |is_terminal, no_color: Option<&str>| Style::for_output(is_terminal, no_color.map(OsStr::new));
        assert_eq!([style(true, None), style(true, Some(""))], [Style::Terminal; 2]);
        assert_eq!([style(true, Some("1")), style(false, None)], [Style::Plain; 2]);
    }

    #[test]
    fn escape_sequences_surround_the_text() {
        assert_eq!(Style::Terminal.bold("a"), "\x1b[1ma\x1b[0m");
        assert_eq!(Style::Terminal.success("a"), "\x1b[32ma\x1b[0m");
        assert_eq!(Style::Plain.bold("a"), "a");
    }

    #[test]
    fn painted_text_controls_nothing() {
        assert_eq!(Style::Terminal.bold("a\x1b[0m\n"), "\x1b[1ma\\u{1b}[0m\\n\x1b[0m");
        assert_eq!(Style::Plain.bold("a\x1b[0m\n"), r"a\u{1b}[0m\n");
    }
}
