//! `ferroute render`: the rules as text, with no root and no kernel.

use std::io::Write;

use ferroute_config::Mode;
use ferroute_core::IpFamily;
use ferroute_iptables::PlanContext;

use crate::{cli::RenderArgs, desired::Desired, planes};

/// Writes the rules to `out`. The host is not looked at: its addresses are those of its Node, its tools and its kernel can
/// do all that rules may ask for.
pub(crate) fn render(args: &RenderArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<()> {
    let desired = Desired::load(&args.desired, verbosity)?;
    for family in IpFamily::BOTH {
        if args.family.is_none_or(|wanted| IpFamily::from(wanted) == family) {
            write_rules(&desired, family, args.family.is_none(), out)?;
        }
    }
    Ok(())
}

fn write_rules(desired: &Desired, family: IpFamily, titled: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let (resolved, table) = (&desired.resolved, desired.table(family));
    if titled {
        writeln!(out, "# {} rules of node {}", table.family, table.node.name)?;
    }
    match resolved.mode {
        Mode::Nftables => {
            let settings = planes::nftables_settings(resolved);
            write!(out, "{}", ferroute_nftables::plan::render(table, &settings, &table.node.addresses))?;
        }
        // Where there are no virtual servers to be had, mode ipvs takes the rules of iptables.
        Mode::Iptables | Mode::Ipvs(_) => {
            let context = PlanContext::new(&resolved.settings, table, &desired.facts(family));
            write!(out, "{}", ferroute_iptables::render(table, &context))?;
        }
    }
    Ok(())
}
