//! Manifests on disk as a source: a file, or all manifests in a directory.
//!
//! ```text
//!   kernel's notices ──► files that changed ──► Store: read ──► merge ──► diff ──► a batch of events
//!                        (after a quiet time)          (only documents
//!                                                       that changed)
//! ```
//!
//! Files are read when who writes them has closed them or moved them into place, so that nobody's half-written file
//! counts. A file that turns bad stays in force as it last was good, as a whole; where it never was good, its good
//! documents count. A file that vanishes has a moment to come back, because some editors and tools replace files that
//! way; then its objects are gone. If the path itself vanishes, everything stays in force: that is rather a mishap than
//! somebody's wish. Both come back into play when they are there again, whatever else has happened in between.

mod entry;
mod file;
mod follower;
mod merge;
mod notices;
mod paths;
mod state;
mod store;
mod text;
mod watch;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use inotify::Inotify;
use tokio::{sync::mpsc, task};

use self::{
    follower::Follower,
    notices::Notices,
    paths::Plan,
    store::{Store, Work},
    watch::{Dirty, Watched},
};
use crate::Event;

/// A file of manifests, or a directory of them: its files `*.yaml`, `*.yml` and `*.json`, in the order of their names,
/// without subdirectories and hidden files. Symbolic links are followed, wherever they lead.
#[derive(Clone, Debug)]
pub struct Manifests {
    path: PathBuf,
    /// How long a file may be missing before its objects are gone.
    grace: Duration,
    /// How often to look for changes that gave no notice.
    look_interval: Duration,
}

/// Following the manifests has come to an end. What was told is still right as far as it goes.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The kernel gives no notices at all.
    #[error("cannot ask the kernel for notices of changed files")]
    Notices(#[source] io::Error),
    /// The kernel's notices cannot be read any more.
    #[error("cannot read the kernel's notices of changed files")]
    Read(#[source] io::Error),
}

/// The events that following `path` begins with, in their order, without following it. For those who read manifests
/// just once.
///
/// # Errors
///
/// The path cannot be read. Faults in single files are events like any other.
pub fn read_once(path: &Path) -> io::Result<Vec<Event>> {
    let listing = Plan::of(path).listing?;
    let work = Work { read: listing.files, complete: true, ..Work::default() };
    let mut events = Vec::new();
    // Only the receiver could stop it.
    let _ = Store::default().refresh(work, &mut |batch| {
        events.extend(batch);
        Ok(())
    });
    Ok(events)
}

/// The files at `path` that [`read_once`] reads.
///
/// # Errors
///
/// The path cannot be read.
pub fn manifest_files(path: &Path) -> io::Result<BTreeSet<PathBuf>> {
    Plan::of(path).listing.map(|listing| listing.files)
}

impl Manifests {
    /// The manifests at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), grace: GRACE, look_interval: LOOK_INTERVAL }
    }

    /// Tells what there is, then every change, until nobody takes any more. Dropping the future ends it too, though
    /// reading that has begun goes on in the background until its batch is sent.
    ///
    /// A path that cannot be read is a problem to be told, and [`Event::Synced`] then comes when it can be.
    ///
    /// # Errors
    ///
    /// The kernel gives no notices of changes.
    pub async fn follow(self, batches: mpsc::Sender<Vec<Event>>) -> Result<(), FollowError> {
        let inotify = Inotify::init().map_err(FollowError::Notices)?;
        let mut follower = Follower::new(self.path, self.grace, Watched::new(inotify.watches()));
        let mut notices = Notices::new(inotify, self.look_interval).map_err(FollowError::Notices)?;
        let mut dirty = Dirty::all();
        loop {
            let sender = batches.clone();
            let round = task::spawn_blocking(move || {
                let next = follower.round(&dirty, &mut |batch| sender.blocking_send(batch).map_err(|_| Stopped));
                (follower, next)
            });
            let (back, next) = match round.await {
                Ok(done) => done,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The runtime is being shut down.
                    Err(_) => return Ok(()),
                },
            };
            follower = back;
            let Ok(next) = next else { return Ok(()) };
            dirty = tokio::select! {
                dirty = notices.wait(&next) => dirty.map_err(FollowError::Read)?,
                () = batches.closed() => return Ok(()),
            };
        }
    }
}

/// Editors that move the old file away before they write the new one take a few milliseconds.
const GRACE: Duration = Duration::from_millis(300);

/// Network file systems give no notices; on others looking is not needed, so it may be seldom.
const LOOK_INTERVAL: Duration = Duration::from_secs(20);

/// Nobody takes events any more.
#[derive(Debug)]
struct Stopped;

#[cfg(test)]
mod tests;
