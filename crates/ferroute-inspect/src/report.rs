//! The format of reports as JSON, documented in `docs/json.md`.
//!
//! Each report is a type of the module that creates it, with the same names in JSON. The commands, the kubectl plugin
//! and the server of the page print and read these types.

#[cfg(any(test, feature = "testing"))]
pub mod samples;

use serde::{Deserialize, Serialize};

use crate::about::About;

/// A report with the version of its format. Within a version, fields are only added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Versioned<T> {
    /// The version.
    pub api_version: ApiVersion,
    /// Subject of the report, if it depends on the running proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,
    /// The report, an object.
    #[serde(flatten)]
    pub report: T,
}

/// A version of the format of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApiVersion {
    /// The first version.
    #[serde(rename = "ferroute/v1")]
    V1,
}

impl<T> From<T> for Versioned<T> {
    fn from(report: T) -> Self {
        Self { api_version: ApiVersion::V1, about: None, report }
    }
}

impl<T> Versioned<T> {
    /// Creates a report with its subject.
    pub fn new(about: &About, report: T) -> Self {
        Self { about: Some(about.clone()), ..Self::from(report) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_equal_after_deserialization() {
        for samples::Sample { command, json, copy } in samples::all() {
            assert_eq!(json["apiVersion"], "ferroute/v1", "{command}");
            assert_eq!(copy(json.clone()).expect(command), json, "{command}");
        }
    }

    #[test]
    fn services_that_are_not_served_are_equal_after_deserialization() {
        for explanation in samples::not_served() {
            let json = serde_json::to_value(Versioned::from(explanation.clone())).expect("an object");
            assert!(json.get("reason").or(json.get("problems")).is_some(), "{json}");
            let copy: Versioned<crate::explain::Explanation> = serde_json::from_value(json).expect("an explanation");
            assert_eq!(copy.report, explanation);
        }
    }

    #[test]
    fn other_versions_are_not_read() {
        for samples::Sample { command, mut json, copy } in samples::all() {
            json["apiVersion"] = "ferroute/v2".into();
            assert!(copy(json).is_err(), "{command}");
        }
    }

    #[test]
    fn every_field_is_documented_in_the_section_of_its_report() {
        let document = include_str!("../../../docs/json.md");
        let (common, _) = document.split_once("\n## ").expect("sections");
        for samples::Sample { command, json, .. } in samples::all() {
            let title = format!("\n## `{command}`\n");
            let (_, rest) = document.split_once(&title).unwrap_or_else(|| panic!("no section {command}"));
            let section = rest.split("\n## ").next().expect("a split has parts");
            let code = format!("{common}{section}").split('`').skip(1).step_by(2).collect::<Vec<_>>().join(" ");
            let words: Vec<&str> = code.split(|letter: char| !letter.is_ascii_alphanumeric()).collect();
            for key in samples::keys(&json) {
                assert!(words.contains(&key), "{command}: {key} is not in docs/json.md");
            }
        }
    }
}
