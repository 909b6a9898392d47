use std::{collections::BTreeSet, net::IpAddr};

use super::Scheduler;
use ferroute_core::{FamilySettings, HostState, IpFamily, ModeTraits, NodePortMatch, ProxySettings, ServiceTable};

/// The settings of the mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsSettings {
    /// Settings that all modes have.
    pub proxy: ProxySettings,
    /// Scheduler of Services that do not request one; empty for [`DEFAULT_SCHEDULER`].
    pub scheduler: String,
    /// Virtual servers at addresses in these networks are never removed.
    pub exclude_cidrs: Vec<ipnet::IpNet>,
    /// Schedulers that the kernel does not support. Services that request them use the configured one.
    pub missing_schedulers: Vec<Scheduler>,
}

impl IpvsSettings {
    /// Returns the scheduler.
    pub fn scheduler(&self) -> &str {
        if self.scheduler.is_empty() { DEFAULT_SCHEDULER } else { &self.scheduler }
    }
}

/// The scheduler if none is configured, as in kube-proxy.
pub const DEFAULT_SCHEDULER: &str = "rr";

/// The inputs of the planner besides Services and endpoints. If it changes, objects of any Service may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpvsContext {
    /// The proxy's settings.
    pub settings: FamilySettings,
    /// The configured scheduler.
    pub scheduler: Box<str>,
    /// See [`IpvsSettings::missing_schedulers`].
    pub missing_schedulers: Vec<Scheduler>,
    /// Addresses of the node that have a virtual server for each node port.
    pub node_ports: Vec<IpAddr>,
    /// Addresses of other devices of the host. They are not added to the dummy device.
    pub host_addresses: BTreeSet<IpAddr>,
    /// See [`HostState::random_fully`].
    pub random_fully: bool,
}

impl IpvsContext {
    /// Derives the context from the settings, the node of `table`, and the host, whose addresses must not include those of
    /// the dummy device.
    pub fn new(settings: &IpvsSettings, table: &ServiceTable, host: &HostState) -> Self {
        let (scheduler, missing_schedulers) = (settings.scheduler().into(), settings.missing_schedulers.clone());
        let settings = FamilySettings::new(&settings.proxy, table, &ModeTraits::IPVS, &host.addresses);
        // As in kube-proxy: other hosts cannot use these addresses.
        let is_reachable = |address: &&IpAddr| {
            IpFamily::of(**address) == settings.family
                && !address.is_loopback()
                && !matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
        };
        let host_addresses: BTreeSet<IpAddr> = host.addresses.iter().filter(is_reachable).copied().collect();
        let node_ports = match &settings.node_ports {
            NodePortMatch::AnyLocal => {
                host_addresses.iter().copied().filter(|address| settings.serves_node_ports_at(*address)).collect()
            }
            NodePortMatch::Addresses(addresses) => addresses.clone(),
        };
        Self { settings, scheduler, missing_schedulers, node_ports, host_addresses, random_fully: host.random_fully }
    }
}
