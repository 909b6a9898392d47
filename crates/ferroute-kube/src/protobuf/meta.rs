//! `k8s.io.apimachinery.pkg.apis.meta.v1`.

use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

use ferroute_core::rfc3339;

use super::{non_empty, non_zero};

/// The metadata of an object.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(int64, tag = "7")]
    generation: i64,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "17")]
    managed_fields: Vec<ManagedFieldsEntry>,
}

/// A write to the object, of which only the time is read.
#[derive(Clone, PartialEq, prost::Message)]
struct ManagedFieldsEntry {
    #[prost(message, optional, tag = "4")]
    time: Option<Time>,
}

/// Seconds since 1970; Kubernetes sends no fractions.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

/// An object of any kind, of which only the metadata is read.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MetadataOnly {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ObjectMeta>,
}

/// The metadata of a list.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListMeta {
    #[prost(string, tag = "2")]
    pub(crate) resource_version: String,
    #[prost(string, tag = "3")]
    pub(crate) r#continue: String,
}

/// Object that is returned instead of the requested one.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Status {
    #[prost(string, tag = "3")]
    pub(crate) message: String,
    #[prost(int32, tag = "6")]
    pub(crate) code: i32,
}

impl From<ObjectMeta> for ferroute_api::ObjectMeta {
    fn from(metadata: ObjectMeta) -> Self {
        let writes = metadata.managed_fields.into_iter().filter_map(|fields| fields.time);
        Self {
            name: metadata.name,
            namespace: metadata.namespace,
            labels: metadata.labels,
            annotations: metadata.annotations,
            resource_version: non_empty(metadata.resource_version),
            generation: non_zero(metadata.generation),
            creation_timestamp: metadata.creation_timestamp.and_then(Time::to_rfc3339),
            deletion_timestamp: metadata.deletion_timestamp.and_then(Time::to_rfc3339),
            written: writes.max_by_key(|time| time.seconds).and_then(Time::to_rfc3339),
        }
    }
}

impl Time {
    /// Returns the time as in JSON. `None` for Go's zero time, which is sent as an empty value, and after the year
    /// 9999.
    fn to_rfc3339(self) -> Option<String> {
        let seconds = u64::try_from(self.seconds).ok().filter(|seconds| *seconds > 0)?;
        rfc3339::format(UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_in_json() {
        let text = |seconds| Time { seconds }.to_rfc3339();
        assert_eq!(text(1_767_366_245).as_deref(), Some("2026-01-02T15:04:05Z"));
        assert_eq!(text(253_402_207_200).as_deref(), Some("9999-12-30T22:00:00Z"));
        assert_eq!([text(0), text(-1), text(i64::MIN), text(i64::MAX)], [const { None }; 4]);
    }
}
