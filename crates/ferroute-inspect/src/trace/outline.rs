//! What a trace begins with: which packet, where, through which rules.

use std::fmt;

use ferroute_core::{NamespacedName, ServicePortName};
use ferroute_proxy::modes::REGISTRY;
use ferroute_trace::{Origin, Packet};

use super::{packet::Arrival, rules::Rules, scene::Scene};
use crate::desired::Named;

/// Tells it, with an empty line at the end.
pub fn write_outline_into(
    out: &mut impl fmt::Write,
    scene: &Scene,
    packet: &Packet,
    arrival: &Arrival,
    rules: &Rules,
) -> fmt::Result {
    let desired = &scene.desired;
    let Packet { protocol, source, destination, .. } = packet;
    write!(out, "{protocol} from {source}")?;
    if let Some(sender) = desired.names.at(source.ip()) {
        write!(out, " ({sender})")?;
    }
    write!(out, " to {destination}")?;
    match (desired.frontend(*destination, *protocol), desired.names.at(destination.ip())) {
        (Some((service, frontend)), _) => write!(out, " ({service}, {frontend})")?,
        (None, Some(named)) => write!(out, " ({named})")?,
        (None, None) => {}
    }
    let node = &desired.node().name;
    match (&packet.origin, arrival) {
        (Origin::Local, Arrival::AsAsked) => write!(out, "\nsent by node {node} itself")?,
        (Origin::Local, _) => write!(out, "\nsent by node {node} itself, whose address that is")?,
        (Origin::Interface(name), Arrival::ByRoute) => {
            write!(out, "\non node {node}, coming in by {name}, which leads to {}", source.ip())?;
        }
        (Origin::Interface(name), _) => write!(out, "\non node {node}, coming in by {name}")?,
    }
    match rules.are_in_kernel() {
        true => writeln!(out, "\nthrough the rules that are in the kernel now")?,
        false => writeln!(out, "\nthrough the rules of {} mode, planned from {}", rules.mode(), desired.origin)?,
    }
    let configured = desired.resolved.mode;
    if let Some(substitute) = REGISTRY.substitute(configured).filter(|_| !rules.are_in_kernel()) {
        writeln!(
            out,
            "note: mode {configured} is not supported; these are the rules of {substitute} mode, which send traffic to \
             the same endpoints"
        )?;
    }
    if let Some(elsewhere) = sender_elsewhere(scene, packet) {
        writeln!(
            out,
            "note: {elsewhere} is not on this node, and its own node's rules come first: \
             --hostname-override traces there"
        )?;
    }
    if let Some((service, ports)) = another_port(scene, packet) {
        writeln!(out, "note: {} is the address of {service}, which has no such port, but {ports}", destination.ip())?;
    }
    out.write_char('\n')
}

/// The Service whose cluster IP the packet is for, with its ports, if the packet's is none of them.
fn another_port(scene: &Scene, packet: &Packet) -> Option<(NamespacedName, String)> {
    let Packet { protocol, destination, .. } = packet;
    let table = scene.desired.table(packet.family());
    let of_address: Vec<_> =
        table.entries.iter().filter(|(_, entry)| entry.service.cluster_ip == destination.ip()).collect();
    let is_asked = |name: &ServicePortName, port| name.protocol == *protocol && port == destination.port();
    if of_address.iter().any(|(name, entry)| is_asked(name, entry.service.port)) {
        return None;
    }
    let ports = of_address.iter().map(|(name, entry)| format!("{}/{}", entry.service.port, name.protocol));
    let (name, _) = of_address.first()?;
    Some((name.service.clone(), ports.collect::<Vec<_>>().join(", ")))
}

/// A pod of another node that calls what its own node would have translated already.
fn sender_elsewhere<'a>(scene: &'a Scene, packet: &Packet) -> Option<&'a Named> {
    let desired = &scene.desired;
    let source = packet.source.ip();
    let here = &desired.node().pod_cidrs;
    let named = desired.names.at(source).filter(|named| matches!(named, Named::Pod { .. }))?;
    desired.frontend(packet.destination, packet.protocol)?;
    (!here.is_empty() && !here.iter().any(|network| network.contains(&source))).then_some(named)
}
