use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

/// A file that somebody edits.
pub(super) struct Watched {
    path: PathBuf,
    /// What it looked like when it was last read.
    read: Option<Look>,
    /// What it looked like at the last glance.
    seen: Option<Look>,
}

/// Enough to tell a file from a later state of it: number, size, time of its last change.
type Look = (u64, u64, i64, i64);

impl Watched {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, read: None, seen: None }
    }

    /// Reads the file now.
    pub(super) fn read(&mut self) -> io::Result<String> {
        self.read = self.look();
        self.seen = self.read;
        fs::read_to_string(&self.path)
    }

    /// The text, or why there is none, if it changed and then did not change until the next call: so a file that is
    /// being written is left alone until it is done.
    pub(super) fn changed(&mut self) -> Option<io::Result<String>> {
        let look = self.look();
        let is_settled = std::mem::replace(&mut self.seen, look) == look;
        (is_settled && look != self.read).then(|| self.read())
    }

    /// `None` when there is no such file.
    fn look(&self) -> Option<Look> {
        let look = |metadata: Metadata| (metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec());
        fs::metadata(&self.path).ok().map(look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_it_has_settled() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        fs::write(&path, "one").unwrap();
        let mut watched = Watched::new(path.clone());
        assert_eq!(watched.read().unwrap(), "one");
        assert!(watched.changed().is_none());
        fs::write(&path, "one and").unwrap();
        assert!(watched.changed().is_none());
        fs::write(&path, "one and two").unwrap();
        assert!(watched.changed().is_none());
        assert_eq!(watched.changed().unwrap().unwrap(), "one and two");
        assert!(watched.changed().is_none());
    }

    #[test]
    fn a_file_that_went_and_came_back_is_told_both_times() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        fs::write(&path, "one").unwrap();
        let mut watched = Watched::new(path.clone());
        watched.read().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(watched.changed().is_none());
        assert_eq!(watched.changed().unwrap().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(watched.changed().is_none());
        fs::write(&path, "two").unwrap();
        assert!(watched.changed().is_none());
        assert_eq!(watched.changed().unwrap().unwrap(), "two");
    }
}
