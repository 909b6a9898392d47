//! A panic can be understood from the log. `make test-crash` runs this with the release build: `FERROUTE` names the
//! program, whose debug information is next to it in a file with the suffix `.debug`.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

fn program() -> PathBuf {
    std::env::var_os("FERROUTE").map_or_else(|| env!("CARGO_BIN_EXE_ferroute").into(), PathBuf::from)
}

/// Lets a program panic, and returns its log.
fn log_of_crash(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).arg("crash").args(arguments).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the line of the innermost call of a function.
fn frame<'a>(log: &'a str, function: &str) -> &'a str {
    let frame = log.lines().find(|line| line.contains("0x") && line.contains(function));
    frame.unwrap_or_else(|| panic!("no call of {function}:\n{log}"))
}

#[test]
fn panics_are_logged_with_thread_location_and_calls() {
    let log = log_of_crash(&program(), &[]);
    let panic = log.lines().find(|line| line.contains("panic: requested by the command line")).expect(&log);
    assert!(panic.contains("ERROR") && panic.contains("thread=\"crash\"") && panic.contains(LOCATION), "{log}");
    frame(&log, PANICKED);
    // The debug information is within the program or next to it.
    let (_, calls) = log.split_once("backtrace of the panic").expect(&log);
    assert!(calls.contains(LOCATION), "{log}");
    // The calls of the panic itself are left out.
    assert!(!calls.contains("force_capture"), "{log}");
}

#[test]
fn panics_in_json_are_one_line_per_message() {
    let log = log_of_crash(&program(), &["--json"]);
    let lines: Vec<Value> = log.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    let [panic, backtrace] = lines.as_slice() else { panic!("{log}") };
    assert_eq!(panic["msg"], "panic: requested by the command line");
    assert_eq!((&panic["level"], &panic["thread"]), (&"error".into(), &"crash".into()));
    assert!(panic["location"].as_str().unwrap().contains(LOCATION), "{panic}");
    frame(backtrace["backtrace"].as_str().unwrap(), PANICKED);
    assert!(backtrace["version"].as_str().unwrap().contains(env!("CARGO_PKG_VERSION")), "{backtrace}");
}

#[test]
fn addresses_in_the_log_lead_to_lines_in_the_debug_file() {
    let program = program();
    let debug = PathBuf::from(format!("{}.debug", program.display()));
    let debug = if debug.exists() { &debug } else { &program };
    // This copy has no such file next to it.
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("ferroute");
    fs::copy(&program, &alone).unwrap();
    let log = log_of_crash(&alone, &[]);
    let address = frame(&log, PANICKED).split(' ').find(|word| word.starts_with("0x")).unwrap();
    let found = Command::new("addr2line").arg("-e").arg(debug).args(["-C", "-f", "-i", address]).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(found.contains("panic_on_purpose") && found.contains(LOCATION), "{address}: {found}\n{log}");
}

/// The function of the command `crash` that panics.
const PANICKED: &str = "ferroute::commands::crash::panic_on_purpose";
const LOCATION: &str = "crates/ferroute/src/commands/crash.rs:";
