//! What is remembered of one file, and how it is read anew.
//!
//! Documents whose text has not changed are not parsed again, so that changing one line of a large file costs little.

use std::{
    collections::HashMap,
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
};

use ferroute_api::manifest::{self, Document, DocumentError, Found};

use super::{
    Stopped,
    entry::{Entry, Telling, take},
    state::Digest,
};
use crate::{IgnoredKind, Problem};

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
    pub(super) fn read(
        &self,
        path: &Path,
        tell: &mut dyn FnMut(Telling) -> Result<(), Stopped>,
    ) -> Result<Option<Self>, Stopped> {
        let (stamp, bytes) = match read_bytes(path) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Ok(Some(self.kept(None, vec![Problem::Unreadable { path: path.to_owned(), source }])));
            }
        };
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let source = error.utf8_error();
                return Ok(Some(self.kept(Some(stamp), vec![Problem::NotText { path: path.to_owned(), source }])));
            }
        };
        let (documents, errors) = self.parse(&text, tell)?;
        let kept = self.was_good && !errors.is_empty();
        let was_good = errors.is_empty();
        let document = |error| Problem::Document { file: path.to_owned(), kept, error };
        let problems: Vec<Problem> = errors.into_iter().map(document).collect();
        if kept {
            return Ok(Some(self.kept(Some(stamp), problems)));
        }
        let ignored = ignored(&documents).map(|kinds| Problem::Ignored { file: path.to_owned(), kinds });
        let problems = problems.into_iter().chain(ignored).map(Arc::new).collect();
        Ok(Some(Self { documents, problems, stamp: Some(stamp), was_good }))
    }

    /// What is remembered stays, with other problems.
    fn kept(&self, stamp: Option<Stamp>, problems: Vec<Problem>) -> Self {
        let problems = problems.into_iter().map(Arc::new).collect();
        Self { documents: self.documents.clone(), problems, stamp, was_good: self.was_good }
    }

    fn parse(
        &self,
        text: &str,
        tell: &mut dyn FnMut(Telling) -> Result<(), Stopped>,
    ) -> Result<(Vec<Arc<DocumentState>>, Vec<DocumentError>), Stopped> {
        let known: HashMap<Digest, &Arc<DocumentState>> =
            self.documents.iter().filter_map(|known| Some((known.text?, known))).collect();
        let (mut documents, mut errors) = (Vec::new(), Vec::new());
        for document in manifest::documents(text) {
            let digest = Digest::of(document.text);
            match known.get(&digest) {
                Some(known) => documents.push(Arc::clone(known)),
                None => documents.push(Arc::new(DocumentState::read(&document, digest, &mut errors, tell)?)),
            }
        }
        Ok((documents, errors))
    }
}

impl DocumentState {
    fn read(
        document: &Document<'_>,
        digest: Digest,
        errors: &mut Vec<DocumentError>,
        tell: &mut dyn FnMut(Telling) -> Result<(), Stopped>,
    ) -> Result<Self, Stopped> {
        let (mut entries, mut ignored) = (Vec::new(), Vec::new());
        let before = errors.len();
        for found in document.read() {
            match found {
                Ok(Found::Object(object)) => {
                    let kind = object.kind();
                    let Some((entry, tellings)) = take(*object) else {
                        ignored.push((kind.api_version().into(), kind.as_str().into()));
                        continue;
                    };
                    entries.push(entry);
                    tellings.into_iter().try_for_each(&mut *tell)?;
                }
                Ok(Found::Ignored(object)) => ignored.push((object.api_version.into(), object.kind.into())),
                Err(error) => errors.push(error),
            }
        }
        let text = (errors.len() == before).then_some(digest);
        Ok(Self { text, entries: entries.into(), ignored: ignored.into() })
    }
}

fn read_bytes(path: &Path) -> io::Result<(Stamp, Vec<u8>)> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.size()).unwrap_or(0));
    file.read_to_end(&mut bytes)?;
    Ok((Stamp::of(&metadata), bytes))
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
