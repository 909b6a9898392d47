use std::fmt;

/// Why a document, or an item of a list, could not be read. Trying again with the same text gives the same.
///
/// It prints as the place, with the [`Cause`] as its source: `document 2, line 14: Service default/web:
/// spec.ports[0].port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct DocumentError {
    /// Number of the document, from 1.
    pub document: usize,
    /// The line of the text, from 1. JSON has it only where the text itself is wrong.
    pub line: Option<usize>,
    /// The kind, as far as it is known.
    pub kind: Option<Box<str>>,
    /// `namespace/name`, or just the name for kinds without a namespace, as far as it is known.
    pub name: Option<Box<str>>,
    /// Path of the field, if it is about one: `spec.ports[0].port`, with `items[3].` before it in a list.
    pub field: Option<Box<str>>,
    /// What is wrong.
    #[source]
    pub cause: Cause,
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "document {}", self.document)?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        match (&self.kind, &self.name) {
            (Some(kind), Some(name)) => write!(f, ": {kind} {name}")?,
            (Some(one), None) | (None, Some(one)) => write!(f, ": {one}")?,
            (None, None) => {}
        }
        self.field.as_ref().map_or(Ok(()), |field| write!(f, ": {field}"))
    }
}

/// What is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The text begins like JSON and is none.
    #[error("not valid JSON: {0}")]
    Json(String),
    /// The text is no YAML.
    #[error("not valid YAML: {0}")]
    Yaml(String),
    /// A mapping has a key twice, and only one of the values could count.
    #[error("the key {0:?} is there twice")]
    DuplicateKey(String),
    /// The key of a mapping is a list or a mapping, as in `{{ .Values.port }}`.
    #[error("the key of a mapping is not text")]
    KeyNotText,
    /// What `<<` names is neither a mapping nor a list of mappings.
    #[error("only mappings can be merged with \"<<\"")]
    BadMerge,
    /// An alias stands within what it names, so that it would never end.
    #[error("an alias stands within its own anchor")]
    EndlessAlias,
    /// Aliases make a small text into a giant document.
    #[error("aliases stand for more than {0} values")]
    TooManyAliases(usize),
    /// Lists and mappings within each other without end.
    #[error("nested more than {0} deep")]
    TooDeep(usize),
    /// The field must be there.
    #[error("missing")]
    Missing,
    /// The value is of another type than the field.
    #[error("got {got}, want {want}")]
    Type {
        /// What stands there.
        got: Box<str>,
        /// What the field holds.
        want: Box<str>,
    },
    /// Any other fault of a value.
    #[error("{0}")]
    Value(String),
    /// The kind is one that is read, but not in this version.
    #[error("got {got:?}, want {want:?} for this kind")]
    Version {
        /// What the object says.
        got: String,
        /// What is read.
        want: &'static str,
    },
}
