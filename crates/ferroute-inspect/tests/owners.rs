//! A frontend that several Services claim has the same owner in every mode.

#![expect(clippy::unwrap_used, reason = "test helpers fail like tests")]

use std::{collections::BTreeSet, net::SocketAddr};

use ferroute_config::{KubeProxyConfiguration, ModeName};
use ferroute_core::{
    IpFamily, NodePortAddresses, Protocol, ProxySettings, ServiceTable,
    testing::{Cluster, ServiceBuilder, arbitrary, service, slice},
};
use ferroute_inspect::diff::{PacketOutcome, outcomes};
use ferroute_modes::{PlannedRules, REGISTRY};
use ferroute_trace::{Host, Packet, Route, Ruleset};
use proptest::prelude::*;

const NODE: &str = "192.168.0.1";
const DNS: &str = "10.96.0.10";

/// The planned rules of one IPv4 table in every mode.
struct Modes {
    host: Host,
    rules: Vec<(ModeName, Box<dyn PlannedRules>)>,
}

impl Modes {
    /// Plans the rules; no mode may fail.
    fn plan(table: &ServiceTable) -> Self {
        let route = |to: &str, interface: &str| Route {
            to: to.parse().unwrap(),
            interface: interface.to_owned(),
            source: NODE.parse().unwrap(),
        };
        let routes = vec![route("0.0.0.0/0", "eth0"), route("10.244.0.0/24", "cni0")];
        let addresses = vec![NODE.parse().unwrap()];
        let host = Host { addresses: addresses.clone(), routes, route_localnet: true, ..Host::default() };
        let plan = |mode: ModeName| {
            let mut config = KubeProxyConfiguration::default().defaulted();
            config.mode = mode.as_str().into();
            config.cluster_cidr = "10.244.0.0/16".into();
            config.node_port_addresses = vec!["192.168.0.0/24".into()];
            let resolved = REGISTRY.resolve(&config).unwrap();
            (mode, REGISTRY.active(resolved.mode).plan(&resolved, table, &addresses).unwrap())
        };
        Self { host, rules: REGISTRY.names().into_iter().map(plan).collect() }
    }

    /// Returns the endpoints that new connections to an address reach in each mode, from a pod, the node and another host.
    ///
    /// Rules of ipvs mode distinguish packets from ports of a bridge, which a trace cannot do. Each mode has a known
    /// result for some client.
    fn endpoints(&self, protocol: Protocol, destination: SocketAddr) -> Vec<BTreeSet<String>> {
        let mut all = Vec::new();
        for (mode, rules) in &self.rules {
            let known = all.len();
            for (source, interface) in
                [("10.244.0.9:40000", Some("cni0")), ("192.168.0.1:40000", None), ("192.0.2.1:40000", Some("eth0"))]
            {
                let source = source.parse().unwrap();
                let packet = match interface {
                    Some(interface) => Packet::arriving(protocol, source, destination, interface),
                    None => Packet::local(protocol, source, destination),
                };
                let verdicts = Ruleset::from_rules(rules.as_ref()).verdicts(&self.host, &packet);
                let ends = outcomes(&packet, verdicts);
                if ends.keys().any(|outcome| matches!(outcome, PacketOutcome::Unknown { .. })) {
                    continue;
                }
                let end = |outcome: &PacketOutcome| match outcome {
                    PacketOutcome::Delivered { to, .. } => to.to_string(),
                    other => format!("{mode}: {other:?}"),
                };
                all.push(ends.keys().map(end).collect());
            }
            assert!(all.len() > known, "no known result in mode {mode}");
        }
        all
    }
}

#[track_caller]
fn assert_served_by(table: &ServiceTable, to: &str, endpoint: &str) {
    for ends in Modes::plan(table).endpoints(Protocol::Udp, to.parse().unwrap()) {
        assert_eq!(ends, BTreeSet::from([endpoint.to_owned()]), "{to}");
    }
}

/// Returns a cluster with the cluster's DNS and a Service `aaa/evil`.
fn cluster(evil: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> Cluster {
    let dns = service("kube-system/kube-dns").cluster_ip(DNS).udp("dns", 53).node_port(30053);
    let dns_slice = slice("kube-system/dns-a", "kube-dns").port_over(Protocol::Udp, "dns", 53).pod("10.244.0.53");
    let evil = evil(service("aaa/evil").cluster_ip("10.96.0.66"));
    let slice = slice("aaa/evil-a", "evil").port_over(Protocol::Udp, "dns", 5353).pod("10.244.0.66");
    Cluster::new("node-1").service(dns).slice(dns_slice).service(evil).slice(slice)
}

#[test]
fn external_ip_of_another_service_cannot_take_over_dns() {
    let table = cluster(|evil| evil.udp("dns", 53).external_ip(DNS)).table(IpFamily::V4);
    assert_served_by(&table, "10.96.0.10:53", "10.244.0.53:53");
    assert_served_by(&table, "10.96.0.66:53", "10.244.0.66:5353");
    let table = cluster(|evil| evil.udp("dns", 53).load_balancer(DNS)).table(IpFamily::V4);
    assert_served_by(&table, "10.96.0.10:53", "10.244.0.53:53");
}

#[test]
fn loser_inherits_the_address_of_a_deleted_service() {
    let mut cluster = cluster(|evil| evil.udp("dns", 53).external_ip(DNS));
    cluster.services.retain(|service| service.metadata.name == "evil");
    assert_served_by(&cluster.table(IpFamily::V4), "10.96.0.10:53", "10.244.0.66:5353");
}

#[test]
fn external_ip_of_another_service_cannot_take_over_a_node_port() {
    let mut tracker = cluster(|evil| evil.udp("dns", 30053).external_ip(NODE)).tracker();
    let settings = ferroute_core::ProxySettings::default();
    tracker.set_host_addresses(IpFamily::V4, &settings, &[NODE.parse().unwrap()]);
    tracker.update(IpFamily::V4);
    assert_served_by(tracker.table(IpFamily::V4), "192.168.0.1:30053", "10.244.0.53:53");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// For any claims of Services, every mode plans rules, and these agree on the endpoint of each connection.
    #[test]
    fn modes_send_contested_frontends_to_the_endpoint_of_their_owner(cluster in arbitrary::contested_cluster()) {
        let node = NODE.parse().unwrap();
        let settings = ProxySettings {
            node_port_addresses: NodePortAddresses::Within(vec!["192.168.0.0/24".parse().unwrap()]),
            ..ProxySettings::default()
        };
        let mut tracker = cluster.tracker();
        tracker.set_host_addresses(IpFamily::V4, &settings, &[node]);
        tracker.update(IpFamily::V4);
        let table = tracker.table(IpFamily::V4);
        let modes = Modes::plan(table);
        for (name, entry) in &table.entries {
            let [endpoint] = &entry.endpoints.iter().collect::<Vec<_>>()[..] else { panic!("{name} has {:?}", entry.endpoints) };
            for (kind, frontend) in entry.service.frontends(name.protocol) {
                let to = SocketAddr::new(frontend.address.unwrap_or(node), frontend.port);
                let others = table.entries.iter().filter(|(other, _)| *other != name && other.protocol == name.protocol);
                let mut others = others.flat_map(|(other, entry)| entry.service.frontends(other.protocol));
                // A cluster IP that is an address of the node, which API servers do not assign.
                if frontend.address.is_none() && others.any(|(_, other)| other.address == Some(node) && other.port == to.port()) {
                    continue;
                }
                for ends in modes.endpoints(name.protocol, to) {
                    prop_assert_eq!(ends, BTreeSet::from([endpoint.to_string()]), "{} {} of {}", kind, frontend, name);
                }
            }
        }
    }
}
