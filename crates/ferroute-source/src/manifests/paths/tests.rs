use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// Returns the manifests in a directory, relative to it.
fn files(directory: &Path) -> Vec<String> {
    let listing = Plan::new(directory).listing.unwrap();
    listing.files.iter().map(|file| below(directory, file)).collect()
}

fn below(directory: &Path, path: &Path) -> String {
    path.strip_prefix(directory).unwrap().display().to_string()
}

fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    // The path of the temporary directory may contain links.
    let path = directory.path().canonicalize().unwrap();
    (directory, path)
}

#[test]
fn only_manifests_are_listed() {
    let (_guard, path) = directory();
    for name in
        ["b.yaml", "a.json", "c.yml", ".hidden.yaml", "d.yaml~", "#e.yaml#", "f.yaml.swp", "4913", "g.YAML", "yaml"]
    {
        fs::write(path.join(name), "").unwrap();
    }
    fs::create_dir(path.join("sub.yaml")).unwrap();
    symlink(path.join("c.yml"), path.join("link.yaml")).unwrap();
    symlink(path.join("sub.yaml"), path.join("link-to-directory.yaml")).unwrap();
    symlink("nowhere", path.join("dangling.yaml")).unwrap();
    assert_eq!(files(&path), ["a.json", "b.yaml", "c.yml", "link.yaml"]);
    let listing = Plan::new(&path).listing.unwrap();
    let not_read: BTreeSet<String> = listing.not_read.iter().map(|(entry, _)| below(&path, entry)).collect();
    let expected = ["dangling.yaml", "g.YAML", "link-to-directory.yaml", "sub.yaml"];
    assert_eq!(not_read, expected.map(str::to_owned).into());
}

#[test]
fn file_is_listed_by_itself() {
    let (_guard, path) = directory();
    let file = path.join("any-name");
    fs::write(&file, "").unwrap();
    let plan = Plan::new(&file);
    assert_eq!(plan.root, std::slice::from_ref(&file));
    assert_eq!(plan.listing.unwrap().files, [file].into());
}

#[test]
fn each_link_in_the_path_is_watched() {
    let (_guard, path) = directory();
    fs::create_dir_all(path.join("manifests")).unwrap();
    fs::create_dir_all(path.join("store/v1")).unwrap();
    fs::write(path.join("store/v1/a.yaml"), "").unwrap();
    symlink("../store", path.join("manifests/..data")).unwrap();
    symlink("..data/v1/a.yaml", path.join("manifests/a.yaml")).unwrap();
    symlink(path.join("manifests"), path.join("link")).unwrap();

    let plan = Plan::new(&path.join("link"));
    assert_eq!(plan.root, [path.join("link"), path.join("manifests")]);
    let listing = plan.listing.as_ref().unwrap();
    assert_eq!(listing.directory, Some(path.join("manifests")));
    let link = path.join("link/a.yaml");
    assert_eq!(listing.files, [link.clone()].into());
    let places = ["link", "manifests/a.yaml", "manifests/..data", "store/v1/a.yaml"].map(|place| path.join(place));
    assert_eq!(listing.links[&link], places);
    let directories = ["", "manifests", "store/v1"].map(|directory| path.join(directory));
    assert_eq!(plan.directories(), directories.iter().map(PathBuf::as_path).collect());
}

#[test]
fn missing_path_is_watched_at_its_first_missing_component() {
    let (_guard, path) = directory();
    let plan = Plan::new(&path.join("not/there/yet.yaml"));
    assert_eq!(plan.root, [path.join("not")]);
    assert_eq!(plan.listing.unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn circular_links_are_an_error() {
    let (_guard, path) = directory();
    symlink("b", path.join("a")).unwrap();
    symlink("a", path.join("b")).unwrap();
    assert!(Plan::new(&path.join("a")).listing.is_err());
}

#[test]
fn parent_components_are_resolved_after_links() {
    let (_guard, path) = directory();
    fs::create_dir_all(path.join("x/y")).unwrap();
    fs::write(path.join("x/a.yaml"), "").unwrap();
    symlink("x/y", path.join("link")).unwrap();
    assert_eq!(Plan::new(&path.join("link/../a.yaml")).root, [path.join("link"), path.join("x/a.yaml")]);
}
