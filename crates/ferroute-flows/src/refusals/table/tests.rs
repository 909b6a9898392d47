use ferroute_core::{
    IpFamily, LocalTrafficDetector, ModeTraits, NodePortAddresses, ProxySettings,
    testing::{Cluster, pod, service, slice},
};

use super::*;
use crate::Frontends;

const PRIMARY: &str = "192.168.0.1";

/// The addresses of a node, of which the first is the primary one.
fn host() -> Vec<IpAddr> {
    [PRIMARY, "10.244.0.1", "127.0.0.1"].map(|address| address.parse().unwrap()).to_vec()
}

fn text(traits: &'static ModeTraits, settings: ProxySettings) -> String {
    let cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2")))
        .service(service("shop/empty").cluster_ip("10.96.0.2").port("http", 80).node_port(30002))
        .service(
            service("shop/lb")
                .cluster_ip("10.96.0.3")
                .port("http", 80)
                .load_balancer("198.51.100.1")
                .source_range("203.0.113.0/24"),
        )
        .slice(slice("shop/lb-a", "lb").port("http", 8080).pod(pod("10.244.0.2")));
    let mut frontends = Frontends::new(traits, settings);
    frontends.set(&cluster.table(IpFamily::V4), &host());
    let mut transaction = table(&frontends.watched(IpFamily::V4).unwrap(), 7);
    // The order of elements does not matter.
    transaction.changes.sort_by_key(|change| match change {
        Change::AddElement(set, element) => (1, format!("{set} {element}")),
        Change::AddTable(_) | Change::AddOwnedTable(_) | Change::DeleteTable | Change::AddSet(_) => (0, String::new()),
        _ => (2, String::new()),
    });
    transaction.to_string()
}

#[test]
fn rules_know_classes_of_clients_and_source_ranges() {
    let pods = LocalTrafficDetector::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
    let settings = ProxySettings { detector: pods, ..ProxySettings::default() };
    insta::assert_snapshot!(text(&ModeTraits::IPTABLES, settings), @r#"
    add table ip ferroute-refused-7 { flags owner ; comment "ferroute flows: packets that rules refuse" ; }
    delete table ip ferroute-refused-7
    add table ip ferroute-refused-7 { flags owner ; comment "ferroute flows: packets that rules refuse" ; }
    add set ip ferroute-refused-7 permitted-24 { type ipv4_addr . ipv4_addr . inet_proto . inet_service ; }
    add set ip ferroute-refused-7 cluster-ips { type ipv4_addr ; }
    add set ip ferroute-refused-7 frontends { type ipv4_addr . inet_proto . inet_service ; }
    add set ip ferroute-refused-7 pod-frontends { type ipv4_addr . inet_proto . inet_service ; }
    add set ip ferroute-refused-7 pod-node-ports { type inet_proto . inet_service ; }
    add set ip ferroute-refused-7 pod-restricted { type ipv4_addr . inet_proto . inet_service ; }
    add set ip ferroute-refused-7 node-frontends { type ipv4_addr . inet_proto . inet_service ; }
    add set ip ferroute-refused-7 node-node-ports { type inet_proto . inet_service ; }
    add set ip ferroute-refused-7 node-restricted { type ipv4_addr . inet_proto . inet_service ; }
    add set ip ferroute-refused-7 outside-frontends { type ipv4_addr . inet_proto . inet_service ; }
    add set ip ferroute-refused-7 outside-node-ports { type inet_proto . inet_service ; }
    add set ip ferroute-refused-7 outside-restricted { type ipv4_addr . inet_proto . inet_service ; }
    add element ip ferroute-refused-7 node-frontends { 10.96.0.2 . tcp . 80 }
    add element ip ferroute-refused-7 node-node-ports { tcp . 30002 }
    add element ip ferroute-refused-7 node-restricted { 198.51.100.1 . tcp . 80 }
    add element ip ferroute-refused-7 outside-frontends { 10.96.0.2 . tcp . 80 }
    add element ip ferroute-refused-7 outside-node-ports { tcp . 30002 }
    add element ip ferroute-refused-7 outside-restricted { 198.51.100.1 . tcp . 80 }
    add element ip ferroute-refused-7 permitted-24 { 203.0.113.0 . 198.51.100.1 . tcp . 80 }
    add element ip ferroute-refused-7 pod-frontends { 10.96.0.2 . tcp . 80 }
    add element ip ferroute-refused-7 pod-node-ports { tcp . 30002 }
    add element ip ferroute-refused-7 pod-restricted { 198.51.100.1 . tcp . 80 }
    add chain ip ferroute-refused-7 from-permitted-pod
    add rule ip ferroute-refused-7 from-permitted-pod ip daddr . meta l4proto . th dport @pod-frontends log prefix "pod" group 7 accept
    add rule ip ferroute-refused-7 from-permitted-pod fib daddr type local meta l4proto . th dport @pod-node-ports log prefix "pod" group 7 accept
    add rule ip ferroute-refused-7 from-permitted-pod ip daddr . meta l4proto . th dport @frontends accept
    add rule ip ferroute-refused-7 from-permitted-pod ip daddr @cluster-ips log prefix "unknown-port" group 7 accept
    add chain ip ferroute-refused-7 from-pod
    add rule ip ferroute-refused-7 from-pod ip saddr & 255.255.255.0 . ip daddr . meta l4proto . th dport @permitted-24 goto from-permitted-pod
    add rule ip ferroute-refused-7 from-pod ip daddr . meta l4proto . th dport @pod-restricted log prefix "restricted-pod" group 7 accept
    add rule ip ferroute-refused-7 from-pod goto from-permitted-pod
    add chain ip ferroute-refused-7 from-permitted-node
    add rule ip ferroute-refused-7 from-permitted-node ip daddr . meta l4proto . th dport @node-frontends log prefix "node" group 7 accept
    add rule ip ferroute-refused-7 from-permitted-node fib daddr type local meta l4proto . th dport @node-node-ports log prefix "node" group 7 accept
    add rule ip ferroute-refused-7 from-permitted-node ip daddr . meta l4proto . th dport @frontends accept
    add rule ip ferroute-refused-7 from-permitted-node ip daddr @cluster-ips log prefix "unknown-port" group 7 accept
    add chain ip ferroute-refused-7 from-node
    add rule ip ferroute-refused-7 from-node ip saddr & 255.255.255.0 . ip daddr . meta l4proto . th dport @permitted-24 goto from-permitted-node
    add rule ip ferroute-refused-7 from-node ip daddr . meta l4proto . th dport @node-restricted log prefix "restricted-node" group 7 accept
    add rule ip ferroute-refused-7 from-node goto from-permitted-node
    add chain ip ferroute-refused-7 from-permitted-outside
    add rule ip ferroute-refused-7 from-permitted-outside ip daddr . meta l4proto . th dport @outside-frontends log prefix "outside" group 7 accept
    add rule ip ferroute-refused-7 from-permitted-outside fib daddr type local meta l4proto . th dport @outside-node-ports log prefix "outside" group 7 accept
    add rule ip ferroute-refused-7 from-permitted-outside ip daddr . meta l4proto . th dport @frontends accept
    add rule ip ferroute-refused-7 from-permitted-outside ip daddr @cluster-ips log prefix "unknown-port" group 7 accept
    add chain ip ferroute-refused-7 from-outside
    add rule ip ferroute-refused-7 from-outside ip saddr & 255.255.255.0 . ip daddr . meta l4proto . th dport @permitted-24 goto from-permitted-outside
    add rule ip ferroute-refused-7 from-outside ip daddr . meta l4proto . th dport @outside-restricted log prefix "restricted-outside" group 7 accept
    add rule ip ferroute-refused-7 from-outside goto from-permitted-outside
    add chain ip ferroute-refused-7 prerouting { type filter hook prerouting priority -115 ; policy accept ; }
    add rule ip ferroute-refused-7 prerouting ct state new ip saddr 10.244.0.0/16 goto from-pod
    add rule ip ferroute-refused-7 prerouting ct state new goto from-outside
    add chain ip ferroute-refused-7 output { type filter hook output priority -115 ; policy accept ; }
    add rule ip ferroute-refused-7 output ct state new goto from-node
    "#);
}

#[test]
fn unknown_ports_are_watched_where_the_mode_rejects_them() {
    let added = |text: &str, set: &str| {
        text.lines().filter(|line| line.starts_with(&format!("add element ip ferroute-refused-7 {set} "))).count()
    };
    let [iptables, nftables] =
        [&ModeTraits::IPTABLES, &ModeTraits::NFTABLES].map(|traits| text(traits, ProxySettings::default()));
    assert_eq!([added(&iptables, "cluster-ips"), added(&iptables, "frontends")], [0, 0]);
    assert_eq!([added(&nftables, "cluster-ips"), added(&nftables, "frontends")], [3, 4]);
}

/// The rules of node ports for packets of the node, and the addresses in their set.
fn node_ports(traits: &'static ModeTraits, addresses: NodePortAddresses) -> (Vec<String>, Vec<String>) {
    let text = text(traits, ProxySettings { node_port_addresses: addresses, ..ProxySettings::default() });
    let after = |start: &str| -> Vec<String> {
        text.lines().filter_map(|line| Some(line.split_once(start)?.1.to_owned())).collect()
    };
    let mut rules = after("from-permitted-node ");
    rules.retain(|rule| rule.contains("@node-node-ports"));
    (rules, after("node-port-addresses { ").into_iter().filter(|end| !end.starts_with("type")).collect())
}

#[test]
fn node_ports_are_watched_only_at_addresses_where_the_mode_refuses_them() {
    let only_primary = || NodePortAddresses::Within(vec![PRIMARY.parse::<IpAddr>().unwrap().into()]);
    let any = ["fib daddr type local meta l4proto . th dport @node-node-ports log prefix \"node\" group 7 accept"];
    for traits in [&ModeTraits::IPTABLES, &ModeTraits::USERSPACE] {
        assert_eq!(node_ports(traits, only_primary()), (any.map(str::to_owned).to_vec(), vec![]));
        assert_eq!(node_ports(traits, NodePortAddresses::All), (any.map(str::to_owned).to_vec(), vec![]));
    }
    let listed =
        ["ip daddr @node-port-addresses meta l4proto . th dport @node-node-ports log prefix \"node\" group 7 accept"];
    let not_localhost = [
        "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport @node-node-ports log prefix \"node\" group 7 accept",
    ];
    for traits in [&ModeTraits::NFTABLES, &ModeTraits::IPVS] {
        let expected = (listed.map(str::to_owned).to_vec(), vec![format!("{PRIMARY} }}")]);
        assert_eq!(node_ports(traits, only_primary()), expected);
    }
    assert_eq!(node_ports(&ModeTraits::IPVS, NodePortAddresses::All).0, not_localhost);
}

#[test]
fn packets_to_services_with_limits_are_logged_before_and_after_their_rules() {
    let limited = |traits| {
        let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30001);
        let cluster = Cluster::new("node-1")
            .service(web.annotation("ferroute.io/max-connections", "9"))
            .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2")));
        let mut frontends = Frontends::new(traits, ProxySettings::default());
        frontends.set(&cluster.table(IpFamily::V4), &host());
        let text = table(&frontends.watched(IpFamily::V4).unwrap(), 7).to_string();
        let lines = text.lines().filter(|line| line.contains("limited") || line.contains("admitted"));
        lines.map(|line| line.replace(" ip ferroute-refused-7", "")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(limited(&ModeTraits::IPTABLES), "");
    insta::assert_snapshot!(limited(&ModeTraits::NFTABLES), @r#"
    add set limited-frontends { type ipv4_addr . inet_proto . inet_service ; }
    add element limited-frontends { 10.96.0.1 . tcp . 80 }
    add set limited-node-ports { type inet_proto . inet_service ; }
    add element limited-node-ports { tcp . 30001 }
    add rule from-permitted-pod ip daddr . meta l4proto . th dport @limited-frontends log prefix "limited-pod" group 7 accept
    add rule from-permitted-pod fib daddr type local meta l4proto . th dport @limited-node-ports log prefix "limited-pod" group 7 accept
    add rule from-permitted-node ip daddr . meta l4proto . th dport @limited-frontends log prefix "limited-node" group 7 accept
    add rule from-permitted-node fib daddr type local meta l4proto . th dport @limited-node-ports log prefix "limited-node" group 7 accept
    add rule from-permitted-outside ip daddr . meta l4proto . th dport @limited-frontends log prefix "limited-outside" group 7 accept
    add rule from-permitted-outside fib daddr type local meta l4proto . th dport @limited-node-ports log prefix "limited-outside" group 7 accept
    add chain admitted { type filter hook prerouting priority -99 ; policy accept ; }
    add rule admitted ct state new ct original ip daddr . meta l4proto . ct original proto-dst @limited-frontends log prefix "admitted" group 7 accept
    add rule admitted ct state new meta l4proto . ct original proto-dst @limited-node-ports log prefix "admitted" group 7 accept
    add chain admitted-output { type filter hook output priority -99 ; policy accept ; }
    add rule admitted-output ct state new ct original ip daddr . meta l4proto . ct original proto-dst @limited-frontends log prefix "admitted" group 7 accept
    add rule admitted-output ct state new meta l4proto . ct original proto-dst @limited-node-ports log prefix "admitted" group 7 accept
    "#);
}

#[test]
fn every_prefix_is_understood() {
    for (prefix, logged) in Logged::PREFIXES {
        assert_eq!(Logged::from_prefix(prefix), Some(logged));
    }
    assert_eq!(Logged::from_prefix("other"), None);
}
