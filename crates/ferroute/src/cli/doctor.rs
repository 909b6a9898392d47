use clap::Args;

use super::{DesiredArgs, Output};

/// Arguments of `ferroute doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// What should be true; without a source, and outside of a cluster, only the host is looked at.
    #[command(flatten)]
    pub(crate) desired: DesiredArgs,
    /// Do not try to connect to endpoints
    #[arg(long)]
    pub(crate) no_connect: bool,
    /// How to write the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: Output,
}
