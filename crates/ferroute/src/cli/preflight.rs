use clap::Args;

use super::{DesiredArgs, Output};
use crate::preflight::Mode;

/// Arguments of `ferroute preflight`.
#[derive(Args, Debug)]
pub(crate) struct PreflightArgs {
    /// The mode to go from; without it, that of the rules that are in the kernel
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) from: Option<Mode>,
    /// What should be true: the mode is the one to go to.
    #[command(flatten)]
    pub(crate) desired: DesiredArgs,
    /// How to write the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: Output,
}
