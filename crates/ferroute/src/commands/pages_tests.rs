//! Checks that the Markdown pages and the files in `deploy/` name only files and sections that exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the files below these paths, of all types.
pub(super) fn files(paths: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut paths: Vec<_> = paths.iter().map(|path| root().join(path)).collect();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()));
        } else {
            found.push(path);
        }
    }
    found
}

/// Returns the Markdown pages of the project.
pub(super) fn pages() -> Vec<PathBuf> {
    let top = fs::read_dir(root()).expect("a directory").map(|entry| entry.expect("an entry").path());
    let all = files(&["docs", "conformance/README.md", "e2e/README.md", ".github"]).into_iter().chain(top);
    all.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

pub(super) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the anchors of a page's headings, as GitHub names them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    let anchor =
        |line: &str| line.trim_start_matches('#').trim().to_lowercase().chars().filter(kept).collect::<String>();
    headings.map(|line| anchor(line).replace(' ', "-")).collect()
}

#[test]
fn links_lead_to_files_and_sections_that_exist() {
    let mut count = 0;
    for page in pages() {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
            if link.starts_with("https:") {
                continue;
            }
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().expect("a directory").join(file) };
            assert!(target.exists(), "{}: {link}", page.display());
            if !section.is_empty() {
                assert!(anchors(&read(&target)).contains(section), "{}: {link}", page.display());
            }
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn named_files_of_deploy_exist() {
    let mut named = BTreeSet::new();
    for file in pages().into_iter().chain(files(&["deploy"])) {
        // Pictures are not text.
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "/._-".contains(c)));
        named
            .extend(words.filter(|word| word.starts_with("deploy/")).map(|word| word.trim_end_matches('.').to_owned()));
    }
    // The administrator exports this file from the cluster.
    named.remove("deploy/kubeadm/kube-proxy.yaml");
    assert!(named.len() > 10, "{named:?}");
    let missing: Vec<_> = named.iter().filter(|name| !root().join(name).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
