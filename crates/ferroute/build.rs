//! Leaves the tables for unwinding out of releases, where a panic aborts: they are a ninth of the program.
//!
//! The compiler writes these tables on Linux whether or not a panic unwinds, the standard library has been compiled with them, and
//! an option of the compiler would apply to tests as well, which do unwind. The linkers of GNU and LLVM can leave them out. With
//! others, such as mold and gold, which do not support the script, the program is larger.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SCRIPT}");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|set| set == value);
    // `release` or a profile that inherits from it.
    if !is("PROFILE", "release") || !is("CARGO_CFG_TARGET_OS", "linux") {
        return;
    }
    let Ok(directory) = env::var("CARGO_MANIFEST_DIR") else { return };
    let arguments = [format!("-Wl,--script={directory}/{SCRIPT}"), "-Wl,--no-eh-frame-hdr".to_owned()];
    if works_with(&arguments).unwrap_or(false) {
        for argument in arguments {
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    } else {
        println!("cargo::warning=the linker cannot leave out tables for unwinding, so the program is larger");
    }
}

/// Reports whether an empty program can be linked with these arguments and, where it can be run at all, runs. Returns `None`
/// if that cannot be found out.
fn works_with(arguments: &[String]) -> Option<bool> {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR")?);
    let source = out_dir.join("empty.rs");
    std::fs::write(&source, "fn main() {}\n").ok()?;
    let with = link(&source, &out_dir.join("with"), arguments)?;
    let is_native = env::var_os("HOST") == env::var_os("TARGET");
    Some(with && (!is_native || succeeds(&mut Command::new(out_dir.join("with")))?))
}

/// Compiles and links a program as Cargo will do it.
fn link(source: &Path, output: &Path, arguments: &[String]) -> Option<bool> {
    let mut rustc = Command::new(env::var_os("RUSTC")?);
    rustc.arg(source).arg("-o").arg(output).arg("--target").arg(env::var_os("TARGET")?);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("-Clinker=");
        option.push(linker);
        rustc.arg(option);
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    rustc.args(arguments.iter().map(|argument| format!("-Clink-arg={argument}")));
    rustc.arg("-Cpanic=abort");
    succeeds(&mut rustc)
}

/// Runs a program and returns whether it has succeeded.
fn succeeds(program: &mut Command) -> Option<bool> {
    let status = program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    Some(status.ok()?.success())
}

const SCRIPT: &str = "link.ld";
