//! The kernel's notices: which directories are watched, and which files a notice is about.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use inotify::{EventMask, WatchDescriptor, WatchMask, Watches};

use super::paths::{Plan, is_manifest};
use crate::Problem;

/// What may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dirty {
    /// Everything; nobody knows.
    pub(super) all: bool,
    /// These files have changed, or are gone.
    pub(super) files: BTreeSet<PathBuf>,
    /// Others may have changed without a notice.
    pub(super) look: bool,
}

impl Dirty {
    /// Everything may have changed.
    pub(super) fn all() -> Self {
        Self { all: true, ..Self::default() }
    }
}

/// The directories that are watched.
pub(super) struct Watched {
    watches: Watches,
    directories: HashMap<PathBuf, WatchDescriptor>,
}

/// Tells what a notice is about.
#[derive(Debug, Default)]
pub(super) struct Index {
    directories: HashMap<WatchDescriptor, PathBuf>,
    /// The directory of the manifests: as it is watched, and as people know it.
    manifests: Option<(WatchDescriptor, PathBuf)>,
    /// Other places; those without a file mean everything.
    places: HashMap<(WatchDescriptor, OsString), Vec<Option<PathBuf>>>,
}

impl Watched {
    pub(super) fn new(watches: Watches) -> Self {
        Self { watches, directories: HashMap::new() }
    }

    /// Watches every directory that decides what `path` leads to, and no other. When this returns, no change after the
    /// plan's making goes unnoticed.
    pub(super) fn arrange(&mut self, path: &Path) -> (Plan, Index, Vec<Arc<Problem>>) {
        let mut problems = Vec::new();
        let mut plan = Plan::of(path);
        for _ in 0..MAX_ROUNDS {
            problems.clear();
            if !self.watch(&plan, &mut problems) {
                break;
            }
            // What happened before the watch began went unnoticed, so look once more.
            plan = Plan::of(path);
        }
        let index = self.index(path, &plan);
        (plan, index, problems)
    }

    /// Whether any directory has not been watched before.
    fn watch(&mut self, plan: &Plan, problems: &mut Vec<Arc<Problem>>) -> bool {
        let mut directories = HashMap::new();
        let mut is_new = false;
        for directory in plan.directories() {
            match self.watches.add(directory, mask()) {
                Ok(watch) => {
                    is_new |= self.directories.get(directory) != Some(&watch);
                    directories.insert(directory.to_owned(), watch);
                }
                // It has gone in the meantime, which its own directory tells.
                Err(error) if error.kind() == io::ErrorKind::NotFound => is_new = true,
                Err(source) => problems.push(Arc::new(Problem::Unwatched { path: directory.to_owned(), source })),
            }
        }
        let former = std::mem::replace(&mut self.directories, directories);
        for watch in former.into_values().filter(|watch| !self.directories.values().any(|now| now == watch)) {
            // The kernel has removed it by itself if the directory is gone.
            let _ = self.watches.remove(watch);
        }
        is_new
    }

    fn index(&self, path: &Path, plan: &Plan) -> Index {
        let mut index = Index::default();
        index.directories.extend(self.directories.iter().map(|(path, watch)| (watch.clone(), path.clone())));
        let mut add = |place: &Path, file: Option<&Path>| {
            let watch = place.parent().and_then(|directory| self.directories.get(directory));
            if let (Some(watch), Some(name)) = (watch, place.file_name()) {
                index.places.entry((watch.clone(), name.to_owned())).or_default().push(file.map(Path::to_owned));
            }
        };
        plan.root.iter().for_each(|place| add(place, None));
        let Ok(listing) = &plan.listing else { return index };
        for (link, places) in &listing.links {
            places.iter().for_each(|place| add(place, Some(link)));
        }
        let real = listing.directory.as_ref().and_then(|directory| self.directories.get(directory));
        index.manifests = real.map(|watch| (watch.clone(), path.to_owned()));
        index
    }
}

impl Index {
    /// Adds to `dirty` what a notice is about; false if it is nothing of interest.
    pub(super) fn note(&self, notice: &inotify::EventOwned, dirty: &mut Dirty) -> bool {
        if notice.mask.contains(EventMask::Q_OVERFLOW) {
            dirty.all = true;
            return true;
        }
        let Some(directory) = self.directories.get(&notice.wd) else { return false };
        let Some(name) = &notice.name else {
            // The directory itself has gone, or been moved or unmounted.
            dirty.all |= !notice.mask.intersects(EventMask::ATTRIB);
            return dirty.all;
        };
        if notice.mask.contains(EventMask::CREATE) && !is_complete(&directory.join(name)) {
            return false;
        }
        let mut is_relevant = false;
        for file in self.places.get(&(notice.wd.clone(), name.clone())).into_iter().flatten() {
            is_relevant = true;
            match file {
                Some(file) => {
                    dirty.files.insert(file.clone());
                }
                None => dirty.all = true,
            }
        }
        if let Some((watch, path)) = &self.manifests
            && *watch == notice.wd
            && is_manifest(name)
        {
            is_relevant = true;
            dirty.files.insert(path.join(name));
        }
        is_relevant
    }
}

/// Whether something new is all there: links and directories are at once, and so is a second name of a file. Another
/// file is only being written; the notice that it has been closed will come.
fn is_complete(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file() || metadata.nlink() > 1)
}

fn mask() -> WatchMask {
    WatchMask::CLOSE_WRITE
        | WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::ATTRIB
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR
}

/// How often to look again while directories come and go under our eyes. Their notices come later in any case.
const MAX_ROUNDS: usize = 8;
