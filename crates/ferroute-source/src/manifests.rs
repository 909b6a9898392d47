//! The source that reads manifests from a file or a directory.
//!
//! ```text
//!   inotify events ──► changed files ──► Store: read ──► merge ──► diff ──► a batch of events
//!                      (after a pause)         (changed
//!                                               documents only)
//! ```
//!
//! If the changed documents define the same objects as before, with other contents, nothing is merged: the cost of such a change
//! does not depend on the other files.
//!
//! A file is read after its writer has closed it or moved it into place, so that half-written files have no effect. If
//! a file becomes invalid, the last valid version of the whole file stays applied; if it has never been valid, its
//! valid documents are applied. If a file disappears, its objects are deleted after a short grace period, because some
//! editors and tools replace files by removing them first. If the path itself disappears, all objects stay applied,
//! because that is more likely an accident than an intention. Files and paths are read again when they reappear.

mod entry;
mod file;
mod input;
mod merge;
mod paths;
mod reflector;
mod store;
mod text;
mod watch;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use inotify::Inotify;
use tokio::sync::mpsc;

pub use self::input::Input;
use self::{
    paths::Plan,
    reflector::Reflector,
    watch::{Changes, EventReader, Watches},
};
use crate::Event;

/// A file of manifests, or a directory of them.
///
/// In a directory, the files `*.yaml`, `*.yml` and `*.json` are read in the order of their names, without hidden files.
/// Symbolic links are followed. Subdirectories, links that lead nowhere, pipes and devices, and names such as `a.YAML` are
/// [problems](crate::Problem::NotRead) if they look like manifests.
#[derive(Clone, Debug)]
pub struct Manifests {
    path: PathBuf,
    /// Time for which a file may be missing before its objects are deleted.
    grace_period: Duration,
    /// Interval of polling for changes without an inotify event.
    poll_interval: Duration,
}

/// An error that ends [`Manifests::watch`]. Events sent before remain valid.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// inotify is not available.
    #[error("cannot initialize inotify")]
    Init(#[source] io::Error),
    /// inotify events cannot be read.
    #[error("cannot read inotify events")]
    Read(#[source] io::Error),
    /// The thread that reads files cannot be started.
    #[error("cannot start the thread that reads manifests")]
    Start(#[source] io::Error),
    /// The thread that reads files panicked.
    #[error("the thread that reads manifests panicked")]
    Panicked,
}

/// Reads the manifests at `path` once and returns the events of the initial list.
///
/// # Errors
///
/// The path cannot be read. Errors in single files are reported as events.
pub fn read_once(path: &Path) -> io::Result<Vec<Event>> {
    read_once_where(path, |_| true)
}

/// Like [`read_once`], but skips documents whose text is not relevant: parsing takes a hundred times as long as
/// reading.
///
/// # Errors
///
/// The path cannot be read. Errors in single files are reported as events, but not those in skipped documents.
pub fn read_once_where(
    path: &Path,
    is_relevant: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> io::Result<Vec<Event>> {
    Ok(Input::new(path)?.events_where(is_relevant))
}

/// Returns the files at `path` that [`read_once`] reads.
///
/// # Errors
///
/// The path cannot be read.
pub fn manifest_files(path: &Path) -> io::Result<BTreeSet<PathBuf>> {
    Plan::new(path).listing.map(|listing| listing.files)
}

impl Manifests {
    /// Creates a source for the manifests at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), grace_period: GRACE_PERIOD, poll_interval: POLL_INTERVAL }
    }

    /// Sends the initial list and then all changes, until the receiver is dropped. If the future is dropped, a read that
    /// has already started continues in the background until its batch has been sent.
    ///
    /// If the path cannot be read, that is reported as a problem, and [`Event::Synced`] is sent once it can be read.
    ///
    /// # Errors
    ///
    /// inotify does not work, or the thread that reads files cannot be started or is lost.
    pub async fn watch(self, batches: mpsc::Sender<Vec<Event>>) -> Result<(), WatchError> {
        let inotify = Inotify::init().map_err(WatchError::Init)?;
        let mut reflector = Reflector::new(self.path, self.grace_period, Watches::new(inotify.watches()));
        let mut reader = EventReader::new(inotify, self.poll_interval).map_err(WatchError::Init)?;
        let sender = batches.clone();
        // One thread for all requests: starting one for each change can fail on a full machine.
        let (work, mut requests) = mpsc::channel(1);
        let (done, mut results) = mpsc::channel(1);
        let read = move || {
            while let Some(changes) = requests.blocking_recv() {
                let next = reflector.sync(&changes, &mut |batch| sender.blocking_send(batch).map_err(|_| Closed));
                if done.blocking_send(next).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("manifests".to_owned()).spawn(read).map_err(WatchError::Start)?;
        let mut changes = Changes::all();
        loop {
            work.send(changes).await.map_err(|_| WatchError::Panicked)?;
            let Ok(next) = results.recv().await.ok_or(WatchError::Panicked)? else { return Ok(()) };
            changes = tokio::select! {
                changes = reader.wait(&next) => changes.map_err(WatchError::Read)?,
                () = batches.closed() => return Ok(()),
            };
        }
    }
}

/// Editors that move the old file away before they write the new one need a few milliseconds.
const GRACE_PERIOD: Duration = Duration::from_millis(300);

/// Network file systems send no inotify events. Other file systems do not need polling, so it may be infrequent.
const POLL_INTERVAL: Duration = Duration::from_secs(20);

/// The receiver of the events has been dropped.
#[derive(Debug)]
struct Closed;

#[cfg(test)]
mod tests;
