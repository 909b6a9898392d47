//! A host in memory.

use std::net::IpAddr;

use ferroute_core::{DataplaneError, HostState, IpFamily};
use ferroute_iptables::{
    exec::{GroupReport, RuleWriter},
    plan::ChainGroup,
};
use ferroute_ipvs::{IpvsDataplane, kernel::MemoryKernel, plan::IpvsSettings};

/// Returns the addresses of a host.
pub(crate) fn host_addresses() -> Vec<IpAddr> {
    ["127.0.0.1", "192.168.0.1", "10.0.0.1", "::1", "fd00::1", "fe80::1"].map(|it| it.parse().unwrap()).into()
}

/// Returns a host with these addresses.
pub(crate) fn host(addresses: &[IpAddr]) -> HostState {
    HostState { addresses: addresses.to_vec(), random_fully: true, ..HostState::default() }
}

/// Rules in memory.
#[derive(Default)]
pub(crate) struct Rules(pub(crate) ChainGroup);

impl RuleWriter for Rules {
    fn apply(&mut self, wanted: &ChainGroup, _: bool) -> Result<GroupReport, DataplaneError> {
        self.0 = wanted.clone();
        Ok(GroupReport::default())
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        Ok(false)
    }
}

pub(crate) fn dataplane(
    family: IpFamily,
    settings: &IpvsSettings,
    addresses: &[IpAddr],
) -> IpvsDataplane<MemoryKernel, Rules> {
    let kernel = MemoryKernel::new(family, settings.scheduler());
    IpvsDataplane::new(family, settings.clone(), kernel, Rules::default(), host(addresses))
}
