//! `ferroute demo`: the demo's cluster, with the ways through the rules told by the walk through the rules that `ferroute
//! run` writes on its nodes.

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

use anyhow::Context;
use ferroute_config::{Mode, Resolved};
use ferroute_core::{IpFamily, NodeView, ServiceTable};
use ferroute_demo::{
    DemoArgs, FlowSpec, PathTeller,
    layout::{Addresses, BRIDGE, NodeId},
};
use ferroute_nftables::kernel::{Kernel, MemoryKernel};
use ferroute_source::read_once;
use ferroute_trace::{Host, Packet, Route, Summary, write_summary_into};

use crate::{
    cli::SettingsArgs,
    desired::{full_host, track},
    planes, settings,
};

/// Does what `ferroute demo` was asked for.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    ferroute_demo::run(args.clone(), &Walks)
}

/// Tells ways by walking a packet through the rules of a node.
struct Walks;

impl PathTeller for Walks {
    fn tell(&self, flow: &FlowSpec) -> anyhow::Result<Vec<String>> {
        let settings = settings::load(&SettingsArgs { config: Some(flow.config.clone()), ..SettingsArgs::default() })?;
        let events = read_once(&flow.manifests)
            .with_context(|| format!("cannot read manifests at {}", flow.manifests.display()))?;
        let node = NodeView { name: flow.node.name().to_owned(), ..NodeView::default() };
        let tracker = track(&settings.resolved, node, events);
        let table = tracker.table(IpFamily::of(flow.source));
        let host = host(flow.node);
        // No program chooses this port by itself, so it cannot be taken for a real connection's.
        let source = SocketAddr::new(flow.source, 65535);
        let packet = match flow.input {
            Some(interface) => Packet::arriving(flow.protocol, source, flow.destination, interface),
            None => Packet::local(flow.protocol, source, flow.destination),
        };
        let mut text = String::new();
        write_summary_into(&mut text, &walk(&settings.resolved, table, &host, &packet)?)?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// The way through the rules of the mode that the proxies are in.
fn walk(resolved: &Resolved, table: &ServiceTable, host: &Host, packet: &Packet) -> anyhow::Result<Summary> {
    if resolved.mode != Mode::Nftables {
        let context = ferroute_iptables::PlanContext::new(&resolved.settings, table, &full_host(table));
        return Ok(ferroute_trace::iptables::summary(&ferroute_iptables::render(table, &context), host, packet));
    }
    let settings = planes::nftables_settings(resolved);
    let transaction = ferroute_nftables::plan::render(table, &settings, &table.node.addresses);
    let mut kernel = MemoryKernel::new();
    kernel.commit(&transaction)?;
    let table = kernel.table(&transaction.table).context("what was rendered makes no table")?;
    Ok(ferroute_trace::nftables::summary(table, host, packet))
}

/// Where things are, seen from a node of the demo's cluster.
fn host(node: NodeId) -> Host {
    let of = |addresses: Addresses| [Some(addresses.v4.into()), addresses.v6.map(Into::into)].into_iter().flatten();
    let (own, bridge) = (node.addresses(true), node.bridge_addresses(true));
    let route = |to: &str, interface: &str, source| Route {
        to: to.parse().expect("the demo's networks are written as networks"),
        interface: interface.to_owned(),
        source,
    };
    let default = |address: IpAddr| route(if address.is_ipv4() { "0.0.0.0/0" } else { "::/0" }, "eth0", address);
    let pods = |address: IpAddr| route(&node.pod_network(IpFamily::of(address)), BRIDGE, address);
    Host {
        addresses: of(own).chain(of(bridge)).collect(),
        routes: of(own).map(default).chain(of(bridge).map(pods)).collect(),
        route_localnet: true,
    }
}
