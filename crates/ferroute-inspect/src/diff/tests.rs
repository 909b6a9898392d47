use std::net::IpAddr;

use ferroute_core::{HostState, 
    IpFamily, LocalTrafficDetector, ProxySettings, ServiceTable,
    testing::{Cluster, pod, service, slice},
};
use ferroute_iptables::{ChainName, PlanContext, RuleSet, TableName};
use ferroute_nftables::{
    kernel::{Kernel, MemoryKernel},
    model::{Change as TableChange, Name, TableId, Transaction},
    plan::{NftablesSettings, TABLE},
};
use ferroute_trace::{Host, Route};
use insta::assert_snapshot;

use super::*;

fn shop() -> Cluster {
    Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080))
        .service(
            service("shop/cart")
                .cluster_ip("10.96.0.2")
                .port("http", 80)
                .load_balancer("198.51.100.1")
                .source_range("203.0.113.0/24")
                .affinity(600)
                .external_local(),
        )
        .service(service("shop/idle").cluster_ip("10.96.0.3").port("http", 80).external_ip("198.51.100.2"))
        .slice(
            slice("shop/web-a", "web")
                .port("http", 8080)
                .pod(pod("10.244.0.2").on("node-1"))
                .pod("10.244.1.2")
                .pod("10.244.1.3"),
        )
        .slice(slice("shop/cart-a", "cart").port("http", 8080).pod(pod("10.244.0.2").on("node-1")).pod("10.244.1.2"))
}

fn settings() -> ProxySettings {
    let networks = vec!["10.244.0.0/16".parse().unwrap()];
    ProxySettings { detector: LocalTrafficDetector::ClusterCidr(networks), ..ProxySettings::default() }
}

fn host() -> Host {
    let route = |to: &str, interface: &str, source: &str| Route {
        to: to.parse().unwrap(),
        interface: interface.to_owned(),
        source: source.parse().unwrap(),
    };
    Host {
        addresses: ["127.0.0.1", "192.168.0.1", "10.244.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap()).into(),
        routes: vec![route("0.0.0.0/0", "eth0", "192.168.0.1"), route("10.244.0.0/24", "cbr0", "10.244.0.1")],
        route_localnet: true,
    }
}

fn iptables(table: &ServiceTable, settings: &ProxySettings) -> RuleSet {
    let facts = HostState { addresses: host().addresses, random_fully: true, ..HostState::default() };
    ferroute_iptables::render(table, &PlanContext::new(settings, table, &facts))
}

fn nftables(table: &ServiceTable, settings: &ProxySettings) -> MemoryKernel {
    let settings = NftablesSettings { proxy: settings.clone(), ..NftablesSettings::default() };
    let mut kernel = MemoryKernel::new();
    kernel.commit(&ferroute_nftables::plan::render(table, &settings, &host().addresses)).unwrap();
    kernel
}

fn report(services: &ServiceTable, settings: &ProxySettings, wanted: &Rules<'_>, found: &Rules<'_>) -> Report {
    let host = host();
    compare(&Wanted { services, settings, host: &host, rules: wanted }, found)
}

/// Compares what is wanted of `wanted` with rules for `found`, in every pair of modes, and asserts that all tell the same.
#[track_caller]
fn differences(wanted: &Cluster, found: &Cluster) -> Report {
    let (services, others) = (wanted.table(IpFamily::V4), found.table(IpFamily::V4));
    let settings = settings();
    let id = TableId { family: IpFamily::V4, name: TABLE };
    let wanted_iptables = iptables(&services, &settings);
    let wanted_nftables = nftables(&services, &settings);
    let found_iptables = iptables(&others, &settings);
    let found_nftables = nftables(&others, &settings);
    let wanted = [Rules::iptables(&wanted_iptables), Rules::nftables(wanted_nftables.table(&id).unwrap())];
    let found = [Rules::iptables(&found_iptables), Rules::nftables(found_nftables.table(&id).unwrap())];
    let mut reports =
        wanted.iter().flat_map(|wanted| found.iter().map(|found| report(&services, &settings, wanted, found)));
    let first = reports.next().unwrap();
    for other in reports {
        assert_eq!(other.findings, first.findings, "{:?} against {:?}", other.found, other.wanted);
        assert_eq!(other.leftovers, first.leftovers);
        assert_eq!(other.doubts, []);
    }
    first
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    write_report_into(&mut text, report, 0).unwrap();
    text
}

#[test]
fn the_same_services_differ_in_no_pair_of_modes() {
    let report = differences(&shop(), &shop());
    assert_eq!(report.conclusion(), Conclusion::Equal, "{}", text(&report));
    assert_eq!((report.compared.service_ports, report.compared.frontends), (3, 6));
}

#[test]
fn an_endpoint_more_or_less_is_found_whatever_the_modes() {
    let mut other = shop();
    other.slices[0].endpoints.remove(2);
    other.slices[0].endpoints[1].addresses = vec!["10.244.1.9".to_owned()];
    assert_snapshot!(text(&differences(&shop(), &other)), @"
    IPv4: iptables rules in the kernel against iptables rules as they should be
      3 service ports, 6 frontends, 36 packets
      shop/web:http
        node port 30080/tcp: does not reach 10.244.1.2:8080, 10.244.1.3:8080; reaches 10.244.1.9:8080 in addition
        10.96.0.1:80/tcp: does not reach 10.244.1.2:8080, 10.244.1.3:8080; reaches 10.244.1.9:8080 in addition
    ");
}

#[test]
fn policies_and_ranges_and_affinity_that_differ_are_found() {
    let mut other = shop();
    other.services[1].spec.external_traffic_policy = None;
    other.services[1].spec.load_balancer_source_ranges = vec!["203.0.112.0/23".to_owned()];
    other.services[1].spec.session_affinity = None;
    other.services[1].spec.session_affinity_config = None;
    assert_snapshot!(text(&differences(&shop(), &other)), @"
    IPv4: iptables rules in the kernel against iptables rules as they should be
      3 service ports, 6 frontends, 38 packets
      shop/cart:http
        clients keep their endpoint not at all, should for 600 s
        198.51.100.1:80/tcp from source 203.0.112.0, source 203.0.112.255: is served by 2 endpoints, should be dropped
        198.51.100.1:80/tcp from source 203.0.113.0, source 203.0.113.255: reaches 10.244.1.2:8080 in addition
        198.51.100.1:80/tcp from source 203.0.113.0, source 203.0.113.255: endpoints see the node's address, should see the client's
    ");
}

#[test]
fn services_that_are_gone_are_left_over_and_new_ones_are_missing() {
    let mut other = shop();
    other.services[0].spec.cluster_ips = vec!["10.96.0.9".to_owned()];
    other.services[0].spec.cluster_ip = Some("10.96.0.9".to_owned());
    other.slices.remove(1);
    let (table, settings) = (shop().table(IpFamily::V4), settings());
    let (wanted, found) = (iptables(&table, &settings), iptables(&other.table(IpFamily::V4), &settings));
    let report = report(&table, &settings, &Rules::iptables(&wanted), &Rules::iptables(&found));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel against iptables rules as they should be
      3 service ports, 6 frontends, 36 packets
      shop/cart:http
        10.96.0.2:80/tcp: is refused, should be served by 2 endpoints
        198.51.100.1:80/tcp from a pod, outside, endpoint 10.244.0.2, endpoint 10.244.1.2, source 203.0.112.255, source 203.0.114.0: is refused, should be dropped
        198.51.100.1:80/tcp from the node: is left alone by all rules, should be dropped
        198.51.100.1:80/tcp from source 203.0.113.0, source 203.0.113.255: is refused, should be served by 1 endpoint
      shop/web:http
        10.96.0.1:80/tcp: is left alone by all rules, should be served by 3 endpoints
      left over: 10.96.0.9:80/tcp, once of shop/web:http: no Service has it
    ");
}

#[test]
fn masquerading_that_differs_is_found() {
    let table = shop().table(IpFamily::V4);
    let all = ProxySettings { masquerade_all: true, ..settings() };
    let (wanted, found) = (iptables(&table, &settings()), iptables(&table, &all));
    let report = report(&table, &settings(), &Rules::iptables(&wanted), &Rules::iptables(&found));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel against iptables rules as they should be
      3 service ports, 6 frontends, 36 packets
      shop/cart:http
        10.96.0.2:80/tcp from a pod, endpoint 10.244.0.2, endpoint 10.244.1.2: endpoints see the node's address, should see the client's
      shop/web:http
        10.96.0.1:80/tcp from a pod, endpoint 10.244.0.2, endpoint 10.244.1.2: endpoints see the node's address, should see the client's
    ");
}

#[test]
fn a_chain_that_is_emptied_is_noticed_by_what_becomes_of_packets() {
    let table = shop().table(IpFamily::V4);
    let wanted = iptables(&table, &settings());
    let mut found = wanted.clone();
    let postrouting: ChainName = "KUBE-POSTROUTING".parse().unwrap();
    found.table_mut(TableName::Nat).chains[&postrouting].rules.clear();
    let report = report(&table, &settings(), &Rules::iptables(&wanted), &Rules::iptables(&found));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel against iptables rules as they should be
      3 service ports, 6 frontends, 36 packets
      shop/cart:http
        10.96.0.2:80/tcp from the node, outside, endpoint 10.244.0.2, endpoint 10.244.1.2: endpoints see the client's address, should see the node's
      shop/web:http
        node port 30080/tcp: endpoints see the client's address, should see the node's
        10.96.0.1:80/tcp from the node, outside, endpoint 10.244.0.2, endpoint 10.244.1.2: endpoints see the client's address, should see the node's
    ");
}

#[test]
fn shares_that_differ_are_found() {
    let table = shop().table(IpFamily::V4);
    let wanted = iptables(&table, &settings());
    let text_of_rules = wanted.to_string().replacen("--probability 0.33333333349", "--probability 0.50000000000", 1);
    let found = RuleSet::parse_save(IpFamily::V4, &text_of_rules).unwrap();
    let report = report(&table, &settings(), &Rules::iptables(&wanted), &Rules::iptables(&found));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel against iptables rules as they should be
      3 service ports, 6 frontends, 36 packets
      shop/web:http
        node port 30080/tcp: reaches 10.244.0.2:8080 in 50.0 % of all cases, should in 33.3 %
        10.96.0.1:80/tcp: reaches 10.244.0.2:8080 in 50.0 % of all cases, should in 33.3 %
    ");
}

#[test]
fn rules_of_others_do_not_count() {
    let table = shop().table(IpFamily::V4);
    let wanted = iptables(&table, &settings());
    let rules =
        wanted.to_string().replacen("COMMIT", "-A FORWARD -j DROP\n-A INPUT -m owner --uid-owner 7 -j DROP\nCOMMIT", 1);
    let found = RuleSet::parse_save(IpFamily::V4, &rules).unwrap();
    let report = report(&table, &settings(), &Rules::iptables(&wanted), &Rules::iptables(&found));
    assert_eq!(report.conclusion(), Conclusion::Equal, "{}", text(&report));
}

#[test]
fn what_rules_do_not_tell_is_a_doubt() {
    let table = shop().table(IpFamily::V4);
    let wanted = iptables(&table, &settings());
    let rules = wanted.to_string().replace("-A KUBE-MARK-MASQ -j", "-A KUBE-MARK-MASQ -m time --timestart 08:00:00 -j");
    let found = RuleSet::parse_save(IpFamily::V4, &rules).unwrap();
    let report = report(&table, &settings(), &Rules::iptables(&wanted), &Rules::iptables(&found));
    assert_eq!(report.conclusion(), Conclusion::Unclear, "{}", text(&report));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel against iptables rules as they should be
      3 service ports, 6 frontends, 36 packets
      cannot tell: shop/cart:http: 10.96.0.2:80/tcp from the node: it depends on whether `-m time --timestart 08:00:00` holds
      cannot tell: shop/web:http: node port 30080/tcp from a pod: it depends on whether `-m time --timestart 08:00:00` holds
      cannot tell: shop/web:http: 10.96.0.1:80/tcp from the node: it depends on whether `-m time --timestart 08:00:00` holds
    ");
}

#[test]
fn differences_that_are_meant_have_names() {
    let table = shop().table(IpFamily::V4);
    let nftables_defaults = ProxySettings {
        localhost_node_ports: false,
        node_port_addresses: ferroute_core::NodePortAddresses::Primary,
        ..settings()
    };
    let kernel = nftables(&table, &nftables_defaults);
    let wanted = Rules::nftables(kernel.table(&TableId { family: IpFamily::V4, name: TABLE }).unwrap());
    let found = iptables(&table, &settings());
    let report = report(&table, &nftables_defaults, &wanted, &Rules::iptables(&found));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel against nftables rules as they should be
      3 service ports, 6 frontends, 36 packets
      as it is meant, 1 packet: the node's own calls to external addresses without endpoints are refused in nftables mode only
      as it is meant, 2 packets: pods of other nodes that call themselves through this one are masqueraded in iptables mode only
      as it is meant, 6 packets: node ports answer on fewer addresses in nftables mode: without nodePortAddresses, the primary one
      no difference
    ");
}

#[test]
fn jumps_and_chains_that_are_not_there_are_told() {
    let table = shop().table(IpFamily::V4);
    let wanted = iptables(&table, &settings());
    let mut found = wanted.clone();
    let [output, canary] = ["OUTPUT", "KUBE-PROXY-CANARY"].map(|name| name.parse::<ChainName>().unwrap());
    found.table_mut(TableName::Nat).chains.shift_remove(&output);
    found.table_mut(TableName::Mangle).chains.shift_remove(&canary);
    let report = report(&table, &settings(), &Rules::iptables(&wanted), &Rules::iptables(&found));
    assert_eq!(report.structure, ["no jump from nat OUTPUT to KUBE-SERVICES", "no chain mangle KUBE-PROXY-CANARY"]);
    assert!(report.findings.iter().any(|finding| finding.clients == [Client::Node]), "{}", text(&report));
}

#[test]
fn rules_of_our_own_table_that_are_not_as_they_should_be_are_told() {
    let table = shop().table(IpFamily::V4);
    let id = TableId { family: IpFamily::V4, name: TABLE };
    let wanted = nftables(&table, &settings());
    let mut found = nftables(&table, &settings());
    let mut broken = Transaction::new(id.clone());
    broken.push(TableChange::FlushChain(Name::fixed("nat-postrouting")));
    found.commit(&broken).unwrap();
    let (wanted, found) = (Rules::nftables(wanted.table(&id).unwrap()), Rules::nftables(found.table(&id).unwrap()));
    let report = report(&table, &settings(), &wanted, &found);
    assert_eq!(report.structure.len(), 1, "{:?}", report.structure);
    assert!(report.structure[0].starts_with("chain nat-postrouting has 0 rules"), "{:?}", report.structure);
    assert!(report.findings.iter().any(|finding| matches!(finding.change, Change::Source { .. })));
}
