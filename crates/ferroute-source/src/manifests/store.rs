//! All files and what is in force of them. No async and no waiting here: whoever follows the files says which to read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
};

use super::{
    Stopped,
    entry::Telling,
    file::FileState,
    merge::merge,
    state::{Digest, Key, State, Step, diff},
};
use crate::{Event, Problem, Resource};

/// See the module's text.
#[derive(Default)]
pub(super) struct Store {
    /// By path, which is the order that duplicates are decided in.
    files: BTreeMap<PathBuf, FileState>,
    /// What has been told.
    in_force: State,
    /// Problems that have been told and last, by their text.
    problems: BTreeMap<String, Arc<Problem>>,
    /// `Synced` has been told.
    synced: bool,
}

/// What is to be done with the files.
#[derive(Default)]
pub(super) struct Work {
    /// Files to read, again or for the first time.
    pub(super) read: BTreeSet<PathBuf>,
    /// Files that are gone for good.
    pub(super) gone: Vec<PathBuf>,
    /// Files that are not there at the moment. Their objects stay, except where another file has them now.
    pub(super) missing: HashSet<PathBuf>,
    /// Problems that are not of a file.
    pub(super) problems: Vec<Arc<Problem>>,
    /// All files that there are are known once this is done.
    pub(super) complete: bool,
}

/// Takes batches of events; the error says that nobody wants any more.
pub(super) type Send<'s> = dyn FnMut(Vec<Event>) -> Result<(), Stopped> + 's;

impl Store {
    /// The files that are known.
    pub(super) fn files(&self) -> &BTreeMap<PathBuf, FileState> {
        &self.files
    }

    /// Does the work and tells what has changed by it, all in one batch. Only the first listing takes more: nobody acts
    /// before its end, and large ones are better told while they are read. What turns out to be bad is then taken back.
    pub(super) fn refresh(&mut self, work: Work, send: &mut Send<'_>) -> Result<(), Stopped> {
        let Work { read, gone, missing, problems, complete } = work;
        let mut batch = Vec::new();
        for path in gone {
            self.files.remove(&path);
        }
        let mut fresh = HashMap::new();
        for path in read {
            let former = self.files.remove(&path).unwrap_or_default();
            let (in_force, synced) = (&mut self.in_force, self.synced);
            let state = former.read(&path, &mut |telling| {
                let Telling { key, digest, event, certain } = telling;
                if !synced && certain && !in_force.contains_key(&key) {
                    in_force.insert(key, digest);
                    batch.push(event);
                } else if in_force.get(&key) != Some(&digest) {
                    fresh.insert((key, digest), event);
                }
                if batch.len() < LISTING_BATCH { Ok(()) } else { send(std::mem::take(&mut batch)) }
            })?;
            // A file that has just vanished stays for the time of grace.
            self.files.insert(path, state.unwrap_or(former));
        }
        let (wanted, duplicates) = merge(&self.files, &missing);
        self.step(&wanted, fresh, &mut batch)?;
        if self.in_force == wanted {
            // The same in less memory.
            self.in_force = wanted;
        }
        let of_files = self.files.values().flat_map(|file| file.problems.iter().cloned());
        let all = problems.into_iter().chain(of_files).chain(duplicates).collect();
        self.tell_problems(all, &mut batch);
        if complete && !self.synced {
            self.synced = true;
            batch.extend(Resource::ALL.map(Event::Synced));
        }
        if batch.is_empty() { Ok(()) } else { send(batch) }
    }

    /// From what is in force to what is wanted. `fresh` holds the objects that were read just now.
    fn step(
        &mut self,
        wanted: &State,
        mut fresh: HashMap<(Key, Digest), Event>,
        batch: &mut Vec<Event>,
    ) -> Result<(), Stopped> {
        let steps = diff(&self.in_force, wanted);
        self.recall(wanted, &steps, &mut fresh)?;
        for step in steps {
            match step {
                Step::Delete(key) => {
                    self.in_force.remove(&key);
                    batch.push(deleted(key));
                }
                Step::Apply(key) => {
                    let digest = wanted[&key];
                    // The file may have been changed or spoilt since its object was read. What is in force stays until
                    // the file can be read again.
                    if let Some(event) = fresh.remove(&(key.clone(), digest)) {
                        self.in_force.insert(key, digest);
                        batch.push(event);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads once more the files of objects that have come into force without a change of their own: the one that was
    /// first has gone, say. It is rare, which is why objects are not kept for it.
    fn recall(&self, wanted: &State, steps: &[Step], fresh: &mut HashMap<(Key, Digest), Event>) -> Result<(), Stopped> {
        let missing: BTreeSet<&Key> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Apply(key) if !fresh.contains_key(&(key.clone(), wanted[key])) => Some(key),
                _ => None,
            })
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let files = self.files.iter().filter(|(_, file)| {
            file.documents.iter().flat_map(|document| &document.entries).any(|entry| entry.tells(&missing))
        });
        for (path, _) in files {
            FileState::default().read(path, &mut |telling| {
                if missing.contains(&telling.key) && wanted.get(&telling.key) == Some(&telling.digest) {
                    fresh.insert((telling.key, telling.digest), telling.event);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn tell_problems(&mut self, all: Vec<Arc<Problem>>, batch: &mut Vec<Event>) {
        let mut now = BTreeMap::new();
        for problem in all {
            now.entry(problem.text()).or_insert(problem);
        }
        let before = std::mem::replace(&mut self.problems, now);
        let over = before.iter().filter(|(text, _)| !self.problems.contains_key(*text));
        batch.extend(over.map(|(_, problem)| Event::Solved(problem.clone())));
        let new = self.problems.iter().filter(|(text, _)| !before.contains_key(*text));
        batch.extend(new.map(|(_, problem)| Event::Problem(problem.clone())));
    }
}

fn deleted(key: Key) -> Event {
    match key.resource {
        Resource::Services => Event::ServiceDeleted(key.name),
        Resource::EndpointSlices => Event::SliceDeleted(key.name),
        Resource::Nodes => Event::NodeDeleted(key.name),
        Resource::ServiceCidrs => Event::ServiceCidrDeleted(key.name),
    }
}

/// Events in one batch of the first listing. Few, because whole objects wait in them.
const LISTING_BATCH: usize = 32;
