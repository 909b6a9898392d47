use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// The files that are read in a directory, and the places that count for its links, all below the directory.
fn files(directory: &Path) -> Vec<String> {
    let listing = Plan::of(directory).listing.unwrap();
    listing.files.iter().map(|file| below(directory, file)).collect()
}

fn below(directory: &Path, path: &Path) -> String {
    path.strip_prefix(directory).unwrap().display().to_string()
}

fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    // Temporary directories may lie behind a link themselves.
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
}

#[test]
fn a_file_is_a_listing_of_itself() {
    let (_guard, path) = directory();
    let file = path.join("any-name");
    fs::write(&file, "").unwrap();
    let plan = Plan::of(&file);
    assert_eq!(plan.root, std::slice::from_ref(&file));
    assert_eq!(plan.listing.unwrap().files, [file].into());
}

#[test]
fn each_link_on_the_way_is_a_place_to_watch() {
    let (_guard, path) = directory();
    fs::create_dir_all(path.join("manifests")).unwrap();
    fs::create_dir_all(path.join("store/v1")).unwrap();
    fs::write(path.join("store/v1/a.yaml"), "").unwrap();
    symlink("../store", path.join("manifests/..data")).unwrap();
    symlink("..data/v1/a.yaml", path.join("manifests/a.yaml")).unwrap();
    symlink(path.join("manifests"), path.join("link")).unwrap();

    let plan = Plan::of(&path.join("link"));
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
fn what_is_missing_is_watched_for_where_the_way_ends() {
    let (_guard, path) = directory();
    let plan = Plan::of(&path.join("not/there/yet.yaml"));
    assert_eq!(plan.root, [path.join("not")]);
    assert_eq!(plan.listing.unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn links_in_a_circle_end() {
    let (_guard, path) = directory();
    symlink("b", path.join("a")).unwrap();
    symlink("a", path.join("b")).unwrap();
    assert!(Plan::of(&path.join("a")).listing.is_err());
}

#[test]
fn steps_upwards_are_taken_from_where_links_lead() {
    let (_guard, path) = directory();
    fs::create_dir_all(path.join("x/y")).unwrap();
    fs::write(path.join("x/a.yaml"), "").unwrap();
    symlink("x/y", path.join("link")).unwrap();
    assert_eq!(Plan::of(&path.join("link/../a.yaml")).root, [path.join("link"), path.join("x/a.yaml")]);
}
