//! A host in memory.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
};

use ferroute_core::{DataplaneError, HostState, IpFamily};
use ferroute_host::{AddressError, HostAddresses};
use ferroute_iptables::{
    exec::{GroupReport, RuleWriter},
    plan::ChainGroup,
};
use ferroute_ipvs::{IpvsDataplane, kernel::MemoryKernel, plan::IpvsSettings};

/// Addresses of the host that tests can change.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) addresses: Arc<Mutex<Vec<IpAddr>>>,
}

impl Host {
    pub(crate) fn new() -> Self {
        let addresses = ["127.0.0.1", "192.168.0.1", "10.0.0.1", "::1", "fd00::1", "fe80::1"];
        Self { addresses: Arc::new(Mutex::new(addresses.map(|address| address.parse().unwrap()).into())) }
    }

    pub(crate) fn state(&self) -> HostState {
        HostState { addresses: self.addresses.lock().unwrap().clone(), random_fully: true, ..HostState::default() }
    }
}

impl HostAddresses for Host {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        Ok(self.addresses.lock().unwrap().clone())
    }
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

pub(crate) fn dataplane(family: IpFamily, settings: &IpvsSettings, host: &Host) -> IpvsDataplane<MemoryKernel, Rules> {
    let kernel = MemoryKernel::new(family, settings.scheduler());
    let state = HostState { addresses: Vec::new(), ..host.state() };
    IpvsDataplane::new(family, settings.clone(), kernel, Rules::default(), Box::new(host.clone()), state)
}
