use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// An interface name or a prefix of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfacePattern {
    /// `name`.
    Exact(Box<str>),
    /// `prefix*`.
    Prefix(Box<str>),
}

/// A text is no pattern of interface names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an interface name of 1 to {MAX_NAME} characters without spaces and slashes, nor a prefix of one followed by *"
)]
pub struct InvalidInterfacePattern;

impl InterfacePattern {
    /// Reports whether an interface has this name or prefix.
    pub fn matches(&self, interface: &str) -> bool {
        match self {
            Self::Exact(name) => interface == &**name,
            Self::Prefix(prefix) => interface.starts_with(&**prefix),
        }
    }
}

impl FromStr for InterfacePattern {
    type Err = InvalidInterfacePattern;

    fn from_str(text: &str) -> Result<Self, InvalidInterfacePattern> {
        let (name, is_prefix) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text, false),
        };
        let is_possible = |character: char| character.is_ascii_graphic() && !['/', '*'].contains(&character);
        if name.len() > MAX_NAME || (name.is_empty() && !is_prefix) || !name.chars().all(is_possible) {
            return Err(InvalidInterfacePattern);
        }
        Ok(if is_prefix { Self::Prefix(name.into()) } else { Self::Exact(name.into()) })
    }
}

impl Serialize for InterfacePattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for InterfacePattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for InterfacePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// The length of the longest name: `IFNAMSIZ` without the zero at its end.
const MAX_NAME: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_or_prefixes_and_print_as_they_are_parsed() {
        for (text, matching, other) in
            [("eth0", "eth0", "eth01"), ("cali*", "cali123", "tunl0"), ("abcdefghijklmno", "abcdefghijklmno", "lo")]
        {
            let pattern: InterfacePattern = text.parse().unwrap();
            assert!(pattern.matches(matching) && !pattern.matches(other), "{text}");
            assert_eq!(pattern.to_string(), text);
        }
        assert!("*".parse::<InterfacePattern>().unwrap().matches("anything"));
    }

    #[test]
    fn impossible_names_are_refused() {
        for text in ["", "abcdefghijklmnop", "a b", "a/b", "a*b", "é"] {
            assert_eq!(text.parse::<InterfacePattern>(), Err(InvalidInterfacePattern), "{text}");
        }
    }
}
