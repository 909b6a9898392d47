//! Strategies for what rules depend on besides Services and endpoints.

use std::net::IpAddr;

use ferroute_core::{IpFamily, LocalTrafficDetector, NodePortAddresses, ProxySettings, ServiceTable};
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
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let counters = (any::<bool>(), any::<bool>()).prop_map(move |(invalid, localhost)| NfacctCounters {
        invalid_dropped: invalid && counters,
        localhost_accepted: localhost && counters,
    });
    (flags, counters, 0..32_u8, node_ports(), detector()).prop_map(
        |(flags, counters, masquerade_bit, node_port_addresses, detector)| {
            let (masquerade_all, localhost_node_ports, random_fully, conntrack_tcp_be_liberal, large_cluster) = flags;
            Surroundings {
                settings: ProxySettings {
                    masquerade_all,
                    masquerade_bit,
                    localhost_node_ports,
                    node_port_addresses,
                    detector,
                },
                host: HostFacts { addresses: host_addresses(), random_fully, counters, conntrack_tcp_be_liberal },
                large_cluster,
            }
        },
    )
}

fn node_ports() -> impl Strategy<Value = NodePortAddresses> {
    let within =
        |networks: &[&str]| NodePortAddresses::Within(networks.iter().map(|net| net.parse().unwrap()).collect());
    select(vec![
        NodePortAddresses::All,
        NodePortAddresses::Primary,
        within(&["192.168.0.0/24", "fd00:168::/64"]),
        within(&["127.0.0.0/8", "192.168.0.0/16", "::1/128"]),
        within(&["172.16.0.0/12"]),
    ])
}

fn detector() -> impl Strategy<Value = LocalTrafficDetector> {
    let networks = |networks: &[&str]| networks.iter().map(|net| net.parse().unwrap()).collect();
    select(vec![
        LocalTrafficDetector::None,
        LocalTrafficDetector::ClusterCidr(networks(&["10.244.0.0/16", "fd00:244::/32"])),
        LocalTrafficDetector::ClusterCidr(networks(&["0.0.0.0/0", "::/0"])),
        LocalTrafficDetector::NodeCidr,
        LocalTrafficDetector::BridgeInterface("cbr0".to_owned()),
        LocalTrafficDetector::InterfaceNamePrefix("veth".to_owned()),
    ])
}

fn host_addresses() -> Vec<IpAddr> {
    ["127.0.0.1", "192.168.0.1", "192.168.7.1", "::1", "fd00:168::1"].map(|text| text.parse().unwrap()).into()
}

/// Either family.
pub(crate) fn family() -> impl Strategy<Value = IpFamily> {
    select(IpFamily::BOTH.to_vec())
}
