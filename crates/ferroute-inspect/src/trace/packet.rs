//! Which packet is meant, and how it comes to the node.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail, ensure};
use ferroute_core::{IpFamily, Protocol, NamespacedName, ServicePortName};
use ferroute_trace::Packet;

use super::scene::Scene;
use super::Question;

/// Why a packet is taken to come as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Somebody said so.
    AsAsked,
    /// Its sender is the node.
    OwnAddress,
    /// The way to its sender leads through this interface.
    ByRoute,
}

/// The packet that the arguments mean.
pub fn resolve(args: &Question, scene: &Scene) -> anyhow::Result<(Packet, Arrival)> {
    let protocol = args.protocol;
    let destinations = destinations(&args.to, protocol, scene)?;
    let (from, to) = match args.from.as_deref().filter(|name| *name != scene.desired.node().name) {
        Some(from) => pair(&senders(from, scene)?, &destinations)
            .with_context(|| format!("{from} and {} have no addresses of the same IP family", args.to))?,
        None => {
            let found = destinations.iter().find_map(|to| Some((own_source(scene, to.ip())?, *to)));
            found
                .with_context(|| format!("the node knows no way to {}: give its packet's source by --from", args.to))?
        }
    };
    let source = SocketAddr::new(from, args.source_port.get());
    if let Some(interface) = &args.input {
        return Ok((Packet::arriving(protocol, source, to, interface), Arrival::AsAsked));
    }
    if args.local || scene.host.owns(from) {
        let arrival = if args.local { Arrival::AsAsked } else { Arrival::OwnAddress };
        return Ok((Packet::local(protocol, source, to), arrival));
    }
    match scene.host.route(from) {
        Some(route) => Ok((Packet::arriving(protocol, source, to, &route.interface), Arrival::ByRoute)),
        None => bail!("cannot tell how packets of {from} come in: name the interface by --in, or say --local"),
    }
}

/// The first destination that has a sender of its family.
fn pair(senders: &[IpAddr], destinations: &[SocketAddr]) -> Option<(IpAddr, SocketAddr)> {
    destinations.iter().find_map(|to| {
        let from = senders.iter().find(|from| IpFamily::of(**from) == IpFamily::of(to.ip()))?;
        Some((*from, *to))
    })
}

/// What the node's own packets have as their source.
fn own_source(scene: &Scene, to: IpAddr) -> Option<IpAddr> {
    if scene.host.owns(to) { Some(to) } else { scene.host.route(to).map(|route| route.source) }
}

/// An address, or the addresses of whoever has that name.
fn senders(from: &str, scene: &Scene) -> anyhow::Result<Vec<IpAddr>> {
    if let Ok(address) = from.parse::<IpAddr>() {
        return Ok(vec![address.to_canonical()]);
    }
    let found = scene.desired.names.addresses_of(from);
    let mut owners: Vec<String> = found.iter().map(|(_, owner)| owner.to_string()).collect();
    owners.sort();
    owners.dedup();
    match owners.len() {
        0 => bail!("--from {from}: neither an address nor the name of a pod or node that is known"),
        1 => Ok(found.into_iter().map(|(address, _)| address).collect()),
        _ => bail!("--from {from}: that may be {}: name one as NAMESPACE/NAME", owners.join(" or ")),
    }
}

/// An address and port, or those of a Service's cluster IPs.
fn destinations(to: &str, protocol: Protocol, scene: &Scene) -> anyhow::Result<Vec<SocketAddr>> {
    if let Ok(address) = to.parse::<SocketAddr>() {
        ensure!(address.port() != 0, "--to {to}: port 0 means nothing");
        return Ok(vec![SocketAddr::new(address.ip().to_canonical(), address.port())]);
    }
    ensure!(to.parse::<IpAddr>().is_err(), "--to {to}: the port is missing (write ADDRESS:PORT, or [ADDRESS]:PORT)");
    let (name, port) = to.rsplit_once(':').map_or((to, None), |(name, port)| (name, Some(port)));
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    let service = NamespacedName::new(namespace, name);
    let mut ports: Vec<(&ServicePortName, SocketAddr)> = Vec::new();
    for family in IpFamily::BOTH {
        let known = scene.desired.table(family).ports_of(&service);
        ports.extend(known.map(|(name, entry)| (name, SocketAddr::new(entry.service.cluster_ip, entry.service.port))));
    }
    ensure!(
        !ports.is_empty(),
        "--to {to}: neither ADDRESS:PORT nor a Service with a cluster IP ({service} is not known)"
    );
    let is_meant = |(name, address): &(&ServicePortName, SocketAddr)| {
        let port_meant = port.is_none_or(|port| *name.port == *port || address.port().to_string() == port);
        name.protocol == protocol && port_meant
    };
    let meant: Vec<_> = ports.iter().filter(|port| is_meant(port)).collect();
    let numbers = |list: &mut dyn Iterator<Item = String>| {
        let mut all: Vec<String> = list.collect();
        all.sort();
        all.dedup();
        all.join(", ")
    };
    let known = |name: &ServicePortName, address: &SocketAddr| format!("{}/{}", address.port(), name.protocol);
    if meant.is_empty() {
        let all = numbers(&mut ports.iter().map(|(name, address)| known(name, address)));
        bail!("--to {to}: {service} has no such {protocol} port (it has {all})");
    }
    if meant.iter().any(|(name, _)| *name != meant[0].0) {
        let all = numbers(&mut meant.iter().map(|(name, address)| known(name, address)));
        bail!("--to {to}: {service} has several ports, name one: {all}");
    }
    Ok(meant.into_iter().map(|(_, address)| *address).collect())
}
