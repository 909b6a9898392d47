//! `ferroute demo`: runs the demo, and traces its connections through the rules of the demo's nodes.

use std::{net::SocketAddr, process::ExitCode};

use anyhow::Context;
use ferroute_config::{ModeName, flags::SettingsArgs, settings};
use ferroute_core::{IpFamily, NodeView};
use ferroute_demo::{Connection, DemoArgs};
use ferroute_inspect::{
    desired::{demo_host, track},
    trace::Rules,
};
use ferroute_modes::REGISTRY;
use ferroute_source::read_once;
use ferroute_trace::{Packet, write_summary_into};

use super::ui::serve_demo;

/// Runs `ferroute demo`.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let modes: Vec<&str> = REGISTRY.names().into_iter().map(ModeName::as_str).collect();
    ferroute_demo::run(args.clone(), &modes, &trace_path, &serve_demo)
}

/// Traces a connection through the planned rules of its first node.
fn trace_path(connection: &Connection) -> anyhow::Result<Vec<String>> {
    let Connection { node, source, destination, protocol, .. } = *connection;
    let args = SettingsArgs { config: Some(connection.config.clone()), ..SettingsArgs::default() };
    let settings = settings::load(&args, &REGISTRY.names())?;
    let events = read_once(&connection.manifests)
        .with_context(|| format!("cannot read manifests at {}", connection.manifests.display()))?;
    let view = NodeView { name: node.name().to_owned(), ..NodeView::default() };
    let tracker = track(&settings.resolved, view, &events);
    let table = tracker.table(IpFamily::of(source));
    let host = demo_host(node, &settings.resolved);
    let rules = Rules::planned(&settings.resolved, table, &host.addresses)?;
    // Not an ephemeral port, so no real connection uses it.
    let source = SocketAddr::new(source, 65535);
    let packet = match connection.input {
        Some(interface) => Packet::arriving(protocol, source, destination, interface),
        None => Packet::local(protocol, source, destination),
    };
    let mut text = String::new();
    write_summary_into(&mut text, &rules.summary(&host, &packet))?;
    Ok(text.lines().map(str::to_owned).collect())
}
