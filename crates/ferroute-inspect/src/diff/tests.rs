use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ferroute_config::{KubeProxyConfiguration, ModeName, flags::SettingsArgs};
use ferroute_core::{
    Frontend, HostState, IpFamily, LocalTrafficDetector, ProxySettings, ServiceTable,
    testing::{Cluster, HOSTILE, assert_visible, pod, service, slice},
};
use ferroute_iptables::{ChainName, IptablesContext, RuleSet, TableName};
use ferroute_modes::{ComparableFrontend, ComparableRules, REGISTRY};
use ferroute_nftables::{
    kernel::{Kernel, MemoryKernel},
    model::{Change, Name, TableId, Transaction},
    plan::{NftablesSettings, TABLE},
};
use ferroute_trace::{Host, Route, Ruleset, Traceable};
use insta::assert_snapshot;

use super::*;
use crate::desired::Desired;

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
        ..Host::default()
    }
}

fn iptables(table: &ServiceTable, settings: &ProxySettings) -> RuleSet {
    let host = HostState { addresses: host().addresses, random_fully: true, ..HostState::default() };
    ferroute_iptables::render(table, &IptablesContext::new(settings, table, &host))
}

fn nftables(table: &ServiceTable, settings: &ProxySettings) -> MemoryKernel {
    let settings = NftablesSettings { proxy: settings.clone(), ..NftablesSettings::default() };
    let mut kernel = MemoryKernel::new();
    kernel.commit(&ferroute_nftables::plan::render(table, &settings, &host().addresses)).unwrap();
    kernel
}

fn report(services: &ServiceTable, settings: &ProxySettings, expected: &Rules<'_>, actual: &Rules<'_>) -> DiffReport {
    let host = host();
    compare(&Expected { services, settings, settings_in: &|_| settings.clone(), host: &host, rules: expected }, actual)
}

/// Compares rules for two clusters in every pair of modes, and asserts that all pairs have the same findings.
#[track_caller]
fn differences(expected: &Cluster, actual: &Cluster) -> DiffReport {
    let (services, actual_services) = (expected.table(IpFamily::V4), actual.table(IpFamily::V4));
    let settings = settings();
    let id = TableId { family: IpFamily::V4, name: TABLE };
    let expected_iptables = iptables(&services, &settings);
    let expected_nftables = nftables(&services, &settings);
    let actual_iptables = iptables(&actual_services, &settings);
    let actual_nftables = nftables(&actual_services, &settings);
    let expected = [Rules::iptables(&expected_iptables), Rules::nftables(expected_nftables.table(&id).unwrap())];
    let actual = [Rules::iptables(&actual_iptables), Rules::nftables(actual_nftables.table(&id).unwrap())];
    let mut reports =
        expected.iter().flat_map(|expected| actual.iter().map(|actual| report(&services, &settings, expected, actual)));
    let first = reports.next().unwrap();
    for other in reports {
        assert_eq!(other.findings, first.findings, "{:?} against {:?}", other.actual, other.expected);
        assert_eq!(other.stale, first.stale);
        assert_eq!(other.undetermined, []);
    }
    first
}

fn text(report: &DiffReport) -> String {
    let mut text = String::new();
    write_report_into(&mut text, report, 0).unwrap();
    text
}

#[test]
fn rules_for_same_services_are_equal_in_all_pairs_of_modes() {
    let report = differences(&shop(), &shop());
    assert_eq!(report.conclusion(), Conclusion::Equal, "{}", text(&report));
    assert_eq!((report.coverage.service_ports, report.coverage.frontends), (3, 6));
}

/// Otherwise the time for a Service grows with the square of the number of its ports.
#[test]
fn rules_of_other_ports_of_a_service_are_not_traced() {
    let rules_of_first_port = |ports: u16| {
        let mut web = service("shop/web").cluster_ip("10.96.0.1").external_ip("198.51.100.2");
        let mut web_a = slice("shop/web-a", "web").pod("10.244.0.2").pod("10.244.0.3");
        for number in 0..ports {
            let name = format!("port-{number}");
            web = web.port(&name, 1000 + number);
            web_a = web_a.port(&name, 2000 + number);
        }
        let services = Cluster::new("node-1").service(web).slice(web_a).table(IpFamily::V4);
        let rules = iptables(&services, &settings());
        let (name, entry) = services.entries.first_key_value().unwrap();
        let frontends: Vec<Frontend> = entry.service.frontends(name.protocol).map(|(_, frontend)| frontend).collect();
        let projected = super::iptables::IndexedRules::new(&rules).project(&frontends, &BTreeSet::new());
        let chains = projected.tables.values().flat_map(|table| table.chains.values());
        chains.map(|chain| chain.rules.len()).sum::<usize>()
    };
    assert_eq!(rules_of_first_port(1), rules_of_first_port(20));
}

#[test]
fn missing_and_unexpected_endpoints_are_found_in_all_pairs_of_modes() {
    let mut other = shop();
    other.slices[0].endpoints.remove(2);
    other.slices[0].endpoints[1].addresses = vec!["10.244.1.9".to_owned()];
    assert_snapshot!(text(&differences(&shop(), &other)), @"
    IPv4: iptables rules in the kernel, compared with planned iptables rules
      3 service ports, 6 frontends, 36 packets
      shop/web:http
        node port 30080/tcp: missing endpoints 10.244.1.2:8080, 10.244.1.3:8080; unexpected endpoint 10.244.1.9:8080
        10.96.0.1:80/tcp: missing endpoints 10.244.1.2:8080, 10.244.1.3:8080; unexpected endpoint 10.244.1.9:8080
    ");
}

#[test]
fn different_policies_source_ranges_and_affinity_are_found() {
    let mut other = shop();
    other.services[1].spec.external_traffic_policy = None;
    other.services[1].spec.load_balancer_source_ranges = vec!["203.0.112.0/23".to_owned()];
    other.services[1].spec.session_affinity = None;
    other.services[1].spec.session_affinity_config = None;
    assert_snapshot!(text(&differences(&shop(), &other)), @"
    IPv4: iptables rules in the kernel, compared with planned iptables rules
      3 service ports, 6 frontends, 38 packets
      shop/cart:http
        session affinity: none (expected: 600 s)
        198.51.100.1:80/tcp from source 203.0.112.0, source 203.0.112.255: served by 2 endpoints (expected: dropped)
        198.51.100.1:80/tcp from source 203.0.113.0, source 203.0.113.255: unexpected endpoint 10.244.1.2:8080
        198.51.100.1:80/tcp from source 203.0.113.0, source 203.0.113.255: endpoints see the node's address (expected: the client's)
    ");
}

#[test]
fn deleted_services_are_stale_and_new_ones_are_missing() {
    let mut other = shop();
    other.services[0].spec.cluster_ips = vec!["10.96.0.9".to_owned()];
    other.services[0].spec.cluster_ip = Some("10.96.0.9".to_owned());
    other.slices.remove(1);
    let (table, settings) = (shop().table(IpFamily::V4), settings());
    let (expected, actual) = (iptables(&table, &settings), iptables(&other.table(IpFamily::V4), &settings));
    let report = report(&table, &settings, &Rules::iptables(&expected), &Rules::iptables(&actual));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel, compared with planned iptables rules
      3 service ports, 6 frontends, 36 packets
      shop/cart:http
        10.96.0.2:80/tcp: rejected (expected: served by 2 endpoints)
        198.51.100.1:80/tcp from a pod, outside, endpoint 10.244.0.2, endpoint 10.244.1.2, source 203.0.112.255, source 203.0.114.0: rejected (expected: dropped)
        198.51.100.1:80/tcp from the node: not handled by any rule (expected: dropped)
        198.51.100.1:80/tcp from source 203.0.113.0, source 203.0.113.255: rejected (expected: served by 1 endpoint)
      shop/web:http
        10.96.0.1:80/tcp: not handled by any rule (expected: served by 3 endpoints)
      stale: 10.96.0.9:80/tcp of shop/web:http: no Service has this frontend
    ");
}

#[test]
fn names_in_rules_control_no_terminal() {
    let (table, settings) = (shop().table(IpFamily::V4), settings());
    let rules = iptables(&table, &settings);
    let mut report = report(&table, &settings, &Rules::iptables(&rules), &Rules::iptables(&rules));
    let frontend = Frontend { address: "10.96.0.9".parse().ok(), port: 80, protocol: ferroute_core::Protocol::Tcp };
    report.stale.push(StaleFrontend { frontend, name: Some(HOSTILE.to_owned()) });
    assert_visible(&text(&report));
    report.stale.clear();
    report.structure.push(HOSTILE.to_owned());
    assert_visible(&text(&report));
    report.structure.clear();
    report.undetermined.push(Undetermined { service_port: None, reason: HOSTILE.to_owned() });
    assert_visible(&text(&report));
    assert_eq!(serde_json::to_value(&report).unwrap()["undetermined"][0]["reason"], HOSTILE);
}

#[test]
fn different_masquerading_is_found() {
    let table = shop().table(IpFamily::V4);
    let all = ProxySettings { masquerade_all: true, ..settings() };
    let (expected, actual) = (iptables(&table, &settings()), iptables(&table, &all));
    let report = report(&table, &settings(), &Rules::iptables(&expected), &Rules::iptables(&actual));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel, compared with planned iptables rules
      3 service ports, 6 frontends, 36 packets
      shop/cart:http
        10.96.0.2:80/tcp from a pod, endpoint 10.244.0.2, endpoint 10.244.1.2: endpoints see the node's address (expected: the client's)
      shop/web:http
        10.96.0.1:80/tcp from a pod, endpoint 10.244.0.2, endpoint 10.244.1.2: endpoints see the node's address (expected: the client's)
    ");
}

#[test]
fn flushed_chain_is_found_by_packet_outcomes() {
    let table = shop().table(IpFamily::V4);
    let expected = iptables(&table, &settings());
    let mut actual = expected.clone();
    let postrouting: ChainName = "KUBE-POSTROUTING".parse().unwrap();
    actual.table_mut(TableName::Nat).chains[&postrouting].rules.clear();
    let report = report(&table, &settings(), &Rules::iptables(&expected), &Rules::iptables(&actual));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel, compared with planned iptables rules
      3 service ports, 6 frontends, 36 packets
      shop/cart:http
        10.96.0.2:80/tcp from the node, outside, endpoint 10.244.0.2, endpoint 10.244.1.2: endpoints see the client's address (expected: the node's)
      shop/web:http
        node port 30080/tcp: endpoints see the client's address (expected: the node's)
        10.96.0.1:80/tcp from the node, outside, endpoint 10.244.0.2, endpoint 10.244.1.2: endpoints see the client's address (expected: the node's)
    ");
}

#[test]
fn different_shares_are_found() {
    let table = shop().table(IpFamily::V4);
    let expected = iptables(&table, &settings());
    let rules = expected.to_string().replacen("--probability 0.33333333349", "--probability 0.50000000000", 1);
    let actual = RuleSet::parse_save(IpFamily::V4, &rules).unwrap();
    let report = report(&table, &settings(), &Rules::iptables(&expected), &Rules::iptables(&actual));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel, compared with planned iptables rules
      3 service ports, 6 frontends, 36 packets
      shop/web:http
        node port 30080/tcp: 10.244.0.2:8080 receives 50.0 % of connections (expected: 33.3 %)
        10.96.0.1:80/tcp: 10.244.0.2:8080 receives 50.0 % of connections (expected: 33.3 %)
    ");
}

#[test]
fn rules_of_other_programs_are_ignored() {
    let table = shop().table(IpFamily::V4);
    let expected = iptables(&table, &settings());
    let rules = expected.to_string().replacen(
        "COMMIT",
        "-A FORWARD -j DROP\n-A INPUT -m owner --uid-owner 7 -j DROP\nCOMMIT",
        1,
    );
    let actual = RuleSet::parse_save(IpFamily::V4, &rules).unwrap();
    let report = report(&table, &settings(), &Rules::iptables(&expected), &Rules::iptables(&actual));
    assert_eq!(report.conclusion(), Conclusion::Equal, "{}", text(&report));
}

#[test]
fn conditions_that_cannot_be_evaluated_make_result_unclear() {
    let table = shop().table(IpFamily::V4);
    let expected = iptables(&table, &settings());
    let rules =
        expected.to_string().replace("-A KUBE-MARK-MASQ -j", "-A KUBE-MARK-MASQ -m time --timestart 08:00:00 -j");
    let actual = RuleSet::parse_save(IpFamily::V4, &rules).unwrap();
    let report = report(&table, &settings(), &Rules::iptables(&expected), &Rules::iptables(&actual));
    assert_eq!(report.conclusion(), Conclusion::Unclear, "{}", text(&report));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel, compared with planned iptables rules
      3 service ports, 6 frontends, 36 packets
      unknown: shop/cart:http: 10.96.0.2:80/tcp from the node: depends on whether `-m time --timestart 08:00:00` matches
      unknown: shop/web:http: node port 30080/tcp from a pod: depends on whether `-m time --timestart 08:00:00` matches
      unknown: shop/web:http: 10.96.0.1:80/tcp from the node: depends on whether `-m time --timestart 08:00:00` matches
    ");
}

#[test]
fn intended_mode_differences_are_counted_and_not_reported() {
    let table = shop().table(IpFamily::V4);
    let nftables_defaults = ProxySettings {
        localhost_node_ports: false,
        node_port_addresses: ferroute_core::NodePortAddresses::Primary,
        ..settings()
    };
    let kernel = nftables(&table, &nftables_defaults);
    let expected = Rules::nftables(kernel.table(&TableId { family: IpFamily::V4, name: TABLE }).unwrap());
    let actual = iptables(&table, &settings());
    let report = report(&table, &nftables_defaults, &expected, &Rules::iptables(&actual));
    assert_snapshot!(text(&report), @"
    IPv4: iptables rules in the kernel, compared with planned nftables rules
      3 service ports, 6 frontends, 36 packets
      intended difference (2 packets): connections of an endpoint to itself are masqueraded: yes (planned: on this node)
      intended difference (1 packet): the node's own connections to external addresses without endpoints: leave the node (planned: rejected)
      intended difference (6 packets): node ports are served without `nodePortAddresses` on: all addresses of the node (planned: its primary address)
      no difference
    ");
}

#[test]
fn methods_and_weights_that_one_mode_ignores_are_intended_differences() {
    let id = TableId { family: IpFamily::V4, name: TABLE };
    let mut cluster = shop();
    let annotate = |metadata: &mut ferroute_api::ObjectMeta, key: &str, value: &str| {
        metadata.annotations.insert(format!("ferroute.io/{key}"), value.to_owned());
    };
    annotate(&mut cluster.services[0].metadata, "load-balancing", "source-hash");
    annotate(&mut cluster.slices[1].metadata, "weight", "10.244.0.2=3");
    let table = cluster.table(IpFamily::V4);
    let (nftables, iptables) = (nftables(&table, &settings()), iptables(&table, &settings()));
    let planned = Rules::nftables(nftables.table(&id).unwrap());
    let report = |actual: &RuleSet| report(&table, &settings(), &planned, &Rules::iptables(actual));
    let of_iptables = report(&iptables);
    assert_eq!(of_iptables.conclusion(), Conclusion::Equal, "{}", text(&of_iptables));
    let traits: Vec<&str> = of_iptables.intended.iter().map(|it| &*it.name).collect();
    assert!(["methods", "weights"].iter().all(|name| traits.contains(name)), "{traits:?}");

    // Without weights, the other endpoint of the Service gets half of the connections.
    let rules = iptables.to_string().replace("--probability 0.50000000000", "--probability 0.30000000000");
    let wrong = report(&RuleSet::parse_save(IpFamily::V4, &rules).unwrap());
    assert!(wrong.findings.iter().any(|finding| finding.service_port == "shop/cart:http"), "{}", text(&wrong));
}

#[test]
fn missing_jumps_and_chains_are_reported() {
    let table = shop().table(IpFamily::V4);
    let expected = iptables(&table, &settings());
    let mut actual = expected.clone();
    let [output, canary] = ["OUTPUT", "KUBE-PROXY-CANARY"].map(|name| name.parse::<ChainName>().unwrap());
    actual.table_mut(TableName::Nat).chains.shift_remove(&output);
    actual.table_mut(TableName::Mangle).chains.shift_remove(&canary);
    let report = report(&table, &settings(), &Rules::iptables(&expected), &Rules::iptables(&actual));
    assert_eq!(
        report.structure,
        ["missing jump from nat OUTPUT to KUBE-SERVICES", "missing chain mangle KUBE-PROXY-CANARY"]
    );
    assert!(report.findings.iter().any(|finding| finding.clients == [Client::Node]), "{}", text(&report));
}

#[test]
fn modified_chains_of_ferroutes_table_are_reported() {
    let table = shop().table(IpFamily::V4);
    let id = TableId { family: IpFamily::V4, name: TABLE };
    let expected = nftables(&table, &settings());
    let mut actual = nftables(&table, &settings());
    let mut flush = Transaction::new(id.clone());
    flush.push(Change::FlushChain(Name::fixed("nat-postrouting")));
    actual.commit(&flush).unwrap();
    let (expected, actual) =
        (Rules::nftables(expected.table(&id).unwrap()), Rules::nftables(actual.table(&id).unwrap()));
    let report = report(&table, &settings(), &expected, &actual);
    assert_eq!(report.structure.len(), 1, "{:?}", report.structure);
    assert!(report.structure[0].starts_with("chain nat-postrouting has 0 rules"), "{:?}", report.structure);
    assert!(report.findings.iter().any(|finding| matches!(finding.mismatch, Mismatch::Source { .. })));
}

/// Rules of a mode that this crate does not support specifically. They are iptables rules, but the comparison can only
/// trace packets through them.
#[derive(Debug)]
struct UnknownMode(RuleSet);

impl Traceable for UnknownMode {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        self.0.add_to(ruleset);
    }
}

impl ComparableRules for UnknownMode {
    fn mode(&self) -> ModeName {
        ModeName::new("toy")
    }

    fn traits(&self) -> &'static ferroute_core::ModeTraits {
        &ferroute_core::ModeTraits::IPTABLES
    }

    fn frontends(&self) -> BTreeMap<Frontend, ComparableFrontend> {
        let frontends = super::iptables::IndexedRules::new(&self.0).frontends().into_iter();
        let facts = |service_port| ComparableFrontend { service_port, ..ComparableFrontend::default() };
        frontends.map(|(frontend, service_port)| (frontend, facts(service_port))).collect()
    }
}

#[test]
fn rules_of_unknown_mode_are_compared_by_packet_outcomes() {
    let table = shop().table(IpFamily::V4);
    let planned = iptables(&table, &settings());
    let unknown = UnknownMode(planned.clone());
    for (expected, actual) in
        [(Rules::iptables(&planned), Rules::other(&unknown)), (Rules::other(&unknown), Rules::iptables(&planned))]
    {
        let report = report(&table, &settings(), &expected, &actual);
        assert_eq!(report.conclusion(), Conclusion::Equal, "{}", text(&report));
    }
    let mut edited = shop();
    edited.services[0].spec.cluster_ips = vec!["10.96.0.9".to_owned()];
    edited.services[0].spec.cluster_ip = Some("10.96.0.9".to_owned());
    edited.slices[0].endpoints.remove(2);
    let edited = UnknownMode(iptables(&edited.table(IpFamily::V4), &settings()));
    assert_snapshot!(text(&report(&table, &settings(), &Rules::iptables(&planned), &Rules::other(&edited))), @"
    IPv4: toy rules in the kernel, compared with planned iptables rules
      3 service ports, 6 frontends, 36 packets
      shop/web:http
        node port 30080/tcp: missing endpoint 10.244.1.3:8080
        10.96.0.1:80/tcp: not handled by any rule (expected: served by 3 endpoints)
      stale: 10.96.0.9:80/tcp of shop/web:http: no Service has this frontend
      note: session affinity timeouts in these rules are not compared
    ");
}

#[test]
fn json_field_names_are_stable() {
    let table = shop().table(IpFamily::V4);
    let mut other = shop();
    other.services[0].spec.cluster_ips = vec!["10.96.0.9".to_owned()];
    other.services[0].spec.cluster_ip = Some("10.96.0.9".to_owned());
    other.services[1].spec.session_affinity = None;
    let (expected, actual) = (iptables(&table, &settings()), iptables(&other.table(IpFamily::V4), &settings()));
    let report = report(&table, &settings(), &Rules::iptables(&expected), &Rules::iptables(&actual));
    let json = serde_json::to_value(&report).unwrap();
    let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let mut stable =
        ["family", "expected", "actual", "coverage", "findings", "stale", "structure", "undetermined", "intended"]
            .to_vec();
    stable.sort_unstable();
    assert_eq!(keys, stable);
    assert_eq!((&json["expected"], &json["actual"]), (&"iptables".into(), &"iptables".into()));
    assert_eq!(json["coverage"], serde_json::json!({"servicePorts": 3, "frontends": 6, "packets": 36}));
    let frontend = |address: &str| serde_json::json!({"address": address, "protocol": "tcp", "port": 80});
    assert_eq!(json["stale"][0], serde_json::json!({"frontend": frontend("10.96.0.9"), "name": "shop/web:http"}));
    let affinity = serde_json::json!({
        "servicePort": "shop/cart:http", "difference": "affinity", "expected": 600, "actual": null,
    });
    assert_eq!(json["findings"][0], affinity);
    let answer = serde_json::json!({
        "servicePort": "shop/web:http", "frontend": frontend("10.96.0.1"), "difference": "answer",
        "expected": {"served": 3}, "actual": "untouched",
    });
    assert!(json["findings"].as_array().unwrap().contains(&answer), "{json:#}");
}

#[test]
fn rules_of_one_configuration_in_two_modes_have_only_intended_differences() {
    let cluster = Cluster::new("node-1")
        .service(
            service("shop/web").cluster_ip("10.96.0.1").cluster_ip("fd00:10:96::1").port("http", 80).node_port(30080),
        )
        .service(service("shop/idle").cluster_ip("10.96.0.3").port("http", 80).node_port(30081))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").on("node-1")))
        .slice(slice("shop/web-b", "web").port("http", 8080).pod(pod("fd00:244::2").on("node-1")));
    let mut host = host();
    host.addresses.extend(["::1", "fd00:168::1", "fe80::1"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    let to_all = Route { to: "::/0".parse().unwrap(), interface: "eth0".to_owned(), source: host.addresses[4] };
    host.routes.push(to_all);
    for fields in [
        "clusterCIDR: 10.244.0.0/16",
        "nodePortAddresses: [primary, localhost]",
        "nodePortAddresses: [192.168.0.0/24]",
        "iptables: {localhostNodePorts: false}",
        "iptables: {masqueradeAll: true}",
        "nftables: {masqueradeAll: true}\nclusterCIDR: 10.244.0.0/16",
    ] {
        let text = format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{fields}\n");
        let config = KubeProxyConfiguration::from_text(&text).unwrap().config.defaulted();
        let resolved = |mode| crate::preflight::resolve_for(&config, mode).unwrap();
        for (family, expected, actual) in IpFamily::BOTH.into_iter().flat_map(|family| {
            let names = REGISTRY.names();
            let pairs =
                names.clone().into_iter().flat_map(move |one| names.clone().into_iter().map(move |two| (one, two)));
            pairs.map(move |(one, two)| (family, one, two))
        }) {
            let services = cluster.table(family);
            let plan = |mode| REGISTRY.active(mode).plan(&resolved(mode), &services, &host.addresses).unwrap();
            let (planned, kernel) = (plan(expected), plan(actual));
            let settings_in = |mode| resolved(mode).settings;
            let (settings, rules) = (settings_in(expected), Rules::from(planned.view()));
            let host = Host {
                route_localnet: settings.localhost_node_ports(IpFamily::V4),
                localhost_routes: settings.localhost_node_ports(IpFamily::V6),
                ..host.clone()
            };
            let expected_state = Expected {
                services: &services,
                settings: &settings,
                settings_in: &settings_in,
                host: &host,
                rules: &rules,
            };
            let report = compare(&expected_state, &Rules::from(kernel.view()));
            let mut text = String::new();
            write_report_into(&mut text, &report, 0).unwrap();
            let what = format!("{fields}, {family}, {actual} instead of {expected}");
            assert_eq!(report.conclusion(), Conclusion::Equal, "{what}: {text}");
        }
    }
}

#[test]
fn differences_that_a_second_comparison_does_not_find_are_changes_meanwhile() {
    let finding = |port: &str, missing: &str| Finding {
        service_port: port.to_owned(),
        frontend: None,
        clients: Vec::new(),
        not_applied: None,
        mismatch: Mismatch::Endpoints { missing: vec![missing.parse().unwrap()], extra: Vec::new() },
    };
    let table = shop().table(IpFamily::V4);
    let planned = iptables(&table, &settings());
    let (host, settings) = (host(), settings());
    let rules = Rules::iptables(&planned);
    let settings_in = |_| settings.clone();
    let expected =
        Expected { services: &table, settings: &settings, settings_in: &settings_in, host: &host, rules: &rules };
    let comparison = |findings: Vec<Finding>| {
        let mut report = compare(&expected, &rules);
        report.findings = findings;
        Comparison { conclusion: report.conclusion(), reports: vec![report] }
    };
    let result = |comparisons: Vec<Vec<Finding>>| {
        let left = std::cell::RefCell::new(comparisons.into_iter());
        let desired = || Desired::from_given(&SettingsArgs::default(), Vec::new(), String::new());
        let (_, last) = compare_settled(desired, |_| Ok(comparison(left.borrow_mut().next().unwrap()))).unwrap();
        last.reports[0].findings.clone()
    };
    let (web, other, cart) =
        (finding("shop/web", "10.0.0.1:1"), finding("shop/web", "10.0.0.2:1"), finding("shop/cart", "10.0.0.3:1"));
    assert_eq!(result(vec![vec![web.clone()], vec![cart.clone()]]), []);
    assert_eq!(result(vec![vec![web.clone()], vec![]]), []);
    let kept = result(vec![vec![web, cart.clone()], vec![other.clone()], vec![cart, other.clone()]]);
    assert_eq!(kept, [other], "with the latest values");
}
