use std::fmt;

use crate::spelling::did_you_mean;

/// An error in a document or in an item of a list. Reading the same text again returns the same error.
///
/// It displays its location, and has the [`Cause`] as its source: `document 2, line 14: Service default/web:
/// spec.ports[0].port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct DocumentError {
    /// Number of the document, from 1.
    pub document: usize,
    /// Line in the whole text, from 1. For JSON, known for syntax errors only.
    pub line: Option<usize>,
    /// Kind of the object, if known.
    pub kind: Option<Box<str>>,
    /// `namespace/name` of the object, or the name alone for cluster-scoped kinds, if known.
    pub name: Option<Box<str>>,
    /// Path of the field, if the error concerns one: `spec.ports[0].port`, prefixed with `items[3].` in a list.
    pub field: Option<Box<str>>,
    /// Cause of the error.
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
            (Some(part), None) | (None, Some(part)) => write!(f, ": {part}")?,
            (None, None) => {}
        }
        self.field.as_ref().map_or(Ok(()), |field| write!(f, ": {field}"))
    }
}

/// The cause of a [`DocumentError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The document starts like JSON but is not valid JSON.
    #[error("invalid JSON: {0}")]
    Json(String),
    /// The document is not valid YAML.
    #[error("invalid YAML: {0}")]
    Yaml(String),
    /// A mapping contains a key more than once.
    #[error("duplicate key {0:?}")]
    DuplicateKey(String),
    /// The key of a mapping is a list or a mapping, as in `{{ .Values.port }}`.
    #[error("key of a mapping is not a string")]
    KeyNotString,
    /// The value of the merge key `<<` is neither a mapping nor a list of mappings.
    #[error("value of merge key \"<<\" is not a mapping or a list of mappings")]
    BadMerge,
    /// An alias refers to a node that contains it.
    #[error("alias refers to an anchor that contains it")]
    RecursiveAlias,
    /// Aliases expand to too many values (a "billion laughs" document).
    #[error("aliases expand to more than {0} values")]
    TooManyAliases(usize),
    /// An object has too many values.
    #[error("object has more than {0} values")]
    TooManyValues(usize),
    /// Lists and mappings are nested too deeply.
    #[error("nested more than {0} levels deep")]
    TooDeep(usize),
    /// A required field is missing.
    #[error("missing")]
    Missing,
    /// The value has the wrong type.
    #[error("got {got}, want {want}")]
    Type {
        /// Description of the value.
        got: Box<str>,
        /// Expected type.
        want: Box<str>,
    },
    /// The kind has no field of this name.
    #[error("unknown field{}", did_you_mean(*.similar))]
    UnknownField {
        /// The field that may be meant.
        similar: Option<&'static str>,
    },
    /// No object of this kind is read.
    #[error("{0}")]
    UnknownKind(Box<UnknownKind>),
    /// Any other error in a value.
    #[error("{0}")]
    Value(String),
    /// The kind is supported, but not in this version.
    #[error("got {got:?}, want {want:?} for this kind")]
    Version {
        /// Version of the object.
        got: String,
        /// Supported version.
        want: &'static str,
    },
}

/// A kind that is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKind {
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
    /// The kind that may be meant.
    pub similar: Option<&'static str>,
}

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_version, kind, similar } = self;
        write!(f, "unknown kind {kind:?} of {api_version:?}{}", did_you_mean(*similar))
    }
}
