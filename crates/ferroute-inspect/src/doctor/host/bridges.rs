//! Bridges between this host and its pods.

use std::collections::BTreeSet;

use ferroute_core::{IpFamily, Sources, error_chain};
use ferroute_host::{Bridge, KernelRoutes, RouteError, RouteQuery, RouteReply};
use ferroute_modes::REGISTRY;

use crate::{desired::Desired, doctor::Reading};

/// Returns the names of bridge ports without hairpin mode that lead to endpoints of this node, by the addresses of an
/// IP family. Returns none if a process relays connections, because its packets do not come from a port.
pub(super) fn without_hairpin(bridges: &[Bridge], desired: &Desired, family: IpFamily) -> Reading<Vec<String>> {
    let relays = REGISTRY.active(desired.resolved.mode).traits().sources == Sources::Node;
    let one_way = |bridge: &&Bridge| !bridge.is_promiscuous && bridge.ports.iter().any(|port| !port.hairpin);
    if relays || !bridges.iter().any(|bridge| one_way(&bridge)) {
        return Ok(Vec::new());
    }
    let interfaces = interfaces_to_endpoints(desired, family).map_err(|error| error_chain(&error))?;
    let used = bridges.iter().filter(one_way).filter(|bridge| interfaces.contains(&bridge.index));
    Ok(used.flat_map(|bridge| &bridge.ports).filter(|port| !port.hairpin).map(|port| port.name.clone()).collect())
}

/// Returns the indices of the interfaces to which the kernel sends packets to endpoints of this node.
fn interfaces_to_endpoints(desired: &Desired, family: IpFamily) -> Result<BTreeSet<u32>, RouteError> {
    let entries = desired.table(family).entries.values();
    let local = entries.flat_map(|entry| entry.endpoints.iter()).filter(|endpoint| endpoint.local);
    let addresses: BTreeSet<_> = local.map(|endpoint| endpoint.address).collect();
    let (mut routes, mut interfaces) = (KernelRoutes::open()?, BTreeSet::new());
    for destination in addresses.into_iter().take(MAX_ADDRESSES) {
        let query = RouteQuery { destination, source: None, input: None, output: None, mark: 0, transport: None };
        if let RouteReply::Found(route) = routes.lookup(&query)? {
            interfaces.insert(route.interface);
        }
    }
    Ok(interfaces)
}

/// Maximum number of endpoints to look up: a node has a few hundred.
const MAX_ADDRESSES: usize = 1000;
