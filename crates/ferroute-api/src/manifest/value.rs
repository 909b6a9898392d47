//! A parsed document: what YAML and JSON have in common, with lines.

use std::{borrow::Cow, collections::HashSet};

use super::error::Cause;

/// Takes the parts of a document while it is parsed, so that a list with very many items is never there as a whole.
pub(super) trait Sink<'t> {
    /// The next item of a list; `index` counts from 0.
    fn item(&mut self, index: usize, node: Node<'t>);

    /// All else, after the items.
    fn root(&mut self, root: Root<'t>);
}

/// A document without the items that it lists.
pub(super) struct Root<'t> {
    pub(super) node: Node<'t>,
    /// It has a key `items` with a list in it, which is what makes an object of Kubernetes a list.
    pub(super) is_list: bool,
}

/// The text of a document is wrong, so that there are no values.
#[derive(Debug)]
pub(super) struct SyntaxError {
    /// From 1, within the document.
    pub(super) line: u32,
    pub(super) cause: Cause,
}

/// A value and the line that it stands on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node<'t> {
    /// From 1, within the document; 0 where it is not known, as in JSON.
    pub(super) line: u32,
    pub(super) value: Value<'t>,
}

/// A value. Numbers and booleans keep their text, for errors.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'t> {
    Null,
    Bool(bool, Cow<'t, str>),
    /// Text that [`super::scalar::number`] reads.
    Number(Cow<'t, str>),
    Text(Cow<'t, str>),
    List(Vec<Node<'t>>),
    /// In the order of the text, each key once.
    Map(Vec<Entry<'t>>),
}

/// One key of a mapping and its value.
pub(super) type Entry<'t> = (Cow<'t, str>, Node<'t>);

impl<'t> Node<'t> {
    /// The value of a key, if this is a mapping that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Node<'t>> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// The text, if it is one with something in it.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }
}

impl Value<'_> {
    /// For errors: `the number 5`.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Bool(_, text) => format!("the boolean {text}"),
            Self::Number(text) => format!("the number {text}"),
            Self::Text(text) => format!("the text {text:?}"),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// The first key that is there before.
pub(super) fn duplicate_key<'m>(entries: &'m [Entry<'_>]) -> Option<&'m str> {
    // Nearly all mappings are small, and then looking at each pair is quicker than hashing.
    if entries.len() <= SMALL {
        let twice = |i: usize| entries[..i].iter().any(|(key, _)| *key == entries[i].0);
        return (1..entries.len()).find(|i| twice(*i)).map(|i| &*entries[i].0);
    }
    let mut seen = HashSet::with_capacity(entries.len());
    entries.iter().find(|(key, _)| !seen.insert(&**key)).map(|(key, _)| &**key)
}

/// Entries up to which [`duplicate_key`] compares pairs.
const SMALL: usize = 16;
