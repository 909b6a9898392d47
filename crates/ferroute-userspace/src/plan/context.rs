use std::net::IpAddr;

use ferroute_core::{FamilySettings, HostState, IpFamily, ModeTraits, ProxySettings, ServiceTable};

/// Inputs of the planner besides Services, endpoints and the ports of listeners. A change may affect the rules of any
/// Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayContext {
    /// The proxy's settings.
    pub settings: FamilySettings,
    /// The address of this host that connections to Services are sent to.
    pub listen_address: IpAddr,
}

impl RelayContext {
    /// Derives the context from the settings, the node of `table`, and the host.
    pub fn new(settings: &ProxySettings, table: &ServiceTable, host: &HostState) -> Self {
        let settings = FamilySettings::new(settings, table, &ModeTraits::USERSPACE, &host.addresses);
        let listen_address = listen_address(settings.family, settings.node_ip, &host.addresses);
        Self { settings, listen_address }
    }
}

/// Returns the node's address if the host has it, otherwise the host's first address that other hosts and pods can
/// reach. A host without such an address serves only its own processes.
fn listen_address(family: IpFamily, node_ip: Option<IpAddr>, host: &[IpAddr]) -> IpAddr {
    let is_usable = |address: &&IpAddr| {
        IpFamily::of(**address) == family
            && match address {
                IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
                IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
            }
    };
    let node_ip = node_ip.filter(|address| host.contains(address));
    node_ip.or_else(|| host.iter().find(is_usable).copied()).unwrap_or(family.localhost())
}
