use std::{
    collections::{HashMap, hash_map::Entry},
    mem,
    sync::Arc,
};

use ferroute_api::ObjectMeta;
use ferroute_source::ObjectName;

/// The names of what is there, with versions, so that nothing is told twice and what vanishes while nobody watches can
/// be told as deleted.
///
/// The API server's versions of objects of one kind are numbers that only grow, though for long nobody was to rely on
/// that. Here only passing over old news relies on it; versions that are no numbers are always news.
#[derive(Debug, Default)]
pub(crate) struct Known {
    objects: HashMap<ObjectName, Seen>,
    /// What was deleted after `floor`.
    gone: HashMap<ObjectName, Version>,
    /// Everything up to here has come: what is not known and not newer is gone.
    floor: Version,
    /// Counts listings.
    listing: u32,
    /// The last namespace, to share its text: lists are sorted by it.
    namespace: Arc<str>,
}

/// A `resourceVersion`; `None` is one that cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version(Option<u64>);

/// An object that is not there any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    /// Its name.
    pub(crate) name: ObjectName,
    /// It was valid at some time, so that it has been told.
    pub(crate) told: bool,
}

#[derive(Debug)]
struct Seen {
    version: Version,
    told: bool,
    /// The listing that last had it, or in whose time it came.
    listing: u32,
}

impl Version {
    /// Reads the text of a version.
    pub(crate) fn of(text: &str) -> Self {
        Self(text.parse().ok())
    }

    /// Whether it says nothing new to somebody who knows the other one.
    pub(crate) fn is_old_to(self, known: Self) -> bool {
        self.0.zip(known.0).is_some_and(|(this, known)| this <= known)
    }

    /// Whether it is older than the other one.
    pub(crate) fn is_before(self, other: Self) -> bool {
        self != other && self.is_old_to(other)
    }
}

impl Known {
    /// The name of an object.
    pub(crate) fn name(&mut self, metadata: &ObjectMeta) -> ObjectName {
        if *self.namespace != *metadata.namespace {
            self.namespace = metadata.namespace.as_str().into();
        }
        ObjectName { namespace: Arc::clone(&self.namespace), name: metadata.name.as_str().into() }
    }

    /// A list begins. One that has begun before and not ended does not count.
    pub(crate) fn begin_listing(&mut self) {
        self.listing = self.listing.wrapping_add(1);
    }

    /// A list has an object; `told`: it is valid, so that it will be told if it is news. Whether it is news.
    pub(crate) fn listed(&mut self, name: &ObjectName, version: Version, told: bool) -> bool {
        // A list says what is true, even where it goes back in time because somebody has restored a backup.
        let listing = self.listing;
        let news = self.objects.get(name).is_none_or(|entry| entry.version != version || version == Version(None));
        self.insert(name, Seen { version, told, listing });
        news
    }

    /// A list is complete; gives what is known from before but is not in it. `version` is the list's.
    pub(crate) fn end_listing(&mut self, version: Version) -> Vec<Gone> {
        let listing = self.listing;
        let gone = self.objects.extract_if(|_, entry| entry.listing != listing);
        let gone = gone.map(|(name, entry)| Gone { name, told: entry.told }).collect();
        self.settle(version);
        gone
    }

    /// An object is said to be new or changed; `told` as in [`Self::listed`]. Whether that is news.
    pub(crate) fn applied(&mut self, name: &ObjectName, version: Version, told: bool) -> bool {
        let known = self.objects.get(name).map(|entry| entry.version).or_else(|| self.gone.get(name).copied());
        if version.is_old_to(known.unwrap_or(self.floor)) {
            return false;
        }
        self.gone.remove(name);
        self.insert(name, Seen { version, told, listing: self.listing });
        true
    }

    /// An object is said to be deleted; `version` is that of the deletion or, in old clusters, its last one. Whether
    /// that is news.
    pub(crate) fn deleted(&mut self, name: ObjectName, version: Version) -> Option<Gone> {
        match self.objects.entry(name) {
            Entry::Occupied(entry) if version.is_before(entry.get().version) => None,
            Entry::Occupied(entry) => {
                let (name, entry) = entry.remove_entry();
                self.gone.insert(name.clone(), version);
                Some(Gone { name, told: entry.told })
            }
            Entry::Vacant(entry) => {
                let known = self.gone.get(entry.key()).copied().unwrap_or(self.floor);
                if !version.is_old_to(known) {
                    self.gone.insert(entry.into_key(), version);
                }
                None
            }
        }
    }

    /// Everything up to this version has come.
    pub(crate) fn settle(&mut self, version: Version) {
        self.floor = version;
        self.gone = mem::take(&mut self.gone).into_iter().filter(|(_, gone)| !gone.is_old_to(version)).collect();
    }

    fn insert(&mut self, name: &ObjectName, mut entry: Seen) {
        match self.objects.get_mut(name) {
            Some(known) => {
                entry.told |= known.told;
                *known = entry;
            }
            None => {
                self.objects.insert(name.clone(), entry);
            }
        }
    }
}

#[cfg(test)]
mod tests;
