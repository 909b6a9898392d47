use std::fmt;

use arrayvec::ArrayVec;

use super::{Comment, DataType, Fields, Key, Name, Verdict, join};

/// A set, or a map if its elements hold something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Unique among the table's sets and maps.
    pub name: Name,
    /// Types of the key's fields.
    pub key: Vec<DataType>,
    /// What elements hold.
    pub holds: Holds,
    /// How keys are found.
    pub kind: SetKind,
    /// Every element counts the packets that find it.
    pub counter: bool,
    /// For people.
    pub comment: Option<Comment>,
}

/// What the elements of a set hold besides their key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing: it is a set.
    Nothing,
    /// Values of these types.
    Values(Vec<DataType>),
    /// What is to be done with the packet.
    Verdicts,
}

/// How the keys of a set are found, and who writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// Each element has one key.
    Exact,
    /// The last field of a key is a range.
    Interval,
    /// Rules add elements, which go after some time; at most this many.
    Learned {
        /// Elements beyond which nothing is learned any more.
        capacity: u32,
    },
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// What it is found by.
    pub key: Key,
    /// What it holds, in a map.
    pub datum: Option<Datum>,
    /// For people.
    pub comment: Option<Comment>,
}

/// What an element of a map holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum {
    /// Values.
    Fields(Fields),
    /// What is to be done with the packet.
    Verdict(Verdict),
}

impl Set {
    /// A set of single keys.
    pub fn new(name: Name, key: impl Into<Vec<DataType>>) -> Self {
        Self { name, key: key.into(), holds: Holds::Nothing, kind: SetKind::Exact, counter: false, comment: None }
    }

    /// The same, as a map to values.
    pub fn to_values(self, types: impl Into<Vec<DataType>>) -> Self {
        Self { holds: Holds::Values(types.into()), ..self }
    }

    /// The same, as a map to verdicts.
    pub fn to_verdicts(self) -> Self {
        Self { holds: Holds::Verdicts, ..self }
    }

    /// The same, with other keys.
    pub fn kind(self, kind: SetKind) -> Self {
        Self { kind, ..self }
    }

    /// The same, with a counter on each element or without.
    pub fn counter(self, counter: bool) -> Self {
        Self { counter, ..self }
    }

    /// The same, with a comment.
    pub fn comment(self, comment: &'static str) -> Self {
        Self { comment: Some(Comment::fixed(comment)), ..self }
    }

    /// `set` or `map`.
    pub fn keyword(&self) -> &'static str {
        if self.holds == Holds::Nothing { "set" } else { "map" }
    }

    /// Bytes of a key: every field starts in a register of its own.
    pub fn key_length(&self) -> usize {
        length(&self.key)
    }

    /// Its properties, each as `nft` writes it.
    pub fn properties(&self) -> Vec<String> {
        let key = join(&self.key, " . ");
        let mut properties = vec![match &self.holds {
            Holds::Nothing => format!("type {key}"),
            Holds::Values(types) => format!("type {key} : {}", join(types, " . ")),
            Holds::Verdicts => format!("type {key} : verdict"),
        }];
        match self.kind {
            SetKind::Exact => {}
            SetKind::Interval => properties.push("flags interval".to_owned()),
            SetKind::Learned { capacity } => {
                properties.push(format!("size {capacity}"));
                properties.push("flags dynamic,timeout".to_owned());
            }
        }
        if self.counter {
            properties.push("counter".to_owned());
        }
        properties.extend(self.comment.as_ref().map(Comment::to_string));
        properties
    }
}

/// Bytes of several fields: one after the other, or just the value where there is one alone.
pub(crate) fn length(types: &[DataType]) -> usize {
    match types {
        [single] => single.length(),
        several => several.iter().map(|data_type| data_type.room()).sum(),
    }
}

impl Element {
    /// An element of a set.
    pub fn new<const N: usize>(key: [super::Value; N]) -> Self {
        Self { key: key.into_iter().collect(), datum: None, comment: None }
    }

    /// The same, holding values.
    pub fn fields<const N: usize>(self, fields: [super::Value; N]) -> Self {
        Self { datum: Some(Datum::Fields(fields.into_iter().collect::<ArrayVec<_, _>>())), ..self }
    }

    /// The same, holding a verdict.
    pub fn verdict(self, verdict: Verdict) -> Self {
        Self { datum: Some(Datum::Verdict(verdict)), ..self }
    }

    /// The same, with a comment.
    pub fn comment(self, comment: Comment) -> Self {
        Self { comment: Some(comment), ..self }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&join(&self.key, " . "))?;
        if let Some(comment) = &self.comment {
            write!(f, " {comment}")?;
        }
        match &self.datum {
            None => Ok(()),
            Some(Datum::Fields(fields)) => write!(f, " : {}", join(fields, " . ")),
            Some(Datum::Verdict(verdict)) => write!(f, " : {verdict}"),
        }
    }
}
