//! Decodes and encodes [`KubeProxyConfiguration`].
//!
//! The text is decoded into a tree, which detects duplicate fields, and the tree into the types, which detects unknown
//! fields. Both violate strict decoding but are not fatal: kube-proxy falls back to lenient decoding. The caller
//! therefore gets the configuration and the violations, and decides how to proceed.

mod tree;

use std::fmt;

use serde::{Deserialize, de};
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use self::tree::Tree;
use crate::{ApiVersion, GoDuration, Kind, KubeProxyConfiguration, ModeName};

/// A decoded configuration and its violations of strict decoding.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// Configuration without defaults. Unknown fields are ignored; the last of several duplicate fields applies.
    pub config: KubeProxyConfiguration,
    /// Duplicate fields, then unknown fields, each in the order of the text.
    pub violations: Vec<Violation>,
}

/// A violation of strict decoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A field that occurs more than once in a mapping.
    #[error("duplicate field {0:?}")]
    Duplicate(String),
    /// A field that the API does not define.
    #[error("unknown field {0:?}")]
    Unknown(String),
    /// More than one YAML document; only the first is decoded.
    #[error("{count} YAML documents (want 1)")]
    Documents {
        /// The number of documents.
        count: usize,
    },
}

/// All violations of strict decoding, formatted as by Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct StrictDecodingError(pub Vec<Violation>);

/// The text is not a `KubeProxyConfiguration`.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The text is neither YAML nor JSON.
    #[error("failed to decode configuration: not valid YAML or JSON")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    /// The document is not a mapping or has another version or kind.
    #[error(
        "failed to decode configuration: got apiVersion {api_version:?}, kind {kind:?} (want {:?}, {:?})",
        ApiVersion::TEXT,
        Kind::TEXT
    )]
    WrongKind {
        /// The value of `apiVersion`; empty if missing.
        api_version: String,
        /// The value of `kind`; empty if missing.
        kind: String,
    },
    /// A field's value has the wrong type.
    #[error("failed to decode configuration: field {field:?}")]
    Field {
        /// The field's path.
        field: String,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

impl Decoded {
    /// Returns the configuration if there are no violations.
    pub fn strict(self) -> Result<KubeProxyConfiguration, StrictDecodingError> {
        if self.violations.is_empty() { Ok(self.config) } else { Err(StrictDecodingError(self.violations)) }
    }
}

impl KubeProxyConfiguration {
    /// Decodes YAML or JSON.
    pub fn from_text(text: &str) -> Result<Decoded, DecodeError> {
        let (tree, documents) = read_tree(text)?;
        let mut violations = Vec::new();
        if documents > 1 {
            violations.push(Violation::Documents { count: documents });
        }
        let mut value = tree.into_value(&mut |path| violations.push(Violation::Duplicate(path)));
        check_kind(&value)?;
        violations.extend(remove_idle_timeout(&mut value));
        check_sections(&value)?;
        fill_nulls(&mut value);

        let mut track = serde_path_to_error::Track::new();
        let deserializer = serde_path_to_error::Deserializer::new(value, &mut track);
        let config = serde_ignored::deserialize(deserializer, |path| violations.push(Violation::Unknown(join(&path))))
            .map_err(|source| DecodeError::Field { field: track.path().to_string(), source })?;
        Ok(Decoded { config, violations })
    }

    /// Encodes the configuration as YAML that decodes to an equal configuration.
    pub fn to_yaml(&self) -> String {
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        serde_saphyr::to_string_with_options(self, options)
            .expect("string keys can be encoded, and writing to a string cannot fail")
    }

    /// Returns the JSON of `/configz`: the configuration with the platform's defaults, below the name of its API group.
    /// Its fields are named as in a configuration file, and are in alphabetical order.
    pub fn to_configz(&self) -> Value {
        let config = serde_json::to_value(self.clone().platform_defaulted());
        let config = config.expect("string keys can be encoded as JSON");
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

/// Removes a value of `udpIdleTimeout` that is not a duration, unless userspace mode needs it: kube-proxy no longer has
/// this field, so it ignores any value.
fn remove_idle_timeout(value: &mut Value) -> Option<Violation> {
    let is_needed = value.get("mode").and_then(Value::as_str) == Some(ModeName::USERSPACE.as_str());
    let is_valid = GoDuration::deserialize(value.get(UDP_IDLE_TIMEOUT)?).is_ok();
    if is_needed || is_valid {
        return None;
    }
    value.as_object_mut()?.remove(UDP_IDLE_TIMEOUT);
    Some(Violation::Unknown(UDP_IDLE_TIMEOUT.to_owned()))
}

const UDP_IDLE_TIMEOUT: &str = "udpIdleTimeout";

/// Rejects lists in place of mappings: serde would interpret their items as the fields, in the order of the type.
fn check_sections(value: &Value) -> Result<(), DecodeError> {
    let sections = serde_json::to_value(KubeProxyConfiguration::default()).expect("string keys can be encoded as JSON");
    check_section("", &sections, value)?;
    let modules = value.pointer("/logging/vmodule").and_then(Value::as_array).into_iter().flatten();
    modules.enumerate().try_for_each(|(index, module)| match module {
        Value::Array(_) => Err(not_a_mapping(tree::item("logging.vmodule", index))),
        _ => Ok(()),
    })
}

/// Checks a value that is a mapping in `section`, and its fields.
fn check_section(path: &str, section: &Value, value: &Value) -> Result<(), DecodeError> {
    match (section, value) {
        (Value::Object(_), Value::Array(_)) => Err(not_a_mapping(path.to_owned())),
        (Value::Object(section), Value::Object(fields)) => section.iter().try_for_each(|(name, inner)| {
            fields.get(name).map_or(Ok(()), |value| check_section(&tree::child(path, name), inner, value))
        }),
        _ => Ok(()),
    }
}

fn not_a_mapping(field: String) -> DecodeError {
    DecodeError::Field { field, source: de::Error::invalid_type(de::Unexpected::Seq, &"a mapping") }
}

/// Replaces nulls in mappings and lists by the corresponding values in Go: feature gates are off, and texts are empty.
fn fill_nulls(value: &mut Value) {
    let gates = value.get_mut("featureGates").and_then(Value::as_object_mut);
    for gate in gates.into_iter().flat_map(|gates| gates.values_mut()).filter(|gate| gate.is_null()) {
        *gate = Value::Bool(false);
    }
    for list in ["/nodePortAddresses", "/ipvs/excludeCIDRs"] {
        let items = value.pointer_mut(list).and_then(Value::as_array_mut);
        for item in items.into_iter().flatten().filter(|item| item.is_null()) {
            *item = Value::String(String::new());
        }
    }
}

/// Returns the first document and the number of documents.
fn read_tree(text: &str) -> Result<(Tree, usize), DecodeError> {
    // JSON is not quite a subset of YAML: tabs and surrogate pairs differ. Text that starts like JSON may still be YAML in
    // flow style.
    if text.trim_start().starts_with('{')
        && let Ok(tree) = serde_json::from_str(text)
    {
        return Ok((tree, 1));
    }
    // Kubernetes' YAML library accepts YAML 1.1 booleans and octal numbers.
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        legacy_octal_numbers: true,
        // Keep the error on one line.
        with_snippet: false,
    };
    let documents: Vec<Tree> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|source| DecodeError::Syntax(Box::new(source)))?;
    let count = documents.len();
    let first = documents.into_iter().next().unwrap_or_default();
    Ok((first.with_integers(), count))
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

/// The API group of [`ApiVersion::TEXT`].
const API_GROUP: &str = "kubeproxy.config.k8s.io";

/// Formats a path as Kubernetes does: `logging.vmodule[0].foo`.
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
