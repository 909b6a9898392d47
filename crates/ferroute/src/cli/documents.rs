use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// Arguments of `ferroute completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
    /// For the name kube-proxy in place of ferroute
    #[arg(long)]
    pub(crate) kube_proxy: bool,
}

/// Arguments of `ferroute man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Directory to write all pages to; without it, the main page is printed
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: Option<PathBuf>,
}
