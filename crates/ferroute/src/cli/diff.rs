use clap::Args;

use super::{Output, SettingsArgs, SourceArgs};

/// Arguments of `ferroute diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// Where Services are told from.
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// How to treat them.
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    /// How to write the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: Output,
    /// Tell every difference, not only the first of many
    #[arg(long)]
    pub(crate) all: bool,
}
