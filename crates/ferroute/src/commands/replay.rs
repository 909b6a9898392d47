//! `ferroute replay`: repeats the recorded syncs of a proxy on any machine.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use ferroute_inspect::replay::{Options, Verdict, replay};
use ferroute_modes::REGISTRY;
use ferroute_proxy::recording::Bundle;

/// Arguments of `ferroute replay`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// File written by `ferroute bundle`; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Stop after this sync; 0 is the state before the first sync
    #[arg(long, value_name = "NUMBER")]
    until: Option<usize>,
    /// Print the rules that each sync writes, for iptables-restore or nft
    #[arg(long)]
    rules: bool,
    /// Print the final desired state as manifests, and nothing else
    #[arg(long, conflicts_with = "rules")]
    manifests: bool,
}

/// Replays a bundle and prints each sync. The exit status is 0 if the replayed syncs equal the recorded ones, else 1.
pub(crate) fn run(args: &ReplayArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let bundle = read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let options = Options { until: args.until, rules: args.rules, manifests: args.manifests };
    Ok(match replay(&REGISTRY, &bundle, &options, out)? {
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
