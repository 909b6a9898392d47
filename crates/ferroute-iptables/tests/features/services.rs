//! Features of Services.

use ferroute_core::{
    Affinity, Endpoint, IpFamily, Protocol, ServicePort, ServicePortName, TrafficPolicy,
    testing::{endpoint, entry, port_name, service_port, table},
};
use ferroute_iptables::{
    IptablesContext, TableName,
    plan::{self, chains},
    render,
};
use insta::assert_snapshot;

use super::{chain_rules, cluster_cidr, host, lines, local, one, rules, service_rules, this_node};

#[test]
fn with_external_policy_local_and_only_remote_endpoints_only_pods_and_the_node_are_served() {
    let service = ServicePort {
        node_port: 30080.try_into().ok(),
        external_ips: vec!["198.51.100.9".parse().unwrap()],
        load_balancer_vips: vec!["203.0.113.9".parse().unwrap()],
        health_check_node_port: 31000.try_into().ok(),
        external_policy: TrafficPolicy::Local,
        ..service_port("10.96.0.1:80")
    };
    let table = one(port_name("shop/web:http"), service, [endpoint("10.244.2.2:8080")]);
    assert_snapshot!(service_rules(&table, &cluster_cidr()), @r#"
    filter -A KUBE-EXTERNAL-SERVICES -d 198.51.100.9/32 -p tcp -m comment --comment "shop/web:http has no local endpoints" -m tcp --dport 80 -j DROP
    filter -A KUBE-EXTERNAL-SERVICES -d 203.0.113.9/32 -p tcp -m comment --comment "shop/web:http has no local endpoints" -m tcp --dport 80 -j DROP
    filter -A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "shop/web:http has no local endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j DROP
    filter -A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http health check node port" -m tcp --dport 31000 -j ACCEPT
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -s 10.244.0.0/16 -m comment --comment "pod traffic for shop/web:http external destinations" -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "masquerade LOCAL traffic for shop/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "route LOCAL traffic for shop/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -j KUBE-EXT-67NZLRHBNDSAWJRO
    nat -A KUBE-SEP-LYOGWTXD3FSSWSCA -s 10.244.2.2/32 -m comment --comment "shop/web:http" -j KUBE-MARK-MASQ
    nat -A KUBE-SEP-LYOGWTXD3FSSWSCA -p tcp -m comment --comment "shop/web:http" -m tcp -j DNAT --to-destination 10.244.2.2:8080
    nat -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-SERVICES -d 198.51.100.9/32 -p tcp -m comment --comment "shop/web:http external IP" -m tcp --dport 80 -j KUBE-EXT-67NZLRHBNDSAWJRO
    nat -A KUBE-SERVICES -d 203.0.113.9/32 -p tcp -m comment --comment "shop/web:http loadbalancer IP" -m tcp --dport 80 -j KUBE-EXT-67NZLRHBNDSAWJRO
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO ! -s 10.244.0.0/16 -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.244.2.2:8080" -j KUBE-SEP-LYOGWTXD3FSSWSCA
    "#);
}

#[test]
fn with_both_policies_local_internal_and_external_traffic_have_separate_chains() {
    let service = ServicePort {
        node_port: 30080.try_into().ok(),
        external_policy: TrafficPolicy::Local,
        internal_policy: TrafficPolicy::Local,
        ..service_port("10.96.0.1:80")
    };
    let endpoints = [endpoint("10.244.2.2:8080"), local("10.244.1.2:8080"), local("10.244.1.3:8080")];
    let table = one(port_name("shop/web:http"), service, endpoints);
    assert_snapshot!(service_rules(&table, &cluster_cidr()), @r#"
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -s 10.244.0.0/16 -m comment --comment "pod traffic for shop/web:http external destinations" -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "masquerade LOCAL traffic for shop/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "route LOCAL traffic for shop/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -j KUBE-SVL-67NZLRHBNDSAWJRO
    nat -A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -j KUBE-EXT-67NZLRHBNDSAWJRO
    nat -A KUBE-SEP-CACHYPJ5WX3OY2BV -s 10.244.1.3/32 -m comment --comment "shop/web:http" -j KUBE-MARK-MASQ
    nat -A KUBE-SEP-CACHYPJ5WX3OY2BV -p tcp -m comment --comment "shop/web:http" -m tcp -j DNAT --to-destination 10.244.1.3:8080
    nat -A KUBE-SEP-LYOGWTXD3FSSWSCA -s 10.244.2.2/32 -m comment --comment "shop/web:http" -j KUBE-MARK-MASQ
    nat -A KUBE-SEP-LYOGWTXD3FSSWSCA -p tcp -m comment --comment "shop/web:http" -m tcp -j DNAT --to-destination 10.244.2.2:8080
    nat -A KUBE-SEP-XTJTEC7KOHLCQM25 -s 10.244.1.2/32 -m comment --comment "shop/web:http" -j KUBE-MARK-MASQ
    nat -A KUBE-SEP-XTJTEC7KOHLCQM25 -p tcp -m comment --comment "shop/web:http" -m tcp -j DNAT --to-destination 10.244.1.2:8080
    nat -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVL-67NZLRHBNDSAWJRO
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.244.1.2:8080" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-XTJTEC7KOHLCQM25
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.244.1.3:8080" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-CACHYPJ5WX3OY2BV
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.244.2.2:8080" -j KUBE-SEP-LYOGWTXD3FSSWSCA
    nat -A KUBE-SVL-67NZLRHBNDSAWJRO ! -s 10.244.0.0/16 -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    nat -A KUBE-SVL-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.244.1.2:8080" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-XTJTEC7KOHLCQM25
    nat -A KUBE-SVL-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.244.1.3:8080" -j KUBE-SEP-CACHYPJ5WX3OY2BV
    "#);
}

#[test]
fn with_internal_policy_local_and_only_remote_endpoints_only_traffic_to_the_cluster_ip_is_dropped() {
    let service = ServicePort {
        node_port: 30080.try_into().ok(),
        internal_policy: TrafficPolicy::Local,
        ..service_port("10.96.0.1:80")
    };
    let table = one(port_name("shop/web:http"), service, [endpoint("10.244.2.2:8080")]);
    assert_snapshot!(service_rules(&table, &cluster_cidr()), @r#"
    filter -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http has no local endpoints" -m tcp --dport 80 -j DROP
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "masquerade traffic for shop/web:http external destinations" -j KUBE-MARK-MASQ
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -j KUBE-EXT-67NZLRHBNDSAWJRO
    nat -A KUBE-SEP-LYOGWTXD3FSSWSCA -s 10.244.2.2/32 -m comment --comment "shop/web:http" -j KUBE-MARK-MASQ
    nat -A KUBE-SEP-LYOGWTXD3FSSWSCA -p tcp -m comment --comment "shop/web:http" -m tcp -j DNAT --to-destination 10.244.2.2:8080
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.244.2.2:8080" -j KUBE-SEP-LYOGWTXD3FSSWSCA
    "#);
}

#[test]
fn ipv6_source_ranges_that_contain_the_node_allow_the_load_balancer_address() {
    let service = ServicePort {
        load_balancer_vips: vec!["2001:db8::9".parse().unwrap(), "2001:db8::8".parse().unwrap()],
        load_balancer_source_ranges: vec!["2001:db8:1::/48".parse().unwrap(), "fd00:168::/64".parse().unwrap()],
        ..service_port("[fd00:96::1]:443")
    };
    let table = one(port_name("shop/web:https"), service, [endpoint("[fd00:244:2::2]:8443")]);
    assert_snapshot!(service_rules(&table, &cluster_cidr()), @r#"
    filter -A KUBE-PROXY-FIREWALL -d 2001:db8::9/128 -p tcp -m comment --comment "shop/web:https traffic not accepted by KUBE-FW-UB7LXFC7TRMUABOP" -m tcp --dport 443 -j DROP
    filter -A KUBE-PROXY-FIREWALL -d 2001:db8::8/128 -p tcp -m comment --comment "shop/web:https traffic not accepted by KUBE-FW-UB7LXFC7TRMUABOP" -m tcp --dport 443 -j DROP
    nat -A KUBE-EXT-UB7LXFC7TRMUABOP -m comment --comment "masquerade traffic for shop/web:https external destinations" -j KUBE-MARK-MASQ
    nat -A KUBE-EXT-UB7LXFC7TRMUABOP -j KUBE-SVC-UB7LXFC7TRMUABOP
    nat -A KUBE-FW-UB7LXFC7TRMUABOP -s 2001:db8:1::/48 -m comment --comment "shop/web:https loadbalancer IP" -j KUBE-EXT-UB7LXFC7TRMUABOP
    nat -A KUBE-FW-UB7LXFC7TRMUABOP -s fd00:168::/64 -m comment --comment "shop/web:https loadbalancer IP" -j KUBE-EXT-UB7LXFC7TRMUABOP
    nat -A KUBE-FW-UB7LXFC7TRMUABOP -s 2001:db8::9/128 -m comment --comment "shop/web:https loadbalancer IP" -j KUBE-EXT-UB7LXFC7TRMUABOP
    nat -A KUBE-FW-UB7LXFC7TRMUABOP -s 2001:db8::8/128 -m comment --comment "shop/web:https loadbalancer IP" -j KUBE-EXT-UB7LXFC7TRMUABOP
    nat -A KUBE-FW-UB7LXFC7TRMUABOP -m comment --comment "other traffic to shop/web:https will be dropped by KUBE-PROXY-FIREWALL"
    nat -A KUBE-SEP-TANGNN745UQXNXGT -s fd00:244:2::2/128 -m comment --comment "shop/web:https" -j KUBE-MARK-MASQ
    nat -A KUBE-SEP-TANGNN745UQXNXGT -p tcp -m comment --comment "shop/web:https" -m tcp -j DNAT --to-destination [fd00:244:2::2]:8443
    nat -A KUBE-SERVICES -d fd00:96::1/128 -p tcp -m comment --comment "shop/web:https cluster IP" -m tcp --dport 443 -j KUBE-SVC-UB7LXFC7TRMUABOP
    nat -A KUBE-SERVICES -d 2001:db8::9/128 -p tcp -m comment --comment "shop/web:https loadbalancer IP" -m tcp --dport 443 -j KUBE-FW-UB7LXFC7TRMUABOP
    nat -A KUBE-SERVICES -d 2001:db8::8/128 -p tcp -m comment --comment "shop/web:https loadbalancer IP" -m tcp --dport 443 -j KUBE-FW-UB7LXFC7TRMUABOP
    nat -A KUBE-SVC-UB7LXFC7TRMUABOP ! -s fd00:244::/32 -d fd00:96::1/128 -p tcp -m comment --comment "shop/web:https cluster IP" -m tcp --dport 443 -j KUBE-MARK-MASQ
    nat -A KUBE-SVC-UB7LXFC7TRMUABOP -m comment --comment "shop/web:https -> [fd00:244:2::2]:8443" -j KUBE-SEP-TANGNN745UQXNXGT
    "#);
}

#[test]
fn a_source_range_of_every_address_has_no_match_in_its_rule() {
    let service = ServicePort {
        load_balancer_vips: vec!["203.0.113.9".parse().unwrap()],
        load_balancer_source_ranges: vec!["0.0.0.0/0".parse().unwrap()],
        ..service_port("10.96.0.1:80")
    };
    let table = one(port_name("shop/web:http"), service, [endpoint("10.244.2.2:8080")]);
    let rules = rules(&table, &cluster_cidr());
    assert_snapshot!(lines(&rules, |_, chain, _| chain.as_str().starts_with("KUBE-FW-")), @r#"
    nat -A KUBE-FW-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http loadbalancer IP" -j KUBE-EXT-67NZLRHBNDSAWJRO
    nat -A KUBE-FW-67NZLRHBNDSAWJRO -s 203.0.113.9/32 -m comment --comment "shop/web:http loadbalancer IP" -j KUBE-EXT-67NZLRHBNDSAWJRO
    nat -A KUBE-FW-67NZLRHBNDSAWJRO -m comment --comment "other traffic to shop/web:http will be dropped by KUBE-PROXY-FIREWALL"
    "#);
}

#[test]
fn sctp_without_endpoints_is_rejected_at_every_address() {
    let service = ServicePort {
        node_port: 30777.try_into().ok(),
        external_ips: vec!["2001:db8::7".parse().unwrap()],
        ..service_port("[fd00:96::1]:7777")
    };
    let name = ServicePortName { protocol: Protocol::Sctp, ..port_name("shop/signal") };
    let table = one(name, service, []);
    assert_snapshot!(service_rules(&table, &cluster_cidr()), @r#"
    filter -A KUBE-EXTERNAL-SERVICES -d 2001:db8::7/128 -p sctp -m comment --comment "shop/signal has no endpoints" -m sctp --dport 7777 -j REJECT --reject-with icmp6-port-unreachable
    filter -A KUBE-EXTERNAL-SERVICES -p sctp -m comment --comment "shop/signal has no endpoints" -m addrtype --dst-type LOCAL -m sctp --dport 30777 -j REJECT --reject-with icmp6-port-unreachable
    filter -A KUBE-SERVICES -d fd00:96::1/128 -p sctp -m comment --comment "shop/signal has no endpoints" -m sctp --dport 7777 -j REJECT --reject-with icmp6-port-unreachable
    "#);
}

#[test]
fn session_affinity_works_for_ipv6() {
    let service = ServicePort { affinity: Some(Affinity { timeout_seconds: 60 }), ..service_port("[fd00:96::1]:80") };
    let endpoints = [endpoint("[fd00:244:2::2]:8080"), endpoint("[fd00:244:2::3]:8080")];
    let table = one(port_name("shop/web"), service, endpoints);
    assert_snapshot!(service_rules(&table, &cluster_cidr()), @r#"
    nat -A KUBE-SEP-B36JIA32CSPW5IYX -s fd00:244:2::2/128 -m comment --comment "shop/web" -j KUBE-MARK-MASQ
    nat -A KUBE-SEP-B36JIA32CSPW5IYX -p tcp -m comment --comment "shop/web" -m recent --set --name KUBE-SEP-B36JIA32CSPW5IYX --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -m tcp -j DNAT --to-destination [fd00:244:2::2]:8080
    nat -A KUBE-SEP-YCDYB2YXVQI3E24G -s fd00:244:2::3/128 -m comment --comment "shop/web" -j KUBE-MARK-MASQ
    nat -A KUBE-SEP-YCDYB2YXVQI3E24G -p tcp -m comment --comment "shop/web" -m recent --set --name KUBE-SEP-YCDYB2YXVQI3E24G --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -m tcp -j DNAT --to-destination [fd00:244:2::3]:8080
    nat -A KUBE-SERVICES -d fd00:96::1/128 -p tcp -m comment --comment "shop/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-E3PXEPMWAWIUT6ZV
    nat -A KUBE-SVC-E3PXEPMWAWIUT6ZV ! -s fd00:244::/32 -d fd00:96::1/128 -p tcp -m comment --comment "shop/web cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    nat -A KUBE-SVC-E3PXEPMWAWIUT6ZV -m comment --comment "shop/web -> [fd00:244:2::2]:8080" -m recent --rcheck --seconds 60 --reap --name KUBE-SEP-B36JIA32CSPW5IYX --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -j KUBE-SEP-B36JIA32CSPW5IYX
    nat -A KUBE-SVC-E3PXEPMWAWIUT6ZV -m comment --comment "shop/web -> [fd00:244:2::3]:8080" -m recent --rcheck --seconds 60 --reap --name KUBE-SEP-YCDYB2YXVQI3E24G --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -j KUBE-SEP-YCDYB2YXVQI3E24G
    nat -A KUBE-SVC-E3PXEPMWAWIUT6ZV -m comment --comment "shop/web -> [fd00:244:2::2]:8080" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-B36JIA32CSPW5IYX
    nat -A KUBE-SVC-E3PXEPMWAWIUT6ZV -m comment --comment "shop/web -> [fd00:244:2::3]:8080" -j KUBE-SEP-YCDYB2YXVQI3E24G
    "#);
}

#[test]
fn in_a_large_cluster_rules_of_endpoints_have_no_comments() {
    let service = ServicePort {
        node_port: 30080.try_into().ok(),
        affinity: Some(Affinity { timeout_seconds: 10_800 }),
        ..service_port("10.96.0.1:80")
    };
    let endpoints = [endpoint("10.244.2.2:8080"), endpoint("10.244.2.3:8080")];
    let table = one(port_name("shop/web:http"), service, endpoints);
    let context = IptablesContext::new(&cluster_cidr(), &table, &host());
    let rules = render(&table, &IptablesContext { large_cluster: true, ..context });
    let of_port = |_, chain, line: &str| plan::is_service_chain(chain) || line.contains("shop/web");
    assert_snapshot!(lines(&rules, of_port), @r#"
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "masquerade traffic for shop/web:http external destinations" -j KUBE-MARK-MASQ
    nat -A KUBE-EXT-67NZLRHBNDSAWJRO -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -j KUBE-EXT-67NZLRHBNDSAWJRO
    nat -A KUBE-SEP-LYOGWTXD3FSSWSCA -s 10.244.2.2/32 -j KUBE-MARK-MASQ
    nat -A KUBE-SEP-LYOGWTXD3FSSWSCA -p tcp -m recent --set --name KUBE-SEP-LYOGWTXD3FSSWSCA --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.244.2.2:8080
    nat -A KUBE-SEP-ZEIDTFVL27F4EVRN -s 10.244.2.3/32 -j KUBE-MARK-MASQ
    nat -A KUBE-SEP-ZEIDTFVL27F4EVRN -p tcp -m recent --set --name KUBE-SEP-ZEIDTFVL27F4EVRN --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.244.2.3:8080
    nat -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-67NZLRHBNDSAWJRO
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO ! -s 10.244.0.0/16 -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-LYOGWTXD3FSSWSCA --mask 255.255.255.255 --rsource -j KUBE-SEP-LYOGWTXD3FSSWSCA
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-ZEIDTFVL27F4EVRN --mask 255.255.255.255 --rsource -j KUBE-SEP-ZEIDTFVL27F4EVRN
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-LYOGWTXD3FSSWSCA
    nat -A KUBE-SVC-67NZLRHBNDSAWJRO -j KUBE-SEP-ZEIDTFVL27F4EVRN
    "#);
}

#[test]
fn a_cluster_with_more_than_a_thousand_endpoints_in_any_state_is_large() {
    let is_large = |count: usize| {
        let endpoints = (0..count).map(|n| {
            let endpoint = endpoint(&format!("10.245.{}.{}:80", n / 250, n % 250));
            Endpoint { ready: n % 2 == 0, ..endpoint }
        });
        let table = one(port_name("shop/crowd"), service_port("10.96.0.2:80"), endpoints);
        IptablesContext::new(&cluster_cidr(), &table, &host()).large_cluster
    };
    assert!(!is_large(1000));
    assert!(is_large(1001));
}

#[test]
fn every_port_of_a_service_accepts_its_health_checks() {
    let service = |port: u16| ServicePort {
        load_balancer_vips: vec!["203.0.113.9".parse().unwrap()],
        health_check_node_port: 31000.try_into().ok(),
        external_policy: TrafficPolicy::Local,
        port,
        ..service_port("10.96.0.1:80")
    };
    let entries = [("shop/web:http", 80), ("shop/web:https", 443)];
    let table = table(
        IpFamily::V4,
        this_node(),
        entries.map(|(name, port)| (port_name(name), entry(service(port), [local("10.244.1.2:8080")]))),
    );
    let rules = rules(&table, &cluster_cidr());
    assert_snapshot!(chain_rules(&rules, TableName::Filter, chains::NODE_PORTS), @r#"
    filter -A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http health check node port" -m tcp --dport 31000 -j ACCEPT
    filter -A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:https health check node port" -m tcp --dport 31000 -j ACCEPT
    "#);
}

#[test]
fn without_endpoints_source_ranges_have_no_chain() {
    let service = ServicePort {
        load_balancer_vips: vec!["203.0.113.9".parse().unwrap()],
        load_balancer_source_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        ..service_port("10.96.0.1:80")
    };
    let table = one(port_name("shop/web:http"), service, []);
    assert_snapshot!(service_rules(&table, &cluster_cidr()), @r#"
    filter -A KUBE-EXTERNAL-SERVICES -d 203.0.113.9/32 -p tcp -m comment --comment "shop/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
    filter -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
    "#);
}
