//! `ferroute bundle`: saves the recording of the running proxy.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use ferroute_proxy::control::request_bundle;

/// Arguments of `ferroute bundle`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BundleArgs {
    /// File to write; by default, or with -, standard output
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Requests the bundle from the proxy in this network namespace and writes it.
pub(crate) fn run(args: &BundleArgs) -> anyhow::Result<()> {
    // The file is created only after the proxy has answered.
    let mut bundle = request_bundle()?;
    match args.file.as_deref().filter(|file| *file != Path::new("-")) {
        Some(path) => {
            let mut file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            let bytes = io::copy(&mut bundle, &mut file).with_context(|| format!("cannot write {}", path.display()))?;
            writeln!(io::stderr(), "{}: {bytes} bytes; see `ferroute replay {0}`", path.display())?;
        }
        None => {
            io::copy(&mut bundle, &mut io::stdout().lock())?;
        }
    }
    Ok(())
}
