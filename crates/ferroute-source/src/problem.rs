use std::{error::Error, fmt, io, path::PathBuf};

use ferroute_api::{Kind, manifest::DocumentError};

use crate::ObjectName;

/// Something that a person should know about what a source reads. It prints as what is affected; causes are in its
/// chain of sources. The source itself goes on.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A file or the directory cannot be read. What was known of it stays in force.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is no text. What was known of it stays in force.
    #[error("cannot read {} as text: not UTF-8 at byte {offset}", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// Where, from 0.
        offset: u64,
    },
    /// A document in a file, or an item of a list in it, is bad.
    #[error("cannot use all of {}{}", file.display(), if *kept { ", so its last good version stays in force" } else { "" })]
    Document {
        /// The file.
        file: PathBuf,
        /// The whole file stays in force as it was. It is false where the file never was good, so that the good ones of
        /// its documents count.
        kept: bool,
        /// The document, object and field, and what is wrong.
        #[source]
        error: DocumentError,
    },
    /// An object is there twice; the first counts, with files in the order of their names.
    #[error("{kind} {name} is in {} already, so that in {} is passed over", used.display(), passed_over.display())]
    Duplicate {
        /// The kind of the object.
        kind: Kind,
        /// Its name.
        name: ObjectName,
        /// The file whose object counts.
        used: PathBuf,
        /// The file whose object does not.
        passed_over: PathBuf,
    },
    /// Objects of kinds that mean nothing to a proxy. Nothing is wrong, but somebody may have meant something by them.
    #[error("{} has objects that are not for a proxy: {}", file.display(), list(kinds))]
    Ignored {
        /// The file.
        file: PathBuf,
        /// The kinds, sorted.
        kinds: Vec<IgnoredKind>,
    },
    /// Changes of a directory cannot be followed by the kernel's notices; they are found a good deal later.
    #[error("cannot follow changes in {} at once", path.display())]
    Unwatched {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What only another source knows, in its own words.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

/// How many objects of a kind were passed over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IgnoredKind {
    /// Their `apiVersion`.
    pub api_version: Box<str>,
    /// Their kind.
    pub kind: Box<str>,
    /// How many.
    pub count: usize,
}

impl fmt::Display for IgnoredKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.count, self.kind, self.api_version)
    }
}

fn list(kinds: &[IgnoredKind]) -> String {
    kinds.iter().map(IgnoredKind::to_string).collect::<Vec<_>>().join(", ")
}

impl Problem {
    /// The problem with all its causes, on one line. Two problems with the same text are the same problem.
    pub fn text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}
