//! A node's place among networks, told without looking at the node.

use std::net::IpAddr;

use ferroute_config::Resolved;
use ferroute_core::{IpFamily, LocalTrafficDetector, NodeView};
use ferroute_demo::layout::{Addresses, BRIDGE, NodeId};
use ferroute_proxy::modes::REGISTRY;
use ferroute_trace::{Host, Route};
use ipnet::IpNet;

/// A node of the demo's cluster.
pub fn of_demo(node: NodeId, resolved: &Resolved) -> Host {
    let of = |addresses: Addresses| addresses.iter().collect::<Vec<_>>();
    let (own, bridge) = (of(node.addresses(true)), of(node.bridge_addresses(true)));
    let pods = bridge.iter().map(|address| Route {
        to: network(&node.pod_network(IpFamily::of(*address))),
        interface: BRIDGE.to_owned(),
        source: *address,
    });
    let routes = own.iter().map(|address| default_route(*address)).chain(pods).collect();
    Host { routes, route_localnet: route_localnet(resolved), addresses: [own, bridge].concat() }
}

/// A node of which the Node is known: its pods are behind a bridge, everything else behind one interface.
///
/// A bridge has an address of its own that no object tells. The node's own stands in for it as what masquerading gives
/// towards pods.
pub fn of_node(node: &NodeView, resolved: &Resolved) -> Host {
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
    Host { addresses: node.addresses.clone(), routes, route_localnet: route_localnet(resolved) }
}

/// What the proxy asks the kernel for.
fn route_localnet(resolved: &Resolved) -> bool {
    REGISTRY.active(resolved.mode).sets_route_localnet(&resolved.settings)
}

fn default_route(source: IpAddr) -> Route {
    let to = network(if source.is_ipv4() { "0.0.0.0/0" } else { "::/0" });
    Route { to, interface: OUTWARD.to_owned(), source }
}

fn network(text: &str) -> IpNet {
    text.parse().expect("networks are written here and in the demo's layout as networks")
}

/// The interface to everywhere else, of the demo's nodes and of most.
const OUTWARD: &str = "eth0";
