//! Checks the output of the examples in `docs/tracing.md`, or updates it if `FERROUTE_UPDATE_DOCS` is set.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{fmt::Write, path::Path, process::Command};

/// Returns the text with the current output of each example.
fn with_outputs(text: &str, root: &Path) -> String {
    let mut new = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        writeln!(new, "{line}").unwrap();
        if line != "```console" {
            continue;
        }
        let command = lines.next().unwrap();
        let arguments = command.strip_prefix("$ ferroute ").unwrap();
        let output =
            Command::new(env!("CARGO_BIN_EXE_ferroute")).args(arguments.split(' ')).current_dir(root).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        // On a busy machine, it takes a while.
        assert!(error.lines().all(|line| line.ends_with("which takes a while")), "{command}: {error}");
        writeln!(new, "{command}\n{}```", String::from_utf8(output.stdout).unwrap()).unwrap();
        assert!(lines.any(|line| line == "```"), "unterminated example {command}");
    }
    new
}

#[test]
fn examples_show_the_output_of_the_command() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("docs/tracing.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let new = with_outputs(&text, &root);
    assert!(new.matches("$ ferroute trace").count() > 5);
    if std::env::var_os("FERROUTE_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &new).unwrap();
    } else {
        assert!(text == new, "docs/tracing.md is out of date: run this test with FERROUTE_UPDATE_DOCS=1");
    }
}
