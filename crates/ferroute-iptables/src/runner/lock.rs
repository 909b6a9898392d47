//! The lock that `iptables` programs share, for versions of `iptables-restore` that do not take it.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
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
    /// The socket cannot be opened.
    #[error("cannot open the socket @{name}")]
    Socket {
        /// Its name.
        name: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another program has it and did not let go. Trying again later is right.
    #[error("another program has held the iptables lock for {} s", .waited.as_secs())]
    Busy {
        /// How long we waited.
        waited: Duration,
    },
}

/// Holds the lock while it lives: a file that `iptables` 1.6 locks, and a socket that only one program can open, which
/// is what 1.4 does. The kernel frees both when they are closed.
#[derive(Debug)]
pub(super) struct XtablesLock {
    _file: File,
    _socket: UnixListener,
}

/// Where the lock is.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockPlace<'a> {
    pub(super) file: &'a Path,
    /// Name of a socket that has no file.
    pub(super) socket: &'static str,
}

impl LockPlace<'_> {
    /// Where the tools have it.
    pub(super) fn of_tools() -> Self {
        LockPlace { file: Path::new("/run/xtables.lock"), socket: "xtables" }
    }
}

impl XtablesLock {
    /// Waits until nobody else has the lock, but no longer than `patience`.
    ///
    /// # Errors
    /// When somebody else keeps it, or file or socket cannot be used.
    pub(super) fn acquire(place: LockPlace<'_>, patience: Duration) -> Result<Self, LockError> {
        let io_error = |source| LockError::Io { path: place.file.to_owned(), source };
        let socket_error = |source| LockError::Socket { name: place.socket, source };
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(place.file).map_err(io_error)?;
        let address = SocketAddr::from_abstract_name(place.socket).map_err(socket_error)?;
        let start = Instant::now();
        retry(start, patience, || match file.try_lock() {
            Ok(()) => Ok(Some(())),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(io_error(source)),
        })?;
        let socket = retry(start, patience, || match UnixListener::bind_addr(&address) {
            Ok(socket) => Ok(Some(socket)),
            Err(source) if source.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(source) => Err(socket_error(source)),
        })?;
        Ok(Self { _file: file, _socket: socket })
    }
}

/// Calls `attempt` until it gives something.
fn retry<T>(
    start: Instant,
    patience: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>, LockError>,
) -> Result<T, LockError> {
    loop {
        match attempt()? {
            Some(value) => return Ok(value),
            None if start.elapsed() >= patience => return Err(LockError::Busy { waited: patience }),
            None => thread::sleep(POLL),
        }
    }
}

/// How often to look whether the lock is free.
const POLL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    /// The lock of one test.
    fn place<'a>(directory: &tempfile::TempDir, socket: &'static str, file: &'a mut PathBuf) -> LockPlace<'a> {
        *file = directory.path().join("lock");
        LockPlace { file, socket }
    }

    #[test]
    fn a_lock_that_another_holds_is_waited_for() {
        let (directory, mut file) = (tempfile::tempdir().unwrap(), PathBuf::new());
        let place = place(&directory, "ferroute-test-lock-waits", &mut file);
        let first = XtablesLock::acquire(place, Duration::ZERO).unwrap();
        let error = XtablesLock::acquire(place, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
        let holder = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(first);
        });
        XtablesLock::acquire(place, Duration::from_secs(60)).unwrap();
        holder.join().unwrap();
    }

    #[test]
    fn the_lock_of_either_age_keeps_us_out() {
        let (directory, mut file) = (tempfile::tempdir().unwrap(), PathBuf::new());
        let place = place(&directory, "ferroute-test-lock-ages", &mut file);
        let new = File::create(place.file).unwrap();
        new.lock().unwrap();
        XtablesLock::acquire(place, Duration::ZERO).unwrap_err();
        drop(new);
        let old = UnixListener::bind_addr(&SocketAddr::from_abstract_name(place.socket).unwrap()).unwrap();
        XtablesLock::acquire(place, Duration::ZERO).unwrap_err();
        drop(old);
        XtablesLock::acquire(place, Duration::ZERO).unwrap();
    }

    #[test]
    fn a_lock_file_that_cannot_be_made_is_named() {
        let place = LockPlace { file: Path::new("/nonexistent/lock"), socket: "ferroute-test-lock-missing" };
        let error = XtablesLock::acquire(place, Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "cannot lock /nonexistent/lock");
    }
}
