//! Settings, the node, the kernel and the iptables programs.

use ferroute_core::{
    HostState, IpFamily, LocalTrafficDetector, NfacctCounters, NodePortAddresses, ProxySettings, ServicePort,
    TrafficPolicy,
    testing::{port_name, service_port, table},
};
use ferroute_iptables::{IptablesContext, TableName, plan::chains, render};
use insta::assert_snapshot;

use super::{chain_rules, cluster_cidr, lines, local, one, rules, this_node};

#[test]
fn local_pods_are_detected_by_the_nodes_pod_cidr() {
    let settings = ProxySettings { detector: LocalTrafficDetector::NodeCidr, ..ProxySettings::default() };
    assert_snapshot!(pod_rules(&settings), @r#"
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -s 10.244.1.0/24 -m comment --comment "pod traffic for shop/web:http external destinations" -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO ! -s 10.244.1.0/24 -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    "#);
}

#[test]
fn local_pods_are_detected_by_the_prefix_of_their_interfaces() {
    let detector = LocalTrafficDetector::InterfaceNamePrefix("veth".to_owned());
    assert_snapshot!(pod_rules(&ProxySettings { detector, ..ProxySettings::default() }), @r#"
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -i veth+ -m comment --comment "pod traffic for shop/web:http external destinations" -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -d 10.96.0.1/32 ! -i veth+ -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    "#);
}

#[test]
fn with_a_cluster_cidr_of_every_address_no_source_is_masqueraded() {
    let detector = LocalTrafficDetector::ClusterCidr(vec!["0.0.0.0/0".parse().unwrap()]);
    assert_snapshot!(pod_rules(&ProxySettings { detector, ..ProxySettings::default() }), @r#"nat -A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "pod traffic for shop/web:http external destinations" -j KUBE-SVC-67NZLRHBNDSAWJRO"#);
}

#[test]
fn masquerade_all_takes_precedence_over_local_pod_detection() {
    assert_snapshot!(pod_rules(&ProxySettings { masquerade_all: true, ..cluster_cidr() }), @r#"
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -s 10.244.0.0/16 -m comment --comment "pod traffic for shop/web:http external destinations" -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    "#);
}

/// Returns the rules of a service port that depend on the detection of local pods.
fn pod_rules(settings: &ProxySettings) -> String {
    let service = ServicePort {
        node_port: 30080.try_into().ok(),
        external_policy: TrafficPolicy::Local,
        ..service_port("10.96.0.1:80")
    };
    let table = one(port_name("shop/web:http"), service, [local("10.244.1.2:8080")]);
    let rules = rules(&table, settings);
    lines(&rules, |table, chain, line| {
        let own = ["KUBE-SVC-", "KUBE-EXT-"].iter().any(|prefix| chain.as_str().starts_with(prefix));
        table == TableName::Nat && own && (line.contains("pod traffic") || line.contains("cluster IP"))
    })
}

#[test]
fn node_ports_answer_only_on_the_primary_address() {
    let settings = ProxySettings { node_port_addresses: NodePortAddresses::Primary, ..ProxySettings::default() };
    let shown = [IpFamily::V4, IpFamily::V6].map(|family| {
        let rules = rules(&table(family, this_node(), []), &settings);
        let firewall = chain_rules(&rules, TableName::Filter, chains::FIREWALL);
        format!("{}{firewall}", chain_rules(&rules, TableName::Nat, chains::SERVICES))
    });
    assert_snapshot!(shown.join("\n"), @r#"
    nat -A KUBE-SERVICES -d 192.168.0.1/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -j KUBE-NODEPORTS
    nat -A KUBE-SERVICES -d fd00:168::1/128 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -j KUBE-NODEPORTS
    "#);
}

#[test]
fn node_ports_answer_on_loopback_addresses_only_if_enabled_for_localhost() {
    let addresses = ["127.0.0.0/8", "192.168.0.0/16", "::1/128"].map(|text| text.parse().unwrap());
    let settings = |localhost_node_ports| ProxySettings {
        node_port_addresses: NodePortAddresses::Within(addresses.into()),
        localhost_node_ports,
        ..ProxySettings::default()
    };
    let shown = [(IpFamily::V4, true), (IpFamily::V4, false), (IpFamily::V6, true)].map(|(family, localhost)| {
        let rules = rules(&table(family, this_node(), []), &settings(localhost));
        format!("{family} {localhost}\n{}", chain_rules(&rules, TableName::Nat, chains::SERVICES))
    });
    assert_snapshot!(shown.join("\n"), @r#"
    IPv4 true
    nat -A KUBE-SERVICES -d 127.0.0.1/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -j KUBE-NODEPORTS
    nat -A KUBE-SERVICES -d 192.168.0.1/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -j KUBE-NODEPORTS
    IPv4 false
    nat -A KUBE-SERVICES -d 192.168.0.1/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -j KUBE-NODEPORTS
    IPv6 true
    "#);
}

#[test]
fn rules_use_only_features_of_the_host() {
    let table = table(IpFamily::V4, this_node(), []);
    let host = |conntrack_tcp_be_liberal, invalid_dropped| HostState {
        conntrack_tcp_be_liberal,
        counters: NfacctCounters { invalid_dropped, localhost_accepted: false },
        ..HostState::default()
    };
    let shown = [host(false, false), host(false, true), host(true, true)].map(|host| {
        let rules = render(&table, &IptablesContext::new(&ProxySettings::default(), &table, &host));
        [
            chain_rules(&rules, TableName::Filter, chains::FORWARD),
            chain_rules(&rules, TableName::Nat, chains::POSTROUTING),
        ]
        .join("\n")
    });
    assert_snapshot!(shown.join("\n\n"), @r#"
    filter -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
    filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
    filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
    nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
    nat -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE

    filter -A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP
    filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
    filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
    nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
    nat -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE

    filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
    filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
    nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
    nat -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE
    "#);
}

#[test]
fn the_masquerade_mark_may_be_any_bit() {
    let table = table(IpFamily::V4, this_node(), []);
    let shown = [0, 31].map(|masquerade_bit| {
        let rules = rules(&table, &ProxySettings { masquerade_bit, ..ProxySettings::default() });
        lines(&rules, |_, _, line| line.contains("mark"))
    });
    assert_snapshot!(shown.join("\n\n"), @r#"
    filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x1/0x1 -j ACCEPT
    nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x1/0x1
    nat -A KUBE-POSTROUTING -m mark ! --mark 0x1/0x1 -j RETURN
    nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x1/0x0

    filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x80000000/0x80000000 -j ACCEPT
    nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x80000000/0x80000000
    nat -A KUBE-POSTROUTING -m mark ! --mark 0x80000000/0x80000000 -j RETURN
    nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x80000000/0x0
    "#);
}
