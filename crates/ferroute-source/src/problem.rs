use std::{error::Error, fmt, io, path::PathBuf};

use ferroute_api::{Kind, manifest::DocumentError};
use ferroute_core::{FileFormat, NamespacedName, error_chain, parse::FieldError};

/// A problem with the input of a source, which the administrator should see. The source continues.
///
/// It displays the affected object; the causes are in its chain of sources.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A file or the directory cannot be read. Its last valid version stays applied.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// File or directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A file is not UTF-8. Its last valid version stays applied.
    #[error("cannot read {}: invalid UTF-8 at byte {offset}", path.display())]
    InvalidUtf8 {
        /// File.
        path: PathBuf,
        /// Offset of the first invalid byte, from 0.
        offset: u64,
    },
    /// A file is not text. Its last valid version stays applied.
    #[error("cannot read {}: {format}", path.display())]
    NotText {
        /// File.
        path: PathBuf,
        /// Format of the file.
        format: FileFormat,
    },
    /// A document in a file is too long to be read. The file's last valid version stays applied.
    #[error(
        "cannot read {}: the document at line {line} is longer than {limit} bytes; divide it into several documents",
        path.display()
    )]
    TooLong {
        /// File.
        path: PathBuf,
        /// The first line of the document, from 1.
        line: usize,
        /// The maximum length of a document in bytes.
        limit: usize,
    },
    /// A document in a file, or an item of a list in it, is invalid.
    #[error("invalid manifest {}{}", file.display(), if *kept { "; keeping its last valid version" } else { "" })]
    Document {
        /// File.
        file: PathBuf,
        /// Whether the last valid version of the whole file stays applied. Otherwise the file has never been valid, and
        /// its valid documents are applied.
        kept: bool,
        /// Location and cause.
        #[source]
        error: DocumentError,
    },
    /// An object is defined more than once. The first definition applies, with files sorted by path.
    #[error("ignoring {kind} {name} in {}: already defined in {}", ignored.display(), applied.display())]
    Duplicate {
        /// Kind of the object.
        kind: Kind,
        /// Name of the object.
        name: NamespacedName,
        /// File of the definition that applies.
        applied: PathBuf,
        /// File of the definition that is ignored.
        ignored: PathBuf,
    },
    /// A file contains objects of kinds that a proxy does not read. Not an error, but possibly a mistake.
    #[error("{} contains objects that a proxy does not use: {}", file.display(), list(kinds, ", "))]
    Ignored {
        /// File.
        file: PathBuf,
        /// Kinds, sorted.
        kinds: Vec<IgnoredKind>,
    },
    /// Fields of an object are ignored; the rest of it is used.
    #[error("ignoring fields of {kind} {name} in {}: {}", file.display(), list(fields, "; "))]
    IgnoredFields {
        /// File.
        file: PathBuf,
        /// Kind of the object.
        kind: Kind,
        /// Name of the object.
        name: NamespacedName,
        /// The fields.
        fields: Box<[FieldError]>,
    },
    /// A directory has no manifests. That of a proxy may be filled later.
    #[error("no manifests in {}: no file has a name that ends in .yaml, .yml or .json", path.display())]
    NoFiles {
        /// Directory.
        path: PathBuf,
    },
    /// An entry of a directory has a name like a manifest, but is not read.
    #[error("ignoring {}", path.display())]
    NotRead {
        /// Path.
        path: PathBuf,
        /// The reason.
        #[source]
        reason: NotReadReason,
    },
    /// A directory cannot be watched with inotify. Changes in it are noticed only by polling.
    #[error("cannot watch {} for changes", path.display())]
    Unwatched {
        /// Directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The API server has sent an object that cannot be decoded. Its last valid version stays applied.
    #[error("ignoring invalid {kind} {name}; keeping its last valid version")]
    InvalidObject {
        /// Kind of the object.
        kind: Kind,
        /// Name of the object.
        name: NamespacedName,
        /// Field and cause.
        #[source]
        error: FieldError,
    },
    /// A problem of another source.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

/// The number of ignored objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IgnoredKind {
    /// `apiVersion`.
    pub api_version: Box<str>,
    /// `kind`.
    pub kind: Box<str>,
    /// Number of objects.
    pub count: usize,
}

impl fmt::Display for IgnoredKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.count, self.kind, self.api_version)
    }
}

fn list(items: &[impl fmt::Display], separator: &str) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

/// The reason why an entry of a directory is not read, although its name is like that of a manifest.
#[derive(Debug, thiserror::Error)]
pub enum NotReadReason {
    /// It is a directory.
    #[error("it is a directory, and subdirectories are not read")]
    Directory,
    /// It is a FIFO, a socket or a device.
    #[error("it is not a regular file")]
    NotRegular,
    /// The end of the name differs from those of manifests in upper and lower case.
    #[error("the names of manifests end in .yaml, .yml or .json, in lower case")]
    UpperCase,
    /// A link leads to a file that cannot be accessed.
    #[error("cannot follow the link: {0}")]
    Link(io::Error),
}

impl Problem {
    /// Returns the problem and its causes on one line. Problems with equal text are the same problem.
    pub fn text(&self) -> String {
        error_chain(self)
    }

    /// Reports whether the source does not apply what it was given because of the problem.
    pub fn blocks_changes(&self) -> bool {
        match self {
            Self::Unreadable { .. }
            | Self::InvalidUtf8 { .. }
            | Self::NotText { .. }
            | Self::TooLong { .. }
            | Self::Document { .. }
            | Self::InvalidObject { .. }
            | Self::Other(_) => true,
            Self::Duplicate { .. }
            | Self::Ignored { .. }
            | Self::IgnoredFields { .. }
            | Self::NoFiles { .. }
            | Self::NotRead { .. }
            | Self::Unwatched { .. } => false,
        }
    }
}
