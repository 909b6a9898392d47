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
    let all = files(&["docs", "conformance/README.md", "e2e/README.md", "deploy", ".github"]).into_iter().chain(top);
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

#[test]
fn names_of_packages_and_images_have_the_version_of_the_program() {
    let mut count = 0;
    for file in pages().into_iter().chain(files(&["deploy"])).filter(|file| !file.ends_with("CHANGELOG.md")) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for before in
            ["ferroute:", "ferroute_", "ferroute-", "ferroute:v", "--version ", "refs/tags/v", "ferroute, version: "]
        {
            for rest in text.split(before).skip(1) {
                let version = rest.split(|c: char| !(c.is_ascii_digit() || c == '.')).next().unwrap_or_default();
                if version.split('.').filter(|part| !part.is_empty()).count() == 3 {
                    let at = file.display();
                    assert_eq!(version.trim_end_matches('.'), env!("CARGO_PKG_VERSION"), "{at}: {before}{version}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 20, "{count}");
}

/// Facts that several files state: each file with the words before the value.
const FACTS: &[&[(&str, &str)]] = &[
    &[("Cargo.toml", "\nrust-version = \""), ("CONTRIBUTING.md", "[Rust](https://rustup.rs) ")],
    &[
        ("README.md", "nftables mode requires Linux "),
        ("docs/modes.md", "nftables mode requires Linux "),
        ("docs/stability.md", "| nftables | "),
    ],
    // The tested kernels.
    &[
        ("README.md", "Tests run on Linux "),
        ("docs/modes.md", "or newer. Linux "),
        ("docs/stability.md", "| nftables | 5.10 or newer; "),
        ("docs/stability.md", "no minimum is known; "),
        ("conformance/README.md", "tests nftables mode on Linux "),
    ],
    &[
        ("Makefile", "\nVM_KERNELS ?= linux-image-cloud-amd64 linux-image-"),
        ("README.md", "Tests run on Linux 6.1, "),
        ("conformance/README.md", "tests nftables mode on Linux 6.1, "),
    ],
    &[
        ("README.md", "and for nftables mode also on "),
        ("docs/modes.md", "6.18 and "),
        ("docs/stability.md", "6.12, 6.18 and "),
    ],
    &[("deploy/helm/Chart.yaml", "kubeVersion: \">="), ("docs/stability.md", "So API servers from ")],
    &[("deploy/helm/Chart.yaml", "startupTaint.key requires "), ("docs/deploy.md", "It requires Kubernetes ")],
    &[("deploy/monitoring/rules.yaml", "for Prometheus "), ("docs/deploy.md", "alerts for Prometheus ")],
    &[("deploy/helm/values.yaml", "\n  limits:\n    memory: "), ("docs/deploy.md", "The memory limit of ")],
    &[("deploy/systemd/ferroute.service", "LimitNOFILE="), ("docs/deploy.md", "of container runtimes is ample; ")],
    &[("deploy/helm/values.yaml", "such as 0.0.0.0:"), ("docs/deploy.md", "by default 127.0.0.1:")],
    &[(".github/workflows/e2e.yml", "KUBERNETES_VERSION: v"), ("e2e/README.md", "tar.gz` of Kubernetes ")],
    &[
        ("docs/performance.md", "| nftables | 10,000×10 | 20 | Ferroute | "),
        ("README.md", "a changed endpoint was reached after\n"),
    ],
];

#[test]
fn facts_are_the_same_wherever_they_are_stated() {
    for places in FACTS {
        let values: Vec<Vec<String>> = places.iter().map(|(file, before)| value_after(file, before)).collect();
        // Some places leave out the last part, such as that of a patch version.
        let longest = values.iter().max_by_key(|value| value.len()).expect("a place");
        assert!(values.iter().all(|value| longest.starts_with(value)), "{places:?}: {values:?}");
    }
}

/// Returns the parts of the number after these words, without separators of thousands.
fn value_after(file: &str, before: &str) -> Vec<String> {
    let text = read(&root().join(file));
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{file} does not say {before:?}"));
    let mut number = String::new();
    let mut rest = rest.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            c if c.is_ascii_digit() => number.push(c),
            '.' | ',' if rest.peek().is_some_and(char::is_ascii_digit) => number.extend((c == '.').then_some('.')),
            _ => break,
        }
    }
    assert!(!number.is_empty(), "{file}: no number after {before:?}");
    number.split('.').map(str::to_owned).collect()
}
