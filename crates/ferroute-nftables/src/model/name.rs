use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

/// The name of a chain, set or map. Fixed names cost nothing to copy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Cow<'static, str>);

/// A comment on an object, as far as `nft` can print it and read it again: at most 128 bytes, no double quotes, no
/// control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Comment(Cow<'static, str>);

impl Name {
    /// A name that is known beforehand.
    pub const fn fixed(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Comment {
    /// A comment that is known beforehand and needs no change.
    pub const fn fixed(text: &'static str) -> Self {
        assert!(text.len() <= COMMENT_LENGTH, "bug: nft takes no comment of this length");
        Self(Cow::Borrowed(text))
    }

    /// Makes a comment of any text: what cannot be printed becomes a question mark, what is too long is cut off.
    pub fn new(text: &str) -> Self {
        let mut clean = String::with_capacity(text.len().min(COMMENT_LENGTH));
        for c in text.chars() {
            let c = printable(c);
            if clean.len() + c.len_utf8() > COMMENT_LENGTH {
                break;
            }
            clean.push(c);
        }
        Self(Cow::Owned(clean))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Name {
    fn from(name: String) -> Self {
        Self(Cow::Owned(name))
    }
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        Self(Cow::Owned(name.to_owned()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.0).fmt(f)
    }
}

/// A text out of the kernel, which takes any: what would end a line or a quoted text becomes a question mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Printable<'a>(pub(super) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.chars().all(|c| printable(c) == c) {
            return f.write_str(self.0);
        }
        self.0.chars().try_for_each(|c| f.write_char(printable(c)))
    }
}

fn printable(c: char) -> char {
    if c == '"' || c.is_control() { '?' } else { c }
}

impl fmt::Display for Comment {
    /// With the keyword: `comment "text"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "comment \"{}\"", self.0)
    }
}

/// `NFTNL_UDATA_COMMENT_MAXLEN`: `nft` refuses longer ones.
const COMMENT_LENGTH: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_holds_nothing_that_nft_would_stumble_over() {
        assert_eq!(Comment::new("shop/web:http").to_string(), "comment \"shop/web:http\"");
        assert_eq!(Comment::new("a\"; flush ruleset\n").as_str(), "a?; flush ruleset?");
        assert_eq!(Comment::new(&"é".repeat(100)).as_str(), "é".repeat(64));
    }

    #[test]
    fn a_name_is_printed_on_one_line_and_stays_what_it_is() {
        let strange = Name::from("a\n\"b");
        assert_eq!((strange.to_string().as_str(), strange.as_str()), ("a??b", "a\n\"b"));
        assert_eq!(Name::fixed("services-é").to_string(), "services-é");
    }
}
