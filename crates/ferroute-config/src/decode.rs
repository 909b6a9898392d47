//! From text to [`KubeProxyConfiguration`], and back.
//!
//! The text is first read into a tree, because only there is seen that a name stands twice, and then the tree into the
//! types, where is seen that a name is unknown. Both are violations of the strict form, but not the end: kube-proxy
//! itself falls back to reading leniently, so the caller gets the configuration and the violations, and decides.

mod tree;

use std::fmt;

use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use self::tree::Tree;
use crate::{ApiVersion, Kind, KubeProxyConfiguration};

/// What a text says, and how it breaks the strict form.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The configuration, without defaults; unknown names are left out, and of a name that stands twice the last counts.
    pub config: KubeProxyConfiguration,
    /// Duplicates first, then unknown names, each in the order of the text.
    pub violations: Vec<Violation>,
}

/// How a text breaks the strict form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A name stands twice in one mapping.
    #[error("duplicate field {0:?}")]
    Duplicate(String),
    /// A name that the API does not have.
    #[error("unknown field {0:?}")]
    Unknown(String),
    /// More YAML documents than one; only the first counts.
    #[error("{found} YAML documents (want 1)")]
    Documents {
        /// How many there are.
        found: usize,
    },
}

/// All violations of the strict form, worded as Kubernetes words them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct StrictDecodingError(pub Vec<Violation>);

/// Why a text holds no `KubeProxyConfiguration`.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Neither YAML nor JSON.
    #[error("failed to decode configuration: not valid YAML or JSON")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    /// Not a mapping at all, or none of this version and kind.
    #[error(
        "failed to decode configuration: got apiVersion {api_version:?}, kind {kind:?} (want {:?}, {:?})",
        ApiVersion::TEXT,
        Kind::TEXT
    )]
    WrongKind {
        /// `apiVersion` as it is written; empty where there is none.
        api_version: String,
        /// `kind` as it is written; empty where there is none.
        kind: String,
    },
    /// A field holds a value of the wrong type.
    #[error("failed to decode configuration: field {field:?}")]
    Field {
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl Decoded {
    /// Takes the configuration only if the text keeps to the strict form.
    pub fn strict(self) -> Result<KubeProxyConfiguration, StrictDecodingError> {
        if self.violations.is_empty() { Ok(self.config) } else { Err(StrictDecodingError(self.violations)) }
    }
}

impl KubeProxyConfiguration {
    /// Reads YAML or JSON text.
    pub fn from_text(text: &str) -> Result<Decoded, DecodeError> {
        let (tree, documents) = read_tree(text)?;
        let mut violations = Vec::new();
        if documents > 1 {
            violations.push(Violation::Documents { found: documents });
        }
        let value = tree.into_value(&mut |path| violations.push(Violation::Duplicate(path)));
        check_kind(&value)?;

        let mut track = serde_path_to_error::Track::new();
        let deserializer = serde_path_to_error::Deserializer::new(value, &mut track);
        let config = serde_ignored::deserialize(deserializer, |path| violations.push(Violation::Unknown(join(&path))))
            .map_err(|source| DecodeError::Field { field: track.path().to_string(), source })?;
        Ok(Decoded { config, violations })
    }

    /// Prints YAML text that reads back as the same configuration.
    pub fn to_yaml(&self) -> String {
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        serde_saphyr::to_string_with_options(self, options)
            .expect("maps with text keys, and writing to a string, cannot fail")
    }

    /// What `/configz` shows: the configuration, with the platform's defaults, under the name of its API group. Unlike
    /// kube-proxy's, its fields have the names that they have in a file.
    pub fn to_configz(&self) -> Value {
        let config = serde_json::to_value(self.clone().platform_defaulted());
        let config = config.expect("maps with text keys cannot fail to become JSON");
        serde_json::json!({ API_GROUP: config })
    }
}

impl fmt::Display for StrictDecodingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("strict decoding error: ")?;
        for (index, violation) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            violation.fmt(f)?;
        }
        Ok(())
    }
}

/// The first document, and how many there are.
fn read_tree(text: &str) -> Result<(Tree, usize), DecodeError> {
    // JSON is nearly, but not quite, YAML: tabs and surrogate pairs differ. What merely looks like JSON may still be
    // YAML in flow style.
    if text.trim_start().starts_with('{')
        && let Ok(tree) = serde_json::from_str(text)
    {
        return Ok((tree, 1));
    }
    // YAML 1.1's booleans and octal numbers, because that is what Kubernetes' YAML library reads.
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        legacy_octal_numbers: true,
        // An excerpt of the file would make many lines of one error.
        with_snippet: false,
    };
    let documents: Vec<Tree> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|source| DecodeError::Syntax(Box::new(source)))?;
    let found = documents.len();
    Ok((documents.into_iter().next().unwrap_or_default(), found))
}

fn check_kind(value: &Value) -> Result<(), DecodeError> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version == ApiVersion::TEXT && kind == Kind::TEXT {
        Ok(())
    } else {
        Err(DecodeError::WrongKind { api_version, kind })
    }
}

/// The group in [`ApiVersion::TEXT`].
const API_GROUP: &str = "kubeproxy.config.k8s.io";

/// The path as Kubernetes writes it: `logging.vmodule[0].foo`.
fn join(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Map { parent, key } => tree::child(&join(parent), key),
        Path::Seq { parent, index } => tree::item(&join(parent), *index),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => join(parent),
    }
}

#[cfg(test)]
mod tests;
