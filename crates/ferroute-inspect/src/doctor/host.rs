//! Reads the inputs on this host: files, kernel rules, one request to the API server, one connection to each endpoint.

mod bridges;
mod clock;
mod destinations;
mod endpoints;
mod firewalls;
mod iptables_walk;
mod masquerading;
mod order;
mod routes;
mod rules;
mod system;
mod translations;

use std::{collections::BTreeSet, net::IpAddr};

use ferroute_config::Resolved;
use ferroute_core::{FamilySettings, IpFamily, NodePortMatch, Protocol, error_chain, parse::unrestricted_families};
use ferroute_host::{Bridge, LocalhostRoutes};
use ferroute_modes::{REGISTRY, kernel_has_ipv6};
use ferroute_nftables::{
    TableOwner,
    kernel::{Kernel, NetlinkError, NetlinkKernel},
};
use ferroute_proxy::{control::request_status, host_setup::relied_on};

pub(crate) use self::routes::unrouted;
use self::{bridges::without_hairpin, translations::earlier};
use super::{FamilyInputs, Inputs, NodePort, Reading, UnroutedPod};
use crate::{desired::Desired, trace::kernel_host};

/// Reads the inputs of all checks, without Services and endpoints if `desired` has no objects. `connect` permits connections to
/// endpoints.
pub fn read_inputs(desired: &Desired, connect: bool) -> Inputs {
    let resolved = &desired.resolved;
    let mode = REGISTRY.active(resolved.mode);
    let required_sysctls: Vec<(String, String)> = relied_on(resolved, mode)
        .into_iter()
        .map(|sysctl| (sysctl.name.replace('/', "."), sysctl.value.to_owned()))
        .collect();
    let host = system::read(required_sysctls.iter().map(|(name, _)| name.as_str()));
    let bridges = ferroute_host::bridges().map_err(|error| error_chain(&error));
    Inputs {
        mode: mode.name(),
        net_admin: ferroute_host::has_net_admin().map_err(|error| error.to_string()),
        accepts_in_firewalls: mode.traits().accepts_in_firewalls,
        families: IpFamily::BOTH.map(|family| family_inputs(family, desired, &bridges)),
        sysctls: host.sysctls,
        required_sysctls,
        missing_localhost_routes: missing_localhost_routes(desired),
        bridges: bridges.map(|all| all.into_iter().map(|bridge| bridge.name).collect()),
        conntrack: host.conntrack,
        listeners: host.listeners,
        proxies: host.proxies,
        proxy_problems: request_status().ok().map(|status| status.problems),
        clock: clock::read(&desired.source, &desired.config),
        node_ports: desired.has_objects.then(|| node_ports(desired)),
        unrestricted: desired.has_objects.then(|| unrestricted(desired)),
        endpoints: (desired.has_objects && connect).then(|| endpoints::probe(desired)),
    }
}

fn family_inputs(family: IpFamily, desired: &Desired, bridges: &Reading<Vec<Bridge>>) -> FamilyInputs {
    let rules = rules::read(family);
    let of_rules = || rules.as_ref().map_err(Clone::clone);
    let walks = of_rules().and_then(|rules| firewalls::walk(desired, rules));
    let forward_policy_drops = walks.as_ref().ok().and_then(|walks| walks.forward_policy_drops);
    FamilyInputs {
        in_kernel: family == IpFamily::V4 || kernel_has_ipv6(),
        has_services: desired.has_objects.then(|| !desired.table(family).entries.is_empty()),
        supported: REGISTRY.active(desired.resolved.mode).probe(&desired.resolved, family),
        backends: of_rules().map(|rules| rules::backends(rules, forward_policy_drops)),
        unread: of_rules().map_or_else(|_| Vec::new(), |rules| rules.unread.clone()),
        active_proxies: of_rules().map(rules::active_proxies),
        earlier_rules: of_rules().and_then(|rules| earlier(desired, rules)),
        firewall_refusals: walks.map(|walks| walks.refusals),
        full_affinity_lists: of_rules().and_then(rules::full_affinity_lists),
        table_is_owned: rules::table_is_owned(family),
        dormant_tables: of_rules().map(|rules| rules.dormant_tables().collect()),
        unrouted: unrouted(cluster_ips(desired, family)),
        unrouted_pod: unrouted_pod(desired, family),
        unserved_node_ports: unserved_node_ports(desired, family),
        ports_without_hairpin: bridges
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|all| without_hairpin(all, desired, family)),
    }
}

/// Returns the interfaces without a route to `::1`, if rules of the mode serve node ports there.
fn missing_localhost_routes(desired: &Desired) -> Reading<Vec<String>> {
    let Resolved { settings, mode, .. } = &desired.resolved;
    let table = desired.table(IpFamily::V6);
    let mode = REGISTRY.active(*mode);
    let settings = FamilySettings::new(settings, table, mode.traits(), &desired.host.addresses);
    let is_served = settings.localhost_node_ports
        && table.entries.values().any(|entry| entry.service.node_port.is_some() && !entry.endpoints.is_empty());
    let table = TableOwner::Ferroute.table(IpFamily::V6);
    let is_present = || match NetlinkKernel::open().and_then(|mut kernel| kernel.list_table(&table)) {
        Ok(listing) => Ok(listing.is_some()),
        Err(NetlinkError::NotSupported) => Ok(false),
        Err(error) => Err(error_chain(&error)),
    };
    if !is_served || !is_present()? {
        return Ok(Vec::new());
    }
    LocalhostRoutes::open().and_then(|mut routes| routes.missing()).map_err(|error| error_chain(&error))
}

/// Returns the cluster IPs of an IP family.
fn cluster_ips(desired: &Desired, family: IpFamily) -> BTreeSet<IpAddr> {
    desired.table(family).entries.values().filter_map(|entry| entry.service.cluster_ip).collect()
}

/// Returns a connection of a pod on this node to an endpoint elsewhere that the kernel does not route.
fn unrouted_pod(desired: &Desired, family: IpFamily) -> Reading<Option<UnroutedPod>> {
    let pods = firewalls::local_pods(desired, family);
    if pods.is_empty() {
        return Ok(None);
    }
    let host = kernel_host().map_err(|error| format!("{error:#}"))?;
    Ok(routes::unrouted_pod(&pods, firewalls::other_endpoints(desired, family).into_iter(), &host))
}

/// Returns the number of node ports that no address of the host serves.
fn unserved_node_ports(desired: &Desired, family: IpFamily) -> usize {
    let table = desired.table(family);
    let settings = &desired.resolved.settings;
    match settings.node_ports(family, &table.node, &desired.host.addresses) {
        NodePortMatch::Addresses(addresses) if addresses.is_empty() => {
            table.entries.values().filter(|entry| entry.service.node_port.is_some()).count()
        }
        NodePortMatch::AnyLocal | NodePortMatch::Addresses(_) => 0,
    }
}

/// Returns the Services with load balancer addresses that no source range restricts although there are some.
fn unrestricted(desired: &Desired) -> Vec<(String, IpFamily)> {
    let of =
        |(name, service)| unrestricted_families(service).into_iter().map(move |family| (String::clone(name), family));
    desired.services.iter().flat_map(of).collect()
}

/// Returns the node ports; a port in both IP families is returned once.
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
