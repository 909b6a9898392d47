//! What is remembered of one file, and how it is read anew.
//!
//! Documents whose text has not changed are not parsed again, so that changing one line of a large file costs little.

use std::{
    collections::HashMap,
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
};

use ferroute_api::manifest::{Cause, Document, DocumentError, Found};
use ferroute_core::parse::{InvalidObject, check};

use super::{
    Stopped,
    entry::{Entry, Telling, take},
    state::Digest,
    text::{TextError, for_each_document},
};
use crate::{IgnoredKind, Problem};

/// Takes the objects that are read, though the file may turn out to be bad later; then they do not count.
pub(super) type Tell<'t> = dyn FnMut(Telling) -> Result<(), Stopped> + 't;

/// What is remembered of a file: its last good version, or as much as was good of it where it never was all good.
#[derive(Default)]
pub(super) struct FileState {
    pub(super) documents: Vec<Arc<DocumentState>>,
    /// What is wrong with the file as it is now.
    pub(super) problems: Vec<Arc<Problem>>,
    /// Which version was read last, good or bad.
    pub(super) stamp: Option<Stamp>,
    /// It has been good as a whole.
    was_good: bool,
}

/// What is remembered of a document.
pub(super) struct DocumentState {
    /// Its text; `None` where some of it was bad, so that it is to be read again, to be told again.
    text: Option<Digest>,
    pub(super) entries: Box<[Entry]>,
    /// Version and kind of the objects that mean nothing to a proxy.
    ignored: Box<[(Box<str>, Box<str>)]>,
}

/// Tells versions of a file apart without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Times of the last changes of its content and of anything about it, in seconds and nanoseconds.
    changed: [(i64, i64); 2],
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: [(metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec())],
        }
    }
}

impl FileState {
    /// Reads the file again and gives what is to be remembered now; `None` if there is no file. Objects of all documents
    /// that are not remembered yet are given to `tell`.
    pub(super) fn read(&self, path: &Path, tell: &mut Tell<'_>) -> Result<Option<Self>, Stopped> {
        let (file, stamp) = match open(path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Ok(Some(self.kept(None, vec![Problem::Unreadable { path: path.to_owned(), source }])));
            }
        };
        let path = path.to_owned();
        let mut parsed = Parsed::default();
        let known = self.documents.iter().filter_map(|known| Some((known.text?, known))).collect();
        let problem = match for_each_document(file, &mut |document| parsed.add(document, &known, tell)) {
            Ok(()) => None,
            Err(TextError::Stopped) => return Err(Stopped),
            Err(TextError::Read(source)) => Some(Problem::Unreadable { path: path.clone(), source }),
            Err(TextError::NotText(offset)) => Some(Problem::NotText { path: path.clone(), offset }),
        };
        if let Some(problem) = problem {
            return Ok(Some(self.kept(Some(stamp), vec![problem])));
        }
        let was_good = parsed.errors.is_empty();
        let kept = self.was_good && !was_good;
        let document = |error| Problem::Document { file: path.clone(), kept, error };
        let problems: Vec<Problem> = parsed.errors.into_iter().map(document).collect();
        if kept {
            return Ok(Some(self.kept(Some(stamp), problems)));
        }
        let ignored = ignored(&parsed.documents).map(|kinds| Problem::Ignored { file: path.clone(), kinds });
        let problems = problems.into_iter().chain(ignored).map(Arc::new).collect();
        Ok(Some(Self { documents: parsed.documents, problems, stamp: Some(stamp), was_good }))
    }

    /// What is remembered stays, with other problems.
    fn kept(&self, stamp: Option<Stamp>, problems: Vec<Problem>) -> Self {
        let problems = problems.into_iter().map(Arc::new).collect();
        Self { documents: self.documents.clone(), problems, stamp, was_good: self.was_good }
    }
}

/// What a file holds, as far as it has been read.
#[derive(Default)]
struct Parsed {
    documents: Vec<Arc<DocumentState>>,
    errors: Vec<DocumentError>,
}

impl Parsed {
    fn add(
        &mut self,
        document: &Document<'_>,
        known: &HashMap<Digest, &Arc<DocumentState>>,
        tell: &mut Tell<'_>,
    ) -> Result<(), Stopped> {
        let digest = Digest::of(document.text);
        self.documents.push(match known.get(&digest) {
            Some(known) => Arc::clone(known),
            None => Arc::new(DocumentState::read(document, digest, &mut self.errors, tell)?),
        });
        Ok(())
    }
}

impl DocumentState {
    fn read(
        document: &Document<'_>,
        digest: Digest,
        errors: &mut Vec<DocumentError>,
        tell: &mut Tell<'_>,
    ) -> Result<Self, Stopped> {
        let (mut entries, mut ignored) = (Vec::new(), Vec::new());
        let before = errors.len();
        let mut told = Ok(());
        let parsed = document.read_each(&mut |found| match found {
            Ok(Found::Object(object)) => {
                let kind = object.kind();
                if let Err(invalid) = check(&object) {
                    return errors.extend(at(document, invalid));
                }
                let Some((entry, tellings)) = take(*object) else {
                    return ignored.push((kind.api_version().into(), kind.as_str().into()));
                };
                entries.push(entry);
                if told.is_ok() {
                    told = tellings.into_iter().try_for_each(&mut *tell);
                }
            }
            Ok(Found::Ignored(object)) => ignored.push((object.api_version.into(), object.kind.into())),
            Err(error) => errors.push(error),
        });
        told?;
        if let Err(error) = parsed {
            errors.truncate(before);
            errors.push(error);
            entries.clear();
            ignored.clear();
        }
        let text = (errors.len() == before).then_some(digest);
        Ok(Self { text, entries: entries.into(), ignored: ignored.into() })
    }
}

/// Where a proxy finds fault with an object, though its text can be read.
fn at(document: &Document<'_>, invalid: InvalidObject) -> impl Iterator<Item = DocumentError> {
    let (number, line) = (document.number, document.line);
    invalid.faults.into_iter().map(move |fault| DocumentError {
        document: number,
        line: Some(line),
        kind: Some(invalid.kind.into()),
        name: Some(invalid.name.as_str().into()),
        field: Some(fault.field.into()),
        cause: Cause::Value(fault.problem),
    })
}

fn open(path: &Path) -> io::Result<(File, Stamp)> {
    let file = File::open(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    Ok((file, stamp))
}

/// How many objects of which kinds mean nothing to a proxy, if any.
fn ignored(documents: &[Arc<DocumentState>]) -> Option<Vec<IgnoredKind>> {
    let mut all: Vec<_> = documents.iter().flat_map(|document| document.ignored.iter()).collect();
    all.sort_unstable();
    let kinds: Vec<IgnoredKind> = all
        .chunk_by(|a, b| a == b)
        .map(|same| IgnoredKind { api_version: same[0].0.clone(), kind: same[0].1.clone(), count: same.len() })
        .collect();
    (!kinds.is_empty()).then_some(kinds)
}
