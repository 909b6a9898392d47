use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Number, Value};

/// A YAML or JSON document, including duplicate fields.
#[derive(Debug, PartialEq)]
pub(super) enum Tree {
    Leaf(Value),
    List(Vec<Tree>),
    Mapping(Vec<(String, Tree)>),
}

impl Tree {
    /// Keeps the last value of each field and calls `duplicate` once with the path of each duplicate field.
    pub(super) fn into_value(self, duplicate: &mut impl FnMut(String)) -> Value {
        self.collapse("", duplicate)
    }

    /// Converts whole numbers with a fraction or an exponent, such as `5.0` and `1e+06`, to integers. kube-proxy converts
    /// YAML to JSON and writes them without a fraction there.
    pub(super) fn with_integers(self) -> Self {
        match self {
            Self::Leaf(value) => Self::Leaf(match value.as_f64().filter(|_| value.is_f64()) {
                Some(number) => integer(number).map_or(value, Value::from),
                None => value,
            }),
            Self::List(items) => Self::List(items.into_iter().map(Self::with_integers).collect()),
            Self::Mapping(entries) => {
                Self::Mapping(entries.into_iter().map(|(name, tree)| (name, tree.with_integers())).collect())
            }
        }
    }

    fn collapse(self, path: &str, duplicate: &mut impl FnMut(String)) -> Value {
        match self {
            Self::Leaf(value) => value,
            Self::List(items) => items
                .into_iter()
                .enumerate()
                .map(|(index, tree)| tree.collapse(&item(path, index), duplicate))
                .collect(),
            Self::Mapping(entries) => {
                let mut values = Map::new();
                let mut reported = BTreeSet::new();
                for (name, tree) in entries {
                    let path = child(path, &name);
                    if values.contains_key(&name) && reported.insert(name.clone()) {
                        duplicate(path.clone());
                    }
                    values.insert(name, tree.collapse(&path, duplicate));
                }
                Value::Object(values)
            }
        }
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self::Leaf(Value::Null)
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Tree;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<Tree, E> {
                Ok(Tree::default())
            }

            fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
                Ok(Tree::Leaf(Value::Bool(value)))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
                Ok(Tree::Leaf(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
                Ok(Tree::Leaf(value.into()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Tree, E> {
                match Number::from_f64(value) {
                    Some(number) => Ok(Tree::Leaf(Value::Number(number))),
                    None => Err(E::invalid_value(de::Unexpected::Float(value), &"a finite number")),
                }
            }

            fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
                Ok(Tree::Leaf(value.into()))
            }

            fn visit_string<E>(self, value: String) -> Result<Tree, E> {
                Ok(Tree::Leaf(Value::String(value)))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
                let mut items = Vec::new();
                while let Some(tree) = access.next_element()? {
                    items.push(tree);
                }
                Ok(Tree::List(items))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = access.next_entry()? {
                    entries.push(entry);
                }
                Ok(Tree::Mapping(entries))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Returns a whole number as an integer.
fn integer(number: f64) -> Option<i64> {
    // Below this limit, each whole number is a different `f64`.
    const LIMIT: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, reason = "whole, and far from the limits of i64")]
    (number.fract() == 0.0 && number.abs() < LIMIT).then_some(number as i64)
}

/// Returns the path of a field of a mapping.
pub(super) fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// Returns the path of an item of a list.
pub(super) fn item(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}
