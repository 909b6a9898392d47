//! The requested packet, and how it arrives at the node.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::{IpFamily, Protocol, ServicePortName};
use ferroute_trace::{Packet, Transport};

use super::{Request, node::TraceNode};
use crate::{
    desired::{machine_name, service_name},
    explain::{not_found, not_served},
};

/// The reason for a packet's input interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Requested explicitly.
    Requested,
    /// No input interface, because the source is an address of the node.
    OwnAddress,
    /// The route to the source uses it.
    ByRoute,
}

/// Reason why a request has no packet. As text, it names the flags of the command line.
#[derive(Debug)]
pub struct Unresolved {
    /// The flag with the wrong value; `None` if no flag alone is wrong.
    flag: Option<&'static str>,
    reason: String,
    /// Flags that help.
    remedy: Option<&'static str>,
}

impl Unresolved {
    fn new(reason: String) -> Self {
        Self { flag: None, reason, remedy: None }
    }

    /// Returns the reason without flags.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flag, reason, remedy } = self;
        flag.iter().try_for_each(|flag| write!(f, "{flag} "))?;
        f.write_str(reason)?;
        remedy.iter().try_for_each(|remedy| write!(f, ": {remedy}"))
    }
}

impl std::error::Error for Unresolved {}

/// Resolves names to addresses, and returns the packet.
///
/// # Errors
/// If the source, the destination or the input interface cannot be determined.
pub fn resolve(args: &Request, node: &TraceNode) -> Result<(Packet, Arrival), Unresolved> {
    let wrong = |flag| move |reason| Unresolved { flag: Some(flag), ..Unresolved::new(reason) };
    let (protocol, destinations) = destinations(args, node).map_err(wrong("--to"))?;
    let from = args.from.as_deref().map(|from| machine_name(from, args.namespace.as_deref()));
    let (from, to) = match from.filter(|name| *name != node.desired.node().name) {
        Some(from) => {
            let senders = senders(&from, node).map_err(wrong("--from"))?;
            pair(&senders, &destinations).ok_or_else(|| {
                Unresolved::new(format!("{from} and {} have no addresses of the same IP family", args.to))
            })?
        }
        None => {
            // In modes that bind it, the address of a Service belongs to the host.
            let is_bound = |to: IpAddr| args.plans_rules() && node.desired.binds(to);
            let transport = |to: &SocketAddr| (protocol, args.source_port.get(), to.port());
            let source = |to: &SocketAddr| match is_bound(to.ip()) {
                true => Some(to.ip()),
                false => node.host.source_to(to.ip(), Some(transport(to))),
            };
            let addresses = destinations.iter().find_map(|to| Some((source(to)?, *to)));
            addresses.ok_or_else(|| {
                let first = destinations.first().map(|to| (to.ip(), transport(to)));
                let mut error = no_route(node, &args.to, first);
                match args.from {
                    _ if node.desired.missing_node.is_some() => {}
                    Some(_) => error.reason += ROUTE_FIRST,
                    None => {
                        error.remedy =
                            Some("set the source with --from, or add a route that covers the Service addresses");
                    }
                }
                error
            })?
        }
    };
    let source = SocketAddr::new(from, args.source_port.get());
    if let Some(interface) = &args.input {
        return Ok((Packet::arriving(protocol, source, to, interface), Arrival::Requested));
    }
    if args.local || node.host.owns(from) {
        let arrival = if args.local { Arrival::Requested } else { Arrival::OwnAddress };
        return Ok((Packet::local(protocol, source, to), arrival));
    }
    let replies = (protocol, to.port(), source.port());
    match node.host.path_to(from, Some(replies)) {
        Some((interface, _)) => Ok((Packet::arriving(protocol, source, to, &interface), Arrival::ByRoute)),
        None => {
            let remedy =
                node.desired.missing_node.is_none().then_some("set the input interface with --in, or use --local");
            Err(Unresolved { remedy, ..no_route(node, &from.to_string(), Some((from, replies))) })
        }
    }
}

/// Returns the reason why there is no route, as far as known.
fn no_route(node: &TraceNode, to: &str, packet: Option<(IpAddr, Transport)>) -> Unresolved {
    let refusal = packet.and_then(|(address, transport)| node.host.refusal(address, Some(transport)));
    let unknown = packet.and_then(|(address, transport)| node.host.unknown_route(address, Some(transport)));
    Unresolved::new(match (&node.desired.missing_node, refusal, unknown) {
        (Some(reason), ..) => format!("the node has no route to {to}: {reason}"),
        (None, Some(reason), _) => format!("the node has no route to {to} but one that refuses packets ({reason})"),
        (None, None, Some(reason)) => format!("the route of the node to {to} is unknown, because of {reason}"),
        (None, None, None) => format!("the node has no route to {to}, and no default route"),
    })
}

/// Returns the first source and destination of the same IP family.
fn pair(senders: &[IpAddr], destinations: &[SocketAddr]) -> Option<(IpAddr, SocketAddr)> {
    destinations.iter().find_map(|to| {
        let from = senders.iter().find(|from| IpFamily::of(**from) == IpFamily::of(to.ip()))?;
        Some((*from, *to))
    })
}

/// Returns the addresses of a source: an address, or the name of a node or pod.
fn senders(from: &str, node: &TraceNode) -> Result<Vec<IpAddr>, String> {
    if let Ok(address) = from.parse::<IpAddr>() {
        return Ok(vec![address.to_canonical()]);
    }
    let addresses = node.desired.names.addresses(from);
    let mut owners: Vec<String> = addresses.iter().map(|(_, owner)| owner.to_string()).collect();
    owners.sort();
    owners.dedup();
    match owners.len() {
        0 => Err(format!("{from}: neither an address nor the name of a known pod or node")),
        1 => Ok(addresses.into_iter().map(|(address, _)| address).collect()),
        _ => Err(format!("{from}: ambiguous, use NAMESPACE/NAME of {}", owners.join(" or "))),
    }
}

/// Returns the protocol and the addresses of a destination: an address and port, or the name of a Service, for its cluster
/// IPs.
fn destinations(args: &Request, node: &TraceNode) -> Result<(Protocol, Vec<SocketAddr>), String> {
    let to = args.to.as_str();
    if let Ok(address) = to.parse::<SocketAddr>() {
        if address.port() == 0 {
            return Err(format!("{to}: invalid port 0"));
        }
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        return Ok((args.protocol.unwrap_or(Protocol::Tcp), vec![address]));
    }
    if to.parse::<IpAddr>().is_ok() {
        return Err(format!("{to}: the port is missing (want ADDRESS:PORT or [ADDRESS]:PORT)"));
    }
    let (name, port) = to.rsplit_once(':').map_or((to, None), |(name, port)| (name, Some(port)));
    let namespace = args.namespace.as_deref().unwrap_or("default");
    let service = service_name(name, namespace).map_err(|error| format!("{to}: {error}"))?;
    let mut ports: Vec<(&ServicePortName, SocketAddr)> = Vec::new();
    for family in IpFamily::BOTH {
        let entries = node.desired.table(family).ports_of(&service);
        // Also where another Service owns the address.
        let claimed = entries.filter_map(|(name, _)| Some((name, node.desired.table(family).claimed(name)?)));
        ports.extend(claimed.filter_map(|(name, port)| Some((name, SocketAddr::new(port.cluster_ip?, port.port)))));
    }
    if ports.is_empty() {
        let name = service.to_string();
        let reason = match node.desired.services.contains_key(&name) {
            true => not_served(&name, &node.desired).unwrap_or_else(|| format!("Service {name} has no cluster IP")),
            false => not_found(&name, &node.desired),
        };
        return Err(format!("{to}: {reason}: want ADDRESS:PORT, or a Service with a cluster IP"));
    }
    let mut selected = ports.clone();
    selected
        .retain(|(name, address)| port.is_none_or(|port| *name.port == *port || address.port().to_string() == port));
    let protocols = || selected.iter().map(|(name, _)| name.protocol);
    let protocol = args.protocol.or_else(|| protocols().find(|protocol| *protocol == Protocol::Tcp));
    let protocol = protocol.or_else(|| protocols().next()).unwrap_or(Protocol::Tcp);
    selected.retain(|(name, _)| name.protocol == protocol);
    if selected.is_empty() {
        return Err(format!("{to}: {service} has no such {protocol} port (it has {})", list(&ports)));
    }
    if selected.iter().any(|(name, _)| *name != selected[0].0) {
        return Err(format!("{to}: {service} has several ports, select one of {}", list(&selected)));
    }
    Ok((protocol, selected.into_iter().map(|(_, address)| address).collect()))
}

/// Lists port numbers and protocols, sorted and without duplicates.
fn list(ports: &[(&ServicePortName, SocketAddr)]) -> String {
    let mut texts: Vec<String> =
        ports.iter().map(|(name, address)| format!("{}/{}", address.port(), name.protocol)).collect();
    texts.sort();
    texts.dedup();
    texts.join(", ")
}

const ROUTE_FIRST: &str = ": the kernel looks up a route before rules translate the destination, so add one that covers the Service addresses";
