use clap::{Args, ValueEnum};
use ferroute_core::IpFamily;

use super::DesiredArgs;

/// Arguments of `ferroute render`.
#[derive(Args, Debug)]
pub(crate) struct RenderArgs {
    /// What should be true.
    #[command(flatten)]
    pub(crate) desired: DesiredArgs,
    /// Print the rules of one IP family only
    #[arg(long, value_enum)]
    pub(crate) family: Option<Family>,
}

/// An IP family on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Family {
    /// IPv4.
    #[value(name = "ipv4")]
    V4,
    /// IPv6.
    #[value(name = "ipv6")]
    V6,
}

impl From<Family> for IpFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }
}
