//! Checks that the tests named in `docs/reliability.md` exist.

use std::{collections::BTreeSet, fs, path::Path};

/// Calls a function with the text of each Rust file below a directory.
fn rust_files(directory: &Path, visit: &mut impl FnMut(&str)) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            visit(&fs::read_to_string(&path).expect("UTF-8"));
        }
    }
}

/// Returns the names of all functions below `crates/`.
fn functions(root: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    rust_files(&root.join("crates"), &mut |text| {
        let after_fn = text.lines().filter_map(|line| line.split_once("fn ")).map(|(_, rest)| rest);
        names.extend(after_fn.filter_map(|rest| rest.split(['(', '<']).next()).map(str::to_owned));
    });
    names
}

/// Returns the code spans of a table's last cell.
fn names_in_last_cell(row: &str) -> Vec<&str> {
    let cell = row.trim_end_matches('|').rsplit('|').next().expect("a cell");
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn tests_named_in_the_docs_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("docs/reliability.md")).expect("the page");
    let functions = functions(&root);
    let rows =
        text.lines().filter(|line| line.starts_with('|') && !line.contains("---") && !line.contains("| fault |"));
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
    assert!(count > 0, "no rows");
}
