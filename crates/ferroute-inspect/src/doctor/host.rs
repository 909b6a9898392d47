//! Reads the facts of this host: files, kernel rules, one request to the API server, one connection to each endpoint.

#[path = "host_clock.rs"]
mod clock;
#[path = "host_endpoints.rs"]
mod endpoints;
#[path = "host_rules.rs"]
mod rules;
#[path = "host_system.rs"]
mod system;

use ferroute_config::{flags::SourceArgs, settings::Settings};
use ferroute_core::{IpFamily, Protocol};
use ferroute_proxy::modes::REGISTRY;

pub use self::clock::has_api_server;
use super::{Facts, NodePort};
use crate::desired::Desired;

/// Reads everything that the checks need. Without `desired`, Services and endpoints are left out; `connect` allows
/// connections to endpoints.
pub fn facts(source: &SourceArgs, settings: &Settings, desired: Option<&Desired>, connect: bool) -> Facts {
    let resolved = desired.map_or(&settings.resolved, |desired| &desired.resolved);
    let wanted = |family| desired.map(|desired| !desired.table(family).entries.is_empty());
    let host = system::look();
    Facts {
        mode: REGISTRY.active(resolved.mode).name(),
        families: IpFamily::BOTH.map(|family| rules::look(family, resolved, wanted(family))),
        sysctls: host.sysctls,
        bridges: host.bridges,
        conntrack: host.conntrack,
        listeners: host.listeners,
        proxies: host.proxies,
        clock: clock::look(source, settings),
        node_ports: desired.map(node_ports),
        endpoints: desired.filter(|_| connect).map(endpoints::try_all),
    }
}

/// Each node port once, although both families have it.
fn node_ports(desired: &Desired) -> Vec<NodePort> {
    let mut found: Vec<(u16, Protocol, String)> = IpFamily::BOTH
        .into_iter()
        .flat_map(|family| &desired.table(family).entries)
        .filter_map(|(name, entry)| Some((entry.service.node_port?.get(), name.protocol, name.to_string())))
        .collect();
    found.sort();
    found.dedup();
    found.into_iter().map(|(port, protocol, service)| NodePort { port, protocol, service }).collect()
}
