//! Traces of the nginx example as text.

use ferroute_core::{
    HostState,
    testing::{Cluster, ServiceBuilder, pod, service, slice},
};
use ferroute_iptables::{IptablesContext, render};

use super::*;
use crate::{testing, write_leaf_into, write_summary_into};

/// The rules of the nginx example.
fn nginx(change: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> RuleSet {
    planned(&testing::nginx(change))
}

fn planned(cluster: &Cluster) -> RuleSet {
    let table = cluster.table(IpFamily::V4);
    let host_state = HostState { random_fully: true, ..HostState::default() };
    render(&table, &IptablesContext::new(&testing::settings(), &table, &host_state))
}

fn summary(rules: &RuleSet, packet: &Packet) -> String {
    let mut text = String::new();
    write_summary_into(&mut text, &Ruleset::from_rules(rules).summary(&host(), packet)).unwrap();
    text
}

#[test]
fn pod_connects_to_cluster_ip() {
    insta::assert_snapshot!(summary(&nginx(|it| it), &from_pod("10.111.175.78:80")), @r"
    nat PREROUTING → KUBE-SERVICES → KUBE-SVC-V2OKYYMBY3REGZOG: DNAT 10.111.175.78:80 to one of 3
          33.3 %  KUBE-SEP-3VDHYO53IOQ2XWUD: 172.17.0.4:80
          33.3 %  KUBE-SEP-C54WIGIB4NQVIFB3: 172.17.0.5:80
          33.3 %  KUBE-SEP-KN3IA7DQGTHQJWSD: 172.17.0.6:80
    => delivered through cni0, with source 172.17.0.14
    ");
}

#[test]
fn node_connects_to_cluster_ip() {
    insta::assert_snapshot!(summary(&nginx(|it| it), &from_node("10.111.175.78:80")), @r"
    nat OUTPUT → KUBE-SERVICES → KUBE-SVC-V2OKYYMBY3REGZOG
        KUBE-MARK-MASQ: mark 0x0 becomes 0x4000
        DNAT 10.111.175.78:80 to one of 3
          33.3 %  KUBE-SEP-3VDHYO53IOQ2XWUD: 172.17.0.4:80
          33.3 %  KUBE-SEP-C54WIGIB4NQVIFB3: 172.17.0.5:80
          33.3 %  KUBE-SEP-KN3IA7DQGTHQJWSD: 172.17.0.6:80
    nat POSTROUTING → KUBE-POSTROUTING: mark 0x4000 becomes 0x0, masquerade 192.168.49.2 as 172.17.0.1
    => delivered through cni0, with source 172.17.0.1
    ");
}

#[test]
fn endpoint_connects_to_cluster_ip() {
    let packet = Packet { source: socket("172.17.0.5:40000"), ..from_pod("10.111.175.78:80") };
    insta::assert_snapshot!(summary(&nginx(|it| it), &packet), @r"
    in 66.7 % of all cases:
    nat PREROUTING → KUBE-SERVICES → KUBE-SVC-V2OKYYMBY3REGZOG: DNAT 10.111.175.78:80 to one of 2
          33.3 %  KUBE-SEP-3VDHYO53IOQ2XWUD: 172.17.0.4:80
          33.3 %  KUBE-SEP-KN3IA7DQGTHQJWSD: 172.17.0.6:80
    => delivered through cni0, with source 172.17.0.5
    in 33.3 % of all cases:
    nat PREROUTING → KUBE-SERVICES → KUBE-SVC-V2OKYYMBY3REGZOG → KUBE-SEP-C54WIGIB4NQVIFB3
        KUBE-MARK-MASQ: mark 0x0 becomes 0x4000
        DNAT 10.111.175.78:80 to 172.17.0.5:80
    filter FORWARD → KUBE-FORWARD: accept
    nat POSTROUTING → KUBE-POSTROUTING: mark 0x4000 becomes 0x0, masquerade 172.17.0.5 as 172.17.0.1
    => delivered to 172.17.0.5:80 through cni0, with source 172.17.0.1
    ");
}

#[test]
fn external_client_connects_to_node_port() {
    insta::assert_snapshot!(summary(&nginx(|it| it), &from_outside("192.168.49.2:31628")), @r"
    nat PREROUTING → KUBE-SERVICES → KUBE-NODEPORTS → KUBE-EXT-V2OKYYMBY3REGZOG
        KUBE-MARK-MASQ: mark 0x0 becomes 0x4000
        KUBE-SVC-V2OKYYMBY3REGZOG: DNAT 192.168.49.2:31628 to one of 3
          33.3 %  KUBE-SEP-3VDHYO53IOQ2XWUD: 172.17.0.4:80
          33.3 %  KUBE-SEP-C54WIGIB4NQVIFB3: 172.17.0.5:80
          33.3 %  KUBE-SEP-KN3IA7DQGTHQJWSD: 172.17.0.6:80
    filter FORWARD → KUBE-FORWARD: accept
    nat POSTROUTING → KUBE-POSTROUTING: mark 0x4000 becomes 0x0, masquerade 203.0.113.7 as 172.17.0.1
    => delivered through cni0, with source 172.17.0.1
    ");
}

#[test]
fn node_connects_to_node_port_on_localhost() {
    insta::assert_snapshot!(summary(&nginx(|it| it), &from_node("127.0.0.1:31628")), @r"
    nat OUTPUT → KUBE-SERVICES → KUBE-NODEPORTS → KUBE-EXT-V2OKYYMBY3REGZOG
        KUBE-MARK-MASQ: mark 0x0 becomes 0x4000
        KUBE-SVC-V2OKYYMBY3REGZOG: DNAT 127.0.0.1:31628 to one of 3
          33.3 %  KUBE-SEP-3VDHYO53IOQ2XWUD: 172.17.0.4:80
          33.3 %  KUBE-SEP-C54WIGIB4NQVIFB3: 172.17.0.5:80
          33.3 %  KUBE-SEP-KN3IA7DQGTHQJWSD: 172.17.0.6:80
    nat POSTROUTING → KUBE-POSTROUTING: mark 0x4000 becomes 0x0, masquerade 127.0.0.1 as 172.17.0.1
    => delivered through cni0, with source 172.17.0.1
    ");
}

#[test]
fn external_client_connects_to_node_port_with_policy_local() {
    let rules = nginx(ServiceBuilder::external_local);
    insta::assert_snapshot!(summary(&rules, &from_outside("192.168.49.2:31628")), @r"
    nat PREROUTING → KUBE-SERVICES → KUBE-NODEPORTS → KUBE-EXT-V2OKYYMBY3REGZOG
        → KUBE-SVL-V2OKYYMBY3REGZOG: DNAT 192.168.49.2:31628 to one of 3
          33.3 %  KUBE-SEP-3VDHYO53IOQ2XWUD: 172.17.0.4:80
          33.3 %  KUBE-SEP-C54WIGIB4NQVIFB3: 172.17.0.5:80
          33.3 %  KUBE-SEP-KN3IA7DQGTHQJWSD: 172.17.0.6:80
    => delivered through cni0, with source 203.0.113.7
    ");
}

#[test]
fn source_ranges_restrict_load_balancer_ip() {
    let rules = nginx(|it| it.load_balancer("198.51.100.1").source_range("203.0.113.0/24"));
    insta::assert_snapshot!(summary(&rules, &from_outside("198.51.100.1:80")), @r"
    nat PREROUTING → KUBE-SERVICES → KUBE-FW-V2OKYYMBY3REGZOG → KUBE-EXT-V2OKYYMBY3REGZOG
        KUBE-MARK-MASQ: mark 0x0 becomes 0x4000
        KUBE-SVC-V2OKYYMBY3REGZOG: DNAT 198.51.100.1:80 to one of 3
          33.3 %  KUBE-SEP-3VDHYO53IOQ2XWUD: 172.17.0.4:80
          33.3 %  KUBE-SEP-C54WIGIB4NQVIFB3: 172.17.0.5:80
          33.3 %  KUBE-SEP-KN3IA7DQGTHQJWSD: 172.17.0.6:80
    filter FORWARD → KUBE-FORWARD: accept
    nat POSTROUTING → KUBE-POSTROUTING: mark 0x4000 becomes 0x0, masquerade 203.0.113.7 as 172.17.0.1
    => delivered through cni0, with source 172.17.0.1
    ");
    insta::assert_snapshot!(summary(&rules, &from_pod("198.51.100.1:80")), @r"
    filter FORWARD → KUBE-PROXY-FIREWALL: drop
    => dropped
    ");
}

#[test]
fn service_without_endpoints_rejects() {
    let empty = service("default/nginx-service").cluster_ip("10.111.175.78").port("", 80).node_port(31628);
    let rules = planned(&Cluster::new("node").service(empty));
    insta::assert_snapshot!(summary(&rules, &from_node("10.111.175.78:80")), @r"
    filter OUTPUT → KUBE-SERVICES: reject with icmp-port-unreachable
    => rejected with icmp-port-unreachable
    ");
    insta::assert_snapshot!(summary(&rules, &from_outside("192.168.49.2:31628")), @r"
    filter INPUT → KUBE-EXTERNAL-SERVICES: reject with icmp-port-unreachable
    => rejected with icmp-port-unreachable
    ");
}

#[test]
fn unknown_address_is_not_translated() {
    insta::assert_snapshot!(summary(&nginx(|it| it), &from_pod("10.111.175.79:80")), @"=> not translated, delivered to 10.111.175.79:80 through eth0, with source 172.17.0.14");
}

#[test]
fn source_is_shown_per_endpoint_if_it_differs() {
    let cluster = Cluster::new("node")
        .service(service("default/nginx-service").cluster_ip("10.111.175.78").port("", 80).node_port(31628))
        .slice(
            slice("default/nginx-service-a", "nginx-service")
                .port("", 80)
                .pod(pod("172.17.0.4").on("node"))
                .pod(pod("172.17.1.4").on("other")),
        );
    insta::assert_snapshot!(summary(&planned(&cluster), &from_outside("192.168.49.2:31628")), @r"
    nat PREROUTING → KUBE-SERVICES → KUBE-NODEPORTS → KUBE-EXT-V2OKYYMBY3REGZOG
        KUBE-MARK-MASQ: mark 0x0 becomes 0x4000
        KUBE-SVC-V2OKYYMBY3REGZOG: DNAT 192.168.49.2:31628 to one of 2
          50.0 %  KUBE-SEP-3VDHYO53IOQ2XWUD: 172.17.0.4:80 through cni0, with source 172.17.0.1
          50.0 %  KUBE-SEP-XSY6JH7KMCPXON4A: 172.17.1.4:80 through eth0, with source 192.168.49.2
    filter FORWARD → KUBE-FORWARD: accept
    nat POSTROUTING → KUBE-POSTROUTING: mark 0x4000 becomes 0x0, masquerade 203.0.113.7
    => delivered
    ");
}

#[test]
fn long_endpoint_lists_are_abbreviated() {
    let cluster = Cluster::uniform(1, 1000);
    insta::assert_snapshot!(summary(&planned(&cluster), &from_pod("10.96.0.1:80")), @r"
    nat PREROUTING → KUBE-SERVICES → KUBE-SVC-LNYJGKBJ4KGVZDFH: DNAT 10.96.0.1:80 to one of 1000
           0.1 %  KUBE-SEP-DBHZJXSQHGE3WWBJ: 10.128.0.100:8080
           0.1 %  KUBE-SEP-57TFAL4UXVITSLUC: 10.128.0.101:8080
           0.1 %  KUBE-SEP-XZIXT3BY6BQA5QEB: 10.128.0.102:8080
           0.1 %  KUBE-SEP-CFO6DMEMNLQ663I2: 10.128.0.103:8080
           0.1 %  KUBE-SEP-XMWCTIITYMRGQLBC: 10.128.0.104:8080
           0.1 %  KUBE-SEP-IILFKF7NMIGDNO7G: 10.128.0.105:8080
           0.1 %  KUBE-SEP-DBVZBQ3GOTC3QIHI: 10.128.0.106:8080
           0.1 %  KUBE-SEP-2IELCBQ6IPXT2NUX: 10.128.0.107:8080
           0.1 %  KUBE-SEP-6TS7HKH7PLUNCYJK: 10.128.0.108:8080
           0.1 %  KUBE-SEP-AGHDALOCMZHNWM7D: 10.128.0.109:8080
           0.1 %  KUBE-SEP-56XXEVSYUF5UVNAH: 10.128.0.10:8080
          98.9 %  989 more
    => delivered through eth0, with source 172.17.0.14
    ");
}

#[test]
fn leaf_shows_why_each_rule_matches_or_not() {
    let one = Cluster::new("node")
        .service(service("default/one").cluster_ip("10.111.175.78").port("", 80))
        .slice(slice("default/one-a", "one").port("", 80).pod(pod("172.17.0.14").on("node")));
    let mut text = String::new();
    let (rules, host, packet) = (planned(&one), host(), from_pod("10.111.175.78:80"));
    for leaf in Ruleset::from_rules(&rules).leaves(&host, &packet) {
        write_leaf_into(&mut text, &leaf).unwrap();
    }
    insta::assert_snapshot!(text, @r#"
    nat PREROUTING
      PREROUTING 1: -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
        yes
        KUBE-SERVICES 1: -d 10.111.175.78/32 -p tcp -m comment --comment "default/one cluster IP" -m tcp --dport 80 -j KUBE-SVC-GC7YPRXAEGOKCMA3
          yes
          KUBE-SVC-GC7YPRXAEGOKCMA3 1: ! -s 172.17.0.0/16 -d 10.111.175.78/32 -p tcp -m comment --comment "default/one cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
            no: source is 172.17.0.14, and 172.17.0.0/16 is excluded
          KUBE-SVC-GC7YPRXAEGOKCMA3 2: -m comment --comment "default/one -> 172.17.0.14:80" -j KUBE-SEP-QA7SV7NRGO2SA7Q3
            yes
            KUBE-SEP-QA7SV7NRGO2SA7Q3 1: -s 172.17.0.14/32 -m comment --comment "default/one" -j KUBE-MARK-MASQ
              yes
              KUBE-MARK-MASQ 1: -j MARK --set-xmark 0x4000/0x4000
                yes
                => mark 0x0 becomes 0x4000
            KUBE-SEP-QA7SV7NRGO2SA7Q3 2: -p tcp -m comment --comment "default/one" -m tcp -j DNAT --to-destination 172.17.0.14:80
              yes
              => DNAT 10.111.175.78:80 to 172.17.0.14:80
    routed through cni0
    filter FORWARD
      FORWARD 1: -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
        yes
      FORWARD 2: -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
        yes
        KUBE-FORWARD 1: -m conntrack --ctstate INVALID -j DROP
          no: connection state is NEW,DNAT, not INVALID
        KUBE-FORWARD 2: -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
          yes
          => accept
    nat POSTROUTING
      POSTROUTING 1: -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
        yes
        KUBE-POSTROUTING 1: -m mark ! --mark 0x4000/0x4000 -j RETURN
          no: mark is 0x4000, and 0x4000/0x4000 is excluded
        KUBE-POSTROUTING 2: -j MARK --set-xmark 0x4000/0x0
          yes
          => mark 0x4000 becomes 0x0
        KUBE-POSTROUTING 3: -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
          yes
          => masquerade 172.17.0.14 as 172.17.0.1
    100.0 %: delivered to 172.17.0.14:80 through cni0, with source 172.17.0.1
    "#);
}
