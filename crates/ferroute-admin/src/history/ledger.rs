//! Applied versions: the kernel's version of each Service, the time since when it is applied, and pending or refused
//! changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    ops::Bound,
    time::SystemTime,
};

use ferroute_core::{IpFamily, NamespacedName, parse::ObjectVersion};

use super::{ChangeKind, ObjectChange, ServiceQuery, Synced, UnappliedPort};

/// The ledger of applied versions. It costs 16 bytes per object, and more only where `/services` is served.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Indexed by [`IpFamily::index`].
    families: [FamilyState; 2],
    /// The last received `resourceVersion` of each object, by a hash of its kind and name instead of a hundred bytes.
    /// Only names in the tracker are looked up, so an attacker gains nothing from a collision, and accidental ones are
    /// negligible.
    versions: HashMap<u64, u64>,
    hasher: RandomState,
    /// Data of `/services`; `None` if it is not served.
    services: Option<BTreeMap<NamespacedName, ServiceState>>,
}

/// Whether the kernel has the last received version of a Service and its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Whether the Service has ports in an IP family that is served.
    pub is_served: bool,
    /// Whether it does, in every IP family that is served.
    pub is_applied: bool,
    /// Whether it does not, because it refuses rules of the Service.
    pub is_refused: bool,
    /// Whether the Service is not served, or not with all of its endpoints, because a limit is exceeded.
    pub is_limited: bool,
}

#[derive(Debug)]
struct FamilyState {
    phase: Phase,
    /// Services with changes that have not been applied. Not kept before the first successful sync.
    pending: HashMap<NamespacedName, PendingChange>,
    /// The service ports of those that the last successful sync has not applied.
    unapplied: Vec<UnappliedPort>,
    /// Services for which a limit is exceeded.
    limited: BTreeSet<NamespacedName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    NotServed,
    /// Before the first successful sync.
    Starting,
    Synced,
    /// The last sync failed, so rules of any Service may be missing.
    Failed,
}

/// State of one Service in one family.
#[derive(Clone, Copy, Debug)]
pub(super) enum ApplyState {
    NotServed,
    Applied,
    Pending(Option<PendingChange>),
}

/// State of one Service. It is small, because there is one for each Service: unless a change is pending, the last
/// received version is the applied one, so only one version is stored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceState {
    pub(super) version: ObjectVersion,
    /// Whether it has ports of each family.
    pub(super) has_family: [bool; 2],
    is_deleted: bool,
    pub(super) times: [Times; 2],
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// Time since which this version of the Service is applied; `None` if no version is.
    pub(super) since: Option<SystemTime>,
    /// Time of the last change of its rules, whether by the Service or by its endpoints.
    pub(super) changed: Option<SystemTime>,
}

/// 10,000 Services take 2 MB, including the map.
const _: () = assert!(size_of::<ServiceState>() <= 104);

#[derive(Clone, Copy, Debug)]
pub(super) struct PendingChange {
    /// Applied version.
    pub(super) applied: ObjectVersion,
    /// Whether the Service itself has changed, not only its endpoints.
    service_changed: bool,
    pub(super) is_refused: bool,
}

/// A Service with its state, its state in each family, and whether a limit is exceeded there.
pub(super) type ServiceRow = (NamespacedName, ServiceState, [ApplyState; 2], [bool; 2]);

/// The states of some Services. Copying them under the lock is fast; encoding them happens outside.
#[derive(Debug, Default)]
pub(crate) struct ServicesPart {
    pub(super) services: Vec<ServiceRow>,
    /// The Service after which the next part begins; `None` if this is the last one.
    pub(super) next: Option<NamespacedName>,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum Kind {
    Service,
    Slice,
}

impl Ledger {
    /// Creates empty state of a proxy that serves both families. If `with_pages` is true, it also keeps the data for
    /// `/services`.
    pub(super) fn new(with_pages: bool) -> Self {
        Self {
            families: IpFamily::BOTH.map(|_| FamilyState {
                phase: Phase::Starting,
                pending: HashMap::new(),
                unapplied: Vec::new(),
                limited: BTreeSet::new(),
            }),
            versions: HashMap::new(),
            hasher: RandomState::new(),
            services: with_pages.then(BTreeMap::new),
        }
    }

    pub(super) fn set_families(&mut self, families: &[IpFamily]) {
        for family in IpFamily::BOTH.into_iter().filter(|family| !families.contains(family)) {
            self.families[family.index()].phase = Phase::NotServed;
        }
    }

    pub(super) fn received(&mut self, change: &ObjectChange) {
        let ObjectChange { kind, name, slice, .. } = change;
        let received = change.origin.version;
        let key = match slice {
            Some(slice) => self.key(Kind::Slice, slice),
            None => self.key(Kind::Service, name),
        };
        match received.resource.filter(|_| !kind.is_deletion()) {
            Some(version) => _ = self.versions.insert(key, version),
            None => _ = self.versions.remove(&key),
        }
        let state = self.services.as_mut().map(|services| match kind {
            ChangeKind::ServiceApplied(_) => Some(services.entry(name.clone()).or_default()),
            _ => services.get_mut(name),
        });
        let state = state.flatten();
        let applied = state.as_ref().map(|state| state.version).unwrap_or_default();
        match (kind, state) {
            (ChangeKind::ServiceApplied(has_family), Some(state)) => {
                (state.version, state.has_family, state.is_deleted) = (received, *has_family, false);
            }
            (ChangeKind::ServiceDeleted, Some(state)) => state.is_deleted = true,
            _ => {}
        }
        for (family, _) in self.families.iter_mut().zip(change.families).filter(|(_, affected)| *affected) {
            if matches!(family.phase, Phase::Synced | Phase::Failed) {
                let new = PendingChange { applied, service_changed: false, is_refused: false };
                family.pending.entry(name.clone()).or_insert(new).service_changed |= slice.is_none();
            }
        }
        self.remove_deleted(name);
    }

    pub(super) fn synced(&mut self, family: IpFamily, sync: &Synced<'_>) {
        let index = family.index();
        let now = Some(sync.ended.wall);
        let state = &mut self.families[index];
        let pending = std::mem::take(&mut state.pending);
        state.unapplied = sync.unapplied.values().flat_map(|service| service.ports.iter().cloned()).collect();
        state.limited.clone_from(sync.limited);
        if std::mem::replace(&mut state.phase, Phase::Synced) == Phase::Starting
            && let Some(services) = &mut self.services
        {
            services.retain(|_, service| !service.is_deleted);
            for service in services.values_mut().filter(|service| service.has_family[index]) {
                service.times[index] = Times { since: now, changed: now };
            }
        }
        for (name, unapplied) in sync.unapplied {
            let service = self.services.as_mut().and_then(|services| services.get_mut(name));
            let applied = service.as_ref().map(|service| service.version).unwrap_or_default();
            let is_refused = unapplied.ports.iter().any(|port| port.state.error.is_some());
            let unchanged = PendingChange { applied, service_changed: false, is_refused };
            let change = PendingChange { is_refused, ..pending.get(name).copied().unwrap_or(unchanged) };
            self.families[index].pending.insert(name.clone(), change);
            if let Some(service) = service.filter(|_| !unapplied.has_rules) {
                service.times[index] = Times::default();
            }
        }
        for (name, change) in pending.into_iter().filter(|(name, _)| !sync.unapplied.contains_key(name)) {
            self.apply(&name, change, index, sync);
        }
        // Includes Services that have won or lost a frontend.
        for name in sync.changed {
            if let Some(service) = self.services.as_mut().and_then(|services| services.get_mut(name))
                && service.times[index].changed.is_some()
                && !sync.unapplied.contains_key(name)
            {
                service.times[index].changed = now;
            }
        }
    }

    /// Records that a sync failed. Its changes stay pending.
    pub(super) fn failed(&mut self, family: IpFamily) {
        let phase = &mut self.families[family.index()].phase;
        if *phase == Phase::Synced {
            *phase = Phase::Failed;
        }
    }

    /// Returns whether the last received version of a Service is applied. `has_ports` is whether it has ports of each
    /// family; `None` if the Service does not exist.
    pub(super) fn applied(&self, name: &NamespacedName, has_ports: Option<[bool; 2]>) -> Applied {
        let states = [0, 1].map(|index| self.state(index, name, has_ports.is_none_or(|has_ports| has_ports[index])));
        let is_refused = |state: &ApplyState| matches!(state, ApplyState::Pending(Some(change)) if change.is_refused);
        let has_ports = has_ports.unwrap_or_default();
        Applied {
            is_served: [0, 1].into_iter().any(|i| has_ports[i] && self.families[i].phase != Phase::NotServed),
            is_applied: !states.iter().any(|state| matches!(state, ApplyState::Pending(_))),
            is_refused: states.iter().any(is_refused),
            is_limited: [0, 1].into_iter().any(|index| self.is_limited(index, name)),
        }
    }

    /// Reports whether a limit is exceeded for a Service in a family.
    fn is_limited(&self, index: usize, name: &NamespacedName) -> bool {
        self.families[index].limited.contains(name)
    }

    /// Reports whether the data of `/services` is kept.
    pub(super) fn has_services(&self) -> bool {
        self.services.is_some()
    }

    /// Returns the number of Services of which a received change is not applied in some family, as `/services` shows them. Where
    /// that is not served, changes before the first sync and rules that a failed sync may lack are not counted.
    pub(super) fn pending(&self) -> usize {
        let is_partial = |family: &FamilyState| matches!(family.phase, Phase::Starting | Phase::Failed);
        let is_pending = |(name, service): &(&NamespacedName, &ServiceState)| {
            self.states(name, service).iter().any(|state| matches!(state, ApplyState::Pending(_)))
        };
        match &self.services {
            Some(services) if self.families.iter().any(is_partial) => services.iter().filter(is_pending).count(),
            services => {
                let served = self.families.iter().filter(|family| family.phase != Phase::NotServed);
                let names: HashSet<_> = served.flat_map(|family| family.pending.keys()).collect();
                let is_shown = |name: &&NamespacedName| services.as_ref().is_none_or(|all| all.contains_key(*name));
                names.into_iter().filter(is_shown).count()
            }
        }
    }

    /// Returns the service ports that the last syncs have not applied.
    pub(super) fn unapplied(&self) -> Vec<UnappliedPort> {
        self.families.iter().flat_map(|family| family.unapplied.iter().cloned()).collect()
    }

    /// Returns the last received `resourceVersion` of an object.
    pub(super) fn version(&self, kind: Kind, name: &NamespacedName) -> Option<u64> {
        self.versions.get(&self.key(kind, name)).copied()
    }

    /// Returns the Services after `after` that the query selects, up to a number of them.
    pub(super) fn part(&self, query: &ServiceQuery, after: Option<&NamespacedName>) -> ServicesPart {
        let Some(services) = &self.services else { return ServicesPart::default() };
        let row = |(name, service): (&NamespacedName, &ServiceState)| {
            (name.clone(), *service, self.states(name, service), [0, 1].map(|index| self.is_limited(index, name)))
        };
        if let ServiceQuery { namespace: Some(namespace), name: Some(name), .. } = query {
            let service = services.get_key_value(&NamespacedName::new(namespace, name));
            let service = service.filter(|(name, _)| after.is_none_or(|after| *name > after));
            return ServicesPart { services: service.map(row).into_iter().collect(), next: None };
        }
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut part = ServicesPart::default();
        for (examined, service) in services.range((start, Bound::Unbounded)).enumerate() {
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

    /// Returns the states of a Service in both families.
    fn states(&self, name: &NamespacedName, service: &ServiceState) -> [ApplyState; 2] {
        [0, 1].map(|index| self.state(index, name, service.has_family[index] || service.is_deleted))
    }

    /// Returns the state of a Service in a family in which it may have ports. This is unknown for a deleted Service.
    fn state(&self, index: usize, name: &NamespacedName, has_ports: bool) -> ApplyState {
        let FamilyState { phase, pending, .. } = &self.families[index];
        match (phase, pending.get(name)) {
            (Phase::NotServed, _) => ApplyState::NotServed,
            (_, Some(change)) => ApplyState::Pending(Some(*change)),
            (Phase::Starting | Phase::Failed, None) if has_ports => ApplyState::Pending(None),
            (_, None) => ApplyState::Applied,
        }
    }

    /// Records that a pending change of a Service has been applied.
    fn apply(&mut self, name: &NamespacedName, change: PendingChange, index: usize, sync: &Synced<'_>) {
        let now = Some(sync.ended.wall);
        let Some(service) = self.services.as_mut().and_then(|services| services.get_mut(name)) else { return };
        if service.is_deleted {
            self.remove_deleted(name);
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

    /// Removes a Service whose deletion has been applied in all families.
    fn remove_deleted(&mut self, name: &NamespacedName) {
        let is_pending = |family: &FamilyState| family.phase == Phase::Starting || family.pending.contains_key(name);
        let Some(services) = &mut self.services else { return };
        if services.get(name).is_some_and(|service| service.is_deleted) && !self.families.iter().any(is_pending) {
            services.remove(name);
        }
    }

    fn key(&self, kind: Kind, name: &NamespacedName) -> u64 {
        self.hasher.hash_one((kind, name))
    }
}

/// The most Services of a part: some 20 KB of text.
const PART: usize = 64;

/// The most Services that are examined for a part.
const EXAMINED: usize = 1024;
