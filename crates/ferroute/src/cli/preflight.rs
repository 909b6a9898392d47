use clap::Args;

use super::{Output, SettingsArgs, SourceArgs};
use crate::preflight::Mode;

/// Arguments of `ferroute preflight`.
#[derive(Args, Debug)]
pub(crate) struct PreflightArgs {
    /// The mode to go from; without it, that of the rules that are in the kernel
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) from: Option<Mode>,
    /// Where Services are told from.
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// How to treat them: the mode is the one to go to.
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    /// How to write the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: Output,
}
