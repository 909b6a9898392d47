use std::{fmt, net::SocketAddr};

use arrayvec::ArrayVec;
use ferroute_core::Protocol;

use super::{ClassId, Comment, DataType, Key, Name, Value, Values, Verdict, join};

/// A set, or a map if its elements hold data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The name, unique among the table's sets and maps.
    pub name: Name,
    /// The types of the key's fields.
    pub key: Vec<DataType>,
    /// The type of the elements' data.
    pub data: SetData,
    /// Flags and size.
    pub kind: SetKind,
    /// Whether every element has a counter of the packets that matched it.
    pub counter: bool,
    /// Condition under which an element matches; `None` for always.
    pub limit: Option<Limit>,
    /// The protocol of the ports in the data of a declaration with `typeof`.
    pub protocol: Option<Protocol>,
    /// The set's comment.
    pub comment: Option<Comment>,
}

/// The type of the data that the elements of a set or map hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetData {
    /// No data: it is a set.
    None,
    /// A concatenation of values of these types.
    Values(Vec<DataType>),
    /// Verdict for the packet.
    Verdict,
}

/// The flags of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// No flags: each element has a single key.
    Exact,
    /// `flags interval`: the last field of a key is a range.
    Interval,
    /// `flags dynamic`: rules add elements.
    Dynamic {
        /// The maximum number of elements.
        size: u32,
        /// `flags timeout`: elements expire. Elements that count connections, in sets without the flag, disappear with
        /// the last connection.
        expires: bool,
    },
}

/// A condition of each element of a set, besides its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `limit rate`: a token bucket.
    Rate {
        /// New tokens per day.
        per_day: u64,
        /// The size of the bucket, which is full at first.
        burst: u32,
        /// Whether the element matches if no token is left, instead of if there is one.
        over: bool,
    },
    /// `ct count over`: the element matches if more than this many of the connections that looked it up are open.
    ConnectionsOver(u32),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// The key.
    pub key: Key,
    /// The data, in a map.
    pub data: Option<Data>,
    /// The element's comment.
    pub comment: Option<Comment>,
}

/// The data of a map's element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// A concatenation of values.
    Values(Values),
    /// A verdict.
    Verdict(Verdict),
}

impl Set {
    /// Returns a set without flags.
    pub fn new(name: Name, key: impl Into<Vec<DataType>>) -> Self {
        Self {
            name,
            key: key.into(),
            data: SetData::None,
            kind: SetKind::Exact,
            counter: false,
            limit: None,
            protocol: None,
            comment: None,
        }
    }

    /// Turns the set into a map to values of these types.
    pub fn map_to(self, types: impl Into<Vec<DataType>>) -> Self {
        Self { data: SetData::Values(types.into()), ..self }
    }

    /// Makes it a verdict map.
    pub fn verdict_map(self) -> Self {
        Self { data: SetData::Verdict, ..self }
    }

    /// Sets the flags.
    pub fn kind(self, kind: SetKind) -> Self {
        Self { kind, ..self }
    }

    /// Sets whether every element has a counter.
    pub fn counter(self, counter: bool) -> Self {
        Self { counter, ..self }
    }

    /// Sets when each element matches.
    pub fn limit(self, limit: Limit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Sets the protocol of the ports in the data.
    pub fn protocol(self, protocol: Protocol) -> Self {
        Self { protocol: Some(protocol), ..self }
    }

    /// Sets the comment.
    pub fn comment(self, comment: &'static str) -> Self {
        Self { comment: Some(Comment::fixed(comment)), ..self }
    }

    /// Returns `set` or `map`.
    pub fn keyword(&self) -> &'static str {
        if self.data == SetData::None { "set" } else { "map" }
    }

    /// Reports whether `nft` needs an example of each field (`typeof`), because integers have no fixed length.
    pub(crate) fn has_typeof(&self) -> bool {
        self.key.len() > 1 && self.key.contains(&DataType::Integer)
    }

    fn types_text(&self, types: &[DataType]) -> String {
        if self.has_typeof() {
            let examples: Vec<&str> = types.iter().map(|data_type| data_type.example(self.protocol)).collect();
            join(&examples, " . ")
        } else {
            join(types, " . ")
        }
    }

    /// Returns the length of a key in bytes.
    pub fn key_length(&self) -> usize {
        length(&self.key)
    }

    /// Returns the set's properties, each in `nft` syntax.
    pub fn properties(&self) -> Vec<String> {
        let keyword = if self.has_typeof() { "typeof" } else { "type" };
        let key = self.types_text(&self.key);
        let mut properties = vec![match &self.data {
            SetData::None => format!("{keyword} {key}"),
            SetData::Values(types) => format!("{keyword} {key} : {}", self.types_text(types)),
            SetData::Verdict => format!("{keyword} {key} : verdict"),
        }];
        match self.kind {
            SetKind::Exact => {}
            SetKind::Interval => properties.push("flags interval".to_owned()),
            SetKind::Dynamic { size, expires } => {
                properties.push(format!("size {size}"));
                properties.push(if expires { "flags dynamic,timeout" } else { "flags dynamic" }.to_owned());
            }
        }
        if self.counter {
            properties.push("counter".to_owned());
        }
        properties.extend(self.limit.map(|limit| limit.to_string()));
        properties.extend(self.comment.as_ref().map(Comment::to_string));
        properties
    }
}

/// Returns the length of a key or of data in bytes: in a concatenation every field is padded to a register.
pub(crate) fn length(types: &[DataType]) -> usize {
    match types {
        [single] => single.length(),
        several => several.iter().map(|data_type| data_type.padded_length()).sum(),
    }
}

impl Data {
    /// Returns the class id that the data consists of, if it does.
    pub fn class_id(&self) -> Option<ClassId> {
        match self {
            Self::Values(values) => match values[..] {
                [Value::ClassId(class)] => Some(class),
                _ => None,
            },
            Self::Verdict(_) => None,
        }
    }

    /// Returns the address and port that the data consists of, if it does.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Values(values) => match values[..] {
                [Value::Address(address), Value::Port(port)] => Some(SocketAddr::new(address, port)),
                _ => None,
            },
            Self::Verdict(_) => None,
        }
    }
}

impl Element {
    /// Returns an element without data.
    pub fn new<const N: usize>(key: [Value; N]) -> Self {
        Self::with_key(key.into_iter().collect())
    }

    /// Returns an element without data.
    pub fn with_key(key: Key) -> Self {
        Self { key, data: None, comment: None }
    }

    /// Sets the data to values.
    pub fn values<const N: usize>(self, values: [Value; N]) -> Self {
        Self { data: Some(Data::Values(values.into_iter().collect::<ArrayVec<_, _>>())), ..self }
    }

    /// Sets the data to a verdict.
    pub fn verdict(self, verdict: Verdict) -> Self {
        Self { data: Some(Data::Verdict(verdict)), ..self }
    }

    /// Sets the comment.
    pub fn comment(self, comment: Comment) -> Self {
        Self { comment: Some(comment), ..self }
    }
}

/// A key in `nft` syntax.
#[derive(Clone, Copy, Debug)]
pub struct KeyText<'a>(pub &'a [Value]);

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("*");
        }
        for (i, value) in self.0.iter().enumerate() {
            f.write_str(if i > 0 { " . " } else { "" })?;
            match value {
                // With other fields it is an index, alone it is a mark.
                Value::Integer(number) if self.0.len() > 1 => number.fmt(f)?,
                value => value.fmt(f)?,
            }
        }
        Ok(())
    }
}

impl Limit {
    /// Reports whether an element matches only beyond the limit.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Rate { over: true, .. } | Self::ConnectionsOver(_))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate { per_day, burst, over } => {
                let over = if *over { "over " } else { "" };
                write!(f, "limit rate {over}{per_day}/day burst {burst} packets")
            }
            Self::ConnectionsOver(connections) => write!(f, "ct count over {connections}"),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        KeyText(&self.key).fmt(f)?;
        if let Some(comment) = &self.comment {
            write!(f, " {comment}")?;
        }
        match &self.data {
            None => Ok(()),
            Some(Data::Values(values)) => write!(f, " : {}", join(values, " . ")),
            Some(Data::Verdict(verdict)) => write!(f, " : {verdict}"),
        }
    }
}
