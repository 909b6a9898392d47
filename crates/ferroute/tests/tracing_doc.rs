//! The examples in `docs/tracing.md` show what the command prints.
//!
//! With `FERROUTE_UPDATE_DOCS=1` in the environment the text is brought up to date instead.

#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::{fmt::Write, path::Path, process::Command};

/// The text with the output of every example as it is now.
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
        assert!(output.stderr.is_empty(), "{command}: {output:?}");
        writeln!(new, "{command}\n{}```", String::from_utf8(output.stdout).unwrap()).unwrap();
        assert!(lines.any(|line| line == "```"), "the example {command} has no end");
    }
    new
}

#[test]
fn the_examples_show_what_the_command_prints() {
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
