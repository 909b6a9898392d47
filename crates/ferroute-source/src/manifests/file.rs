//! Reading a file, and the state that is kept for it.
//!
//! Documents with unchanged text are not parsed again, so that changing one line of a large file is cheap.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    slice,
    sync::Arc,
};

use ferroute_api::manifest::{Cause, Document, DocumentError, Parsed, Place};
use ferroute_core::{map_parts, parse::InvalidObject};

use super::{
    Closed,
    entry::{Candidate, Digest, Entry, Key, split},
    text::{CHUNK, MAX_DOCUMENT, TextError, for_each_part},
};
use crate::{IgnoredKind, NotReadReason, Problem};

/// A callback for objects of a file that may still turn out to be invalid, in which case they do not apply.
pub(super) type OnCandidate<'t> = dyn FnMut(Candidate) -> Result<(), Closed> + 't;

/// What is read of files, and how.
pub(super) struct Reader {
    /// The contents of files that can be read only once, and have been read.
    pub(super) contents: BTreeMap<PathBuf, Arc<[u8]>>,
    /// Documents for which this returns false are skipped.
    pub(super) is_relevant: Box<IsRelevant>,
    /// Whether the documents of long parts are parsed in several threads, which keep objects in memory for those before them.
    pub(super) in_parallel: bool,
}

/// Reports by its text whether a document is to be parsed.
pub(super) type IsRelevant = dyn Fn(&str) -> bool + Send + Sync;

/// The state kept for a file: its last valid version or, if it has never been valid as a whole, its valid documents.
#[derive(Default)]
pub(super) struct FileState {
    pub(super) documents: Vec<Arc<DocumentState>>,
    /// Problems of the current version of the file.
    pub(super) problems: Vec<Arc<Problem>>,
    /// Stamp of the version that was read last, valid or not.
    pub(super) stamp: Option<Stamp>,
    /// Whether the file has been valid as a whole.
    was_valid: bool,
}

/// The state kept for a document.
pub(super) struct DocumentState {
    /// Digest of the text; `None` if the document has errors and must be parsed again to report them again.
    text: Option<Digest>,
    pub(super) entries: Entries,
    /// `apiVersion` and `kind` of the objects that a proxy does not read.
    ignored: Box<[(Box<str>, Box<str>)]>,
}

/// Entries of a document. Nearly all documents have one, which should not need a separate allocation.
pub(super) enum Entries {
    One(Entry),
    Other(Box<[Entry]>),
}

/// The metadata by which versions of a file are distinguished without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    /// `mtime` and `ctime`, in seconds and nanoseconds.
    changed: [(i64, i64); 2],
}

impl Stamp {
    pub(super) fn new(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: [(metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec())],
        }
    }
}

impl Default for Reader {
    /// Everything is read in this thread, so that a long list is never in memory as a whole.
    fn default() -> Self {
        Self { contents: BTreeMap::new(), is_relevant: Box::new(|_| true), in_parallel: false }
    }
}

impl Reader {
    /// Reads a file and returns its new state; `None` if the file does not exist. Passes the objects of all documents that have
    /// changed since `previous` to `on_candidate`.
    pub(super) fn read(
        &self,
        path: &Path,
        previous: &FileState,
        on_candidate: &mut OnCandidate<'_>,
    ) -> Result<Option<FileState>, Closed> {
        let opened = match self.contents.get(path) {
            Some(contents) => Ok((Box::new(&**contents) as Box<dyn Read>, None)),
            None => open(path).map(|(file, stamp)| (Box::new(file) as Box<dyn Read>, Some(stamp))),
        };
        let (file, stamp) = match opened {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Ok(Some(previous.keep(None, vec![Problem::Unreadable { path: path.to_owned(), source }])));
            }
        };
        let path = path.to_owned();
        let unchanged = previous.documents.iter().filter_map(|document| Some((document.text?, document))).collect();
        let mut read = Documents::default();
        // Threads that live for a moment only are often started on one processor.
        let size = if self.in_parallel { LONG_PART } else { CHUNK };
        let mut read_part = |part: &[Document<'_>]| self.read_part(part, &unchanged, &mut read, on_candidate);
        let problem = match for_each_part(file, size, &mut read_part) {
            Ok(()) => None,
            Err(TextError::Closed) => return Err(Closed),
            Err(TextError::Read(source)) => Some(Problem::Unreadable { path: path.clone(), source }),
            Err(TextError::NotText(format)) => Some(Problem::NotText { path: path.clone(), format }),
            Err(TextError::TooLong(line)) => Some(Problem::TooLong { path: path.clone(), line, limit: MAX_DOCUMENT }),
            Err(TextError::InvalidUtf8(offset)) => Some(Problem::InvalidUtf8 { path: path.clone(), offset }),
        };
        if let Some(problem) = problem {
            return Ok(Some(previous.keep(stamp, vec![problem])));
        }
        let Documents { states: documents, errors } = read;
        let is_valid = errors.is_empty();
        let kept = previous.was_valid && !is_valid;
        let problems = errors.into_iter().map(|error| Problem::Document { file: path.clone(), kept, error });
        let problems: Vec<Problem> = problems.collect();
        if kept {
            return Ok(Some(previous.keep(stamp, problems)));
        }
        let ignored = ignored_kinds(&documents).map(|kinds| Problem::Ignored { file: path.clone(), kinds });
        let fields = documents.iter().flat_map(|document| document.entries.iter()).filter_map(|entry| match entry {
            Entry::Endpoints { name, ignored, .. } if !ignored.is_empty() => Some(Problem::IgnoredFields {
                file: path.clone(),
                kind: entry.kind(),
                name: name.clone(),
                fields: ignored.clone(),
            }),
            Entry::Endpoints { .. } | Entry::Object { .. } => None,
        });
        let problems = problems.into_iter().chain(ignored).chain(fields).map(Arc::new).collect();
        Ok(Some(FileState { documents, problems, stamp, was_valid: is_valid }))
    }

    /// Reads a part of the documents of a file and adds them to `read` in their order.
    fn read_part(
        &self,
        part: &[Document<'_>],
        unchanged: &Unchanged<'_>,
        read: &mut Documents,
        on_candidate: &mut OnCandidate<'_>,
    ) -> Result<(), Closed> {
        if !self.in_parallel {
            return read.add(part, &self.is_relevant, unchanged, on_candidate);
        }
        let size: usize = part.iter().map(|document| document.text.len()).sum();
        let min = (part.len() * MIN_SHARE).div_ceil(size.max(1)).max(1);
        let shares = map_parts(part, min, usize::MAX, |share| {
            let (mut read, mut candidates) = (Documents::default(), Vec::new());
            let mut keep = |candidate| {
                candidates.push(candidate);
                Ok(())
            };
            read.add(share, &self.is_relevant, unchanged, &mut keep).map(|()| (read, candidates))
        });
        for share in shares {
            let (documents, candidates) = share?;
            read.states.extend(documents.states);
            read.errors.extend(documents.errors);
            candidates.into_iter().try_for_each(&mut *on_candidate)?;
        }
        Ok(())
    }
}

/// The documents of the last version of a file that are valid, by their texts.
type Unchanged<'f> = HashMap<Digest, &'f Arc<DocumentState>>;

/// Documents of a file that have been read.
#[derive(Default)]
struct Documents {
    states: Vec<Arc<DocumentState>>,
    errors: Vec<DocumentError>,
}

impl Documents {
    /// Reads documents, as far as they are relevant and not unchanged.
    fn add(
        &mut self,
        part: &[Document<'_>],
        is_relevant: &IsRelevant,
        unchanged: &Unchanged<'_>,
        on_candidate: &mut OnCandidate<'_>,
    ) -> Result<(), Closed> {
        for document in part.iter().filter(|document| is_relevant(document.text)) {
            let digest = Digest::new(document.text);
            self.states.push(match unchanged.get(&digest) {
                Some(state) => Arc::clone(state),
                None => Arc::new(DocumentState::read(document, digest, &mut self.errors, on_candidate)?),
            });
        }
        Ok(())
    }
}

impl FileState {
    /// Returns the objects whose contents differ from those in `previous` if both define the same objects, and the same
    /// Endpoints, in the same order; `None` otherwise.
    pub(super) fn changed_contents(&self, previous: &Self) -> Option<Vec<(Key, Digest)>> {
        let (documents, previous) = (&self.documents, &previous.documents);
        let mut changed = Vec::new();
        (documents.len() == previous.len()).then_some(())?;
        for (document, previous) in documents.iter().zip(previous).filter(|(a, b)| !Arc::ptr_eq(a, b)) {
            let (entries, previous) = (document.entries.iter(), previous.entries.iter());
            (entries.len() == previous.len()).then_some(())?;
            for (entry, previous) in entries.zip(previous).filter(|(a, b)| a != b) {
                changed.push(entry.changed_content(previous)?);
            }
        }
        Some(changed)
    }

    /// Reports whether the file could not be read, for a reason that is not in its contents.
    pub(super) fn is_unreadable(&self) -> bool {
        self.problems.iter().any(|problem| matches!(**problem, Problem::Unreadable { .. }))
    }

    /// Returns the same documents with other problems.
    fn keep(&self, stamp: Option<Stamp>, problems: Vec<Problem>) -> Self {
        let problems = problems.into_iter().map(Arc::new).collect();
        Self { documents: self.documents.clone(), problems, stamp, was_valid: self.was_valid }
    }
}

impl DocumentState {
    fn read(
        document: &Document<'_>,
        digest: Digest,
        errors: &mut Vec<DocumentError>,
        on_candidate: &mut OnCandidate<'_>,
    ) -> Result<Self, Closed> {
        let (mut entries, mut ignored) = (Vec::new(), Vec::new());
        let before = errors.len();
        let mut sent = Ok(());
        let parsed = document.read_each(&mut |place, parsed| match parsed {
            Ok(Parsed::Object(object)) => {
                let kind = object.kind();
                let (entry, candidates) = match split(*object) {
                    Ok(Some(split)) => split,
                    Ok(None) => return ignored.push((kind.api_version().into(), kind.as_str().into())),
                    Err(invalid) => return errors.extend(document_errors(document, place, invalid)),
                };
                entries.push(entry);
                if sent.is_ok() {
                    sent = candidates.into_iter().try_for_each(&mut *on_candidate);
                }
            }
            Ok(Parsed::Ignored(object)) => ignored.push((object.api_version.into(), object.kind.into())),
            Err(error) => errors.push(error),
        });
        sent?;
        if let Err(error) = parsed {
            errors.truncate(before);
            errors.push(error);
            entries.clear();
            ignored.clear();
        }
        let text = (errors.len() == before).then_some(digest);
        Ok(Self { text, entries: Entries::new(entries), ignored: ignored.into() })
    }
}

impl Entries {
    fn new(mut entries: Vec<Entry>) -> Self {
        match entries.pop() {
            Some(only) if entries.is_empty() => Self::One(only),
            last => {
                entries.extend(last);
                Self::Other(entries.into())
            }
        }
    }

    pub(super) fn iter(&self) -> slice::Iter<'_, Entry> {
        match self {
            Self::One(entry) => slice::from_ref(entry).iter(),
            Self::Other(entries) => entries.iter(),
        }
    }
}

/// Returns an error for each invalid field of an object.
fn document_errors(
    document: &Document<'_>,
    place: &Place,
    invalid: InvalidObject,
) -> impl Iterator<Item = DocumentError> {
    let number = document.number;
    invalid.errors.into_iter().map(move |error| DocumentError {
        document: number,
        line: place.line,
        kind: Some(invalid.kind.into()),
        name: Some(invalid.name.as_str().into()),
        field: Some(place.field(&error.field).into()),
        cause: Cause::Value(error.problem),
    })
}

/// Size of a part whose documents are parsed in several threads.
const LONG_PART: usize = 16 << 20;

/// Number of bytes of which reading takes much longer than to start a thread for them.
const MIN_SHARE: usize = 64 << 10;

/// Opens a regular file without waiting.
pub(super) fn open(path: &Path) -> io::Result<(File, Stamp)> {
    // Opening a pipe, a file with a lease, or some files in procfs may block, and one file must not delay all others.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        // It has replaced the file that was listed.
        return Err(io::Error::other(NotReadReason::NotRegular));
    }
    Ok((file, Stamp::new(&metadata)))
}

/// Counts the objects that a proxy does not read, by kind. Returns `None` if there are none.
fn ignored_kinds(documents: &[Arc<DocumentState>]) -> Option<Vec<IgnoredKind>> {
    let mut ignored: Vec<_> = documents.iter().flat_map(|document| document.ignored.iter()).collect();
    ignored.sort_unstable();
    let kinds: Vec<IgnoredKind> = ignored
        .chunk_by(|a, b| a == b)
        .map(|same| IgnoredKind { api_version: same[0].0.clone(), kind: same[0].1.clone(), count: same.len() })
        .collect();
    (!kinds.is_empty()).then_some(kinds)
}
