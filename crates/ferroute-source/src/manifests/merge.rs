//! Merges the objects of all files into the desired state.

use std::{
    collections::{HashMap, HashSet, hash_map},
    path::{Path, PathBuf},
    sync::Arc,
};

use ferroute_api::Kind;
use ferroute_core::NamespacedName;

use super::{
    entry::{Digest, Entry, Key, ServiceDigest},
    file::FileState,
    store::Contents,
};
use crate::Problem;

/// Returns the desired state, and the duplicate definitions.
///
/// Among several definitions of an object, the first one applies, in the order of paths and within each file. Files
/// that are missing come last, since their objects may have moved to other files. EndpointSlices take precedence over
/// Endpoints of the same Service.
pub(super) fn merge<'f>(
    files: impl Iterator<Item = (&'f PathBuf, &'f FileState)> + Clone,
    missing: &'f HashSet<PathBuf>,
) -> (Contents, Vec<Arc<Problem>>) {
    let mut merge = Merge::new(missing);
    let mut endpoints = Vec::new();
    let present = entries(files.clone()).filter(|(path, _)| !missing.contains(*path));
    let absent = entries(files).filter(|(path, _)| missing.contains(*path));
    for (path, entry) in present.chain(absent) {
        if !merge.define(entry.kind(), entry.name(), path) {
            continue;
        }
        match entry {
            Entry::Object { key, digest, service } => {
                merge.desired.push((key.clone(), *digest));
                merge.services_with_slices.extend(service);
            }
            Entry::Endpoints { name, slices, .. } => endpoints.push((path, name, slices)),
        }
    }
    for (path, name, slices) in endpoints {
        if merge.services_with_slices.contains(&ServiceDigest::new(name.namespace(), name.name())) {
            continue;
        }
        for (key, digest) in slices {
            if merge.define(Kind::EndpointSlice, &key.name, path) {
                merge.desired.push((key.clone(), *digest));
            }
        }
    }
    (merge.desired.into_iter().collect(), merge.duplicates)
}

fn entries<'f>(
    files: impl Iterator<Item = (&'f PathBuf, &'f FileState)>,
) -> impl Iterator<Item = (&'f Path, &'f Entry)> {
    files.flat_map(|(path, file)| {
        file.documents.iter().flat_map(|document| document.entries.iter()).map(move |entry| (path.as_path(), entry))
    })
}

struct Merge<'f> {
    missing: &'f HashSet<PathBuf>,
    desired: Vec<(Key, Digest)>,
    duplicates: Vec<Arc<Problem>>,
    /// The file of each object's first definition.
    defined: HashMap<(Kind, &'f NamespacedName), &'f Path>,
    /// Services with EndpointSlices.
    services_with_slices: HashSet<ServiceDigest>,
}

impl<'f> Merge<'f> {
    fn new(missing: &'f HashSet<PathBuf>) -> Self {
        let (desired, duplicates) = (Vec::new(), Vec::new());
        Self { missing, desired, duplicates, defined: HashMap::new(), services_with_slices: HashSet::new() }
    }

    /// Records a definition and reports whether it is the first one of the object.
    fn define(&mut self, kind: Kind, name: &'f NamespacedName, path: &'f Path) -> bool {
        match self.defined.entry((kind, name)) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(path);
                true
            }
            hash_map::Entry::Occupied(_) if self.missing.contains(path) => false,
            hash_map::Entry::Occupied(entry) => {
                self.duplicates.push(Arc::new(Problem::Duplicate {
                    kind,
                    name: name.clone(),
                    applied: (*entry.get()).to_owned(),
                    ignored: path.to_owned(),
                }));
                false
            }
        }
    }
}
