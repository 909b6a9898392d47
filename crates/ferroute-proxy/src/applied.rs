//! The applied versions of a Service and its endpoint slices, for `ferroute status --service`.
//!
//! ```text
//!   sync loop --> VersionsObserver <-- VersionRequests <-- socket <-- ferroute status --service
//!   (a thread)            `-------- ServiceVersions ---------^
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasher, RandomState},
};

use ferroute_core::{DataplaneError, IpFamily, NamespacedName, Tracker, tracker::TrackerEvent};
use serde::{Deserialize, Serialize};

use crate::{
    observer::{FamilySynced, Observer},
    requests::Requests,
    sync::Change,
};

/// The received versions of a Service and its endpoint slices, and whether they are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceVersions {
    /// Whether rules of these versions are active in every IP family.
    pub in_force: bool,
    /// The `resourceVersion` of the Service; `None` if the proxy has not received it or does not serve it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<u64>,
    /// The `resourceVersion` of each endpoint slice, by name.
    pub slices: BTreeMap<String, Option<u64>>,
}

/// Requests for the versions of a Service.
pub(crate) type VersionRequests = Requests<NamespacedName, ServiceVersions>;

/// Keeps the versions of all Services and endpoint slices, which rules do not depend on.
#[derive(Debug, Default)]
pub(crate) struct VersionsObserver {
    /// The last received `resourceVersion` of each object, by a hash of its kind and name: 16 bytes instead of a hundred.
    /// Only names that the tracker has are looked up, so there is nothing to gain by a collision, which chance does not cause.
    versions: HashMap<u64, u64>,
    hasher: RandomState,
    families: Vec<FamilyState>,
    requests: VersionRequests,
}

#[derive(Debug)]
struct FamilyState {
    family: IpFamily,
    has_synced: bool,
    /// Services that changed after the last successful sync.
    pending: BTreeSet<NamespacedName>,
    /// Services with a service port that the kernel has rejected, or that exceeds a limit, until all are accepted.
    rejected: BTreeSet<NamespacedName>,
}

impl VersionsObserver {
    /// Returns the queue of requests.
    pub(crate) fn requests(&self) -> VersionRequests {
        self.requests.clone()
    }

    fn set(&mut self, kind: Kind, name: &NamespacedName, version: Option<u64>) {
        let key = self.hasher.hash_one((kind, name));
        match version {
            Some(version) => _ = self.versions.insert(key, version),
            None => _ = self.versions.remove(&key),
        }
    }

    fn get(&self, kind: Kind, name: &NamespacedName) -> Option<u64> {
        self.versions.get(&self.hasher.hash_one((kind, name))).copied()
    }

    /// Marks a Service as pending in all families. Before the first sync, all are.
    fn mark_pending(&mut self, service: &NamespacedName) {
        for state in self.families.iter_mut().filter(|state| state.has_synced) {
            state.pending.insert(service.clone());
        }
    }

    fn versions(&self, service: &NamespacedName, desired: &Tracker) -> ServiceVersions {
        let is_applied = |state: &FamilyState| {
            state.has_synced && !state.pending.contains(service) && !state.rejected.contains(service)
        };
        let slices = desired.slices_of(service).map(|slice| slice.name);
        ServiceVersions {
            in_force: !self.families.is_empty() && self.families.iter().all(is_applied),
            service: desired.ports_of(service).and_then(|_| self.get(Kind::Service, service)),
            slices: slices.map(|name| (name.name().to_owned(), self.get(Kind::Slice, &name))).collect(),
        }
    }
}

#[derive(Clone, Copy, Debug, Hash)]
enum Kind {
    Service,
    Slice,
}

impl Drop for VersionsObserver {
    fn drop(&mut self) {
        self.requests.close();
    }
}

impl Observer for VersionsObserver {
    fn on_change(&mut self, change: &Change, before: &Tracker) {
        let Change::Desired(event, origin) = change else { return };
        let version = origin.version.resource;
        match event {
            TrackerEvent::ServiceApplied(service) => {
                self.set(Kind::Service, &service.name, version);
                self.mark_pending(&service.name);
            }
            TrackerEvent::ServiceDeleted(name) => {
                self.set(Kind::Service, name, None);
                self.mark_pending(name);
            }
            TrackerEvent::SliceApplied(slice) => {
                self.set(Kind::Slice, &slice.name, version);
                self.mark_pending(&slice.service);
            }
            TrackerEvent::SliceDeleted(name) => {
                self.set(Kind::Slice, name, None);
                if let Some(slice) = before.slice(name) {
                    self.mark_pending(&slice.service);
                }
            }
            TrackerEvent::NodeApplied(_) | TrackerEvent::ServiceCidrsApplied(_) => {}
        }
    }

    fn on_start(&mut self, families: &[IpFamily]) {
        let state = |family: &IpFamily| FamilyState {
            family: *family,
            has_synced: false,
            pending: BTreeSet::new(),
            rejected: BTreeSet::new(),
        };
        self.families = families.iter().map(state).collect();
    }

    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let family = sync.table.family;
        let Some(state) = self.families.iter_mut().find(|state| state.family == family) else { return };
        state.has_synced = true;
        state.pending.clear();
        if let Some(report) = &sync.outcome.report {
            if sync.outcome.counts.isolated == 0 {
                state.rejected.clear();
            }
            let rejected = report.rejected.iter().map(|rejection| &rejection.service_port);
            state.rejected.extend(rejected.chain(&report.unserved).map(|port| port.service.clone()));
        }
    }

    fn on_failure(&mut self, family: IpFamily, _: &DataplaneError) {
        // Its changes stay pending. After a failed full sync, rules of any Service may be missing.
        if let Some(state) = self.families.iter_mut().find(|state| state.family == family) {
            state.has_synced = false;
            state.pending.clear();
        }
    }

    fn on_tick(&mut self, desired: &Tracker) {
        self.requests.respond(|service| self.versions(&service, desired));
    }
}

#[cfg(test)]
mod tests;
