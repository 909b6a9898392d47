use clap::Args;

use super::{SettingsArgs, SourceArgs};

/// What should be true on a node; shared by all commands that print, explain or compare it.
#[derive(Args, Clone, Debug, Default)]
pub struct DesiredArgs {
    /// Where Services are told from.
    #[command(flatten)]
    pub source: SourceArgs,
    /// How to treat them.
    #[command(flatten)]
    pub settings: SettingsArgs,
}
