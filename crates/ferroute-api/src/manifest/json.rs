//! The JSON parser. The YAML parser accepts JSON too, but needs ten times as long.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize,
    de::{self, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor},
};

use super::{
    error::Cause,
    value::{Budget, Entry, Node, Part, Sink, SyntaxError, Value, duplicate_key},
};

/// Returns the text of a document without its `---`, if the document is JSON: it starts with a bracket followed by a
/// quotation mark. YAML in flow style usually has no quotation mark there (`{kind: Service}`, `{{ .Values }}`).
pub(super) fn detect(text: &str) -> Option<&str> {
    let text = text.strip_prefix("---").unwrap_or(text);
    let inside = text.trim_start().strip_prefix(['{', '['])?;
    let first = inside.trim_start_matches(|first: char| first.is_whitespace() || matches!(first, '{' | '['));
    first.starts_with(['"', '}', ']']).then_some(text)
}

/// Parses consecutive JSON values, as printed by `jq`, and passes their parts to `sink`.
pub(super) fn parse<'t>(text: &'t str, sink: &mut Sink<'_, 't>) -> Result<(), SyntaxError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    loop {
        RootSeed(sink, &Budget::default()).deserialize(&mut deserializer).map_err(|error| syntax_error(&error))?;
        // An error means that another value follows.
        if deserializer.end().is_ok() {
            return Ok(());
        }
    }
}

fn syntax_error(error: &serde_json::Error) -> SyntaxError {
    // `DocumentError` shows the line, counted from the start of the whole text.
    let message = error.to_string();
    let location = format!(" at line {} column {}", error.line(), error.column());
    let cause = Cause::Json(message.strip_suffix(&location).unwrap_or(&message).to_owned());
    SyntaxError { line: u32::try_from(error.line()).unwrap_or(u32::MAX), cause }
}

struct RootSeed<'s, 't>(&'s mut Sink<'s, 't>, &'s Budget);

impl<'de> DeserializeSeed<'de> for RootSeed<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RootSeed<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut entries = Vec::new();
        let mut is_list = false;
        while let Some(Key(key)) = map.next_key()? {
            if key == "items" && is_list {
                return Err(duplicate(&key));
            }
            let node = if key == "items" {
                map.next_value_seed(ItemsSeed(&mut *self.0, self.1))?
            } else {
                Some(map.next_value_seed(NodeSeed(self.1))?)
            };
            is_list |= node.is_none();
            entries.extend(node.map(|node| (key, node)));
        }
        (self.0)(Part::Root { node: map_node(entries)?, is_list });
        Ok(())
    }
}

/// Passes the items of a list to the sink. Returns the node if it is not a list.
struct ItemsSeed<'s, 't>(&'s mut Sink<'s, 't>, &'s Budget);

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_, 'de> {
    type Value = Option<Node<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_, 'de> {
    type Value = Option<Node<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut index = 0;
        while let Some(node) = items.next_element_seed(NodeSeed(self.1))? {
            self.1.reset();
            (self.0)(Part::Item(index, node));
            index += 1;
        }
        Ok(None)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        NodeVisitor(self.1).visit_unit().map(Some)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        NodeVisitor(self.1).visit_map(map).map(Some)
    }
}

/// Decodes a value, within the budget.
#[derive(Clone, Copy)]
struct NodeSeed<'b>(&'b Budget);

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.0.take().map_err(D::Error::custom)?;
        deserializer.deserialize_any(NodeVisitor(self.0))
    }
}

struct NodeVisitor<'b>(&'b Budget);

impl<'de> Visitor<'de> for NodeVisitor<'_> {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node<'de>, E> {
        Ok(node(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node<'de>, E> {
        Ok(node(Value::Bool(value, if value { "true" } else { "false" }.into())))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node<'de>, E> {
        Ok(node(Value::Number(value.to_string().into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node<'de>, E> {
        Ok(node(Value::Number(value.to_string().into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node<'de>, E> {
        Ok(node(Value::Number(format!("{value:?}").into())))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Node<'de>, E> {
        Ok(node(Value::String(value.into())))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node<'de>, E> {
        Ok(node(Value::String(value.to_owned().into())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node<'de>, A::Error> {
        let mut nodes = Vec::new();
        while let Some(item) = items.next_element_seed(NodeSeed(self.0))? {
            nodes.push(item);
        }
        Ok(node(Value::List(nodes)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node<'de>, A::Error> {
        let mut entries = Vec::new();
        while let Some((Key(key), value)) = map.next_entry_seed(PhantomData, NodeSeed(self.0))? {
            entries.push((key, value));
        }
        map_node(entries)
    }
}

fn node(value: Value<'_>) -> Node<'_> {
    Node { line: 0, value }
}

fn map_node<E: de::Error>(entries: Vec<Entry<'_>>) -> Result<Node<'_>, E> {
    match duplicate_key(&entries) {
        Some(key) => Err(duplicate(key)),
        None => Ok(node(Value::Map(entries))),
    }
}

fn duplicate<E: de::Error>(key: &str) -> E {
    E::custom(Cause::DuplicateKey(key.to_owned()))
}

/// A key, borrowed from the text unless it contains escapes.
struct Key<'t>(Cow<'t, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
        Ok(Key(key.into()))
    }

    fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
        Ok(Key(key.to_owned().into()))
    }
}
