//! Manifests that are read by a command, once or several times, with the same contents each time.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use ferroute_api::manifest::Document;

use super::{
    file::{Reader, open},
    paths::{Listing, Plan},
    store::{Store, Work},
    text::{CHUNK, TextError, for_each_part},
};
use crate::{Event, Problem};

/// The files of manifests at one or several paths, as one source.
///
/// Pipes and other files that can be read only once are read when they are added; others whenever it is needed.
#[derive(Debug, Default)]
pub struct Input {
    files: BTreeSet<PathBuf>,
    /// The directories without manifests, and the entries of directories with names like manifests that are not read.
    not_read: Vec<Arc<Problem>>,
    /// The contents of the files that can be read only once.
    contents: BTreeMap<PathBuf, Arc<[u8]>>,
}

impl Input {
    /// Returns the files at `path`, or standard input if it is `-`.
    ///
    /// # Errors
    ///
    /// The path cannot be read.
    pub fn new(path: &Path) -> io::Result<Self> {
        let mut input = Self::default();
        input.add(path)?;
        Ok(input)
    }

    /// Adds the files at `path`, or standard input if it is `-`.
    ///
    /// # Errors
    ///
    /// The path cannot be read.
    pub fn add(&mut self, path: &Path) -> io::Result<()> {
        let is_stdin = path == Path::new(STDIN);
        if self.contents.contains_key(path) {
            return Ok(());
        }
        if is_stdin || fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
            let file = if is_stdin { io::stdin().as_fd().try_clone_to_owned()?.into() } else { File::open(path)? };
            let mut text = Vec::new();
            file.take(MAX_PIPE + 1).read_to_end(&mut text)?;
            if text.len() as u64 > MAX_PIPE {
                return Err(io::Error::other(format!(
                    "more than {MAX_PIPE} bytes, which only a regular file may have"
                )));
            }
            self.contents.insert(path.to_owned(), text.into());
            self.files.insert(path.to_owned());
            return Ok(());
        }
        let Listing { files, not_read, .. } = Plan::new(path).listing?;
        if files.is_empty() {
            self.not_read.push(Arc::new(Problem::NoFiles { path: path.to_owned() }));
        }
        self.files.extend(files);
        let problem = |(path, reason)| Arc::new(Problem::NotRead { path, reason });
        self.not_read.extend(not_read.into_iter().map(problem));
        Ok(())
    }

    /// Returns the files.
    pub fn files(&self) -> &BTreeSet<PathBuf> {
        &self.files
    }

    /// Returns the contents of a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not UTF-8.
    pub fn text(&self, file: &Path) -> io::Result<String> {
        match self.contents.get(file) {
            Some(text) => {
                let text = str::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                Ok(text.to_owned())
            }
            None => {
                let mut text = String::new();
                open(file)?.0.read_to_string(&mut text)?;
                Ok(text)
            }
        }
    }

    /// Passes the documents of a file to `each`, without ever having a large file in memory as a whole.
    ///
    /// # Errors
    ///
    /// The file cannot be read from some point on, or is not UTF-8.
    pub fn for_each_document(&self, file: &Path, each: &mut dyn FnMut(&Document<'_>)) -> io::Result<()> {
        let text: Box<dyn Read> = match self.contents.get(file) {
            Some(text) => Box::new(&**text),
            None => Box::new(open(file)?.0),
        };
        let result = for_each_part(text, CHUNK, &mut |part| {
            part.iter().for_each(&mut *each);
            Ok(())
        });
        result.map_err(|error| match error {
            TextError::Read(error) => error,
            TextError::NotText(_) | TextError::InvalidUtf8(_) | TextError::TooLong(_) | TextError::Closed => {
                io::ErrorKind::InvalidData.into()
            }
        })
    }

    /// Returns the events of the initial list, without documents whose text is not relevant: parsing takes a hundred times as
    /// long as reading. Errors in files are events, but not those in skipped documents.
    pub fn events_where(&self, is_relevant: impl Fn(&str) -> bool + Send + Sync + 'static) -> Vec<Event> {
        let (read, problems) = (self.files.clone(), self.not_read.clone());
        let work = Work { read, problems, complete: true, ..Work::default() };
        let mut events = Vec::new();
        let reader = Reader { contents: self.contents.clone(), is_relevant: Box::new(is_relevant), in_parallel: true };
        // Only the callback could fail.
        let mut store = Store::with_reader(reader);
        let _ = store.refresh(work, &mut |batch| {
            events.extend(batch);
            Ok(())
        });
        events
    }

    /// Returns the events of the initial list. Errors in files are events.
    pub fn events(&self) -> Vec<Event> {
        self.events_where(|_| true)
    }
}

/// The path of standard input.
const STDIN: &str = "-";

/// The maximum number of bytes that are read from a pipe, because they are in memory as a whole.
const MAX_PIPE: u64 = 256 << 20;
