use std::net::IpAddr;

use super::*;
use crate::NodeView;

/// Addresses of interfaces; two of the interfaces have the same address.
const HOST: [&str; 9] = [
    "127.0.0.1",
    "::1",
    "192.168.0.7",
    "192.168.0.1",
    "10.1.0.1",
    "169.254.1.1",
    "192.168.0.7",
    "fd00:168::1",
    "fe80::1",
];

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn within(networks: &[&str]) -> NodePortAddresses {
    NodePortAddresses::Within(networks.iter().map(|network| network.parse().unwrap()).collect())
}

fn node(addresses: &[&str]) -> NodeView {
    NodeView { addresses: ips(addresses), ..NodeView::default() }
}

fn resolve(addresses: &NodePortAddresses, family: IpFamily) -> NodePortMatch {
    addresses.resolve(family, &node(&["192.168.0.1", "fd00:168::1", "10.1.0.1"]), &ips(&HOST))
}

fn only(texts: &[&str]) -> NodePortMatch {
    NodePortMatch::Addresses(ips(texts))
}

#[test]
fn all_matches_any_local_address() {
    for family in IpFamily::BOTH {
        assert_eq!(resolve(&NodePortAddresses::All, family), NodePortMatch::AnyLocal);
    }
}

#[test]
fn networks_match_sorted_distinct_addresses_including_link_local_and_loopback() {
    let networks = within(&["192.168.0.0/16", "192.168.0.0/24", "127.0.0.0/8", "169.254.0.0/16", "fe80::/10"]);
    assert_eq!(resolve(&networks, IpFamily::V4), only(&["127.0.0.1", "169.254.1.1", "192.168.0.1", "192.168.0.7"]));
    assert_eq!(resolve(&networks, IpFamily::V6), only(&["fe80::1"]));
}

#[test]
fn family_without_networks_is_not_restricted() {
    assert_eq!(resolve(&within(&["10.0.0.0/8"]), IpFamily::V6), NodePortMatch::AnyLocal);
    assert_eq!(resolve(&within(&["fd00::/8"]), IpFamily::V4), NodePortMatch::AnyLocal);
    assert_eq!(resolve(&within(&[]), IpFamily::V4), NodePortMatch::AnyLocal);
}

#[test]
fn network_of_all_addresses_does_not_restrict_its_family() {
    let networks = within(&["10.0.0.0/8", "0.0.0.0/0", "fd00::/8"]);
    assert_eq!(resolve(&networks, IpFamily::V4), NodePortMatch::AnyLocal);
    assert_eq!(resolve(&networks, IpFamily::V6), only(&["fd00:168::1"]));
}

#[test]
fn networks_without_host_addresses_match_nothing() {
    assert_eq!(resolve(&within(&["172.16.0.0/12"]), IpFamily::V4), only(&[]));
}

#[test]
fn primary_is_the_first_node_address_of_the_family() {
    assert_eq!(resolve(&NodePortAddresses::Primary, IpFamily::V4), only(&["192.168.0.1"]));
    assert_eq!(resolve(&NodePortAddresses::Primary, IpFamily::V6), only(&["fd00:168::1"]));
}

#[test]
fn primary_address_without_interface_matches_nothing() {
    let node = node(&["203.0.113.1"]);
    assert_eq!(NodePortAddresses::Primary.resolve(IpFamily::V4, &node, &ips(&HOST)), only(&[]));
}

#[test]
fn family_without_primary_address_is_not_restricted() {
    for node in [node(&["192.168.0.1"]), node(&["192.168.0.1", "::1"])] {
        let resolved = NodePortAddresses::Primary.resolve(IpFamily::V6, &node, &ips(&HOST));
        assert_eq!(resolved, NodePortMatch::AnyLocal, "{node:?}");
    }
}

#[test]
fn primary_address_and_networks_add_up() {
    let both = NodePortAddresses::PrimaryAnd(ips(&["127.0.0.1"]).into_iter().map(IpNet::from).collect());
    let host = [&HOST[..], &["127.0.0.1", "::1"]].concat();
    let resolve = |node: &NodeView, family| both.resolve(family, node, &ips(&host));
    let node_with = node(&["192.168.0.1", "fd00:168::1"]);
    assert_eq!(resolve(&node_with, IpFamily::V4), only(&["127.0.0.1", "192.168.0.1"]));
    assert_eq!(resolve(&node_with, IpFamily::V6), only(&["fd00:168::1"]));
    assert!(both.may_include_ipv4_loopback() && both.has_loopback_network(IpFamily::V4));
    let of_ipv6 = NodePortAddresses::PrimaryAnd(vec!["fd00::/8".parse().unwrap()]);
    assert!(!of_ipv6.may_include_ipv4_loopback() && !of_ipv6.has_loopback_network(IpFamily::V4));
}

#[test]
fn loopback_may_be_included_if_a_network_overlaps_with_it() {
    let possible = [
        NodePortAddresses::All,
        within(&[]),
        within(&["fd00::/8"]),
        within(&["10.0.0.0/8", "0.0.0.0/0"]),
        within(&["10.0.0.0/8", "127.0.0.0/8"]),
        within(&["127.0.0.1/32"]),
        within(&["127.64.0.0/10"]),
        within(&["126.0.0.0/7"]),
        within(&["0.0.0.0/1"]),
    ];
    for addresses in possible {
        assert!(addresses.may_include_ipv4_loopback(), "{addresses:?}");
    }
    let impossible = [NodePortAddresses::Primary, within(&["10.0.0.0/8", "::/0"]), within(&["128.0.0.0/1", "::1/128"])];
    for addresses in impossible {
        assert!(!addresses.may_include_ipv4_loopback(), "{addresses:?}");
    }
}
