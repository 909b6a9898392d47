//! From what all files hold to what is wanted.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map},
    path::{Path, PathBuf},
    sync::Arc,
};

use ferroute_api::Kind;

use super::{
    entry::{Entry, Holds},
    file::FileState,
    state::{Digest, Key, State},
};
use crate::{ObjectName, Problem, Resource};

/// What is wanted, and the objects that are there twice. The first counts, in the order of the files' names and within
/// each file; but files that are missing come last, since their objects may just have moved to other files. Slices that
/// somebody has written count before Endpoints of the same Service.
pub(super) fn merge(files: &BTreeMap<PathBuf, FileState>, missing: &HashSet<PathBuf>) -> (State, Vec<Arc<Problem>>) {
    let mut merged = Merged::new(missing);
    let mut endpoints = Vec::new();
    let there = entries(files).filter(|(path, _)| !missing.contains(*path));
    let not_there = entries(files).filter(|(path, _)| missing.contains(*path));
    for (path, entry) in there.chain(not_there) {
        if !merged.claim(entry.kind(), &entry.name, path) {
            continue;
        }
        match &entry.holds {
            Holds::Service(digest) => merged.want(Resource::Services, &entry.name, *digest),
            Holds::Node(digest) => merged.want(Resource::Nodes, &entry.name, *digest),
            Holds::ServiceCidr(digest) => merged.want(Resource::ServiceCidrs, &entry.name, *digest),
            Holds::Slice { digest, service } => {
                merged.want(Resource::EndpointSlices, &entry.name, *digest);
                if let Some(service) = service {
                    merged.sliced.insert((&entry.name.namespace, service));
                }
            }
            Holds::Endpoints(slices) => endpoints.push((path, entry, slices)),
        }
    }
    for (path, entry, slices) in endpoints {
        if merged.sliced.contains(&(&*entry.name.namespace, &*entry.name.name)) {
            continue;
        }
        for (name, digest) in slices {
            if merged.claim(Kind::EndpointSlice, name, path) {
                merged.want(Resource::EndpointSlices, name, *digest);
            }
        }
    }
    // Made at once, it is packed more tightly than one that grows.
    (merged.wanted.into_iter().collect(), merged.duplicates)
}

fn entries(files: &BTreeMap<PathBuf, FileState>) -> impl Iterator<Item = (&Path, &Entry)> {
    files.iter().flat_map(|(path, file)| {
        file.documents.iter().flat_map(|document| document.entries.iter()).map(move |entry| (path.as_path(), entry))
    })
}

struct Merged<'f> {
    missing: &'f HashSet<PathBuf>,
    wanted: Vec<(Key, Digest)>,
    duplicates: Vec<Arc<Problem>>,
    /// The file that each object was first in.
    first: HashMap<(Kind, &'f ObjectName), &'f Path>,
    /// Services that have slices of their own, by namespace and name.
    sliced: HashSet<(&'f str, &'f str)>,
}

impl<'f> Merged<'f> {
    fn new(missing: &'f HashSet<PathBuf>) -> Self {
        let (wanted, duplicates) = (Vec::new(), Vec::new());
        Self { missing, wanted, duplicates, first: HashMap::new(), sliced: HashSet::new() }
    }

    /// Whether this is the first object of its kind and name.
    fn claim(&mut self, kind: Kind, name: &'f ObjectName, path: &'f Path) -> bool {
        match self.first.entry((kind, name)) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(path);
                true
            }
            hash_map::Entry::Occupied(_) if self.missing.contains(path) => false,
            hash_map::Entry::Occupied(entry) => {
                self.duplicates.push(Arc::new(Problem::Duplicate {
                    kind,
                    name: name.clone(),
                    used: (*entry.get()).to_owned(),
                    passed_over: path.to_owned(),
                }));
                false
            }
        }
    }

    fn want(&mut self, resource: Resource, name: &ObjectName, digest: Digest) {
        self.wanted.push((Key { resource, name: name.clone() }, digest));
    }
}
