//! The first lines of a trace: the packet, the node and the rules.

use std::{fmt, net::SocketAddr};

use ferroute_core::{Escaped, NamespacedName, ServicePortName};
use ferroute_trace::{Origin, Packet};

use super::{RulesSource, node::TraceNode, packet::Arrival, report::not_applied, rules::Rules};
use crate::desired::AddressOwner;

/// Writes the outline, followed by an empty line.
///
/// # Errors
/// Only errors of `out`.
pub fn write_outline_into(
    out: &mut impl fmt::Write,
    node: &TraceNode,
    packet: &Packet,
    arrival: &Arrival,
    rules: &Rules,
) -> fmt::Result {
    let desired = &node.desired;
    let Packet { protocol, source, destination, .. } = packet;
    write!(out, "{protocol} from {source}")?;
    if let Some(sender) = desired.names.owner(source.ip()) {
        write!(out, " ({})", Escaped(sender))?;
    }
    write!(out, " to {destination}")?;
    match (desired.frontend(*destination, *protocol), desired.names.owner(destination.ip())) {
        (Some((service, frontend)), _) => write!(out, " ({}, {frontend})", Escaped(service))?,
        (None, Some(owner)) => write!(out, " ({})", Escaped(owner))?,
        (None, None) => {}
    }
    let name = Escaped(&desired.node().name);
    match (&packet.origin, arrival) {
        (Origin::Local, Arrival::Requested) => write!(out, "\nsent by node {name} itself")?,
        (Origin::Local, _) => write!(out, "\nsent by node {name} itself, which has this address")?,
        (Origin::Interface(interface), Arrival::ByRoute) => {
            let interface = Escaped(interface);
            write!(out, "\non node {name}, arriving on {interface}, the interface to {}", source.ip())?;
        }
        (Origin::Interface(interface), _) => write!(out, "\non node {name}, arriving on {}", Escaped(interface))?,
    }
    match rules.source() {
        RulesSource::Kernel => writeln!(out, "\nthrough the rules in the kernel")?,
        RulesSource::Files => writeln!(out, "\nthrough the rules in files")?,
        RulesSource::Planned => {
            let origin = Escaped(&desired.origin);
            writeln!(out, "\nthrough the rules of {} mode, planned from {origin}", rules.mode())?;
        }
    }
    if node.is_unknown {
        writeln!(
            out,
            "note: the addresses and routes of the node are not known, see --routes; the trace assumes the addresses \
             192.0.2.1 and 2001:db8::1, and all others behind eth0"
        )?;
    }
    if let Rules::Files(files) = rules {
        let family = packet.family();
        for note in files.gap(family).into_iter().chain(files.missing(family)) {
            writeln!(out, "note: {note}")?;
        }
    }
    if let Some(order) = rules.assumed_order(&node.host, packet) {
        writeln!(out, "note: {order}")?;
    }
    let is_loopback = |end: &SocketAddr| end.is_ipv4() && end.ip().is_loopback();
    if matches!(rules, Rules::Files(_)) && [&packet.source, &packet.destination].into_iter().any(is_loopback) {
        writeln!(out, "note: the trace assumes that net.ipv4.conf.all.route_localnet is 1")?;
    }
    if let Some((service, reason)) = not_applied(node, packet, rules) {
        writeln!(out, "note: the rules of {} are not applied: {}", Escaped(service), Escaped(reason))?;
    }
    if let Some(remote) = remote_sender(node, packet).map(Escaped) {
        writeln!(
            out,
            "note: {remote} is on another node, whose rules are applied first; trace there with --hostname-override"
        )?;
    }
    if let Some((service, ports)) = service_without_port(node, packet) {
        let service = Escaped(service);
        writeln!(out, "note: {} is the cluster IP of {service}, which only has the ports {ports}", destination.ip())?;
    }
    if let (Some(sysctl), Origin::Interface(_)) = (node.disabled_forwarding(packet.family()), &packet.origin) {
        let sysctl = sysctl.replace('/', ".");
        writeln!(out, "note: {sysctl} is 0, so the kernel drops forwarded packets; the trace assumes that it is 1")?;
    }
    out.write_char('\n')
}

/// Returns the Service with the packet's cluster IP, and its ports, if it does not have the packet's port.
fn service_without_port(node: &TraceNode, packet: &Packet) -> Option<(NamespacedName, String)> {
    let Packet { protocol, destination, .. } = packet;
    let table = node.desired.table(packet.family());
    let entries: Vec<_> =
        table.entries.iter().filter(|(_, entry)| entry.service.cluster_ip == Some(destination.ip())).collect();
    let is_same_port = |name: &ServicePortName, port| name.protocol == *protocol && port == destination.port();
    if entries.iter().any(|(name, entry)| is_same_port(name, entry.service.port)) {
        return None;
    }
    let ports = entries.iter().map(|(name, entry)| format!("{}/{}", entry.service.port, name.protocol));
    let (name, _) = entries.first()?;
    Some((name.service.clone(), ports.collect::<Vec<_>>().join(", ")))
}

/// Returns the sender if it is a pod on another node, which would have applied DNAT already.
fn remote_sender<'a>(node: &'a TraceNode, packet: &Packet) -> Option<&'a AddressOwner> {
    let desired = &node.desired;
    let source = packet.source.ip();
    let pod_cidrs = &desired.node().pod_cidrs;
    let owner = desired.names.owner(source).filter(|owner| matches!(owner, AddressOwner::Pod { .. }))?;
    desired.frontend(packet.destination, packet.protocol)?;
    (!pod_cidrs.is_empty() && !pod_cidrs.iter().any(|network| network.contains(&source))).then_some(owner)
}
