use crate::{Escaped, EscapedLines};

/// A name that changes the title of a terminal, clears its screen, begins another line and reverses the text after it.
pub const HOSTILE: &str = "a\x1b]0;b\x07\u{9b}2J\nPROBLEM: c\r\u{202e}d";

/// Asserts that a text of several lines contains the escaped [`HOSTILE`], and no characters that control a terminal.
///
/// # Panics
///
/// If the text does not satisfy this.
#[track_caller]
pub fn assert_visible(text: &str) {
    assert!(text.contains(&Escaped(HOSTILE).to_string()), "{text:?}");
    assert_eq!(EscapedLines(text).to_string(), text);
    assert!(!text.contains("\nPROBLEM: c"), "{text:?}");
}
