//! `ferroute bundle`: the running proxy's record, as a file.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use anyhow::Context;

use crate::{cli::BundleArgs, recording};

/// Asks the proxy of this network namespace, and writes what it answers.
pub(crate) fn run(args: &BundleArgs) -> anyhow::Result<()> {
    // Asked first, so that there is no empty file when nobody answers.
    let mut bundle = recording::ask()?;
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
