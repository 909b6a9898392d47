use ipnet::IpNet;
use proptest::{prelude::*, sample::select};

use crate::{LocalTrafficDetector, NodePortAddresses, ProxySettings};

/// Generates settings, for nodes with the networks of the generated clusters.
pub fn settings() -> impl Strategy<Value = ProxySettings> {
    (any::<bool>(), any::<bool>(), 0..32_u8, node_ports(), detector(), no_masquerade_cidrs()).prop_map(
        |(masquerade_all, localhost_node_ports, masquerade_bit, node_port_addresses, detector, no_masquerade_cidrs)| {
            ProxySettings {
                masquerade_all,
                no_masquerade_cidrs,
                masquerade_bit,
                localhost_node_ports,
                // One setting for both families, as the keyword `localhost` in nftables mode.
                ipv6_localhost_node_ports: localhost_node_ports,
                node_port_addresses,
                detector,
                ..ProxySettings::default()
            }
        },
    )
}

/// Generates networks of no endpoint, of all endpoints and of some, mostly of none.
pub fn no_masquerade_cidrs() -> impl Strategy<Value = Vec<IpNet>> {
    let networks = |networks: &[&str]| networks.iter().map(|net| net.parse().expect("a network")).collect::<Vec<_>>();
    prop_oneof![
        3 => Just(Vec::new()),
        2 => select(vec![
            networks(&["10.244.1.0/24", "fd00:244:0:1::/64"]),
            networks(&["10.244.0.0/24", "192.168.0.0/16", "fd00:244::/64"]),
            networks(&["0.0.0.0/0", "::/0"]),
        ]),
    ]
}

fn node_ports() -> impl Strategy<Value = NodePortAddresses> {
    let within = |networks: &[&str]| {
        NodePortAddresses::Within(networks.iter().map(|net| net.parse().expect("a network")).collect())
    };
    prop_oneof![
        3 => Just(NodePortAddresses::All),
        1 => Just(NodePortAddresses::Primary),
        2 => select(vec![
            within(&["192.168.0.0/24", "fd00:168::/64"]),
            within(&["127.0.0.0/8", "192.168.7.0/24", "::1/128"]),
            within(&["172.16.0.0/12"]),
        ]),
    ]
}

fn detector() -> impl Strategy<Value = LocalTrafficDetector> {
    let networks = |networks: &[&str]| networks.iter().map(|net| net.parse().expect("a network")).collect();
    select(vec![
        LocalTrafficDetector::None,
        LocalTrafficDetector::ClusterCidr(networks(&["10.244.0.0/16", "fd00:244::/32"])),
        LocalTrafficDetector::ClusterCidr(networks(&["0.0.0.0/0", "::/0"])),
        LocalTrafficDetector::NodeCidr,
        LocalTrafficDetector::BridgeInterface("cbr0".to_owned()),
        LocalTrafficDetector::InterfaceNamePrefix("veth".to_owned()),
    ])
}
