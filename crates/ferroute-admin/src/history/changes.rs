//! The slowest changes of the last hour, with the time spent in each stage.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{AppliedChange, ChangeKind, services::VersionBody};
use crate::time::go_time;

/// Slow changes for the `/changes` page, the slowest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ChangesPage {
    changes: Vec<ChangeBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<PageMetadata>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct PageMetadata {
    /// The parameter `continue` of the request for the next page.
    r#continue: String,
}

/// A bounded list of changes.
#[derive(Debug, Default)]
pub(super) struct SlowChanges(Vec<AppliedChange>);

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChangeBody {
    kind: &'static str,
    event: &'static str,
    namespace: String,
    /// Name of the Service; of a deleted EndpointSlice that the proxy did not have, its own.
    name: String,
    #[serde(flatten)]
    version: VersionBody,
    ip_family: &'static str,
    /// Time of the event in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    triggered: Option<String>,
    /// Time of the API server's write.
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<String>,
    received: String,
    #[serde(rename = "syncBegan")]
    sync_started: String,
    applied: String,
    seconds: Seconds,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Seconds {
    total: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    api: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    watch: Option<f64>,
    queue: f64,
    sync: f64,
    /// Part of `sync`.
    kernel: f64,
}

impl SlowChanges {
    /// Inserts a change if it is one of the slowest.
    pub(super) fn insert(&mut self, applied: AppliedChange) {
        if self.0.len() >= CAPACITY {
            let now = applied.ended.instant;
            self.0.retain(|change| is_recent(change, now));
        }
        if self.0.len() < CAPACITY {
            self.0.push(applied);
            return;
        }
        if let Some(fastest) = self.0.iter_mut().min_by_key(|change| change.total())
            && fastest.total() < applied.total()
        {
            *fastest = applied;
        }
    }

    pub(super) fn page(&self, now: Instant, skip: usize, limit: usize) -> ChangesPage {
        let mut recent: Vec<&AppliedChange> = self.0.iter().filter(|change| is_recent(change, now)).collect();
        recent.sort_by_key(|change| std::cmp::Reverse(change.total()));
        let end = skip.saturating_add(limit);
        let metadata = (end < recent.len()).then(|| PageMetadata { r#continue: end.to_string() });
        ChangesPage { changes: recent.into_iter().take(end).skip(skip).map(ChangeBody::from).collect(), metadata }
    }
}

fn is_recent(change: &AppliedChange, now: Instant) -> bool {
    now.saturating_duration_since(change.ended.instant) <= MAX_AGE
}

impl From<&AppliedChange> for ChangeBody {
    fn from(applied: &AppliedChange) -> Self {
        let change = &applied.change;
        let (kind, event) = match change.kind {
            ChangeKind::ServiceApplied(_) => ("Service", "applied"),
            ChangeKind::ServiceDeleted => ("Service", "deleted"),
            ChangeKind::SliceApplied(_) => ("EndpointSlice", "applied"),
            ChangeKind::SliceDeleted => ("EndpointSlice", "deleted"),
        };
        Self {
            kind,
            event,
            namespace: change.name.namespace().to_owned(),
            name: change.name.name().to_owned(),
            version: change.origin.version.into(),
            ip_family: applied.family.as_str(),
            triggered: change.origin.trigger.map(|trigger| go_time(Some(trigger))),
            written: change.origin.written.map(|written| go_time(Some(written))),
            received: go_time(Some(applied.received())),
            sync_started: go_time(Some(applied.wall(applied.started))),
            applied: go_time(Some(applied.ended.wall)),
            seconds: Seconds {
                total: applied.total().as_secs_f64(),
                api: applied.api().map(|took| took.as_secs_f64()),
                watch: applied.watch().map(|took| took.as_secs_f64()),
                queue: applied.queue().as_secs_f64(),
                sync: applied.sync().as_secs_f64(),
                kernel: applied.kernel.as_secs_f64(),
            },
        }
    }
}

impl ChangesPage {
    /// Returns the page as JSON.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("text and numbers under text keys are always JSON")
    }
}

/// Maximum number of changes.
const CAPACITY: usize = 64;

/// Maximum age of a change.
const MAX_AGE: Duration = Duration::from_secs(3600);
