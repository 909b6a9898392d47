//! Reads the inputs on this host: files, kernel rules, one request to the API server, one connection to each endpoint.

mod clock;
mod endpoints;
mod rules;
mod system;

use ferroute_config::{flags::SourceArgs, settings::Settings};
use ferroute_core::{IpFamily, Protocol};
use ferroute_proxy::modes::REGISTRY;

pub use self::clock::has_api_server;
use super::{Inputs, NodePort};
use crate::desired::Desired;

/// Reads the inputs of all checks, without Services and endpoints if `desired` is `None`. `connect` permits connections to
/// endpoints.
pub fn read_inputs(source: &SourceArgs, settings: &Settings, desired: Option<&Desired>, connect: bool) -> Inputs {
    let resolved = desired.map_or(&settings.resolved, |desired| &desired.resolved);
    let has_services = |family| desired.map(|desired| !desired.table(family).entries.is_empty());
    let host = system::read();
    Inputs {
        mode: REGISTRY.active(resolved.mode).name(),
        families: IpFamily::BOTH.map(|family| rules::read(family, resolved, has_services(family))),
        sysctls: host.sysctls,
        bridges: host.bridges,
        conntrack: host.conntrack,
        listeners: host.listeners,
        proxies: host.proxies,
        clock: clock::read(source, settings),
        node_ports: desired.map(node_ports),
        endpoints: desired.filter(|_| connect).map(endpoints::probe),
    }
}

/// Returns the node ports, those in both IP families once.
fn node_ports(desired: &Desired) -> Vec<NodePort> {
    let mut ports: Vec<(u16, Protocol, String)> = IpFamily::BOTH
        .into_iter()
        .flat_map(|family| &desired.table(family).entries)
        .filter_map(|(name, entry)| Some((entry.service.node_port?.get(), name.protocol, name.to_string())))
        .collect();
    ports.sort();
    ports.dedup();
    ports.into_iter().map(|(port, protocol, service)| NodePort { port, protocol, service }).collect()
}
