use std::{collections::BTreeSet, fmt};

use crate::GoDuration;

/// A validation error of one field.
///
/// Messages and paths are those of kube-proxy, including capitalization: the paths follow its internal types, which
/// users see in its log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The value is malformed or out of range.
    #[error("{field}: Invalid value: {value}: {detail}")]
    Invalid {
        /// The field's path.
        field: String,
        /// The formatted value: strings in quotes, numbers and durations without.
        value: String,
        /// The requirement.
        detail: String,
    },
    /// The value is not one of the supported values.
    #[error("{field}: Unsupported value: {value:?}: supported values: {}", quoted(supported))]
    Unsupported {
        /// The field's path.
        field: String,
        /// The value.
        value: String,
        /// The supported values.
        supported: &'static [&'static str],
    },
    /// The field must not be set.
    #[error("{field}: Forbidden: {detail}")]
    Forbidden {
        /// The field's path.
        field: String,
        /// The reason.
        detail: String,
    },
    /// The value is missing.
    #[error("{field}: Required value: {detail}")]
    Required {
        /// The field's path.
        field: String,
        /// The requirement.
        detail: String,
    },
}

impl FieldError {
    /// Returns the field's path.
    pub fn field(&self) -> &str {
        match self {
            Self::Invalid { field, .. }
            | Self::Unsupported { field, .. }
            | Self::Forbidden { field, .. }
            | Self::Required { field, .. } => field,
        }
    }
}

/// The validation errors of a configuration; not empty when returned as an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct FieldErrors(pub Vec<FieldError>);

impl fmt::Display for FieldErrors {
    /// Formats like Kubernetes' aggregated errors: several errors are in brackets, without duplicates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen = BTreeSet::new();
        let mut texts: Vec<String> = self.0.iter().map(FieldError::to_string).collect();
        texts.retain(|text| seen.insert(text.clone()));
        match texts.as_slice() {
            [only] => f.write_str(only),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

impl FieldErrors {
    /// Adds an error for a value that is formatted without quotes.
    pub(crate) fn invalid(&mut self, field: &str, value: impl fmt::Display, detail: &str) {
        self.0.push(FieldError::Invalid {
            field: field.to_owned(),
            value: value.to_string(),
            detail: detail.to_owned(),
        });
    }

    /// Adds an error for a string.
    pub(crate) fn invalid_text(&mut self, field: &str, value: &str, detail: &str) {
        self.invalid(field, format_args!("{value:?}"), detail);
    }

    /// Adds an error for a duration, which Kubernetes quotes like a string.
    pub(crate) fn invalid_duration(&mut self, field: &str, value: GoDuration, detail: &str) {
        self.invalid(field, format_args!("\"{value}\""), detail);
    }

    /// Adds an error for a list of strings.
    pub(crate) fn invalid_list(&mut self, field: &str, values: &[&str], detail: &str) {
        self.invalid(field, format_args!("[{}]", quoted(values).replace(", ", ",")), detail);
    }

    pub(crate) fn forbidden(&mut self, field: String, detail: &str) {
        self.0.push(FieldError::Forbidden { field, detail: detail.to_owned() });
    }

    pub(crate) fn required(&mut self, field: String, detail: &str) {
        self.0.push(FieldError::Required { field, detail: detail.to_owned() });
    }
}

fn quoted(values: &[&str]) -> String {
    let quoted: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    quoted.join(", ")
}
