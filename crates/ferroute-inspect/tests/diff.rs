//! Properties of rule comparisons in arbitrary clusters.

#![expect(clippy::unwrap_used, reason = "test helpers fail like tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ferroute_core::{
    HostState, IpFamily, LocalTrafficDetector, NodePortAddresses, ProxySettings, ServicePortName, ServiceTable,
    testing::{Cluster, arbitrary},
};
use ferroute_inspect::diff::{Conclusion, DiffReport, Expected, Rules, compare, write_report_into};
use ferroute_iptables::{IptablesContext, RuleSet};
use ferroute_nftables::{
    kernel::{Kernel, MemoryKernel},
    model::TableId,
    plan::{NftablesSettings, TABLE},
};
use ferroute_trace::{Host, Route};
use proptest::{prelude::*, sample::select};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn host(settings: &ProxySettings) -> Host {
    let route = |to: &str, interface: &str, source: &str| Route {
        to: to.parse().unwrap(),
        interface: interface.to_owned(),
        source: ip(source),
    };
    Host {
        addresses: ["127.0.0.1", "::1", "192.168.0.1", "fd00:168::1", "192.168.7.1", "10.244.0.1", "fd00:244::1"]
            .map(ip)
            .into(),
        routes: vec![
            route("0.0.0.0/0", "eth0", "192.168.0.1"),
            route("::/0", "eth0", "fd00:168::1"),
            route("10.244.0.0/24", "cbr0", "10.244.0.1"),
            route("fd00:244::/64", "cbr0", "fd00:244::1"),
        ],
        route_localnet: settings.localhost_node_ports(IpFamily::V4),
        localhost_routes: settings.localhost_node_ports(IpFamily::V6),
        ..Host::default()
    }
}

/// The planned rules of one IP family of a cluster in both modes.
struct Planned {
    services: ServiceTable,
    settings: ProxySettings,
    host: Host,
    iptables: RuleSet,
    nftables: MemoryKernel,
}

impl Planned {
    fn new(cluster: &Cluster, settings: &ProxySettings, family: IpFamily) -> Self {
        let (services, host) = (cluster.table(family), host(settings));
        let host_state = HostState { addresses: host.addresses.clone(), random_fully: true, ..HostState::default() };
        let iptables = ferroute_iptables::render(&services, &IptablesContext::new(settings, &services, &host_state));
        let nftables_settings = NftablesSettings { proxy: settings.clone(), ..NftablesSettings::default() };
        let mut nftables = MemoryKernel::new();
        nftables.commit(&ferroute_nftables::plan::render(&services, &nftables_settings, &host.addresses)).unwrap();
        Self { services, settings: settings.clone(), host, iptables, nftables }
    }

    fn rules(&self) -> [Rules<'_>; 2] {
        let id = TableId { family: self.services.family, name: TABLE };
        [Rules::iptables(&self.iptables), Rules::nftables(self.nftables.table(&id).unwrap())]
    }

    /// Compares with actual rules, in all pairs of modes.
    fn compare_with(&self, actual: &Self) -> Vec<DiffReport> {
        let (expected, actual) = (self.rules(), actual.rules());
        let compare = |expected, actual| {
            let (services, settings, host) = (&self.services, &self.settings, &self.host);
            compare(&Expected { services, settings, settings_in: &|_| settings.clone(), host, rules: expected }, actual)
        };
        expected.iter().flat_map(|expected| actual.iter().map(move |actual| compare(expected, actual))).collect()
    }
}

fn settings() -> impl Strategy<Value = ProxySettings> {
    let networks = |networks: &[&str]| networks.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>();
    let detector = select(vec![
        LocalTrafficDetector::None,
        LocalTrafficDetector::ClusterCidr(networks(&["10.244.0.0/16", "fd00:244::/32"])),
        LocalTrafficDetector::NodeCidr,
        LocalTrafficDetector::BridgeInterface("cbr0".to_owned()),
        LocalTrafficDetector::InterfaceNamePrefix("cb".to_owned()),
    ]);
    let addresses = select(vec![
        NodePortAddresses::All,
        NodePortAddresses::Primary,
        NodePortAddresses::Within(networks(&["192.168.7.0/24", "127.0.0.0/8", "::1/128"])),
    ]);
    (any::<bool>(), any::<bool>(), addresses, detector, arbitrary::no_masquerade_cidrs()).prop_map(
        |(masquerade_all, localhost_node_ports, node_port_addresses, detector, no_masquerade_cidrs)| ProxySettings {
            masquerade_all,
            no_masquerade_cidrs,
            localhost_node_ports,
            ipv6_localhost_node_ports: localhost_node_ports,
            node_port_addresses,
            detector,
            ..ProxySettings::default()
        },
    )
}

fn text(report: &DiffReport) -> String {
    let mut text = format!("{:?} against {:?}\n", report.actual, report.expected);
    write_report_into(&mut text, report, 0).unwrap();
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn rules_for_the_same_services_are_equal_in_all_pairs_of_modes(
        cluster in arbitrary::cluster(),
        settings in settings(),
    ) {
        for family in IpFamily::BOTH {
            let planned = Planned::new(&cluster, &settings, family);
            for report in planned.compare_with(&planned) {
                prop_assert_eq!(report.conclusion(), Conclusion::Equal, "{}", text(&report));
                prop_assert!(report.expected != report.actual.unwrap() || report.intended.is_empty(), "{}", text(&report));
            }
        }
    }

    /// Every edit that changes the reachable endpoints is found, although only the rules of one service port are traced
    /// at a time.
    #[test]
    fn edits_of_reachable_endpoints_are_found_in_all_pairs_of_modes(
        cluster in arbitrary::cluster(),
        edits in arbitrary::edits(1..3),
        settings in settings(),
    ) {
        let mut edited = cluster.clone();
        edits.iter().for_each(|edit| edited.apply(edit));
        // Both sides need the same node.
        edited.node.clone_from(&cluster.node);
        // With source ranges, an endpoint may be reachable only by clients that are not tried.
        let mut cluster = cluster;
        for service in cluster.services.iter_mut().chain(&mut edited.services) {
            service.spec.load_balancer_source_ranges.clear();
        }
        for family in IpFamily::BOTH {
            let (expected, actual) = (Planned::new(&cluster, &settings, family), Planned::new(&edited, &settings, family));
            // Names have no effect on packets. Ports without endpoints may make no difference: nftables rules reject all
            // other ports of a cluster IP, too.
            let sets = |planned: &Planned| -> BTreeMap<_, BTreeSet<SocketAddr>> {
                let endpoints_of = |(name, entry): (&ServicePortName, _)| {
                    let sets = planned.services.endpoint_sets(entry);
                    let key = (entry.service.cluster_ip, entry.service.port, name.protocol);
                    (key, sets.reachable.iter().map(ferroute_core::Endpoint::socket).collect::<BTreeSet<_>>())
                };
                let endpoints = planned.services.entries.iter().map(endpoints_of);
                endpoints.filter(|(_, endpoints)| !endpoints.is_empty()).collect()
            };
            if sets(&expected) != sets(&actual) {
                for report in expected.compare_with(&actual) {
                    prop_assert_eq!(report.conclusion(), Conclusion::Different, "{}", text(&report));
                }
            }
        }
    }
}
