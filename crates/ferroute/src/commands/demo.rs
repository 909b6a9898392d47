//! `ferroute demo`: the demo's cluster, with the ways through the rules told by the walk through the rules that `ferroute
//! run` writes on its nodes.

use std::{net::SocketAddr, process::ExitCode};

use anyhow::Context;
use ferroute_core::{IpFamily, NodeView};
use ferroute_demo::{DemoArgs, FlowSpec, PathTeller};
use ferroute_config::{flags::SettingsArgs, settings};
use ferroute_inspect::{
    desired::{demo_host, track},
    trace::Rules,
};
use ferroute_proxy::modes::REGISTRY;
use ferroute_source::read_once;
use ferroute_trace::{Packet, write_summary_into};


/// Does what `ferroute demo` was asked for.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    ferroute_demo::run(args.clone(), &Walks)
}

/// Tells ways by walking a packet through the rules of a node.
struct Walks;

impl PathTeller for Walks {
    fn tell(&self, flow: &FlowSpec) -> anyhow::Result<Vec<String>> {
        let settings = settings::load(&SettingsArgs { config: Some(flow.config.clone()), ..SettingsArgs::default() }, &REGISTRY.names())?;
        let events = read_once(&flow.manifests)
            .with_context(|| format!("cannot read manifests at {}", flow.manifests.display()))?;
        let node = NodeView { name: flow.node.name().to_owned(), ..NodeView::default() };
        let tracker = track(&settings.resolved, node, events);
        let table = tracker.table(IpFamily::of(flow.source));
        let host = demo_host(flow.node, &settings.resolved);
        let rules = Rules::planned(&settings.resolved, table, &table.node.addresses)?;
        // No program chooses this port by itself, so it cannot be taken for a real connection's.
        let source = SocketAddr::new(flow.source, 65535);
        let packet = match flow.input {
            Some(interface) => Packet::arriving(flow.protocol, source, flow.destination, interface),
            None => Packet::local(flow.protocol, source, flow.destination),
        };
        let mut text = String::new();
        write_summary_into(&mut text, &rules.summary(&host, &packet))?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}
