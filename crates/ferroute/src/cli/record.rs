use std::path::PathBuf;

use clap::Args;

/// Arguments of `ferroute bundle`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BundleArgs {
    /// File to write; without one, or with `-`, the bundle goes to standard output
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// Arguments of `ferroute replay`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// File that `ferroute bundle` has written; `-` reads standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Go no further than to the sync of this number; 0 is what was there before the first
    #[arg(long, value_name = "NUMBER")]
    pub(crate) until: Option<usize>,
    /// Print what each sync writes to the kernel: input for iptables-restore or nft
    #[arg(long)]
    pub(crate) rules: bool,
    /// Print what is wanted at the end, as manifests that all commands take, and nothing else
    #[arg(long, conflicts_with = "rules")]
    pub(crate) manifests: bool,
}
