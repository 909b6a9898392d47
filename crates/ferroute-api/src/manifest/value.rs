//! The values of a document, with their lines, and the types of plain YAML scalars.
//!
//! Scalars have the types that they have in `kubectl`: those of YAML 1.1, which differ from YAML 1.2 in booleans (`on`,
//! `y`) and octal numbers (`0777`).

use std::{borrow::Cow, cell::Cell, collections::HashSet};

use super::error::Cause;

/// A part of a document, handed over while the document is being parsed, so that a long list is never in memory as a
/// whole.
pub(super) enum Part<'t> {
    /// An item of a list, with its index.
    Item(usize, Node<'t>),
    /// The top-level node without its list items; always the last part.
    Root {
        node: Node<'t>,
        /// The node has a list in its key `items`, which makes it a Kubernetes list.
        is_list: bool,
    },
}

/// A callback for the parts of a document.
pub(super) type Sink<'s, 't> = dyn FnMut(Part<'t>) + 's;

/// Number of values that an object may still have: values need much more memory than their text.
#[derive(Debug)]
pub(super) struct Budget(Cell<usize>);

impl Default for Budget {
    fn default() -> Self {
        Self(Cell::new(MAX_VALUES))
    }
}

impl Budget {
    /// Starts the next object.
    pub(super) fn reset(&self) {
        self.0.set(MAX_VALUES);
    }

    /// Takes one value.
    pub(super) fn take(&self) -> Result<(), Cause> {
        let left = self.0.get().checked_sub(1).ok_or(Cause::TooManyValues(MAX_VALUES))?;
        self.0.set(left);
        Ok(())
    }
}

/// Limit of values in an object; about 50 MB. The API server accepts no object of this size.
const MAX_VALUES: usize = 500_000;

/// Error for invalid syntax: the document has no values.
#[derive(Debug)]
pub(super) struct SyntaxError {
    /// From 1, within the document.
    pub(super) line: u32,
    pub(super) cause: Cause,
}

/// A value and its line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node<'t> {
    /// From 1, within the document; 0 if unknown, as in JSON.
    pub(super) line: u32,
    pub(super) value: Value<'t>,
}

/// A value. Numbers and booleans keep their spelling for error messages.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'t> {
    Null,
    Bool(bool, Cow<'t, str>),
    /// A string for which [`number`] returns a value.
    Number(Cow<'t, str>),
    String(Cow<'t, str>),
    List(Vec<Node<'t>>),
    /// Entries in document order, with unique keys.
    Map(Vec<Entry<'t>>),
}

/// A key and its value.
pub(super) type Entry<'t> = (Cow<'t, str>, Node<'t>);

/// A number in the narrowest of three types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Signed(i64),
    Unsigned(u64),
    Float(f64),
}

impl<'t> Node<'t> {
    /// Returns the value of `key`, if this is a mapping that contains it.
    pub(super) fn get(&self, key: &str) -> Option<&Node<'t>> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// Takes the value of `items` out if it is a list, which makes the node a Kubernetes list.
    pub(super) fn take_items(&mut self) -> Option<Vec<Node<'t>>> {
        let Value::Map(entries) = &mut self.value else { return None };
        entries.iter_mut().find_map(|(name, node)| match &mut node.value {
            Value::List(items) if name == "items" => Some(std::mem::take(items)),
            _ => None,
        })
    }

    /// Returns the value if it is a string and not empty.
    pub(super) fn non_empty_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }
}

impl<'t> Value<'t> {
    /// Determines the type of a plain (unquoted) YAML scalar.
    pub(super) fn from_plain_scalar(text: Cow<'t, str>) -> Self {
        match &*text {
            "" | "~" | "null" | "Null" | "NULL" => Self::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Self::Bool(true, text),
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
                Self::Bool(false, text)
            }
            _ if number(&text).is_some() => Self::Number(text),
            _ => Self::String(text),
        }
    }

    /// Returns a description for error messages: `number 5`.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(_, text) => format!("boolean {text}"),
            Self::Number(text) => format!("number {text}"),
            Self::String(text) => format!("string {text:?}"),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// Returns the first key that occurs more than once.
pub(super) fn duplicate_key<'m>(entries: &'m [Entry<'_>]) -> Option<&'m str> {
    // Most mappings are small; for these, comparing all pairs is faster than hashing.
    if entries.len() <= SMALL {
        let repeated = |i: usize| entries[..i].iter().any(|(key, _)| *key == entries[i].0);
        return (1..entries.len()).find(|i| repeated(*i)).map(|i| &*entries[i].0);
    }
    let mut seen = HashSet::with_capacity(entries.len());
    entries.iter().find(|(key, _)| !seen.insert(&**key)).map(|(key, _)| &**key)
}

/// Parses a number: integers with sign, underscores and the prefixes `0x`, `0o`, `0b` and `0` (octal), decimal
/// fractions, and the YAML spellings of infinities and NaN. A number beyond the range of `f64` is a string, because
/// `123e4567` is more likely a commit hash.
pub(super) fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return None;
    }
    match text {
        ".nan" | ".NaN" | ".NAN" => return Some(Number::Float(f64::NAN)),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Some(Number::Float(f64::INFINITY)),
        "-.inf" | "-.Inf" | "-.INF" => return Some(Number::Float(f64::NEG_INFINITY)),
        _ => {}
    }
    let digits: Cow<'_, str> = if text.contains('_') { text.replace('_', "").into() } else { text.into() };
    integer(&digits).or_else(|| float(&digits))
}

fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // `from_str_radix` accepts a sign, which would be a second one.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        return 0i64.checked_sub_unsigned(magnitude).map(Number::Signed);
    }
    Some(i64::try_from(magnitude).map_or(Number::Unsigned(magnitude), Number::Signed))
}

/// Parses digits with an optional decimal point and exponent, but not `inf` and `nan`, which `f64::from_str` accepts.
fn float(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let well_formed = all_digits(before)
        && all_digits(after)
        && !(before.is_empty() && after.is_empty())
        && !exponent.is_empty()
        && all_digits(exponent);
    let value = well_formed.then(|| text.parse::<f64>().ok()).flatten()?;
    value.is_finite().then_some(Number::Float(value))
}

/// Number of entries up to which [`duplicate_key`] compares all pairs.
const SMALL: usize = 16;
