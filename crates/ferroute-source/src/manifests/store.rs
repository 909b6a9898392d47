//! The state of all files and of the applied objects. It is synchronous and never waits; its caller decides which files
//! to read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
};

use super::{
    Closed,
    entry::{Candidate, Digest, Key},
    file::FileState,
    merge::merge,
};
use crate::{Event, Problem, Resource};

/// A set of objects, by digest. The objects themselves are not kept.
pub(super) type State = BTreeMap<Key, Digest>;

/// The files, and the objects and problems that have been sent.
#[derive(Default)]
pub(super) struct Store {
    /// By path, which is the precedence of duplicate definitions.
    files: BTreeMap<PathBuf, FileState>,
    /// The objects that have been sent.
    applied: State,
    /// The current problems, which have been sent, by text.
    problems: BTreeMap<String, Arc<Problem>>,
    /// [`Event::Synced`] has been sent.
    synced: bool,
    /// The applied objects are the desired ones, and each has a single definition, so that its next version depends on no other
    /// file.
    settled: bool,
}

/// The changes of files to process.
#[derive(Default)]
pub(super) struct Work {
    /// Files to read.
    pub(super) read: BTreeSet<PathBuf>,
    /// Files that have been missing for longer than the grace period.
    pub(super) deleted: Vec<PathBuf>,
    /// Files that are currently missing. Their objects stay applied, unless another file defines them now.
    pub(super) missing: HashSet<PathBuf>,
    /// Problems that do not belong to a file.
    pub(super) problems: Vec<Arc<Problem>>,
    /// After this, the store contains all files.
    pub(super) complete: bool,
}

/// A callback for batches of events.
pub(super) type Send<'s> = dyn FnMut(Vec<Event>) -> Result<(), Closed> + 's;

impl Store {
    pub(super) fn files(&self) -> &BTreeMap<PathBuf, FileState> {
        &self.files
    }

    /// Processes changes of files and sends the resulting events in one batch.
    ///
    /// Only the initial list is sent in several batches, while it is being read: consumers wait for its end anyway, and
    /// a large list would need much memory. Objects in it that turn out to be invalid are deleted again.
    pub(super) fn refresh(&mut self, work: Work, send: &mut Send<'_>) -> Result<(), Closed> {
        let Work { read, deleted, missing, problems, complete } = work;
        let mut batch = Vec::new();
        // The objects with other contents, as long as nothing else may have changed: then no file needs to be merged.
        let mut contents = (self.settled && deleted.is_empty() && missing.is_empty()).then(Vec::new);
        for path in deleted {
            self.files.remove(&path);
        }
        let mut loaded = HashMap::new();
        for path in read {
            let previous = self.files.remove(&path).unwrap_or_default();
            let (applied, synced) = (&mut self.applied, self.synced);
            let read = previous.read(&path, &mut |candidate| {
                let Candidate { key, digest, event, is_mirrored } = candidate;
                if !synced && !is_mirrored && !applied.contains_key(&key) {
                    applied.insert(key, digest);
                    batch.push(event);
                } else if applied.get(&key) != Some(&digest) {
                    loaded.insert((key, digest), event);
                }
                if batch.len() < INITIAL_BATCH { Ok(()) } else { send(std::mem::take(&mut batch)) }
            })?;
            if let Some(state) = &read {
                contents = contents.and_then(|mut all| {
                    all.extend(state.changed_contents(&previous)?);
                    Some(all)
                });
            }
            // A file that has just disappeared stays for the grace period.
            self.files.insert(path, read.unwrap_or(previous));
        }
        let duplicates = match contents {
            Some(contents) => {
                let contents: State = contents.into_iter().collect();
                let changes = contents.into_iter().map(|(key, digest)| (key, Some(digest))).collect();
                self.settled = self.apply(changes, loaded, &mut batch)?;
                Vec::new()
            }
            None => {
                let (desired, duplicates) = merge(&self.files, &missing);
                let is_applied = self.apply(diff(&self.applied, &desired), loaded, &mut batch)?;
                if is_applied {
                    // The same content in less memory.
                    self.applied = desired;
                }
                self.settled = is_applied && duplicates.is_empty() && missing.is_empty();
                duplicates
            }
        };
        let file_problems = self.files.values().flat_map(|file| file.problems.iter().cloned());
        let problems = problems.into_iter().chain(file_problems).chain(duplicates).collect();
        self.update_problems(problems, &mut batch);
        if complete && !self.synced {
            self.synced = true;
            batch.extend(Resource::ALL.map(Event::Synced));
        }
        if batch.is_empty() { Ok(()) } else { send(batch) }
    }

    /// Applies changes from the applied state to the desired one. `loaded` contains the objects that have just been read.
    /// Reports whether all could be applied.
    fn apply(
        &mut self,
        changes: Vec<(Key, Option<Digest>)>,
        mut loaded: HashMap<(Key, Digest), Event>,
        batch: &mut Vec<Event>,
    ) -> Result<bool, Closed> {
        self.reload(&changes, &mut loaded)?;
        let mut all = true;
        for (key, digest) in changes {
            let Some(digest) = digest else {
                self.applied.remove(&key);
                batch.push(Event::deleted(key.resource, key.name));
                continue;
            };
            // The file may have been changed or broken since the object was read. The applied version stays until the
            // file can be read again.
            match loaded.remove(&(key.clone(), digest)) {
                Some(event) => {
                    self.applied.insert(key, digest);
                    batch.push(event);
                }
                None => all = false,
            }
        }
        Ok(all)
    }

    /// Reads the files again that define objects which apply now without having changed themselves, for example because
    /// the first definition was deleted. This is rare, so objects are not kept in memory for it.
    fn reload(
        &self,
        changes: &[(Key, Option<Digest>)],
        loaded: &mut HashMap<(Key, Digest), Event>,
    ) -> Result<(), Closed> {
        let missing: BTreeMap<&Key, Digest> = changes
            .iter()
            .filter_map(|(key, digest)| Some((key, (*digest)?)))
            .filter(|(key, digest)| !loaded.contains_key(&((*key).clone(), *digest)))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let keys: BTreeSet<&Key> = missing.keys().copied().collect();
        let files = self.files.iter().filter(|(_, file)| {
            file.documents.iter().flat_map(|document| document.entries.iter()).any(|entry| entry.defines_any(&keys))
        });
        for (path, _) in files {
            FileState::default().read(path, &mut |candidate| {
                if missing.get(&candidate.key) == Some(&candidate.digest) {
                    loaded.insert((candidate.key, candidate.digest), candidate.event);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Reports new problems, and those that no longer exist.
    fn update_problems(&mut self, problems: Vec<Arc<Problem>>, batch: &mut Vec<Event>) {
        let mut current = BTreeMap::new();
        for problem in problems {
            current.entry(problem.text()).or_insert(problem);
        }
        let previous = std::mem::replace(&mut self.problems, current);
        let resolved = previous.iter().filter(|(text, _)| !self.problems.contains_key(*text));
        batch.extend(resolved.map(|(_, problem)| Event::Resolved(problem.clone())));
        let new = self.problems.iter().filter(|(text, _)| !previous.contains_key(*text));
        batch.extend(new.map(|(_, problem)| Event::Problem(problem.clone())));
    }
}

/// Returns the changes from `old` to `new`, in the order of the keys: the new digest, or `None` for a deletion.
fn diff(old: &State, new: &State) -> Vec<(Key, Option<Digest>)> {
    let deleted = old.keys().filter(|key| !new.contains_key(key)).map(|key| (key.clone(), None));
    let applied = new.iter().filter(|(key, digest)| old.get(key) != Some(digest));
    let applied = applied.map(|(key, digest)| (key.clone(), Some(*digest)));
    let mut changes: Vec<_> = deleted.chain(applied).collect();
    changes.sort_by(|(a, _), (b, _)| a.cmp(b));
    changes
}

/// Number of events in a batch of the initial list. Small, because batches contain whole objects.
const INITIAL_BATCH: usize = 32;

#[cfg(test)]
mod tests;
