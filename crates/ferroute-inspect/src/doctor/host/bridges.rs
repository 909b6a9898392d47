//! Bridges between this host and its pods.

use std::collections::BTreeSet;

use ferroute_core::{IpFamily, Sources, error_chain};
use ferroute_host::{Bridge, KernelRoutes, RouteError, RouteQuery, RouteReply};
use ferroute_modes::REGISTRY;

use crate::{desired::Desired, doctor::Reading};

/// Returns the names of ports without hairpin mode of the bridges behind which endpoints of this node are, by their addresses of an IP family; none if a process relays
/// connections, because its packets do not come from a port.
pub(super) fn without_hairpin(bridges: &[Bridge], desired: &Desired, family: IpFamily) -> Reading<Vec<String>> {
    let find = || {
        let mut routes = KernelRoutes::open()?;
        let mut interfaces = BTreeSet::new();
        let entries = desired.table(family).entries.values();
        let local = entries.flat_map(|entry| entry.endpoints.iter()).filter(|endpoint| endpoint.local);
        let addresses: BTreeSet<_> = local.map(|endpoint| endpoint.address).collect();
        for destination in addresses.into_iter().take(MAX_ADDRESSES) {
            let query = RouteQuery { destination, source: None, input: None, output: None, mark: 0, transport: None };
            if let RouteReply::Found(route) = routes.lookup(&query)? {
                interfaces.insert(route.interface);
            }
        }
        Ok(interfaces)
    };
    let is_used = |bridge: &&Bridge| !bridge.is_promiscuous && bridge.ports.iter().any(|port| !port.hairpin);
    let relays = REGISTRY.active(desired.resolved.mode).traits().sources == Sources::Node;
    if relays || !bridges.iter().any(|bridge| is_used(&bridge)) {
        return Ok(Vec::new());
    }
    let interfaces = find().map_err(|error: RouteError| error_chain(&error))?;
    let used = bridges.iter().filter(is_used).filter(|bridge| interfaces.contains(&bridge.index));
    Ok(used.flat_map(|bridge| &bridge.ports).filter(|port| !port.hairpin).map(|port| port.name.clone()).collect())
}

/// The maximum number of endpoints to look up: a node has some hundred.
const MAX_ADDRESSES: usize = 1000;
