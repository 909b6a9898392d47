//! Which files there are, and which directory entries decide that.
//!
//! A change can come at any symbolic link on the way to a file: Kubernetes mounts a ConfigMap as links through a
//! directory `..data`, and changes all files at once by pointing that link elsewhere. So each link on the way is a place
//! to watch, like the file itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Component, Path, PathBuf},
};

/// What a path given by the user leads to at the moment.
#[derive(Debug)]
pub(super) struct Plan {
    /// Places that decide what the path itself leads to: links, and the file or directory in the end, or the first place
    /// where nothing is.
    pub(super) root: Vec<PathBuf>,
    /// What is there, or why it cannot be told.
    pub(super) listing: io::Result<Listing>,
}

/// The files to read.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// By the paths that people know them by.
    pub(super) files: BTreeSet<PathBuf>,
    /// The real directory, where new files can come up; none if the path is that of a file.
    pub(super) directory: Option<PathBuf>,
    /// Places that decide what the links in the directory lead to, by the path of the link.
    pub(super) links: BTreeMap<PathBuf, Vec<PathBuf>>,
}

impl Plan {
    pub(super) fn of(path: &Path) -> Self {
        let root = places(path);
        let listing = match (fs::metadata(path), root.last()) {
            (Ok(metadata), Some(real)) if metadata.is_dir() => list(path, real),
            (Ok(_), _) => Ok(Listing { files: [path.to_owned()].into(), ..Listing::default() }),
            (Err(error), _) => Err(error),
        };
        Self { root, listing }
    }

    /// All directories that need watching.
    pub(super) fn directories(&self) -> BTreeSet<&Path> {
        let mut directories: BTreeSet<&Path> = self.root.iter().filter_map(|place| place.parent()).collect();
        if let Ok(listing) = &self.listing {
            directories.extend(listing.directory.as_deref());
            directories.extend(listing.links.values().flatten().filter_map(|place| place.parent()));
        }
        directories
    }
}

/// Whether a file in a directory is taken for a manifest. Hidden files and what editors leave behind are not.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension();
    !name.as_encoded_bytes().starts_with(b".")
        && extension.is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}

fn list(path: &Path, real: &Path) -> io::Result<Listing> {
    let mut listing = Listing { directory: Some(real.to_owned()), ..Listing::default() };
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if !is_manifest(&entry.file_name()) {
            continue;
        }
        let file = path.join(entry.file_name());
        let type_ = entry.file_type()?;
        if type_.is_symlink() {
            listing.links.insert(file.clone(), places(&file));
        }
        // What is no file at all could block who reads it.
        if type_.is_file() || type_.is_symlink() && fs::metadata(&file).is_ok_and(|metadata| metadata.is_file()) {
            listing.files.insert(file);
        }
    }
    Ok(listing)
}

/// Follows a path link by link. Each place is given by its real directory, and the last is the real path, or where the
/// way ends because nothing is there.
fn places(path: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    let mut real = PathBuf::new();
    let mut links = 0;
    // The steps ahead, the next one last.
    let mut ahead = Vec::new();
    push_steps(&mut ahead, &std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    while let Some(step) = ahead.pop() {
        match step {
            Step::Root => real = PathBuf::from("/"),
            Step::Up => drop(real.pop()),
            Step::Down(name) => {
                real.push(name);
                match fs::read_link(&real) {
                    Ok(target) if links < MAX_LINKS => {
                        links += 1;
                        push_steps(&mut ahead, &target);
                        let parent = real.parent().map(Path::to_owned).unwrap_or_default();
                        places.push(std::mem::replace(&mut real, parent));
                    }
                    // Neither a link nor missing.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                    _ => break,
                }
            }
        }
    }
    places.push(real);
    places
}

/// A component of a path, to be kept while the path that it came from is not.
enum Step {
    Root,
    Up,
    Down(OsString),
}

fn push_steps(ahead: &mut Vec<Step>, path: &Path) {
    ahead.extend(path.components().rev().filter_map(|component| match component {
        Component::RootDir => Some(Step::Root),
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Down(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    }));
}

/// Links on one way before it counts as a circle, as in the kernel.
const MAX_LINKS: usize = 40;

#[cfg(test)]
mod tests;
