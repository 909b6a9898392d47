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
    file::{FileState, Reader},
    merge::merge,
};
use crate::{Event, Problem, Resource};

/// A set of objects, by digest. The objects themselves are not kept.
pub(super) type Contents = BTreeMap<Key, Digest>;

/// The files, and the objects and problems that have been sent.
#[derive(Default)]
pub(super) struct Store {
    /// By path, which is the precedence of duplicate definitions.
    files: BTreeMap<PathBuf, FileState>,
    /// Objects that have been sent; `None` if they are exactly those that the files define, each once. The next version
    /// of an object then does not depend on other files.
    applied: Option<Contents>,
    /// The current problems, which have been sent, by text.
    problems: BTreeMap<String, Arc<Problem>>,
    /// [`Event::Synced`] has been sent.
    synced: bool,
    /// Whether [`Event::Synced`] has been sent.
    lacks_object: bool,
    reader: Reader,
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
    /// Returns a store that reads its files with `reader`.
    pub(super) fn with_reader(reader: Reader) -> Self {
        Self { reader, ..Self::default() }
    }

    pub(super) fn files(&self) -> &BTreeMap<PathBuf, FileState> {
        &self.files
    }

    /// Returns the files that could not be read, for a reason that is not in them.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().filter(|(_, file)| file.is_unreadable()).map(|(path, _)| path)
    }

    /// Reports whether the next call of [`Self::refresh`] may apply more, although no file has changed.
    pub(super) fn is_incomplete(&self) -> bool {
        self.lacks_object || self.unreadable().next().is_some()
    }

    /// Processes changes of files and sends the resulting events in one batch.
    ///
    /// Only the initial list is sent in several batches, while it is being read: consumers wait for its end anyway, and
    /// a large list would need much memory. Objects in it that later prove to be invalid are deleted again.
    pub(super) fn refresh(&mut self, work: Work, send: &mut Send<'_>) -> Result<(), Closed> {
        let Work { read, deleted, missing, problems, complete } = work;
        let mut batch = Vec::new();
        if !self.synced {
            self.applied.get_or_insert_default();
        }
        // Objects with changed contents, as long as there are no other changes: no file needs to be merged then.
        let mut contents = (self.applied.is_none() && deleted.is_empty() && missing.is_empty()).then(Vec::new);
        let mut previous_files = BTreeMap::new();
        for path in deleted {
            previous_files.extend(self.files.remove_entry(&path));
        }
        let mut loaded = HashMap::new();
        for path in read {
            let previous = self.files.remove(&path).unwrap_or_default();
            let (applied, synced) = (&mut self.applied, self.synced);
            let read = self.reader.read(&path, &previous, &mut |candidate| {
                let Candidate { key, digest, event, is_mirrored } = candidate;
                match applied {
                    Some(applied) if !synced && !is_mirrored && !applied.contains_key(&key) => {
                        applied.insert(key, digest);
                        batch.push(event);
                    }
                    Some(applied) if applied.get(&key) == Some(&digest) => {}
                    _ => drop(loaded.insert((key, digest), event)),
                }
                if batch.len() < INITIAL_BATCH { Ok(()) } else { send(std::mem::take(&mut batch)) }
            })?;
            let Some(file) = read else {
                // A file that has just disappeared stays for the grace period.
                self.files.insert(path, previous);
                continue;
            };
            contents = contents.and_then(|mut all| {
                all.extend(file.changed_contents(&previous)?);
                Some(all)
            });
            self.files.insert(path.clone(), file);
            previous_files.insert(path, previous);
        }
        let duplicates = match contents {
            Some(contents) => {
                let contents: Contents = contents.into_iter().collect();
                let event = |object| loaded.remove(&object).expect("bug: changed object was not read");
                batch.extend(contents.into_iter().map(event));
                Vec::new()
            }
            None => self.apply_merged(&previous_files, &missing, loaded, &mut batch)?,
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

    /// Applies the differences between the applied objects and those that the files define. `previous` are earlier versions of
    /// changed files, and deleted ones; `loaded` contains the objects that have just been read. Returns the duplicate definitions.
    fn apply_merged(
        &mut self,
        previous: &BTreeMap<PathBuf, FileState>,
        missing: &HashSet<PathBuf>,
        mut loaded: HashMap<(Key, Digest), Event>,
        batch: &mut Vec<Event>,
    ) -> Result<Vec<Arc<Problem>>, Closed> {
        let mut applied = self.applied.take().unwrap_or_else(|| {
            let unchanged = self.files.iter().filter(|(path, _)| !previous.contains_key(*path));
            merge(unchanged.chain(previous), &HashSet::new()).0
        });
        let (desired, duplicates) = merge(self.files.iter(), missing);
        let changes = diff(&applied, &desired);
        self.lacks_object = self.reload(&changes, &mut loaded)?;
        for (key, digest) in changes {
            let Some(digest) = digest else {
                applied.remove(&key);
                batch.push(Event::deleted(key.resource, key.name));
                continue;
            };
            // The file may have been changed or may have become invalid since the object was read. The applied version
            // stays until the file can be read again.
            if let Some(event) = loaded.remove(&(key.clone(), digest)) {
                applied.insert(key, digest);
                batch.push(event);
            }
        }
        let is_desired = applied == desired;
        let is_settled = is_desired && duplicates.is_empty() && missing.is_empty();
        // Collected at once, `desired` is packed more densely.
        self.applied = (!is_settled).then_some(if is_desired { desired } else { applied });
        Ok(duplicates)
    }

    /// Reads the files again that define objects that apply now although they have not changed, for example because the
    /// first definition was deleted. This is rare, so objects are not kept in memory for it. Returns true if a file
    /// could not be read.
    fn reload(
        &self,
        changes: &[(Key, Option<Digest>)],
        loaded: &mut HashMap<(Key, Digest), Event>,
    ) -> Result<bool, Closed> {
        let missing: BTreeMap<&Key, Digest> = changes
            .iter()
            .filter_map(|(key, digest)| Some((key, (*digest)?)))
            .filter(|(key, digest)| !loaded.contains_key(&((*key).clone(), *digest)))
            .collect();
        if missing.is_empty() {
            return Ok(false);
        }
        let keys: BTreeSet<&Key> = missing.keys().copied().collect();
        let files = self.files.iter().filter(|(_, file)| {
            file.documents.iter().flat_map(|document| document.entries.iter()).any(|entry| entry.defines_any(&keys))
        });
        let mut is_unreadable = false;
        for (path, _) in files {
            let read = self.reader.read(path, &FileState::default(), &mut |candidate| {
                if missing.get(&candidate.key) == Some(&candidate.digest) {
                    loaded.insert((candidate.key, candidate.digest), candidate.event);
                }
                Ok(())
            })?;
            is_unreadable |= read.is_some_and(|file| file.is_unreadable());
        }
        Ok(is_unreadable)
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
fn diff(old: &Contents, new: &Contents) -> Vec<(Key, Option<Digest>)> {
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
