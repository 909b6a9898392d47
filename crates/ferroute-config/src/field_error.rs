use std::{collections::BTreeSet, fmt};

/// What is wrong with one field.
///
/// The texts are those of Kubernetes, capitals and all, and so are the paths: they follow kube-proxy's internal types,
/// as people know them from its log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The value is malformed or out of range.
    #[error("{field}: Invalid value: {value}: {detail}")]
    Invalid {
        /// Path of the field.
        field: String,
        /// The value as it is shown: text in quotes, numbers and durations without.
        value: String,
        /// What would be right.
        detail: String,
    },
    /// The value is none of those that the field knows.
    #[error("{field}: Unsupported value: {value:?}: supported values: {}", quoted(supported))]
    Unsupported {
        /// Path of the field.
        field: String,
        /// The value.
        value: String,
        /// The values that it knows.
        supported: &'static [&'static str],
    },
    /// The value is well formed but may not be set here.
    #[error("{field}: Forbidden: {detail}")]
    Forbidden {
        /// Path of the field.
        field: String,
        /// What stands against it.
        detail: String,
    },
    /// There has to be a value.
    #[error("{field}: Required value: {detail}")]
    Required {
        /// Path of the field.
        field: String,
        /// What it has to be.
        detail: String,
    },
}

impl FieldError {
    /// Path of the field.
    pub fn field(&self) -> &str {
        match self {
            Self::Invalid { field, .. }
            | Self::Unsupported { field, .. }
            | Self::Forbidden { field, .. }
            | Self::Required { field, .. } => field,
        }
    }
}

/// Everything that is wrong with a configuration; never empty where it is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct FieldErrors(pub Vec<FieldError>);

impl fmt::Display for FieldErrors {
    /// One error stands alone; several stand in brackets, and those that read alike only once, as in Kubernetes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = BTreeSet::new();
        let mut texts: Vec<String> = self.0.iter().map(FieldError::to_string).collect();
        texts.retain(|text| told.insert(text.clone()));
        match texts.as_slice() {
            [only] => f.write_str(only),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

/// Collects errors while a configuration is resolved.
impl FieldErrors {
    /// A value that is shown without quotes.
    pub(crate) fn invalid(&mut self, field: &str, value: impl fmt::Display, detail: &str) {
        self.0.push(FieldError::Invalid {
            field: field.to_owned(),
            value: value.to_string(),
            detail: detail.to_owned(),
        });
    }

    /// A text.
    pub(crate) fn invalid_text(&mut self, field: &str, value: &str, detail: &str) {
        self.invalid(field, format_args!("{value:?}"), detail);
    }

    /// A list of texts.
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
