//! `ferroute replay`: repeats the decisions of a recorded proxy on any machine.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use ferroute_inspect::replay::{Options, Verdict, replay};
use ferroute_proxy::recording::Bundle;

/// Arguments of `ferroute replay`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// Bundle written by `ferroute bundle`; `-` reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Stop after the sync with this number; 0 is the state before the first
    #[arg(long, value_name = "NUMBER")]
    until: Option<usize>,
    /// Print what each sync writes to the kernel, as input for iptables-restore or nft
    #[arg(long)]
    rules: bool,
    /// Print only the desired state at the end, as manifests that all commands accept
    #[arg(long, conflicts_with = "rules")]
    manifests: bool,
}

/// Replays a bundle and prints each sync. The exit status is 0 if all decisions are the same, 1 if some differ.
pub(crate) fn run(args: &ReplayArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let bundle = read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let options = Options { until: args.until, rules: args.rules, manifests: args.manifests };
    Ok(match replay(&bundle, &options, out)? {
        Verdict::Same => ExitCode::SUCCESS,
        Verdict::Different => ExitCode::FAILURE,
    })
}

fn read(path: &Path) -> anyhow::Result<Bundle> {
    let input: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(path)?)),
    };
    Ok(Bundle::read(input)?)
}
