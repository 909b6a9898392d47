use ferroute_api::{Node, NodeAddress, Taint, labels};

use super::{super::parse_node, assert_errors};
use crate::{IpFamily, NodeView, testing::Cluster};

fn node(addresses: &[(&str, &str)]) -> Node {
    let mut node = Cluster::new("node-1").node;
    node.status.addresses = addresses
        .iter()
        .map(|(type_, address)| NodeAddress { type_: (*type_).into(), address: (*address).into() })
        .collect();
    node
}

fn view(node: &Node) -> NodeView {
    parse_node(node).unwrap()
}

#[test]
fn internal_addresses_precede_external_ones_and_other_types_are_ignored() {
    let node = node(&[
        ("Hostname", "node-1"),
        ("ExternalIP", "203.0.113.1"),
        ("InternalIP", "192.168.0.1"),
        ("InternalDNS", "node-1.internal"),
        ("ExternalIP", "2001:db8::1"),
        ("InternalIP", "192.168.0.2"),
    ]);
    let expected = ["192.168.0.1", "192.168.0.2", "203.0.113.1", "2001:db8::1"].map(|ip| ip.parse().unwrap());
    let view = view(&node);
    assert_eq!(view.addresses, expected);
    assert_eq!(view.primary_address(IpFamily::V4), Some(expected[0]));
    assert_eq!(view.primary_address(IpFamily::V6), Some(expected[3]));
}

#[test]
fn empty_address_is_ignored() {
    let view = view(&node(&[("InternalIP", "192.168.0.1"), ("ExternalIP", "")]));
    assert_eq!(view.addresses, ["192.168.0.1".parse::<std::net::IpAddr>().unwrap()]);
}

#[test]
fn node_without_addresses_has_no_primary_address() {
    let view = view(&node(&[]));
    assert_eq!(IpFamily::BOTH.map(|family| view.primary_address(family)), [None, None]);
}

#[test]
fn pod_cidrs_take_precedence_over_pod_cidr() {
    let mut node = node(&[]);
    assert_eq!(view(&node).pod_cidrs, []);
    node.spec.pod_cidr = Some("10.244.1.0/24".into());
    assert_eq!(view(&node).pod_cidr(IpFamily::V4), Some("10.244.1.0/24".parse().unwrap()));
    assert_eq!(view(&node).pod_cidr(IpFamily::V6), None);
    node.spec.pod_cidrs = vec!["fd00:244::/64".into(), "10.244.2.0/24".into()];
    assert_eq!(view(&node).pod_cidr(IpFamily::V4), Some("10.244.2.0/24".parse().unwrap()));
    assert_eq!(view(&node).pod_cidr(IpFamily::V6), Some("fd00:244::/64".parse().unwrap()));
    node.spec.pod_cidr = Some(String::new());
    node.spec.pod_cidrs.clear();
    assert_eq!(view(&node).pod_cidrs, []);
}

#[test]
fn zone_is_a_label_that_is_not_empty() {
    let mut node = node(&[]);
    assert_eq!(view(&node).zone, None);
    node.metadata.labels.insert(labels::ZONE.into(), String::new());
    assert_eq!(view(&node).zone, None);
    node.metadata.labels.insert(labels::ZONE.into(), "a".into());
    assert_eq!(view(&node).zone.as_deref(), Some("a"));
    assert_eq!(view(&node).name, "node-1");
}

#[test]
fn node_with_deletion_timestamp_is_to_be_deleted() {
    let mut node = node(&[]);
    node.metadata.deletion_timestamp = Some("2026-01-02T15:00:00Z".into());
    assert!(view(&node).to_be_deleted);
}

#[test]
fn node_with_taint_of_cluster_autoscaler_is_to_be_deleted() {
    let mut node = node(&[]);
    node.spec.taints = vec![Taint { key: "node.kubernetes.io/unreachable".into() }];
    assert!(!view(&node).to_be_deleted);
    node.spec.taints.push(Taint { key: labels::TO_BE_DELETED_TAINT.into() });
    assert!(view(&node).to_be_deleted);
}

#[test]
fn errors_name_the_invalid_fields() {
    let mut invalid = node(&[("Hostname", "node-1"), ("ExternalIP", "x"), ("InternalIP", "y")]);
    invalid.spec.pod_cidr = Some("z".into());
    let mut expected = [
        ("status.addresses[2].address", "invalid IP address \"y\""),
        ("status.addresses[1].address", "invalid IP address \"x\""),
        ("spec.podCIDR", "invalid network \"z\""),
    ];
    assert_errors(parse_node(&invalid), &expected);
    invalid.spec.pod_cidrs = vec!["10.244.2.0/24".into(), "w".into()];
    expected[2] = ("spec.podCIDRs[1]", "invalid network \"w\"");
    assert_errors(parse_node(&invalid), &expected);
}
