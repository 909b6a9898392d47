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
    /// When the API server last wrote the object: the latest time in `managedFields`, in whole seconds, as it stands
    /// there.
    #[serde(rename = "managedFields", skip_serializing, deserialize_with = "latest_write")]
    pub written: Option<String>,
}

/// Reads the latest time of `managedFields` and passes over what is much longer: who manages which field.
fn latest_write<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    struct ManagedFields {
        #[serde(default)]
        time: Option<String>,
    }
    let managers = Option::<Vec<ManagedFields>>::deserialize(deserializer)?.unwrap_or_default();
    // All are in UTC and of one length, so that the greatest text is the latest time.
    Ok(managers.into_iter().filter_map(|fields| fields.time).max())
}

/// Reads an explicit `null` like a field that is left out, as the API server does.
pub(crate) fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(managed_fields: &serde_json::Value) -> Option<String> {
        let metadata = serde_json::json!({"name": "web", "managedFields": managed_fields});
        serde_json::from_value::<ObjectMeta>(metadata).expect("good metadata").written
    }

    #[test]
    fn an_object_was_written_when_the_last_of_its_managers_wrote() {
        let fields = serde_json::json!({"f:spec": {"f:ports": {}}});
        let managers = serde_json::json!([
            {"manager": "a", "time": "2026-01-02T15:04:05Z", "fieldsV1": fields},
            {"manager": "b", "time": "2026-01-02T15:04:07Z"},
            {"manager": "c"},
        ]);
        assert_eq!(written(&managers).as_deref(), Some("2026-01-02T15:04:07Z"));
        assert_eq!(written(&serde_json::json!([])), None);
        assert_eq!(written(&serde_json::Value::Null), None);
    }
}
