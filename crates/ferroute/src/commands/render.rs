//! `ferroute render`: prints the rules, without root and without a kernel.

use std::io::Write;

use clap::{Args, ValueEnum};
use ferroute_config::flags::DesiredArgs;
use ferroute_core::IpFamily;
use ferroute_inspect::desired::Desired;
use ferroute_modes::REGISTRY;

/// Arguments of `ferroute render`.
#[derive(Args, Debug)]
pub(crate) struct RenderArgs {
    /// The desired state.
    #[command(flatten)]
    desired: DesiredArgs,
    /// Print the rules of one IP family only
    #[arg(long, value_enum)]
    family: Option<Family>,
}

/// An IP family on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Family {
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

/// Prints the rules. On another host than this one, the addresses are those of the Node and its loopback interface; programs
/// and kernel are assumed to support all features.
pub(crate) fn run(args: &RenderArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<()> {
    let desired = Desired::load(&args.desired, verbosity)?;
    let mode = REGISTRY.active(desired.resolved.mode);
    writeln!(out, "# {}", desired.about)?;
    for family in IpFamily::BOTH {
        let table = desired.table(family);
        match args.family {
            Some(selected) if IpFamily::from(selected) != family => continue,
            Some(_) => {}
            None => writeln!(out, "# {family} rules of node {}", table.node.name)?,
        }
        write!(out, "{}", mode.plan(&desired.resolved, table, &desired.host.addresses)?)?;
    }
    Ok(())
}
