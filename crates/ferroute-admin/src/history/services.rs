//! The applied version of each Service, and the time since when it is applied.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
    time::SystemTime,
};

use ferroute_core::{IpFamily, NamespacedName, parse::ObjectVersion};
use hyper::body::Bytes;
use serde::Serialize;

use super::{ChangeKind, History, ObjectChange, ServiceQuery, Synced};
use crate::time::go_time;

/// The states of some Services. Copying them under the lock is fast; encoding them happens outside.
#[derive(Debug, Default)]
pub(crate) struct ServicesPart {
    services: Vec<(NamespacedName, ServiceState, [ApplyState; 2])>,
    /// The Service after which the next part begins; `None` if this is the last one.
    next: Option<NamespacedName>,
}

/// The body of `/services`, part by part. Services that change meanwhile are shown as they are when their part is rendered.
#[derive(Debug)]
pub(crate) struct ServicesBody {
    history: Arc<History>,
    query: ServiceQuery,
    position: Position,
    /// How many Services may follow.
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

#[derive(Debug)]
pub(super) struct ServiceStates {
    /// Indexed by [`IpFamily::index`].
    families: [FamilyState; 2],
    services: BTreeMap<NamespacedName, ServiceState>,
}

#[derive(Debug)]
enum FamilyState {
    NotServed,
    /// Before the first successful sync.
    Starting,
    /// Pending changes since the last successful sync, by Service.
    Synced(HashMap<NamespacedName, PendingChange>),
}

/// State of one Service in one family.
#[derive(Clone, Copy, Debug)]
enum ApplyState {
    NotServed,
    Applied,
    Pending(Option<PendingChange>),
}

/// State of one Service. It is small, because there is one for each Service: unless a change is pending, the last received
/// version is the applied one, so it holds one version only.
#[derive(Clone, Copy, Debug, Default)]
struct ServiceState {
    version: ObjectVersion,
    /// Whether it has ports of each family.
    has_family: [bool; 2],
    is_deleted: bool,
    times: [Times; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// Time since when this version of the Service is applied; `None` if no version is.
    since: Option<SystemTime>,
    /// Time of the last change of its rules, whether by the Service or by its endpoints.
    changed: Option<SystemTime>,
}

/// 10,000 Services take 2 MB, including the map.
const _: () = assert!(size_of::<ServiceState>() <= 104);

#[derive(Clone, Copy, Debug)]
struct PendingChange {
    /// Applied version.
    applied: ObjectVersion,
    /// Whether the Service itself has changed, not only its endpoints.
    service_changed: bool,
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
    /// Whether a received change has not been applied yet.
    pending: bool,
    #[serde(rename = "inForce", skip_serializing_if = "Option::is_none")]
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

impl Default for ServiceStates {
    fn default() -> Self {
        Self { families: [FamilyState::Starting, FamilyState::Starting], services: BTreeMap::new() }
    }
}

impl ServiceStates {
    pub(super) fn set_families(&mut self, families: &[IpFamily]) {
        for family in IpFamily::BOTH.into_iter().filter(|family| !families.contains(family)) {
            self.families[family.index()] = FamilyState::NotServed;
        }
    }

    pub(super) fn received(&mut self, change: &ObjectChange) {
        let old = self.services.get(&change.name).map(|service| service.version).unwrap_or_default();
        match change.kind {
            ChangeKind::ServiceApplied(has_family) => {
                let service = self.services.entry(change.name.clone()).or_default();
                (service.version, service.has_family, service.is_deleted) = (change.origin.version, has_family, false);
                self.add_pending(&change.name, old, true, None);
            }
            ChangeKind::ServiceDeleted => {
                let Some(service) = self.services.get_mut(&change.name) else { return };
                service.is_deleted = true;
                self.add_pending(&change.name, old, true, None);
            }
            ChangeKind::SliceApplied(family) if self.services.contains_key(&change.name) => {
                self.add_pending(&change.name, old, false, Some(family));
            }
            ChangeKind::SliceApplied(_) | ChangeKind::SliceDeleted => {}
        }
    }

    /// Marks a Service as pending in one family, or in all.
    fn add_pending(
        &mut self,
        name: &NamespacedName,
        applied: ObjectVersion,
        service_changed: bool,
        only: Option<IpFamily>,
    ) {
        for (index, family) in self.families.iter_mut().enumerate() {
            if let FamilyState::Synced(pending) = family
                && only.is_none_or(|only| only.index() == index)
            {
                let change = pending.entry(name.clone()).or_insert(PendingChange { applied, service_changed });
                change.service_changed |= service_changed;
            }
        }
    }

    pub(super) fn synced(&mut self, family: IpFamily, sync: &Synced<'_>) {
        let index = family.index();
        let now = Some(sync.ended.wall);
        match std::mem::replace(&mut self.families[index], FamilyState::Synced(HashMap::new())) {
            FamilyState::Synced(pending) => {
                for (name, change) in pending {
                    self.apply(&name, change, index, sync);
                }
            }
            FamilyState::Starting | FamilyState::NotServed => {
                for service in self.services.values_mut().filter(|service| service.has_family[index]) {
                    service.times[index] = Times { since: now, changed: now };
                }
                self.services.retain(|_, service| !service.is_deleted);
            }
        }
        // Includes Services of deleted EndpointSlices, which could not be marked as pending.
        for name in sync.changed {
            if let Some(service) = self.services.get_mut(name)
                && service.times[index].changed.is_some()
            {
                service.times[index].changed = now;
            }
        }
    }

    /// Records that a pending change of a Service has been applied.
    fn apply(&mut self, name: &NamespacedName, change: PendingChange, index: usize, sync: &Synced<'_>) {
        let now = Some(sync.ended.wall);
        let Some(service) = self.services.get_mut(name) else { return };
        if service.is_deleted {
            let is_pending = |family: &FamilyState| match family {
                FamilyState::Synced(pending) => pending.contains_key(name),
                FamilyState::Starting => true,
                FamilyState::NotServed => false,
            };
            if !self.families.iter().any(is_pending) {
                self.services.remove(name);
            }
            return;
        }
        let times = &mut service.times[index];
        if !service.has_family[index] {
            *times = Times::default();
            return;
        }
        // Objects from files have no version to compare.
        let is_new_version = service.version != change.applied || service.version == ObjectVersion::default();
        if times.since.is_none() || change.service_changed && is_new_version {
            times.since = now;
        }
        if times.changed.is_none() || sync.full || sync.changed.contains(name) {
            times.changed = now;
        }
    }

    /// Returns the Services after `after` that the query selects, up to a number of them.
    pub(super) fn part(&self, query: &ServiceQuery, after: Option<&NamespacedName>) -> ServicesPart {
        let row = |(name, service): (&NamespacedName, &ServiceState)| {
            let state = |family: &FamilyState| match family {
                FamilyState::NotServed => ApplyState::NotServed,
                FamilyState::Starting => ApplyState::Pending(None),
                FamilyState::Synced(pending) => {
                    pending.get(name).map_or(ApplyState::Applied, |change| ApplyState::Pending(Some(*change)))
                }
            };
            let [v4, v6] = &self.families;
            (name.clone(), *service, [state(v4), state(v6)])
        };
        if let ServiceQuery { namespace: Some(namespace), name: Some(name), .. } = query {
            let service = self.services.get_key_value(&NamespacedName::new(namespace, name));
            let service = service.filter(|(name, _)| after.is_none_or(|after| *name > after));
            return ServicesPart { services: service.map(row).into_iter().collect(), next: None };
        }
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut part = ServicesPart::default();
        for (examined, service) in self.services.range((start, Bound::Unbounded)).enumerate() {
            if query.selects(service.0) {
                part.services.push(row(service));
            }
            if part.services.len() == PART || examined == EXAMINED {
                part.next = Some(service.0.clone());
                break;
            }
        }
        part
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
        for (name, service, states) in &part.services {
            if !std::mem::replace(&mut is_empty, false) {
                text.push(',');
            }
            let body = ServiceBody::new(name, service, states);
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
    fn new(name: &NamespacedName, service: &ServiceState, states: &[ApplyState; 2]) -> Self {
        let families = IpFamily::BOTH.into_iter().filter_map(|family| {
            let index = family.index();
            let (pending, version) = match states[index] {
                ApplyState::NotServed => return None,
                ApplyState::Applied => (false, service.version),
                ApplyState::Pending(change) => (true, change.map_or(service.version, |change| change.applied)),
            };
            let Times { since, changed } = service.times[index];
            let applied = since.map(|since| AppliedBody {
                version: version.into(),
                since: go_time(Some(since)),
                last_change: go_time(changed),
            });
            let is_shown = service.has_family[index] || applied.is_some();
            is_shown.then_some((family.as_str(), FamilyBody { pending, applied }))
        });
        Self {
            namespace: name.namespace().to_owned(),
            name: name.name().to_owned(),
            version: service.version.into(),
            families: families.collect(),
        }
    }
}

/// The most Services of a part: some 20 KB of text.
const PART: usize = 64;

/// The most Services that are examined for a part.
const EXAMINED: usize = 1024;
