use ferroute_core::{FamilySettings, HostState, ModeTraits, NfacctCounters, ProxySettings, ServiceTable};

use crate::Match;

/// The inputs of the planner besides Services and endpoints. If it changes, rules of any Service may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IptablesContext {
    /// The proxy's settings. The primary address of a node without addresses is localhost, as in kube-proxy.
    pub settings: FamilySettings,
    /// Whether the cluster has so many endpoints that their rules have no comments.
    pub large_cluster: bool,
    /// See [`HostState::random_fully`].
    pub random_fully: bool,
    /// See [`HostState::counters`].
    pub counters: NfacctCounters,
    /// See [`HostState::conntrack_tcp_be_liberal`].
    pub conntrack_tcp_be_liberal: bool,
}

impl IptablesContext {
    /// The number of endpoints above which kube-proxy omits the comments on rules of endpoints.
    const LARGE_CLUSTER: usize = 1000;

    /// Derives the context from the proxy's settings, the node and endpoints of `table`, and the host.
    pub fn new(settings: &ProxySettings, table: &ServiceTable, host: &HostState) -> Self {
        let mut settings = FamilySettings::new(settings, table, &ModeTraits::IPTABLES, &host.addresses);
        settings.node_ip.get_or_insert(table.family.localhost());
        let endpoints: usize = table.entries.values().map(|entry| entry.endpoints.len()).sum();
        Self {
            settings,
            large_cluster: endpoints > Self::LARGE_CLUSTER,
            random_fully: host.random_fully,
            counters: host.counters,
            conntrack_tcp_be_liberal: host.conntrack_tcp_be_liberal,
        }
    }
}

/// Returns the match that counts packets in the nfacct counter `name`.
pub(super) fn count_packet(name: &str) -> Match {
    Match::Nfacct(name.into())
}
