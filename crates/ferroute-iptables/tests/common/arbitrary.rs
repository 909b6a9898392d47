//! Strategies for the planner's inputs besides Services and endpoints.

use std::net::IpAddr;

use ferroute_core::{HostState, IpFamily, NfacctCounters, ProxySettings, ServiceTable, testing::arbitrary};
use ferroute_iptables::IptablesContext;
use proptest::{prelude::*, sample::select};

/// Settings and host state, which determine the [`IptablesContext`] of any table.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    pub(crate) settings: ProxySettings,
    pub(crate) host: HostState,
    /// Plans as for a cluster with many endpoints.
    pub(crate) large_cluster: bool,
}

impl Environment {
    pub(crate) fn context(&self, table: &ServiceTable) -> IptablesContext {
        let context = IptablesContext::new(&self.settings, table, &self.host);
        IptablesContext { large_cluster: self.large_cluster, ..context }
    }
}

/// Generates any environment. nfacct counters exist only if `counters`, because the kernel rejects rules with missing
/// ones.
pub(crate) fn environment(counters: bool) -> impl Strategy<Value = Environment> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let counters = (any::<bool>(), any::<bool>()).prop_map(move |(invalid, localhost)| NfacctCounters {
        invalid_dropped: invalid && counters,
        localhost_accepted: localhost && counters,
    });
    (arbitrary::settings(), flags, counters).prop_map(|(settings, flags, counters)| {
        let (random_fully, conntrack_tcp_be_liberal, large_cluster) = flags;
        let host = HostState { addresses: host_addresses(), random_fully, counters, conntrack_tcp_be_liberal };
        Environment { settings, host, large_cluster }
    })
}

fn host_addresses() -> Vec<IpAddr> {
    ["127.0.0.1", "192.168.0.1", "192.168.7.1", "::1", "fd00:168::1"].map(|text| text.parse().unwrap()).into()
}

/// Returns either IP family.
pub(crate) fn family() -> impl Strategy<Value = IpFamily> {
    select(IpFamily::BOTH.to_vec())
}
