//! `ferroute render`: the rules as text, with no root and no kernel.

use std::io::Write;

use anyhow::Context;
use ferroute_config::{Mode, Resolved};
use ferroute_core::{IpFamily, NodeView, ServiceTable, Tracker};
use ferroute_iptables::{HostFacts, NfacctCounters, PlanContext};
use ferroute_source::{Event, read_once};

use crate::{
    cli::RenderArgs,
    feed::Feed,
    logging, planes,
    settings::{self, Settings},
    sync::Change,
};

/// Writes the rules to `out`. The host is not looked at: its addresses are those of the Node in the manifests, its tools
/// and its kernel can do all that rules may ask for.
pub(crate) fn render(args: &RenderArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<()> {
    let Settings { resolved, warnings, .. } = settings::load(&args.settings)?;
    logging::start(verbosity.unwrap_or(resolved.logging.verbosity), resolved.logging.format);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let events =
        read_once(&args.manifests).with_context(|| format!("cannot read manifests at {}", args.manifests.display()))?;
    let tracker = track(&resolved, events)?;
    for family in IpFamily::BOTH {
        if args.family.is_none_or(|wanted| IpFamily::from(wanted) == family) {
            write_rules(&resolved, tracker.table(family), args.family.is_none(), out)?;
        }
    }
    Ok(())
}

/// A host whose tools and kernel can do all that rules may ask for, with just the addresses of its Node.
pub(crate) fn full_host(table: &ServiceTable) -> HostFacts {
    HostFacts {
        addresses: table.node.addresses.clone(),
        random_fully: true,
        counters: NfacctCounters { invalid_dropped: true, localhost_accepted: true },
        conntrack_tcp_be_liberal: false,
    }
}

/// The tables that a proxy would bring into force.
pub(crate) fn track(resolved: &Resolved, events: Vec<Event>) -> anyhow::Result<Tracker> {
    let node = NodeView { name: settings::node_name(resolved)?, ..NodeView::default() };
    let mut feed = Feed::new(resolved, resolved.effective_node(node));
    let mut tracker = Tracker::new(feed.node().clone());
    for change in feed.take(events) {
        match change {
            Change::Service(service) => tracker.set_service(service),
            Change::ServiceGone(name) => tracker.remove_service(&name),
            Change::Slice(slice) => tracker.set_slice(slice),
            Change::SliceGone(name) => tracker.remove_slice(&name),
            Change::Node(node) => tracker.set_node(node),
            Change::Listed | Change::HostAddresses => {}
        }
    }
    for family in IpFamily::BOTH {
        tracker.update(family);
    }
    Ok(tracker)
}

fn write_rules(resolved: &Resolved, table: &ServiceTable, titled: bool, out: &mut impl Write) -> anyhow::Result<()> {
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
            let mut host = full_host(table);
            host.conntrack_tcp_be_liberal = resolved.conntrack.tcp_be_liberal;
            let context = PlanContext::new(&resolved.settings, table, &host);
            write!(out, "{}", ferroute_iptables::render(table, &context))?;
        }
    }
    Ok(())
}
