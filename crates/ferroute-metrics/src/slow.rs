//! The slowest changes of the last hour, and where their time went.

use std::time::{Duration, Instant};

use ferroute_health::rfc3339;
use serde::Serialize;

use crate::{
    history::{Finished, Subject},
    receipts::VersionBody,
};

/// Slow changes to be shown, as JSON, the slowest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangesPage {
    changes: Vec<ChangeBody>,
}

/// A bounded list.
#[derive(Debug, Default)]
pub(crate) struct SlowChanges(Vec<Finished>);

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChangeBody {
    kind: &'static str,
    /// What has happened to the object.
    event: &'static str,
    namespace: String,
    /// Of the Service; where a slice is gone, of the slice.
    name: String,
    #[serde(flatten)]
    version: VersionBody,
    ip_family: &'static str,
    /// In the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    triggered: Option<String>,
    /// By the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<String>,
    received: String,
    sync_began: String,
    in_force: String,
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
    /// Of `sync`.
    kernel: f64,
}

impl SlowChanges {
    /// Remembers a change if it is one of the slowest.
    pub(crate) fn note(&mut self, finished: Finished) {
        if self.0.len() >= KEPT {
            let now = finished.ended.instant;
            self.0.retain(|kept| is_recent(kept, now));
        }
        if self.0.len() < KEPT {
            self.0.push(finished);
            return;
        }
        if let Some(fastest) = self.0.iter_mut().min_by_key(|kept| kept.total())
            && fastest.total() < finished.total()
        {
            *fastest = finished;
        }
    }

    pub(crate) fn page(&self, now: Instant) -> ChangesPage {
        let mut recent: Vec<&Finished> = self.0.iter().filter(|kept| is_recent(kept, now)).collect();
        recent.sort_by_key(|kept| std::cmp::Reverse(kept.total()));
        ChangesPage { changes: recent.into_iter().map(ChangeBody::from).collect() }
    }
}

fn is_recent(kept: &Finished, now: Instant) -> bool {
    now.saturating_duration_since(kept.ended.instant) <= RECENT
}

impl From<&Finished> for ChangeBody {
    fn from(finished: &Finished) -> Self {
        let change = &finished.change;
        let (kind, event) = match change.subject {
            Subject::Service(_) => ("Service", "applied"),
            Subject::ServiceGone => ("Service", "deleted"),
            Subject::Slice(_) => ("EndpointSlice", "applied"),
            Subject::SliceGone => ("EndpointSlice", "deleted"),
        };
        Self {
            kind,
            event,
            namespace: change.name.namespace().to_owned(),
            name: change.name.name().to_owned(),
            version: change.version.into(),
            ip_family: finished.family.as_str(),
            triggered: change.trigger.map(|trigger| rfc3339(Some(trigger))),
            written: change.written.map(|written| rfc3339(Some(written))),
            received: rfc3339(Some(finished.received())),
            sync_began: rfc3339(Some(finished.wall(finished.began))),
            in_force: rfc3339(Some(finished.ended.wall)),
            seconds: Seconds {
                total: finished.total().as_secs_f64(),
                api: finished.api().map(|took| took.as_secs_f64()),
                watch: finished.watch().map(|took| took.as_secs_f64()),
                queue: finished.queue().as_secs_f64(),
                sync: finished.sync().as_secs_f64(),
                kernel: finished.kernel.as_secs_f64(),
            },
        }
    }
}

impl ChangesPage {
    /// As JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("text and numbers under text keys are always JSON")
    }
}

/// Changes that are remembered.
const KEPT: usize = 64;

/// How long.
const RECENT: Duration = Duration::from_secs(3600);
