//! Strategies for what rules depend on besides Services and endpoints.

use std::net::IpAddr;

use ferroute_core::{IpFamily, ProxySettings, ServiceTable, testing::arbitrary};
use ferroute_iptables::{HostFacts, NfacctCounters, PlanContext};
use proptest::{prelude::*, sample::select};

/// Settings and facts, from which a [`PlanContext`] follows for any table.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    pub(crate) settings: ProxySettings,
    pub(crate) host: HostFacts,
    /// As if there were many more endpoints.
    pub(crate) large_cluster: bool,
}

impl Surroundings {
    pub(crate) fn context(&self, table: &ServiceTable) -> PlanContext {
        let context = PlanContext::new(&self.settings, table, &self.host);
        PlanContext { large_cluster: self.large_cluster, ..context }
    }
}

/// Surroundings of any kind. Counters are there only if `counters`, because the kernel refuses rules with others.
pub(crate) fn surroundings(counters: bool) -> impl Strategy<Value = Surroundings> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let counters = (any::<bool>(), any::<bool>()).prop_map(move |(invalid, localhost)| NfacctCounters {
        invalid_dropped: invalid && counters,
        localhost_accepted: localhost && counters,
    });
    (arbitrary::settings(), flags, counters).prop_map(|(settings, flags, counters)| {
        let (random_fully, conntrack_tcp_be_liberal, large_cluster) = flags;
        let host = HostFacts { addresses: host_addresses(), random_fully, counters, conntrack_tcp_be_liberal };
        Surroundings { settings, host, large_cluster }
    })
}

fn host_addresses() -> Vec<IpAddr> {
    ["127.0.0.1", "192.168.0.1", "192.168.7.1", "::1", "fd00:168::1"].map(|text| text.parse().unwrap()).into()
}

/// Either family.
pub(crate) fn family() -> impl Strategy<Value = IpFamily> {
    select(IpFamily::BOTH.to_vec())
}
