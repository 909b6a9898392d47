//! Checks that the tests named in `docs/reliability.md` and `docs/compat.md` exist, and those that are left out without
//! the iptables programs.

use std::{collections::BTreeSet, fs, path::Path};

/// Calls a function with the text of a Rust file, or of each Rust file below a directory.
fn rust_files(path: &Path, visit: &mut impl FnMut(&str)) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            rust_files(&entry.expect("an entry").path(), visit);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") && path.exists() {
        visit(&fs::read_to_string(path).expect("UTF-8"));
    }
}

/// Returns the names after `fn ` or `mod ` in Rust files.
fn names_after(keyword: &str, path: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    rust_files(path, &mut |text| {
        let after_keyword = text.lines().filter_map(|line| line.split_once(keyword)).map(|(_, rest)| rest);
        names.extend(after_keyword.filter_map(|rest| rest.split(['(', '<', ' ', ';']).next()).map(str::to_owned));
    });
    names
}

/// Returns the names of all functions of a test target, in any crate.
fn functions_of_target(crates: &Path, target: &str) -> BTreeSet<String> {
    let all = fs::read_dir(crates).expect("a directory").map(|entry| entry.expect("an entry").path().join("tests"));
    let sources = all.flat_map(|tests| [tests.join(target), tests.join(format!("{target}.rs"))]);
    sources.flat_map(|path| names_after("fn ", &path)).collect()
}

/// Returns the code spans of a table's last cell.
fn names_in_last_cell(row: &str) -> Vec<&str> {
    let cell = row.trim_end_matches('|').rsplit('|').next().expect("a cell");
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn tests_named_in_the_docs_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = |name: &str| fs::read_to_string(root.join("docs").join(name)).expect("the page");
    let functions = names_after("fn ", &root.join("crates"));
    let compat = page("compat.md");
    let versions = compat.split("\n## ").find(|section| section.starts_with("Versions\n")).expect("the section");
    for (text, header) in [(&*page("reliability.md"), "| fault |"), (versions, "| 1.36 |")] {
        let rows = text.lines().filter(|line| line.starts_with('|') && !line.contains("---") && !line.contains(header));
        let mut count = 0;
        for row in rows {
            let names = names_in_last_cell(row);
            assert!(!names.is_empty(), "no test: {row}");
            count += 1;
            for name in names {
                let exists = if name.contains('/') { root.join(name).is_file() } else { functions.contains(name) };
                assert!(exists, "{name} does not exist: {row}");
            }
        }
        assert!(count > 0, "no rows below {header}");
    }
}

/// `--skip` accepts any name, so a misspelt test would run in an environment in which it cannot pass.
#[test]
fn tests_that_are_left_out_without_iptables_programs_exist() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = fs::read_to_string(crates.join("ferroute-testing/need-iptables.txt")).expect("the list");
    let modules = names_after("mod ", &crates);
    let (mut functions, mut count) = (BTreeSet::new(), 0);
    for line in list.lines().filter(|line| !line.is_empty()) {
        if let Some(target) = line.strip_prefix("# ") {
            functions = functions_of_target(&crates, target);
            continue;
        }
        // A module of the test, or a test that a macro creates for a variant.
        let (of_target, others): (Vec<&str>, Vec<&str>) =
            line.split("::").partition(|segment| functions.contains(*segment));
        assert!(!of_target.is_empty(), "{line} does not exist in the test target above it");
        assert!(others.iter().all(|segment| modules.contains(*segment)), "{line} has an unknown module");
        count += 1;
    }
    assert!(count > 0, "no tests");
}
