//! The addresses and routes of a node, derived from objects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroute_config::Resolved;
use ferroute_core::{IpFamily, LocalTrafficDetector, NodeView};
use ferroute_demo::layout::{Addresses, BRIDGE, NodeId};
use ferroute_modes::REGISTRY;
use ferroute_trace::{Host, Route};
use ipnet::IpNet;

/// Returns the addresses and routes of a node in the demo's cluster.
pub fn demo_host(node: NodeId, resolved: &Resolved) -> Host {
    let list = |addresses: Addresses| addresses.iter().collect::<Vec<_>>();
    let (own, bridge) = (list(node.addresses(true)), list(node.bridge_addresses(true)));
    let pods = bridge.iter().map(|address| Route {
        to: network(&node.pod_network(IpFamily::of(*address))),
        interface: BRIDGE.to_owned(),
        source: *address,
    });
    let routes = own.iter().map(|address| default_route(*address)).chain(pods).collect();
    let addresses = [own, bridge, LOOPBACK.into()].concat();
    with_localhost(Host { addresses, routes, ..Host::default() }, resolved)
}

/// Returns the addresses and routes of a node, assuming that its pods are behind a bridge and all other hosts are
/// behind one interface.
///
/// No object contains the bridge's address; the node's primary address replaces it as the source of masqueraded packets
/// to pods.
pub(super) fn node_host(node: &NodeView, resolved: &Resolved) -> Host {
    let primary = |family| node.primary_address(family);
    let defaults = IpFamily::BOTH.into_iter().filter_map(primary).map(default_route);
    let bridge = match &resolved.settings.detector {
        LocalTrafficDetector::BridgeInterface(name) => name.clone(),
        LocalTrafficDetector::InterfaceNamePrefix(prefix) => format!("{prefix}0"),
        _ => BRIDGE.to_owned(),
    };
    let pods = node.pod_cidrs.iter().filter_map(|to| {
        let source = primary(IpFamily::of(to.addr()))?;
        Some(Route { to: *to, interface: bridge.clone(), source })
    });
    let routes = defaults.chain(pods).collect();
    let addresses = [&node.addresses[..], &LOOPBACK].concat();
    with_localhost(Host { addresses, routes, ..Host::default() }, resolved)
}

/// Returns the host as the daemon sets it up for node ports on localhost.
fn with_localhost(host: Host, resolved: &Resolved) -> Host {
    Host {
        route_localnet: REGISTRY.active(resolved.mode).sets_route_localnet(&resolved.settings),
        localhost_routes: resolved.settings.localhost_node_ports(IpFamily::V6),
        ..host
    }
}

fn default_route(source: IpAddr) -> Route {
    let to = network(if source.is_ipv4() { "0.0.0.0/0" } else { "::/0" });
    Route { to, interface: DEFAULT_INTERFACE.to_owned(), source }
}

fn network(text: &str) -> IpNet {
    text.parse().expect("the networks here and in the demo's layout are valid")
}

/// Addresses of every node's loopback interface. They come last, because the kernel prefers other addresses as sources.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Interface of the default route, on the demo's nodes and most other hosts.
const DEFAULT_INTERFACE: &str = "eth0";
