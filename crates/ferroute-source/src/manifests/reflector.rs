//! One synchronization: determine the existing files and those to be read, then read them.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Closed,
    file::Stamp,
    paths::Listing,
    store::{Send, Store, Work},
    watch::{Changes, WatchIndex, Watches},
};
use crate::Problem;

/// The state that is kept between two synchronizations.
pub(super) struct Reflector {
    path: PathBuf,
    /// Time for which a file may be missing before its objects are deleted.
    grace_period: Duration,
    watches: Watches,
    store: Store,
    /// Files in the store that are missing, and since when.
    missing: HashMap<PathBuf, Instant>,
    /// Changes while the files could not be listed.
    unlisted: Changes,
    /// Files that have changed without an inotify event, with their stamp at the last poll.
    unsettled: HashMap<PathBuf, Stamp>,
}

/// The conditions for the next synchronization.
pub(super) struct NextSync {
    /// Maps inotify events to files.
    pub(super) index: WatchIndex,
    /// Time of the next synchronization if there is no inotify event.
    pub(super) due: Option<Instant>,
}

impl Reflector {
    pub(super) fn new(path: PathBuf, grace_period: Duration, watches: Watches) -> Self {
        let (missing, unlisted, unsettled) = (HashMap::new(), Changes::default(), HashMap::new());
        Self { path, grace_period, watches, store: Store::default(), missing, unlisted, unsettled }
    }

    /// Reads the changed files and sends the resulting events.
    pub(super) fn sync(&mut self, changes: &Changes, send: &mut Send<'_>) -> Result<NextSync, Closed> {
        let (plan, index, mut problems) = self.watches.update(&self.path);
        self.unlisted.add(changes);
        let mut is_listed = true;
        let (work, due) = match plan.listing {
            Ok(listing) => {
                let changes = std::mem::take(&mut self.unlisted);
                let read = self.files_to_read(&listing, &changes);
                let (deleted, due) = self.deleted_files(&listing, Instant::now());
                let missing = self.missing.keys().cloned().collect();
                if listing.files.is_empty() && listing.not_read.is_empty() && self.missing.is_empty() {
                    problems.push(Arc::new(Problem::NoFiles { path: self.path.clone() }));
                }
                // The target of a link may be replaced within the grace period.
                let is_due = |path: &PathBuf| !self.missing.contains_key(path);
                let not_read = listing.not_read.into_iter().filter(|(path, _)| is_due(path));
                problems.extend(not_read.map(|(path, reason)| Arc::new(Problem::NotRead { path, reason })));
                (Work { read, deleted, missing, problems, complete: true }, due)
            }
            Err(source) => {
                problems.push(Arc::new(Problem::Unreadable { path: self.path.clone(), source }));
                self.missing.clear();
                is_listed = false;
                (Work { problems, ..Work::default() }, None)
            }
        };
        self.store.refresh(work, send)?;
        let retry = (!is_listed || self.store.is_incomplete()).then(|| Instant::now() + RETRY_INTERVAL);
        Ok(NextSync { index, due: due.into_iter().chain(retry).min() })
    }

    fn files_to_read(&mut self, listing: &Listing, changes: &Changes) -> BTreeSet<PathBuf> {
        if changes.all {
            self.unsettled.clear();
            return listing.files.clone();
        }
        let mut read: BTreeSet<PathBuf> = listing.files.intersection(&changes.files).cloned().collect();
        read.extend(self.store.unreadable().filter(|file| listing.files.contains(*file)).cloned());
        if changes.poll {
            let unchanged: Vec<_> = listing.files.difference(&read).cloned().collect();
            read.extend(unchanged.into_iter().filter(|file| self.has_settled(file)));
        }
        read
    }

    /// Reports whether a file has changed without an inotify event and is unchanged since the last poll, so that it is
    /// no longer being written.
    fn has_settled(&mut self, file: &Path) -> bool {
        let current = fs::metadata(file).ok().map(|metadata| Stamp::new(&metadata));
        let read = self.store.files().get(file).and_then(|state| state.stamp);
        let polled = self.unsettled.remove(file);
        match current {
            Some(current) if Some(current) != read => {
                if polled == Some(current) {
                    return true;
                }
                self.unsettled.insert(file.to_owned(), current);
                false
            }
            _ => false,
        }
    }

    /// Returns the files whose grace period has expired, and the time at which the next one expires.
    fn deleted_files(&mut self, listing: &Listing, now: Instant) -> (Vec<PathBuf>, Option<Instant>) {
        self.missing.retain(|file, _| !listing.files.contains(file));
        for file in self.store.files().keys().filter(|file| !listing.files.contains(*file)) {
            self.missing.entry(file.clone()).or_insert(now);
        }
        let expired = self.missing.extract_if(|_, since| *since + self.grace_period <= now);
        let deleted = expired.map(|(file, _)| file).collect();
        let due = self.missing.values().min().map(|since| *since + self.grace_period);
        (deleted, due)
    }
}

/// Interval of attempts to read unreadable files again. The process may have had no file descriptor left, and the end
/// of such a cause is not reported.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
