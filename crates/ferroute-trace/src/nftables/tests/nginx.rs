//! Traces of the nginx example as text.

use super::*;

#[test]
fn pod_connects_to_cluster_ip() {
    let kernel = kernel(&nginx(|it| it), &[]);
    insta::assert_snapshot!(summary(&kernel, &from_pod("10.111.175.78:80")), @"
    ip ferroute nat-prerouting → services → pick-3: DNAT 10.111.175.78:80 to one of 3
          33.3 %  @tcp-endpoints 1:1 . 1: 172.17.0.4:80
          33.3 %  @tcp-endpoints 1:1 . 2: 172.17.0.5:80
          33.3 %  @tcp-endpoints 1:1 . 3: 172.17.0.6:80
    => delivered through cni0, with source 172.17.0.14
    ");
}

#[test]
fn node_connects_to_cluster_ip() {
    let kernel = kernel(&nginx(|it| it), &[]);
    insta::assert_snapshot!(summary(&kernel, &from_node("10.111.175.78:80")), @"
    ip ferroute nat-output → services
        mark 0x0 becomes 0x4000
        pick-3: DNAT 10.111.175.78:80 to one of 3
          33.3 %  @tcp-endpoints 1:1 . 1: 172.17.0.4:80
          33.3 %  @tcp-endpoints 1:1 . 2: 172.17.0.5:80
          33.3 %  @tcp-endpoints 1:1 . 3: 172.17.0.6:80
    ip ferroute nat-postrouting → masquerading: mark 0x4000 becomes 0x0, masquerade 192.168.49.2 as 172.17.0.1
    => delivered through cni0, with source 172.17.0.1
    ");
}

#[test]
fn endpoint_connects_to_cluster_ip() {
    let kernel = kernel(&nginx(|it| it), &[]);
    let packet = Packet { source: socket("172.17.0.5:40000"), ..from_pod("10.111.175.78:80") };
    insta::assert_snapshot!(summary(&kernel, &packet), @"
    in 66.7 % of all cases:
    ip ferroute nat-prerouting → services → pick-3: DNAT 10.111.175.78:80 to one of 2
          33.3 %  @tcp-endpoints 1:1 . 1: 172.17.0.4:80
          33.3 %  @tcp-endpoints 1:1 . 3: 172.17.0.6:80
    => delivered through cni0, with source 172.17.0.5
    in 33.3 % of all cases:
    ip ferroute nat-prerouting → services → pick-3 → @tcp-endpoints 1:1 . 2: DNAT 10.111.175.78:80 to 172.17.0.5:80
    ip ferroute nat-postrouting → masquerading: masquerade 172.17.0.5 as 172.17.0.1
    => delivered to 172.17.0.5:80 through cni0, with source 172.17.0.1
    ");
}

#[test]
fn external_client_connects_to_node_port() {
    let kernel = kernel(&nginx(|it| it), &[]);
    insta::assert_snapshot!(summary(&kernel, &from_outside("192.168.49.2:31628")), @"
    ip ferroute nat-prerouting → services → external-3
        mark 0x0 becomes 0x4000
        pick-3: DNAT 192.168.49.2:31628 to one of 3
          33.3 %  @tcp-endpoints 1:1 . 1: 172.17.0.4:80
          33.3 %  @tcp-endpoints 1:1 . 2: 172.17.0.5:80
          33.3 %  @tcp-endpoints 1:1 . 3: 172.17.0.6:80
    ip ferroute nat-postrouting → masquerading: mark 0x4000 becomes 0x0, masquerade 203.0.113.7 as 172.17.0.1
    => delivered through cni0, with source 172.17.0.1
    ");
}

#[test]
fn node_connects_to_node_port_on_localhost() {
    let kernel = kernel(&nginx(|it| it), &[]);
    insta::assert_snapshot!(summary(&kernel, &from_node("127.0.0.1:31628")), @"
    ip ferroute nat-output → services → external-3
        mark 0x0 becomes 0x4000
        pick-3: DNAT 127.0.0.1:31628 to one of 3
          33.3 %  @tcp-endpoints 1:1 . 1: 172.17.0.4:80
          33.3 %  @tcp-endpoints 1:1 . 2: 172.17.0.5:80
          33.3 %  @tcp-endpoints 1:1 . 3: 172.17.0.6:80
    ip ferroute nat-postrouting → masquerading: mark 0x4000 becomes 0x0, masquerade 127.0.0.1 as 172.17.0.1
    => delivered through cni0, with source 172.17.0.1
    ");
}

#[test]
fn external_client_connects_to_node_port_with_policy_local() {
    let kernel = kernel(&nginx(|it| it.external_local()), &[]);
    insta::assert_snapshot!(summary(&kernel, &from_outside("192.168.49.2:31628")), @"
    ip ferroute nat-prerouting → services → external-local-3 → pick-3: DNAT 192.168.49.2:31628 to one of 3
          33.3 %  @tcp-endpoints 1:3 . 1: 172.17.0.4:80
          33.3 %  @tcp-endpoints 1:3 . 2: 172.17.0.5:80
          33.3 %  @tcp-endpoints 1:3 . 3: 172.17.0.6:80
    => delivered through cni0, with source 203.0.113.7
    ");
}

#[test]
fn pod_connects_to_service_with_session_affinity() {
    let kernel = kernel(&nginx(|it| it.affinity(10_800)), &[]);
    insta::assert_snapshot!(summary(&kernel, &from_pod("10.111.175.78:80")), @"
    ip ferroute nat-prerouting → services → pick-sticky-3 → admit: DNAT 10.111.175.78:80 to one of 3
          33.3 %  @tcp-endpoints 5d61:1 . 0: 172.17.0.4:80
          33.3 %  @tcp-endpoints a351:1 . 0: 172.17.0.5:80
          33.3 %  @tcp-endpoints 1981:1 . 0: 172.17.0.6:80
    => delivered through cni0, with source 172.17.0.14
    ");
}

#[test]
fn unknown_port_of_cluster_ip_is_rejected() {
    let kernel = kernel(&nginx(|it| it), &[]);
    insta::assert_snapshot!(summary(&kernel, &from_pod("10.111.175.78:81")), @r"
    ip ferroute filter-forward → cluster-ips: reject with icmp port-unreachable
    => rejected with icmp port-unreachable
    ");
}

#[test]
fn source_ranges_restrict_load_balancer_ip() {
    let kernel = kernel(&nginx(|it| it.load_balancer("198.51.100.1").source_range("203.0.113.0/24")), &[]);
    insta::assert_snapshot!(summary(&kernel, &from_outside("198.51.100.1:80")), @"
    ip ferroute nat-prerouting → services → external-3
        mark 0x0 becomes 0x4000
        pick-3: DNAT 198.51.100.1:80 to one of 3
          33.3 %  @tcp-endpoints 1:1 . 1: 172.17.0.4:80
          33.3 %  @tcp-endpoints 1:1 . 2: 172.17.0.5:80
          33.3 %  @tcp-endpoints 1:1 . 3: 172.17.0.6:80
    ip ferroute nat-postrouting → masquerading: mark 0x4000 becomes 0x0, masquerade 203.0.113.7 as 172.17.0.1
    => delivered through cni0, with source 172.17.0.1
    ");
    insta::assert_snapshot!(summary(&kernel, &from_pod("198.51.100.1:80")), @"
    ip ferroute filter-prerouting-pre-dnat → firewall → source-ranges: drop
    => dropped
    ");
}

#[test]
fn service_without_endpoints_rejects() {
    let empty = service("default/nginx-service").cluster_ip("10.111.175.78").port("", 80).node_port(31628);
    let kernel = kernel(&Cluster::new("node").service(empty), &[]);
    insta::assert_snapshot!(summary(&kernel, &from_pod("10.111.175.78:80")), @"
    ip ferroute nat-prerouting → services → refuse: reject with icmp port-unreachable
    => rejected with icmp port-unreachable
    ");
    insta::assert_snapshot!(summary(&kernel, &from_outside("192.168.49.2:31628")), @"
    ip ferroute nat-prerouting → services → refuse: reject with icmp port-unreachable
    => rejected with icmp port-unreachable
    ");
}

#[test]
fn external_client_cannot_reach_localhost() {
    let kernel = kernel(&nginx(|it| it), &[]);
    insta::assert_snapshot!(summary(&kernel, &from_outside("127.0.0.1:8080")), @r"
    ip ferroute filter-input: drop
    => dropped
    ");
}

#[test]
fn unknown_address_is_not_translated_or_dropped_in_a_service_network() {
    let packet = from_pod("10.111.175.79:80");
    insta::assert_snapshot!(summary(&kernel(&nginx(|it| it), &[]), &packet), @"=> not translated, delivered to 10.111.175.79:80 through eth0, with source 172.17.0.14");
    insta::assert_snapshot!(summary(&kernel(&nginx(|it| it), &["10.96.0.0/12"]), &packet), @r"
    ip ferroute filter-forward → cluster-ips: drop
    => dropped
    ");
}

#[test]
fn leaf_shows_why_each_rule_matches_or_not() {
    let one = Cluster::new("node")
        .service(service("default/one").cluster_ip("10.111.175.78").port("", 80))
        .slice(slice("default/one-a", "one").port("", 80).pod(pod("172.17.0.14").on("node")));
    let kernel = kernel(&one, &[]);
    let (host, packet) = (host(), from_pod("10.111.175.78:80"));
    let mut text = String::new();
    for leaf in ruleset(&kernel).leaves(&host, &packet) {
        write_leaf_into(&mut text, &leaf).unwrap();
    }
    insta::assert_snapshot!(text, @r#"
    ip ferroute nat-prerouting
      nat-prerouting 1: jump services
        yes
        services 1: ip saddr != 172.17.0.0/16 ip daddr @cluster-ips meta mark set meta mark | 0x00004000 comment "endpoints may not know the way to others than pods"
          no: source is 172.17.0.14, and 172.17.0.0/16 is excluded
        services 2: meta priority set ip daddr . meta l4proto . th dport map @services meta priority set meta priority map @lists meta priority & fff0:1 vmap @dispatch
          yes
          pick-1 1: meta l4proto tcp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @tcp-endpoints
            yes
              => DNAT 10.111.175.78:80 to 172.17.0.14:80
    routed through cni0
    ip ferroute filter-forward
      filter-forward 1: ct state new jump cluster-ips
        yes
        cluster-ips 1: ip daddr @cluster-ips reject comment "a port that the service has not"
          no: 172.17.0.14 is not in @cluster-ips
      end of filter-forward: policy accept
    ip ferroute nat-postrouting
      nat-postrouting 1: jump masquerading
        yes
        masquerading 1: meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random
          no: mark is 0x0, without 0x4000
        masquerading 2: ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin masquerade fully-random
          yes
          => masquerade 172.17.0.14 as 172.17.0.1
    100.0 %: delivered to 172.17.0.14:80 through cni0, with source 172.17.0.1
    "#);
}
