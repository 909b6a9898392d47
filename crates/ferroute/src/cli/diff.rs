use clap::Args;

use super::{DesiredArgs, Output};

/// Arguments of `ferroute diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// What should be true.
    #[command(flatten)]
    pub(crate) desired: DesiredArgs,
    /// How to write the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: Output,
    /// Tell every difference, not only the first of many
    #[arg(long)]
    pub(crate) all: bool,
}
