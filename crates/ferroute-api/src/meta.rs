use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The part of an object's metadata that a proxy reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name, unique per kind and namespace.
    pub name: String,
    /// Namespace; empty for cluster-wide kinds. Text that leaves it out is read as `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Labels; see [`crate::labels`] for those that matter.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "crate::meta::null_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations; only `endpoints.kubernetes.io/last-change-trigger-time` is read.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "crate::meta::null_default")]
    pub annotations: BTreeMap<String, String>,
    /// The API server's version of the object; absent in files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Counts changes of the object's spec; absent in files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Since when somebody wants the object deleted, which others still hold up; only Nodes are asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
}

/// Reads an explicit `null` like a field that is left out, as the API server does.
pub(crate) fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
