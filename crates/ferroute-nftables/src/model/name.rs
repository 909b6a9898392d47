use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

/// The name of a table, chain, set or map. Cloning a static name is free.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Cow<'static, str>);

/// A comment that `nft` can print and parse: at most 128 bytes, no double quotes and no control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comment(Cow<'static, str>);

impl Name {
    /// Returns a static name.
    pub const fn fixed(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reports whether this is the name of an anonymous set or map, which `nft` creates for a list in a rule.
    pub fn is_anonymous(&self) -> bool {
        ["__set", "__map"].iter().any(|prefix| self.0.starts_with(prefix))
    }
}

impl Comment {
    /// The comment of the table that has the rules of Services.
    pub const TABLE: Self = Self::fixed("services, written by ferroute");

    /// Returns a static comment.
    ///
    /// # Panics
    ///
    /// If the comment is longer than 128 bytes.
    pub const fn fixed(text: &'static str) -> Self {
        assert!(text.len() <= COMMENT_LENGTH, "bug: comment exceeds NFTNL_UDATA_COMMENT_MAXLEN");
        Self(Cow::Borrowed(text))
    }

    /// Returns a comment of any text: unprintable characters become question marks, and long text is truncated.
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

    /// Returns the text.
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

/// Text from the kernel, which accepts any bytes. Quotes and control characters are printed as question marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printable<'a>(pub(crate) &'a str);

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
    /// Prints it with the keyword: `comment "text"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "comment \"{}\"", self.0)
    }
}

/// `NFTNL_UDATA_COMMENT_MAXLEN`: `nft` rejects longer comments.
const COMMENT_LENGTH: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_is_sanitised_and_truncated_for_nft() {
        assert_eq!(Comment::new("shop/web:http").to_string(), "comment \"shop/web:http\"");
        assert_eq!(Comment::new("a\"; flush ruleset\n").as_str(), "a?; flush ruleset?");
        assert_eq!(Comment::new(&"é".repeat(100)).as_str(), "é".repeat(64));
    }

    #[test]
    fn name_is_printed_on_one_line_and_stored_unchanged() {
        let name = Name::from("a\n\"b");
        assert_eq!((name.to_string().as_str(), name.as_str()), ("a??b", "a\n\"b"));
        assert_eq!(Name::fixed("services-é").to_string(), "services-é");
    }
}
