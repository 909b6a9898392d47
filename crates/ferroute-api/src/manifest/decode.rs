//! A serde deserializer for values.
//!
//! It is as strict as the API server: strings and numbers are not converted to each other, and an explicit null is
//! equivalent to an omitted field. Errors contain the path of their field.

use std::{borrow::Cow, fmt, vec};

use serde::{
    Deserialize,
    de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor, value::CowStrDeserializer},
};

use super::{
    error::Cause,
    value::{Entry, Node, Number, Value, number},
};

/// A value that does not match its field.
#[derive(Debug)]
pub(super) struct FieldError {
    /// Path of the field, last segment first.
    path: Vec<Segment>,
    /// Line of the value within the document; 0 if unknown.
    pub(super) line: u32,
    pub(super) cause: Cause,
}

#[derive(Debug)]
enum Segment {
    Key(String),
    Index(usize),
}

/// Decodes an object.
pub(super) fn decode<'t, T: Deserialize<'t>>(node: Node<'t>) -> Result<T, FieldError> {
    T::deserialize(node)
}

impl FieldError {
    fn wrong_type(node: &Node<'_>, want: impl Into<Box<str>>) -> Self {
        Self::new(node.line, Cause::Type { got: node.value.describe().into(), want: want.into() })
    }

    fn new(line: u32, cause: Cause) -> Self {
        Self { path: Vec::new(), line, cause }
    }

    fn within(mut self, segment: Segment, line: u32) -> Self {
        self.path.push(segment);
        if self.line == 0 {
            self.line = line;
        }
        self
    }

    /// Returns the path of the field: `spec.ports[0].port`. Empty for the object as a whole.
    pub(super) fn field(&self) -> String {
        let mut field = String::new();
        for segment in self.path.iter().rev() {
            match segment {
                Segment::Index(index) => field.push_str(&format!("[{index}]")),
                // Names of labels and annotations contain dots.
                Segment::Key(key) if key.contains(['.', '/', '[']) => field.push_str(&format!("[{key:?}]")),
                Segment::Key(key) if field.is_empty() => field.push_str(key),
                Segment::Key(key) => {
                    field.push('.');
                    field.push_str(key);
                }
            }
        }
        field
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field(), self.cause)
    }
}

impl std::error::Error for FieldError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl de::Error for FieldError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(0, Cause::Value(message.to_string()))
    }
}

impl Node<'_> {
    /// Returns an integer in the given range; null is 0.
    fn integer(&self, min: i64, max: i64) -> Result<i64, FieldError> {
        let integer = match &self.value {
            Value::Null => Some(0),
            Value::Number(text) => match number(text) {
                Some(Number::Signed(number)) => Some(number),
                // `80.0` and `8e1` are integers too. The cast saturates far outside of the ranges in use.
                Some(Number::Float(number)) if number.fract() == 0.0 => Some(number as i64),
                _ => None,
            },
            _ => return Err(FieldError::wrong_type(self, "a number")),
        };
        integer
            .filter(|integer| (min..=max).contains(integer))
            .ok_or_else(|| FieldError::wrong_type(self, format!("an integer from {min} to {max}")))
    }
}

impl<'de> Deserializer<'de> for Node<'de> {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value, _) => visitor.visit_bool(value),
            Value::Number(text) => match number(&text) {
                Some(Number::Signed(number)) => visitor.visit_i64(number),
                Some(Number::Unsigned(number)) => visitor.visit_u64(number),
                Some(Number::Float(number)) => visitor.visit_f64(number),
                None => visitor.visit_str(&text),
            },
            Value::String(Cow::Borrowed(text)) => visitor.visit_borrowed_str(text),
            Value::String(Cow::Owned(text)) => visitor.visit_string(text),
            Value::List(items) => visitor.visit_seq(Items { items: items.into_iter(), index: 0 }),
            Value::Map(entries) => visitor.visit_map(Entries { entries: entries.into_iter(), value: None }),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        match self.value {
            Value::Null => visitor.visit_bool(false),
            Value::Bool(value, _) => visitor.visit_bool(value),
            _ => Err(FieldError::wrong_type(&self, "true or false")),
        }
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        visitor.visit_i64(self.integer(i32::MIN.into(), i32::MAX.into())?)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        visitor.visit_i64(self.integer(i64::MIN, i64::MAX)?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        match &self.value {
            Value::Null => visitor.visit_borrowed_str(""),
            Value::String(_) => self.deserialize_any(visitor),
            Value::Bool(_, text) | Value::Number(text) => {
                Err(FieldError::wrong_type(&self, format!("a string (quote it: \"{text}\")")))
            }
            Value::List(_) | Value::Map(_) => Err(FieldError::wrong_type(&self, "a string")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        if self.value == Value::Null { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, FieldError> {
        match self.value {
            Value::Null => self.value = Value::List(Vec::new()),
            Value::List(_) => {}
            _ => return Err(FieldError::wrong_type(&self, "a list")),
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, FieldError> {
        match self.value {
            Value::Null => self.value = Value::Map(Vec::new()),
            Value::Map(_) => {}
            _ => return Err(FieldError::wrong_type(&self, "a mapping")),
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct
        enum identifier
    }
}

/// The items of a list.
struct Items<'t> {
    items: vec::IntoIter<Node<'t>>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = FieldError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, FieldError> {
        let Some(node) = self.items.next() else { return Ok(None) };
        let (index, line) = (self.index, node.line);
        self.index += 1;
        seed.deserialize(node).map(Some).map_err(|error| error.within(Segment::Index(index), line))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// The entries of a mapping.
struct Entries<'t> {
    entries: vec::IntoIter<Entry<'t>>,
    /// The entry whose key was returned last.
    value: Option<Entry<'t>>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = FieldError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, FieldError> {
        let Some((key, node)) = self.entries.next() else { return Ok(None) };
        let result = seed.deserialize(CowStrDeserializer::new(key.clone()));
        self.value = Some((key, node));
        result.map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, FieldError> {
        let Some((key, node)) = self.value.take() else {
            return Err(de::Error::custom("value requested before its key"));
        };
        let line = node.line;
        seed.deserialize(node).map_err(|error| error.within(Segment::Key(key.into_owned()), line))
    }
}
