use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The part of `metadata` that Ferroute reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name, unique among objects of one kind in a namespace.
    pub name: String,
    /// Namespace; empty for cluster-scoped kinds. The manifest reader sets `default` where it is omitted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Labels; see [`crate::labels`] for those that affect a proxy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "crate::meta::null_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations; see [`crate::labels`] for those that affect a proxy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "crate::meta::null_default")]
    pub annotations: BTreeMap<String, String>,
    /// Version of the object, set by the API server; absent in files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Generation of the object's `spec`, set by the API server; absent in files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Time at which the object was created, in RFC 3339; absent in files. Used for Services only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// Time at which deletion was requested; finalizers may delay the deletion. Used for Nodes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Time of the last write: the latest time in `managedFields`, in RFC 3339 with a resolution of one second.
    #[serde(rename = "managedFields", skip_serializing, deserialize_with = "latest_write")]
    pub written: Option<String>,
}

/// Returns the latest time in `managedFields` and skips `fieldsV1`, by far the largest part.
fn latest_write<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    struct ManagedFields {
        #[serde(default)]
        time: Option<String>,
    }
    let managers = Option::<Vec<ManagedFields>>::deserialize(deserializer)?.unwrap_or_default();
    // All times are in UTC and of one length, so the greatest string is the latest time.
    Ok(managers.into_iter().filter_map(|fields| fields.time).max())
}

/// Decodes an explicit `null` as the default value, as the API server does.
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
    fn written_is_latest_time_of_all_managers() {
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
