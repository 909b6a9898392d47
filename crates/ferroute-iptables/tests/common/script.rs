//! Programs that are written while other tests start programs.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Makes a shell script.
///
/// Another process writes it: a program that another test starts at the same time would for a moment have a copy of our
/// open file, and a file that is open for writing cannot be run.
pub(crate) fn script(path: &Path, text: &str) {
    let mut install =
        Command::new("install").args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn().unwrap();
    install.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}
