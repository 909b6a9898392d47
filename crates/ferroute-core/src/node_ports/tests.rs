use std::net::IpAddr;

use super::*;
use crate::NodeView;

/// One address is on two interfaces.
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

fn just(texts: &[&str]) -> NodePortMatch {
    NodePortMatch::Addresses(ips(texts))
}

#[test]
fn all_is_every_local_address_of_either_family() {
    for family in IpFamily::BOTH {
        assert_eq!(resolve(&NodePortAddresses::All, family), NodePortMatch::AnyLocal);
    }
}

#[test]
fn networks_pick_every_address_within_them_sorted_and_once_link_local_and_loopback_too() {
    let networks = within(&["192.168.0.0/16", "192.168.0.0/24", "127.0.0.0/8", "169.254.0.0/16", "fe80::/10"]);
    assert_eq!(resolve(&networks, IpFamily::V4), just(&["127.0.0.1", "169.254.1.1", "192.168.0.1", "192.168.0.7"]));
    assert_eq!(resolve(&networks, IpFamily::V6), just(&["fe80::1"]));
}

#[test]
fn a_family_without_a_network_of_its_own_is_not_narrowed() {
    assert_eq!(resolve(&within(&["10.0.0.0/8"]), IpFamily::V6), NodePortMatch::AnyLocal);
    assert_eq!(resolve(&within(&["fd00::/8"]), IpFamily::V4), NodePortMatch::AnyLocal);
    assert_eq!(resolve(&within(&[]), IpFamily::V4), NodePortMatch::AnyLocal);
}

#[test]
fn a_network_that_holds_every_address_narrows_its_own_family_only_in_name() {
    let networks = within(&["10.0.0.0/8", "0.0.0.0/0", "fd00::/8"]);
    assert_eq!(resolve(&networks, IpFamily::V4), NodePortMatch::AnyLocal);
    assert_eq!(resolve(&networks, IpFamily::V6), just(&["fd00:168::1"]));
}

#[test]
fn networks_without_an_address_of_the_host_match_nothing() {
    assert_eq!(resolve(&within(&["172.16.0.0/12"]), IpFamily::V4), just(&[]));
}

#[test]
fn primary_is_the_nodes_best_address_of_the_family() {
    assert_eq!(resolve(&NodePortAddresses::Primary, IpFamily::V4), just(&["192.168.0.1"]));
    assert_eq!(resolve(&NodePortAddresses::Primary, IpFamily::V6), just(&["fd00:168::1"]));
}

#[test]
fn a_primary_address_that_no_interface_has_matches_nothing() {
    let node = node(&["203.0.113.1"]);
    assert_eq!(NodePortAddresses::Primary.resolve(IpFamily::V4, &node, &ips(&HOST)), just(&[]));
}

#[test]
fn a_family_without_a_primary_address_is_not_narrowed() {
    for node in [node(&["192.168.0.1"]), node(&["192.168.0.1", "::1"])] {
        let resolved = NodePortAddresses::Primary.resolve(IpFamily::V6, &node, &ips(&HOST));
        assert_eq!(resolved, NodePortMatch::AnyLocal, "{node:?}");
    }
}

#[test]
fn loopback_is_possible_where_a_network_overlaps_with_it() {
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
        assert!(addresses.may_hold_ipv4_loopback(), "{addresses:?}");
    }
    let impossible = [NodePortAddresses::Primary, within(&["10.0.0.0/8", "::/0"]), within(&["128.0.0.0/1", "::1/128"])];
    for addresses in impossible {
        assert!(!addresses.may_hold_ipv4_loopback(), "{addresses:?}");
    }
}
