use std::net::IpAddr;

use ferroute_config::KubeProxyConfiguration;
use ferroute_core::testing::{Cluster, pod, service, slice};
use ferroute_iptables::RuleSet;
use insta::assert_snapshot;

use super::*;
use crate::preflight::{Report, write_report_into};

fn cluster() -> Cluster {
    let mut cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080))
        .service(service("shop/cart").cluster_ip("10.96.0.2").port("http", 80).affinity(300))
        .service(
            service("shop/front")
                .cluster_ip("10.96.0.3")
                .port("http", 80)
                .node_port(30081)
                .load_balancer("198.51.100.1")
                .external_local()
                .health_check_node_port(31000),
        )
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").on("node-1")));
    cluster.node.status.addresses =
        vec![ferroute_api::NodeAddress { type_: "InternalIP".to_owned(), address: "192.168.0.1".to_owned() }];
    cluster
}

/// A report of a switch that a configuration would bring, for IPv4.
fn report(from: ModeName, to: ModeName, fields: &str, found: &Found, table: &ServiceTable) -> String {
    let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    let config = KubeProxyConfiguration::from_text(&format!("{header}{fields}")).unwrap().config.defaulted();
    let [of_from, of_to] = [from, to].map(|mode| crate::preflight::resolve_for(&config, mode).unwrap().settings);
    let host_addresses: Vec<IpAddr> =
        ["127.0.0.1", "192.168.0.1", "172.17.0.1", "::1"].map(|address| address.parse().unwrap()).into();
    let switch = Switch {
        from: Side { mode: from, settings: &of_from },
        to: Side { mode: to, settings: &of_to },
        table,
        host_addresses: &host_addresses,
        found,
    };
    let mut text = String::new();
    write_report_into(&mut text, &Report { node: "node-1", from, to, differences: &differences(&switch) }).unwrap();
    text
}

fn table() -> ServiceTable {
    cluster().table(IpFamily::V4)
}

#[test]
fn everything_that_nftables_does_otherwise_than_iptables_is_told_with_the_services_concerned() {
    let mut table = table();
    table.service_cidrs = vec!["10.96.0.0/16".parse().unwrap()];
    let rules = "*nat\n:THEIRS - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n-A THEIRS -j KUBE-MARK-MASQ\nCOMMIT\n";
    let references = super::super::found::foreign_references(&RuleSet::parse_save(IpFamily::V4, rules).unwrap());
    let found = Found {
        references: references.into_iter().map(|rule| (IpFamily::V4, rule)).collect(),
        drops_forwarded: vec![IpFamily::V4],
        drops_input: vec![IpFamily::V4],
        ..Found::default()
    };
    assert_snapshot!(report(ModeName::Iptables, ModeName::Nftables, "", &found, &table));
}

#[test]
fn the_way_back_is_told_as_well() {
    assert_snapshot!(report(ModeName::Nftables, ModeName::Iptables, "", &Found::default(), &table()));
}

#[test]
fn virtual_servers_are_told_to_stay_while_connections_use_them() {
    assert_snapshot!(report(ModeName::Ipvs, ModeName::Nftables, "", &Found::default(), &table()));
}

#[test]
fn what_is_configured_alike_for_both_modes_is_no_difference() {
    let fields = "nodePortAddresses: [192.168.0.0/24, 127.0.0.0/8]";
    let text = report(ModeName::Iptables, ModeName::Nftables, fields, &Found::default(), &table());
    assert!(!text.contains("node ports"), "{text}");
    let same = report(ModeName::Iptables, ModeName::Iptables, "", &Found::default(), &table());
    assert!(same.contains("nothing will behave differently"), "{same}");
}

#[test]
fn without_services_that_are_concerned_nothing_is_told_of_them() {
    let empty = Cluster::new("node-1").table(IpFamily::V4);
    let found = Found { drops_input: vec![IpFamily::V4], ..Found::default() };
    let text = report(ModeName::Iptables, ModeName::Nftables, "", &found, &empty);
    assert!(text.contains("nothing will behave differently"), "{text}");
}

#[test]
fn findings_of_the_other_family_are_not_told() {
    let found = Found {
        references: vec![(IpFamily::V6, "-t nat -A THEIRS -j KUBE-MARK-MASQ".to_owned())],
        drops_forwarded: vec![IpFamily::V6],
        ..Found::default()
    };
    let text = report(ModeName::Iptables, ModeName::Nftables, "", &found, &table());
    assert!(!text.contains("THEIRS") && !text.contains("KUBE-FORWARD"), "{text}");
}
