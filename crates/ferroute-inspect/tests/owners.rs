//! A frontend that several Services claim goes to the same one in every mode.

#![expect(clippy::unwrap_used, reason = "test helpers fail like tests")]

use std::{collections::BTreeSet, net::SocketAddr};

use ferroute_config::KubeProxyConfiguration;
use ferroute_core::{
    IpFamily, Protocol, ServiceTable,
    testing::{Cluster, ServiceBuilder, service, slice},
};
use ferroute_inspect::diff::{PacketOutcome, outcomes};
use ferroute_proxy::modes::REGISTRY;
use ferroute_trace::{Host, Packet, Route, Ruleset};

const NODE: &str = "192.168.0.1";
const DNS: &str = "10.96.0.10";

/// Returns the endpoints that UDP packets to an address are sent to in each mode, from a pod, the node and another host.
fn endpoints(table: &ServiceTable, to: &str) -> Vec<BTreeSet<String>> {
    let destination: SocketAddr = to.parse().unwrap();
    let route = |to: &str, interface: &str| Route {
        to: to.parse().unwrap(),
        interface: interface.to_owned(),
        source: NODE.parse().unwrap(),
    };
    let routes = vec![route("0.0.0.0/0", "eth0"), route("10.244.0.0/24", "cni0")];
    let addresses = vec![NODE.parse().unwrap()];
    let host = Host { addresses: addresses.clone(), routes, route_localnet: true };
    let mut all = Vec::new();
    for mode in REGISTRY.names() {
        let mut config = KubeProxyConfiguration::default().defaulted();
        config.mode = mode.as_str().into();
        config.cluster_cidr = "10.244.0.0/16".into();
        let resolved = REGISTRY.resolve(&config).unwrap();
        let rules = REGISTRY.active(resolved.mode).plan(&resolved, table, &addresses).unwrap();
        for (source, interface) in
            [("10.244.0.9:40000", Some("cni0")), ("192.168.0.1:40000", None), ("192.0.2.1:40000", Some("eth0"))]
        {
            let source = source.parse().unwrap();
            let packet = match interface {
                Some(interface) => Packet::arriving(Protocol::Udp, source, destination, interface),
                None => Packet::local(Protocol::Udp, source, destination),
            };
            let verdicts = Ruleset::from_rules(rules.as_ref()).verdicts(&host, &packet);
            let end = |outcome: &PacketOutcome| match outcome {
                PacketOutcome::Delivered { to, .. } => to.to_string(),
                other => format!("{mode}: {other:?}"),
            };
            all.push(outcomes(&packet, verdicts).keys().map(end).collect());
        }
    }
    assert!(all.len() >= 6, "three clients in at least two modes");
    all
}

#[track_caller]
fn assert_served_by(table: &ServiceTable, to: &str, endpoint: &str) {
    for ends in endpoints(table, to) {
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
