//! The log file, which is renamed at a certain size; renamed files are deleted at a certain age.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use ferroute_core::rfc3339;

/// When the file is renamed, and renamed files deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rotation {
    /// The size in bytes from which on it is renamed; 0 for never.
    pub(super) size: u64,
    /// Minimum age of renamed files that are deleted when another file is renamed; zero for never.
    pub(super) age: Duration,
}

/// The log file, open for appending.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
    rotation: Rotation,
}

impl LogFile {
    pub(super) fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        let file = append(path)?;
        Ok(Self { path: path.to_owned(), size: file.metadata()?.len(), file, rotation })
    }

    pub(super) fn into_file(self) -> File {
        self.file
    }

    fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        let Some(renamed) = self.renamed(now).filter(|path| !path.exists()) else {
            // The file of this second exists; the next one will not.
            return Ok(());
        };
        fs::rename(&self.path, renamed)?;
        self.file = append(&self.path)?;
        self.size = 0;
        self.delete_old(now)
    }

    /// `DIRECTORY/NAME-20261126-081500.log` for `DIRECTORY/NAME.log`.
    fn renamed(&self, now: SystemTime) -> Option<PathBuf> {
        let time = rfc3339::format(now, 0)?.replace(['-', ':', 'Z'], "").replace('T', "-");
        let (stem, extension) = self.name();
        let mut name = stem;
        name.push(time);
        name.push(extension);
        Some(self.path.with_file_name(name))
    }

    /// Returns the parts before and after the time in the names of renamed files.
    fn name(&self) -> (OsString, OsString) {
        let mut stem = self.path.file_stem().unwrap_or_default().to_owned();
        stem.push("-");
        let mut extension = OsString::new();
        if let Some(text) = self.path.extension() {
            extension.push(".");
            extension.push(text);
        }
        (stem, extension)
    }

    fn delete_old(&self, now: SystemTime) -> io::Result<()> {
        let Some(oldest) = now.checked_sub(self.rotation.age).filter(|_| !self.rotation.age.is_zero()) else {
            return Ok(());
        };
        let (stem, extension) = self.name();
        let directory = self.path.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let time = name.as_bytes().strip_prefix(stem.as_bytes());
            let time = time.and_then(|rest| rest.strip_suffix(extension.as_bytes()));
            if time.is_some_and(is_time) && entry.metadata()?.modified()? < oldest {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.rotation.size > 0 && self.size >= self.rotation.size {
            self.rotate(SystemTime::now())?;
        }
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o644).open(path)
}

/// Reports whether this is a time in the name of a renamed file.
fn is_time(text: &[u8]) -> bool {
    text.len() == "20261126-081500".len()
        && text.iter().enumerate().all(|(at, byte)| if at == 8 { *byte == b'-' } else { byte.is_ascii_digit() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_renamed_at_its_size_and_old_ones_are_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let names = || {
            let entries = fs::read_dir(directory.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        for others in ["a-1.log", "a-20200101-000000.log", "b-20200101-000000.log", "a-20200101-000000.log.gz"] {
            let file = File::create(directory.path().join(others)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(7200)).unwrap();
        }
        let path = directory.path().join("a.log");
        fs::write(&path, "from before").unwrap();
        let mut log = LogFile::open(&path, Rotation { size: 20, age: Duration::from_secs(3600) }).unwrap();
        for (text, expected) in [("12345678", "from before12345678"), ("9", "")] {
            log.write_all(text.as_bytes()).unwrap();
            log.flush().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        }
        let others = ["a-1.log", "a-20200101-000000.log.gz", "a.log", "b-20200101-000000.log"];
        let renamed: Vec<_> = names().into_iter().filter(|name| !others.contains(&name.as_str())).collect();
        assert_eq!((renamed.len(), names().len()), (1, 5), "{:?}", names());
        assert_eq!(fs::read_to_string(directory.path().join(&renamed[0])).unwrap(), "from before123456789");
        // No output is lost if it is full again within the second.
        let mut all = 0;
        for _ in 0..5 {
            log.write_all(&[b'x'; 30]).unwrap();
            log.flush().unwrap();
            all += 30;
        }
        let sizes = names().into_iter().map(|name| fs::metadata(directory.path().join(name)).unwrap().len());
        assert_eq!(sizes.sum::<u64>(), all + 20);
    }
}
