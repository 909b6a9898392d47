use super::*;

#[test]
fn masquerade_mark_is_one_bit() {
    let mark = |masquerade_bit| ProxySettings { masquerade_bit, ..ProxySettings::default() }.masquerade_mark();
    assert_eq!(ProxySettings::default().masquerade_mark(), 0x4000);
    assert_eq!(mark(0), 1);
    assert_eq!(mark(31), 0x8000_0000);
}

#[test]
fn localhost_node_ports_are_ipv4_only_and_can_be_disabled() {
    let enabled = ProxySettings::default();
    assert_eq!(IpFamily::BOTH.map(|family| enabled.localhost_node_ports(family)), [true, false]);
    let disabled = ProxySettings { localhost_node_ports: false, ..enabled.clone() };
    let primary = ProxySettings { node_port_addresses: NodePortAddresses::Primary, ..enabled };
    for settings in [disabled, primary] {
        assert_eq!(IpFamily::BOTH.map(|family| settings.localhost_node_ports(family)), [false, false]);
    }
}

#[test]
fn settings_resolve_their_parts() {
    let node = NodeView { pod_cidrs: vec!["10.244.1.0/24".parse().unwrap()], ..NodeView::default() };
    let settings = ProxySettings {
        detector: LocalTrafficDetector::NodeCidr,
        node_port_addresses: NodePortAddresses::Within(vec!["10.0.0.0/8".parse().unwrap()]),
        ..ProxySettings::default()
    };
    let host = ["10.0.0.1", "192.168.0.1"].map(|address| address.parse().unwrap());
    assert_eq!(settings.node_ports(IpFamily::V4, &node, &host), NodePortMatch::Addresses(vec![host[0]]));
    assert_eq!(settings.node_ports(IpFamily::V6, &node, &host), NodePortMatch::AnyLocal);
    let expected = LocalTraffic::Source("10.244.1.0/24".parse().unwrap());
    assert_eq!(settings.local_traffic(IpFamily::V4, &node), Some(expected));
    assert_eq!(settings.local_traffic(IpFamily::V6, &node), None);
}
