use std::{
    collections::{HashMap, hash_map::Entry},
    mem,
};

use ferroute_core::NamespacedName;

/// Names and versions of the objects of one kind, used to emit each event only once and to find objects that were
/// deleted while no watch was open.
///
/// Resource versions of one kind are increasing numbers, which Kubernetes did not guarantee for a long time. Only the
/// dropping of repeated watch events relies on it; versions that are not numbers always count as new.
#[derive(Debug, Default)]
pub(super) struct VersionCache {
    objects: HashMap<NamespacedName, CachedObject>,
    /// Objects that were deleted after `settled`.
    deleted: HashMap<NamespacedName, ResourceVersion>,
    /// All changes up to this version have been received: an object that is not cached and not newer is deleted.
    settled: ResourceVersion,
    /// Counts lists.
    list: u32,
}

/// A `resourceVersion`; `None` if it cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResourceVersion(Option<u64>);

/// An object that was removed from the cache.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Removed {
    pub(super) name: NamespacedName,
    /// Whether an event has been emitted for the object, because it was valid at some time.
    pub(super) emitted: bool,
}

#[derive(Debug)]
struct CachedObject {
    version: ResourceVersion,
    emitted: bool,
    /// Number of the last list that contained it, or during which it was added.
    list: u32,
}

impl ResourceVersion {
    /// Parses a version.
    pub(super) fn parse(text: &str) -> Self {
        Self(text.parse().ok())
    }

    /// Reports whether this version is the same as or older than `other`.
    pub(super) fn is_at_most(self, other: Self) -> bool {
        self.0.zip(other.0).is_some_and(|(this, other)| this <= other)
    }

    /// Reports whether this version is older than `other`.
    pub(super) fn is_older_than(self, other: Self) -> bool {
        self != other && self.is_at_most(other)
    }
}

impl VersionCache {
    /// Begins a list. An unfinished list is discarded.
    pub(super) fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// Records an object of a list and reports whether its version is new. If `valid`, an event is then emitted.
    pub(super) fn listed(&mut self, name: &NamespacedName, version: ResourceVersion, valid: bool) -> bool {
        // A list is correct even if its versions are older, because the server has then been restored from a backup.
        let is_new =
            self.objects.get(name).is_none_or(|cached| cached.version != version || version == ResourceVersion(None));
        self.insert(name, CachedObject { version, emitted: valid, list: self.list });
        is_new
    }

    /// Completes a list as of `version`. Returns the objects that are cached but not in the list.
    pub(super) fn end_list(&mut self, version: ResourceVersion) -> Vec<Removed> {
        let list = self.list;
        let removed = self.objects.extract_if(|_, cached| cached.list != list);
        let removed = removed.map(|(name, cached)| Removed { name, emitted: cached.emitted }).collect();
        self.settle(version);
        removed
    }

    /// Records an added or modified object and reports whether its version is new; `valid` as in [`Self::listed`].
    pub(super) fn applied(&mut self, name: &NamespacedName, version: ResourceVersion, valid: bool) -> bool {
        let cached = self.objects.get(name).map(|cached| cached.version).or_else(|| self.deleted.get(name).copied());
        if version.is_at_most(cached.unwrap_or(self.settled)) {
            return false;
        }
        self.deleted.remove(name);
        self.insert(name, CachedObject { version, emitted: valid, list: self.list });
        true
    }

    /// Removes a deleted object, if it is cached and not newer. `version` is the version of the deletion or, in old
    /// clusters, the last version of the object.
    pub(super) fn deleted(&mut self, name: NamespacedName, version: ResourceVersion) -> Option<Removed> {
        match self.objects.entry(name) {
            Entry::Occupied(entry) if version.is_older_than(entry.get().version) => None,
            Entry::Occupied(entry) => {
                let (name, cached) = entry.remove_entry();
                self.deleted.insert(name.clone(), version);
                Some(Removed { name, emitted: cached.emitted })
            }
            Entry::Vacant(entry) => {
                let cached = self.deleted.get(entry.key()).copied().unwrap_or(self.settled);
                if !version.is_at_most(cached) {
                    self.deleted.insert(entry.into_key(), version);
                }
                None
            }
        }
    }

    /// Records that all changes up to this version have been received.
    pub(super) fn settle(&mut self, version: ResourceVersion) {
        self.settled = version;
        self.deleted =
            mem::take(&mut self.deleted).into_iter().filter(|(_, deleted)| !deleted.is_at_most(version)).collect();
    }

    fn insert(&mut self, name: &NamespacedName, mut object: CachedObject) {
        match self.objects.get_mut(name) {
            Some(cached) => {
                object.emitted |= cached.emitted;
                *cached = object;
            }
            None => {
                self.objects.insert(name.clone(), object);
            }
        }
    }
}

#[cfg(test)]
mod tests;
