use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

/// A watcher of a file that the user edits.
pub(super) struct FileWatcher {
    path: PathBuf,
    /// The version that was last read.
    read: Option<Version>,
    /// The version at the last check.
    seen: Option<Version>,
}

/// The version of a file: inode number, size, and modification time in seconds and nanoseconds.
type Version = (u64, u64, i64, i64);

impl FileWatcher {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, read: None, seen: None }
    }

    /// Reads the file.
    pub(super) fn read(&mut self) -> io::Result<String> {
        self.read = self.version();
        self.seen = self.read;
        fs::read_to_string(&self.path)
    }

    /// Reads the file if it has changed, once two calls in a row see the same version: a file that is still being written
    /// is not read.
    pub(super) fn changed(&mut self) -> Option<io::Result<String>> {
        let version = self.version();
        let is_stable = std::mem::replace(&mut self.seen, version) == version;
        (is_stable && version != self.read).then(|| self.read())
    }

    /// Returns the current version; `None` if there is no such file.
    fn version(&self) -> Option<Version> {
        let version = |metadata: Metadata| (metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec());
        fs::metadata(&self.path).ok().map(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_read_once_it_is_stable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        fs::write(&path, "one").unwrap();
        let mut watcher = FileWatcher::new(path.clone());
        assert_eq!(watcher.read().unwrap(), "one");
        assert!(watcher.changed().is_none());
        fs::write(&path, "one and").unwrap();
        assert!(watcher.changed().is_none());
        fs::write(&path, "one and two").unwrap();
        assert!(watcher.changed().is_none());
        assert_eq!(watcher.changed().unwrap().unwrap(), "one and two");
        assert!(watcher.changed().is_none());
    }

    #[test]
    fn removal_and_creation_are_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        fs::write(&path, "one").unwrap();
        let mut watcher = FileWatcher::new(path.clone());
        watcher.read().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(watcher.changed().is_none());
        assert_eq!(watcher.changed().unwrap().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(watcher.changed().is_none());
        fs::write(&path, "two").unwrap();
        assert!(watcher.changed().is_none());
        assert_eq!(watcher.changed().unwrap().unwrap(), "two");
    }
}
