//! The xtables lock, for versions of `iptables-restore` that do not acquire it.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::OpenOptionsExt,
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::fcntl::OFlag;

/// A failure to acquire the xtables lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The lock file cannot be opened or locked.
    #[error("cannot lock {}", .path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The socket cannot be opened.
    #[error("cannot open the socket @{name}")]
    Socket {
        /// Name.
        name: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another program holds the lock. Retrying later may succeed.
    #[error("another program has held the xtables lock for {} s", .waited.as_secs())]
    Busy {
        /// The time spent waiting.
        waited: Duration,
    },
}

/// A guard of the xtables lock: a file that `iptables` 1.6 locks, and a socket that only one program can bind, which
/// `iptables` 1.4 uses. The kernel releases both when they are closed.
///
/// Every local user can bind the name of the socket, and programs that hold the lock do so only for some milliseconds.
/// The wait is therefore not extended if the socket stays bound.
#[derive(Debug)]
pub(super) struct XtablesLock {
    _file: File,
    _socket: Option<UnixListener>,
}

/// The location of the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockLocation<'a> {
    pub(super) file: &'a Path,
    /// Name of the abstract socket.
    pub(super) socket: &'static str,
}

impl LockLocation<'static> {
    /// The location that the iptables programs use.
    pub(super) fn xtables() -> Self {
        Self { file: Path::new("/run/xtables.lock"), socket: "xtables" }
    }
}

impl XtablesLock {
    /// Acquires the lock, waiting at most `timeout`.
    ///
    /// # Errors
    /// If another program holds the lock of the file, or if the file or the socket cannot be used.
    pub(super) fn acquire(location: LockLocation<'_>, timeout: Duration) -> Result<Self, LockError> {
        let io_error = |source| LockError::Io { path: location.file.to_owned(), source };
        let socket_error = |source| LockError::Socket { name: location.socket, source };
        let file = open(location.file).map_err(io_error)?;
        let address = SocketAddr::from_abstract_name(location.socket).map_err(socket_error)?;
        let start = Instant::now();
        retry(start, timeout, || match file.try_lock() {
            Ok(()) => Ok(Some(())),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(io_error(source)),
        })?;
        let socket = retry(Instant::now(), SOCKET_TIMEOUT, || match UnixListener::bind_addr(&address) {
            Ok(socket) => Ok(Some(socket)),
            Err(source) if source.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(source) => Err(socket_error(source)),
        });
        let socket = match socket {
            Ok(socket) => Some(socket),
            Err(LockError::Busy { .. }) => {
                tracing::warn!(
                    socket = location.socket,
                    "another process does not release the socket of the xtables lock; going on"
                );
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self { _file: file, _socket: socket })
    }
}

/// Opens the lock file, or creates it for its owner alone, as the iptables programs do: every user who can open it can
/// hold the lock. A symbolic link is an error, because root could be made to create a file in another place.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    options.open(path)
}

/// Calls `attempt` until it returns a value or the timeout has passed.
fn retry<T>(
    start: Instant,
    timeout: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>, LockError>,
) -> Result<T, LockError> {
    loop {
        match attempt()? {
            Some(value) => return Ok(value),
            None if start.elapsed() >= timeout => return Err(LockError::Busy { waited: timeout }),
            None => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Maximum delay by the socket, whose name each local user can bind.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Returns the location of one test's lock.
    fn location<'a>(directory: &tempfile::TempDir, socket: &'static str, file: &'a mut PathBuf) -> LockLocation<'a> {
        *file = directory.path().join("lock");
        LockLocation { file, socket }
    }

    #[test]
    fn acquiring_waits_for_the_holder_of_the_lock() {
        let (directory, mut file) = (tempfile::tempdir().unwrap(), PathBuf::new());
        let location = location(&directory, "ferroute-test-lock-waits", &mut file);
        let first = XtablesLock::acquire(location, Duration::ZERO).unwrap();
        let error = XtablesLock::acquire(location, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
        let holder = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(first);
        });
        XtablesLock::acquire(location, Duration::from_secs(60)).unwrap();
        holder.join().unwrap();
    }

    #[test]
    fn the_file_excludes_and_a_socket_that_stays_bound_does_not() {
        let (directory, mut file) = (tempfile::tempdir().unwrap(), PathBuf::new());
        let location = location(&directory, "ferroute-test-lock-ages", &mut file);
        let new = File::create(location.file).unwrap();
        new.try_lock().unwrap();
        XtablesLock::acquire(location, Duration::ZERO).unwrap_err();
        drop(new);
        let old = UnixListener::bind_addr(&SocketAddr::from_abstract_name(location.socket).unwrap()).unwrap();
        drop(XtablesLock::acquire(location, Duration::ZERO).unwrap());
        drop(old);
        let lock = XtablesLock::acquire(location, Duration::ZERO).unwrap();
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(location.socket).unwrap()).unwrap_err();
        drop(lock);
    }

    #[test]
    fn the_lock_file_is_created_for_its_owner_and_no_symbolic_link_is_followed() {
        let (directory, mut file) = (tempfile::tempdir().unwrap(), PathBuf::new());
        let location = location(&directory, "ferroute-test-lock-file", &mut file);
        drop(XtablesLock::acquire(location, Duration::ZERO).unwrap());
        let metadata = location.file.metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(location.file).unwrap();
        let target = directory.path().join("target");
        std::os::unix::fs::symlink(&target, location.file).unwrap();
        XtablesLock::acquire(location, Duration::ZERO).unwrap_err();
        assert!(!target.exists());
    }

    #[test]
    fn the_error_names_a_lock_file_that_cannot_be_created() {
        let location = LockLocation { file: Path::new("/nonexistent/lock"), socket: "ferroute-test-lock-missing" };
        let error = XtablesLock::acquire(location, Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "cannot lock /nonexistent/lock");
    }
}
