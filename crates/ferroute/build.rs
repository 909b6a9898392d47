//! Leaves the tables for unwinding out of releases, where a panic aborts: they are a ninth of the program.
//!
//! The compiler writes these tables on Linux whether or not a panic unwinds, the standard library has been compiled with them, and
//! an option of the compiler would apply to tests as well, which do unwind.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SCRIPT}");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|set| set == value);
    // `release` or a profile that inherits from it.
    if !is("PROFILE", "release") || !is("CARGO_CFG_TARGET_OS", "linux") {
        return;
    }
    let Ok(directory) = env::var("CARGO_MANIFEST_DIR") else { return };
    for argument in [format!("--script={directory}/{SCRIPT}"), "--no-eh-frame-hdr".to_owned()] {
        println!("cargo::rustc-link-arg-bins=-Wl,{argument}");
    }
}

const SCRIPT: &str = "link.ld";
