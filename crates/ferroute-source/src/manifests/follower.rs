//! One round of following: look where the files are, decide which to read, read them.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Stopped,
    file::Stamp,
    paths::Listing,
    store::{Send, Store, Work},
    watch::{Dirty, Index, Watched},
};
use crate::Problem;

/// Everything that is known, between two rounds.
pub(super) struct Follower {
    path: PathBuf,
    /// How long a file may be missing before its objects are gone.
    grace: Duration,
    watched: Watched,
    store: Store,
    /// Files that are known but not there, and since when.
    missing: HashMap<PathBuf, Instant>,
    /// Files that have changed without a notice, as they looked last.
    unsettled: HashMap<PathBuf, Stamp>,
}

/// What a round leads to.
pub(super) struct Next {
    /// Tells notices apart until the next round.
    pub(super) index: Index,
    /// When the next round is due even without a notice.
    pub(super) due: Option<Instant>,
}

impl Follower {
    pub(super) fn new(path: PathBuf, grace: Duration, watched: Watched) -> Self {
        let (missing, unsettled) = (HashMap::new(), HashMap::new());
        Self { path, grace, watched, store: Store::default(), missing, unsettled }
    }

    /// Reads what is dirty and tells what has changed by it.
    pub(super) fn round(&mut self, dirty: &Dirty, send: &mut Send<'_>) -> Result<Next, Stopped> {
        let (plan, index, mut problems) = self.watched.arrange(&self.path);
        let (work, due) = match plan.listing {
            Ok(listing) => {
                let read = self.files_to_read(&listing, dirty);
                let (gone, due) = self.vanished(&listing, Instant::now());
                let missing = self.missing.keys().cloned().collect();
                (Work { read, gone, missing, problems, complete: true }, due)
            }
            Err(source) => {
                problems.push(Arc::new(Problem::Unreadable { path: self.path.clone(), source }));
                self.missing.clear();
                (Work { problems, ..Work::default() }, None)
            }
        };
        self.store.refresh(work, send)?;
        Ok(Next { index, due })
    }

    fn files_to_read(&mut self, listing: &Listing, dirty: &Dirty) -> BTreeSet<PathBuf> {
        if dirty.all {
            self.unsettled.clear();
            return listing.files.clone();
        }
        let mut read: BTreeSet<PathBuf> = listing.files.intersection(&dirty.files).cloned().collect();
        if dirty.look {
            let others: Vec<_> = listing.files.difference(&read).cloned().collect();
            read.extend(others.into_iter().filter(|file| self.has_settled(file)));
        }
        read
    }

    /// Whether a file has changed, without a notice, and is the same at two looks: nobody is writing it any more.
    fn has_settled(&mut self, file: &Path) -> bool {
        let now = fs::metadata(file).ok().map(|metadata| Stamp::of(&metadata));
        let known = self.store.files().get(file).and_then(|known| known.stamp);
        let former = self.unsettled.remove(file);
        match now {
            Some(now) if Some(now) != known => {
                if former == Some(now) {
                    return true;
                }
                self.unsettled.insert(file.to_owned(), now);
                false
            }
            _ => false,
        }
    }

    /// The files that have been missing for too long, and when the next ones will have been.
    fn vanished(&mut self, listing: &Listing, now: Instant) -> (Vec<PathBuf>, Option<Instant>) {
        self.missing.retain(|file, _| !listing.files.contains(file));
        for file in self.store.files().keys().filter(|file| !listing.files.contains(*file)) {
            self.missing.entry(file.clone()).or_insert(now);
        }
        let gone = self.missing.extract_if(|_, since| *since + self.grace <= now).map(|(file, _)| file).collect();
        let due = self.missing.values().min().map(|since| *since + self.grace);
        (gone, due)
    }
}
