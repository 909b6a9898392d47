//! The inotify watches, and the mapping from inotify events to files.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio::time::{Instant, sleep_until};

use super::{
    paths::{Plan, is_like_manifest},
    reflector::NextSync,
};
use crate::Problem;

/// Files that may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Whether any file may have changed.
    pub(super) all: bool,
    /// Files that have changed or disappeared.
    pub(super) files: BTreeSet<PathBuf>,
    /// Whether the other files are due for polling.
    pub(super) poll: bool,
}

impl Changes {
    /// Any file may have changed.
    pub(super) fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// Adds other changes.
    pub(super) fn add(&mut self, other: &Self) {
        let Self { all, files, poll } = other;
        self.all |= all;
        self.poll |= poll;
        self.files.extend(files.iter().cloned());
    }
}

/// The watched directories.
pub(super) struct Watches {
    inotify: inotify::Watches,
    directories: HashMap<PathBuf, WatchDescriptor>,
}

/// A mapping from inotify events to files.
#[derive(Debug, Default)]
pub(super) struct WatchIndex {
    directories: HashMap<WatchDescriptor, PathBuf>,
    /// The directory of manifests: its watch, and the path as configured.
    manifests: Option<(WatchDescriptor, PathBuf)>,
    /// Other directory entries, with the file that each affects; `None` if it affects all files.
    places: HashMap<(WatchDescriptor, OsString), Vec<Option<PathBuf>>>,
}

impl Watches {
    pub(super) fn new(inotify: inotify::Watches) -> Self {
        Self { inotify, directories: HashMap::new() }
    }

    /// Watches exactly the directories that determine the resolution of `path`. No change after the creation of the
    /// returned plan is missed.
    pub(super) fn update(&mut self, path: &Path) -> (Plan, WatchIndex, Vec<Arc<Problem>>) {
        let mut problems = Vec::new();
        let mut plan = Plan::new(path);
        for _ in 0..MAX_ROUNDS {
            problems.clear();
            if !self.watch(&plan, &mut problems) {
                break;
            }
            // Changes before the watch was added went unnoticed.
            plan = Plan::new(path);
        }
        let index = self.index(path, &plan);
        (plan, index, problems)
    }

    /// Watches the directories of a plan, and reports whether any of them was not watched before.
    fn watch(&mut self, plan: &Plan, problems: &mut Vec<Arc<Problem>>) -> bool {
        let mut directories = HashMap::new();
        let mut is_new = false;
        for directory in plan.directories() {
            match self.inotify.add(directory, mask()) {
                Ok(watch) => {
                    is_new |= self.directories.get(directory) != Some(&watch);
                    directories.insert(directory.to_owned(), watch);
                }
                // The directory has disappeared in the meantime; the watch of its parent reports that.
                Err(error) if error.kind() == io::ErrorKind::NotFound => is_new = true,
                Err(source) => problems.push(Arc::new(Problem::Unwatched { path: directory.to_owned(), source })),
            }
        }
        let previous = std::mem::replace(&mut self.directories, directories);
        for watch in previous.into_values().filter(|watch| !self.directories.values().any(|current| current == watch)) {
            // Fails if the directory has been removed: the kernel has then removed the watch.
            let _ = self.inotify.remove(watch);
        }
        is_new
    }

    fn index(&self, path: &Path, plan: &Plan) -> WatchIndex {
        let mut index = WatchIndex::default();
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

impl WatchIndex {
    /// Adds the files that an inotify event affects to `changes`. Reports whether the event is relevant.
    fn add(&self, event: &inotify::EventOwned, changes: &mut Changes) -> bool {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            changes.all = true;
            return true;
        }
        let Some(directory) = self.directories.get(&event.wd) else { return false };
        let Some(name) = &event.name else {
            // The directory itself was deleted, moved or unmounted.
            changes.all |= !event.mask.intersects(EventMask::ATTRIB);
            return changes.all;
        };
        if event.mask.contains(EventMask::CREATE) && !is_complete(&directory.join(name)) {
            return false;
        }
        let mut is_relevant = false;
        for file in self.places.get(&(event.wd.clone(), name.clone())).into_iter().flatten() {
            is_relevant = true;
            match file {
                Some(file) => {
                    changes.files.insert(file.clone());
                }
                None => changes.all = true,
            }
        }
        if let Some((watch, path)) = &self.manifests
            && *watch == event.wd
            && is_like_manifest(name)
        {
            is_relevant = true;
            changes.files.insert(path.join(name));
        }
        is_relevant
    }
}

/// Reports whether a new directory entry is complete: links and directories are, and so are hard links to a file. Other
/// files are still being written, and another event will report that they were closed.
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

/// A reader of inotify events.
pub(super) struct EventReader {
    stream: EventStream<Vec<u8>>,
    poll_interval: Duration,
    /// Time of the next poll for changes without an inotify event.
    poll_at: Instant,
}

impl EventReader {
    pub(super) fn new(inotify: Inotify, poll_interval: Duration) -> io::Result<Self> {
        let stream = inotify.into_event_stream(vec![0; BUFFER_SIZE])?;
        Ok(Self { stream, poll_interval, poll_at: Instant::now() + poll_interval })
    }

    /// Waits for a change and then for a pause in changes, or until a synchronization is due anyway.
    pub(super) async fn wait(&mut self, next: &NextSync) -> io::Result<Changes> {
        let mut changes = Changes::default();
        let mut sync_at = next.due.map_or(self.poll_at, |due| self.poll_at.min(due.into()));
        let mut sync_by = None;
        loop {
            tokio::select! {
                event = self.stream.next() => {
                    let event = event.ok_or(io::ErrorKind::UnexpectedEof)??;
                    if next.index.add(&event, &mut changes) {
                        let now = Instant::now();
                        sync_at = (now + PAUSE).min(*sync_by.get_or_insert(now + MAX_WAIT));
                    }
                }
                () = sleep_until(sync_at) => break,
            }
        }
        if self.poll_at <= Instant::now() {
            self.poll_at = Instant::now() + self.poll_interval;
            changes.poll = true;
        }
        Ok(changes)
    }
}

/// Maximum number of attempts to watch directories that appear and disappear at the same time. Later events report the
/// remaining changes.
const MAX_ROUNDS: usize = 8;

/// Time without inotify events before files are read: tools that write several files write them in quick succession.
const PAUSE: Duration = Duration::from_millis(50);

/// Maximum time to wait for such a pause.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// Enough for hundreds of inotify events.
const BUFFER_SIZE: usize = 16 * 1024;
