//! The lock that `iptables` programs share, for versions of `iptables-restore` that do not take it.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Why the lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The file cannot be opened or locked at all.
    #[error("cannot lock {}", .path.display())]
    Io {
        /// The lock's file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another program has it and did not let go. Trying again later is right.
    #[error("another program has held {} for {} s", .path.display(), .waited.as_secs())]
    Busy {
        /// The lock's file.
        path: PathBuf,
        /// How long we waited.
        waited: Duration,
    },
}

/// Holds the lock while it lives.
#[derive(Debug)]
pub(super) struct XtablesLock {
    /// The kernel lets go of the lock when this is closed.
    _file: File,
}

impl XtablesLock {
    /// Where `iptables` 1.6 and later have their lock.
    pub(super) const PATH: &str = "/run/xtables.lock";

    /// Waits until nobody else has the lock, but no longer than `patience`.
    ///
    /// # Errors
    /// When somebody else keeps it, or the file cannot be used.
    pub(super) fn acquire(path: &Path, patience: Duration) -> Result<Self, LockError> {
        let io_error = |source| LockError::Io { path: path.to_owned(), source };
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(io_error)?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::Error(source)) => return Err(io_error(source)),
                Err(TryLockError::WouldBlock) if start.elapsed() >= patience => {
                    return Err(LockError::Busy { path: path.to_owned(), waited: patience });
                }
                Err(TryLockError::WouldBlock) => thread::sleep(POLL),
            }
        }
    }
}

/// How often to look whether the lock is free.
const POLL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_another_holds_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = XtablesLock::acquire(&path, Duration::ZERO).unwrap();
        let error = XtablesLock::acquire(&path, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(&error, LockError::Busy { path: busy, .. } if *busy == path), "{error:?}");
        let holder = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(first);
        });
        XtablesLock::acquire(&path, Duration::from_secs(60)).unwrap();
        holder.join().unwrap();
    }

    #[test]
    fn a_lock_file_that_cannot_be_made_is_named() {
        let error = XtablesLock::acquire(Path::new("/nonexistent/lock"), Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "cannot lock /nonexistent/lock");
    }
}
