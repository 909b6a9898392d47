use clap::Args;

use super::{Output, SettingsArgs, SourceArgs};

/// Arguments of `ferroute doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Where Services are told from; without it, and outside of a cluster, only the host is looked at.
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// How to treat them.
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    /// Do not try to connect to endpoints
    #[arg(long)]
    pub(crate) no_connect: bool,
    /// How to write the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: Output,
}
