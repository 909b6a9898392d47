//! Path resolution: the files to read, and the directory entries to watch.
//!
//! Replacing any symbolic link in a path changes the file that it resolves to. For example, the kubelet mounts a ConfigMap
//! as links through a directory `..data`, and changes all files at once by replacing that link. Therefore each link that
//! is traversed is watched, like the file itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Component, Path, PathBuf},
};

use crate::NotReadReason;

/// The current resolution of a configured path.
#[derive(Debug)]
pub(super) struct Plan {
    /// Directory entries that determine the resolution of the path itself: the links, then the file or directory, or the
    /// first entry that does not exist.
    pub(super) root: Vec<PathBuf>,
    /// Files at the path, or the error that prevents listing them.
    pub(super) listing: io::Result<Listing>,
}

/// The files to read.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Files, below the path as configured.
    pub(super) files: BTreeSet<PathBuf>,
    /// The resolved directory, where new files can appear; `None` if the path is a file.
    pub(super) directory: Option<PathBuf>,
    /// For each link in the directory, the directory entries that determine its resolution.
    pub(super) links: BTreeMap<PathBuf, Vec<PathBuf>>,
    /// The entries of the directory with names like manifests that are not read, below the path as configured.
    pub(super) not_read: Vec<(PathBuf, NotReadReason)>,
}

impl Plan {
    pub(super) fn new(path: &Path) -> Self {
        let root = places(path);
        let listing = match (fs::metadata(path), root.last()) {
            (Ok(metadata), Some(real)) if metadata.is_dir() => list(path, real),
            // Reading it could block.
            (Ok(metadata), _) if !metadata.is_file() => Err(io::Error::other(NotReadReason::NotRegular)),
            (Ok(_), _) => Ok(Listing { files: [path.to_owned()].into(), ..Listing::default() }),
            (Err(error), _) => Err(error),
        };
        Self { root, listing }
    }

    /// Returns all directories to watch.
    pub(super) fn directories(&self) -> BTreeSet<&Path> {
        let mut directories: BTreeSet<&Path> = self.root.iter().filter_map(|place| place.parent()).collect();
        if let Ok(listing) = &self.listing {
            directories.extend(listing.directory.as_deref());
            directories.extend(listing.links.values().flatten().filter_map(|place| place.parent()));
        }
        directories
    }
}

/// Reports whether a file in a directory is a manifest, by its name, as `kubectl` does. Hidden files and editors' backups are
/// not.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    has_extension(name, |extension, suffix| extension == suffix)
}

/// Reports whether a name is that of a manifest, or differs from one only in upper and lower case.
pub(super) fn is_like_manifest(name: &OsStr) -> bool {
    has_extension(name, |extension, suffix| extension.eq_ignore_ascii_case(suffix))
}

fn has_extension(name: &OsStr, is_equal: impl Fn(&OsStr, &str) -> bool) -> bool {
    let extension = Path::new(name).extension();
    !name.as_encoded_bytes().starts_with(b".")
        && extension.is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|suffix| is_equal(extension, suffix)))
}

fn list(path: &Path, real: &Path) -> io::Result<Listing> {
    let mut listing = Listing { directory: Some(real.to_owned()), ..Listing::default() };
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if !is_like_manifest(&name) {
            continue;
        }
        let path = path.join(&name);
        let type_ = entry.file_type()?;
        if type_.is_symlink() {
            listing.links.insert(path.clone(), places(&path));
        }
        let type_ =
            if type_.is_symlink() { fs::metadata(&path).map(|metadata| metadata.file_type()) } else { Ok(type_) };
        let reason = match type_ {
            Ok(type_) if type_.is_dir() => NotReadReason::Directory,
            // Reading a file that is not a regular file (for example a pipe) could block.
            Ok(type_) if !type_.is_file() => NotReadReason::NotRegular,
            Ok(_) if !is_manifest(&name) => NotReadReason::UpperCase,
            Ok(_) => {
                listing.files.insert(path);
                continue;
            }
            Err(error) => NotReadReason::Link(error),
        };
        listing.not_read.push((path, reason));
    }
    Ok(listing)
}

/// Resolves a path link by link. Returns each link, with the resolved path of its directory, and finally the resolved
/// path, or the first path that does not exist.
fn places(path: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    let mut real = PathBuf::new();
    let mut links = 0;
    // Remaining components, the next one last.
    let mut remaining = Vec::new();
    push_components(&mut remaining, &std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    while let Some(component) = remaining.pop() {
        match component {
            OwnedComponent::Root => real = PathBuf::from("/"),
            OwnedComponent::Parent => drop(real.pop()),
            OwnedComponent::Name(name) => {
                real.push(name);
                match fs::read_link(&real) {
                    Ok(target) if links < MAX_LINKS => {
                        links += 1;
                        push_components(&mut remaining, &target);
                        let parent = real.parent().map(Path::to_owned).unwrap_or_default();
                        places.push(std::mem::replace(&mut real, parent));
                    }
                    // It exists and is not a link.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                    _ => break,
                }
            }
        }
    }
    places.push(real);
    places
}

/// A [`Component`] that does not borrow its path.
enum OwnedComponent {
    Root,
    Parent,
    Name(OsString),
}

fn push_components(remaining: &mut Vec<OwnedComponent>, path: &Path) {
    remaining.extend(path.components().rev().filter_map(|component| match component {
        Component::RootDir => Some(OwnedComponent::Root),
        Component::ParentDir => Some(OwnedComponent::Parent),
        Component::Normal(name) => Some(OwnedComponent::Name(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    }));
}

/// Maximum number of links in a path, as in the kernel (`ELOOP`).
const MAX_LINKS: usize = 40;

#[cfg(test)]
mod tests;
