//! `/services`: the applied version of each Service, and the time since which it is applied.

use std::{collections::BTreeMap, sync::Arc};

use ferroute_core::{IpFamily, NamespacedName, parse::ObjectVersion};
use hyper::body::Bytes;
use serde::Serialize;

use super::{
    History, ServiceQuery,
    ledger::{ApplyState, ServiceRow, Times},
};
use crate::time::go_time;

/// The body of `/services`, part by part. Services that change in the meantime are shown in their state at the time
/// when their part is rendered.
#[derive(Debug)]
pub(crate) struct ServicesBody {
    history: Arc<History>,
    query: ServiceQuery,
    position: Position,
    /// Number of Services that may follow.
    left: usize,
}

#[derive(Debug)]
enum Position {
    /// Before the first part, which begins after this Service.
    Start(Option<NamespacedName>),
    /// Within the list, after this Service.
    After {
        after: NamespacedName,
        is_empty: bool,
    },
    End,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceBody {
    namespace: String,
    name: String,
    #[serde(flatten)]
    version: VersionBody,
    families: BTreeMap<&'static str, FamilyBody>,
}

/// Fields as in Kubernetes object metadata.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VersionBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<i64>,
}

#[derive(Debug, Serialize)]
struct FamilyBody {
    /// Whether a received change is not applied.
    pending: bool,
    /// Whether it is not because the kernel refuses it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    refused: bool,
    /// Whether the Service is not served, or not with all of its endpoints, because a limit is exceeded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    limited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<AppliedBody>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AppliedBody {
    #[serde(flatten)]
    version: VersionBody,
    since: String,
    last_change: String,
}

impl From<ObjectVersion> for VersionBody {
    fn from(version: ObjectVersion) -> Self {
        Self { resource_version: version.resource.map(|number| number.to_string()), generation: version.generation }
    }
}

impl ServicesBody {
    /// Returns the body of the response to a query, after this Service.
    pub(crate) fn new(history: Arc<History>, query: ServiceQuery, after: Option<NamespacedName>) -> Self {
        let left = query.limit.unwrap_or(usize::MAX);
        Self { history, query, position: Position::Start(after), left }
    }

    /// Reports whether the query selects a Service after this one.
    fn has_more(&self, after: &NamespacedName) -> bool {
        let mut after = Some(after.clone());
        while let Some(position) = after {
            let part = self.history.services(&self.query, Some(&position));
            if !part.services.is_empty() {
                return true;
            }
            after = part.next;
        }
        false
    }

    /// Renders the end, with the token of the next page if there is one.
    fn end(&mut self, text: &mut String, last: Option<&NamespacedName>) {
        self.position = Position::End;
        text.push(']');
        if let Some(last) = last.filter(|last| self.left == 0 && self.has_more(last)) {
            let metadata = serde_json::json!({ "continue": last.to_string() });
            text.push_str(&format!(",\"metadata\":{metadata}"));
        }
        text.push('}');
    }
}

impl Iterator for ServicesBody {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut text = String::new();
        let (after, mut is_empty) = match std::mem::replace(&mut self.position, Position::End) {
            Position::Start(after) => {
                text.push_str("{\"services\":[");
                (after, true)
            }
            Position::After { after, is_empty } => (Some(after), is_empty),
            Position::End => return None,
        };
        let mut part = self.history.services(&self.query, after.as_ref());
        if part.services.len() >= self.left {
            part.services.truncate(self.left);
            part.next = None;
        }
        self.left -= part.services.len();
        for row in &part.services {
            if !std::mem::replace(&mut is_empty, false) {
                text.push(',');
            }
            let body = ServiceBody::new(row);
            text.push_str(&serde_json::to_string(&body).expect("text, numbers and booleans are always JSON"));
        }
        match part.next {
            Some(after) => self.position = Position::After { after, is_empty },
            None => self.end(&mut text, part.services.last().map(|(name, ..)| name)),
        }
        Some(text.into())
    }
}

impl ServiceBody {
    fn new((name, service, states, limited): &ServiceRow) -> Self {
        let families = IpFamily::BOTH.into_iter().filter_map(|family| {
            let index = family.index();
            let (pending, change) = match states[index] {
                ApplyState::NotServed => return None,
                ApplyState::Applied => (false, None),
                ApplyState::Pending(change) => (true, change),
            };
            let version = change.map_or(service.version, |change| change.applied);
            let refused = change.is_some_and(|change| change.is_refused);
            let Times { since, changed } = service.times[index];
            let applied = since.map(|since| AppliedBody {
                version: version.into(),
                since: go_time(Some(since)),
                last_change: go_time(changed),
            });
            let is_shown = service.has_family[index] || applied.is_some() || pending;
            is_shown.then_some((family.as_str(), FamilyBody { pending, refused, limited: limited[index], applied }))
        });
        Self {
            namespace: name.namespace().to_owned(),
            name: name.name().to_owned(),
            version: service.version.into(),
            families: families.collect(),
        }
    }
}
