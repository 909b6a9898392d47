//! `k8s.io.apimachinery.pkg.apis.meta.v1`.

use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

use super::{filled, set};

/// What all objects have.
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
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "17")]
    managed_fields: Vec<ManagedFieldsEntry>,
}

/// What somebody has written, of which only the time matters.
#[derive(Clone, PartialEq, prost::Message)]
struct ManagedFieldsEntry {
    #[prost(message, optional, tag = "4")]
    time: Option<Time>,
}

/// Whole seconds since 1970: Kubernetes sends no fractions.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

/// Any object, of which only the metadata matters.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Head {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ObjectMeta>,
}

/// `metadata` of a list.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListMeta {
    #[prost(string, tag = "2")]
    pub(crate) resource_version: String,
    #[prost(string, tag = "3")]
    pub(crate) r#continue: String,
}

/// What is answered in the place of an object.
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
            resource_version: filled(metadata.resource_version),
            generation: set(metadata.generation),
            deletion_timestamp: metadata.deletion_timestamp.and_then(Time::text),
            written: writes.max_by_key(|time| time.seconds).and_then(Time::text),
        }
    }
}

impl Time {
    /// As JSON has it (RFC 3339). `None` for Go's zero time, which is sent as nothing, and outside the years that have
    /// four digits.
    fn text(self) -> Option<String> {
        let seconds = u64::try_from(self.seconds).ok().filter(|seconds| (1..=LAST_SECOND).contains(seconds))?;
        Some(humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string())
    }
}

/// 9999-12-31T23:59:59Z.
const LAST_SECOND: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_in_json() {
        let text = |seconds| Time { seconds }.text();
        assert_eq!(text(1_767_366_245).as_deref(), Some("2026-01-02T15:04:05Z"));
        assert_eq!(text(253_402_300_799).as_deref(), Some("9999-12-31T23:59:59Z"));
        assert_eq!([text(0), text(-1), text(i64::MIN), text(i64::MAX)], [const { None }; 4]);
    }
}
