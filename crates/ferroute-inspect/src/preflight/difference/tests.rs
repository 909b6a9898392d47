use std::net::IpAddr;

use ferroute_api::labels;
use ferroute_config::KubeProxyConfiguration;
use ferroute_core::{
    NamespacedName, OtherHosts, Tracker,
    testing::{Cluster, arbitrary, pod, service, slice},
};
use ferroute_iptables::RuleSet;
use insta::assert_snapshot;
use proptest::prelude::*;

use super::*;
use crate::{
    explain::{self, Answer, Clients, ExplainedFrontend, Handling, Inputs, Source},
    preflight::{PreflightReport, write_report_into},
};

fn cluster() -> Cluster {
    let mut cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080))
        .service(service("shop/cart").cluster_ip("10.96.0.2").port("http", 80).affinity(300))
        .service(
            service("shop/front")
                .cluster_ip("10.96.0.3")
                .port("http", 80)
                .node_port(30081)
                .load_balancer("198.51.100.1")
                .external_local()
                .health_check_node_port(31000),
        )
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").on("node-1")));
    cluster.node.status.addresses =
        vec![ferroute_api::NodeAddress { type_: "InternalIP".to_owned(), address: "192.168.0.1".to_owned() }];
    cluster
}

/// Returns the report of a switch with this configuration, for IPv4.
fn report(from: ModeName, to: ModeName, fields: &str, kernel: &KernelSnapshot, table: &ServiceTable) -> String {
    let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    let config = KubeProxyConfiguration::from_text(&format!("{header}{fields}")).unwrap().config.defaulted();
    let [from_settings, to_settings] =
        [from, to].map(|mode| crate::preflight::resolve_for(&config, mode).unwrap().settings);
    let host_addresses: Vec<IpAddr> =
        ["127.0.0.1", "192.168.0.1", "172.17.0.1", "::1"].map(|address| address.parse().unwrap()).into();
    let switch = Switch {
        from: Side { mode: from, settings: &from_settings, table },
        to: Side { mode: to, settings: &to_settings, table },
        has_weights: &|_| false,
        host_addresses: &host_addresses,
        kernel,
    };
    let mut text = String::new();
    let report = PreflightReport { node: "node-1".to_owned(), from, to, differences: differences(&switch) };
    write_report_into(&mut text, &report).unwrap();
    text
}

fn table() -> ServiceTable {
    cluster().table(IpFamily::V4)
}

#[test]
fn switch_from_iptables_to_nftables() {
    let mut table = table();
    table.service_cidrs = vec!["10.96.0.0/16".parse().unwrap()];
    let rules = "*nat\n:THEIRS - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n-A THEIRS -j KUBE-MARK-MASQ\nCOMMIT\n";
    let references = crate::preflight::snapshot::foreign_references(&RuleSet::parse_save(IpFamily::V4, rules).unwrap());
    let kernel = KernelSnapshot {
        references: references.into_iter().map(|rule| (IpFamily::V4, rule)).collect(),
        drops_forwarded: vec![IpFamily::V4],
        drops_input: vec![IpFamily::V4],
        ..KernelSnapshot::default()
    };
    assert_snapshot!(report(ModeName::IPTABLES, ModeName::NFTABLES, "", &kernel, &table));
}

#[test]
fn switch_from_nftables_to_iptables() {
    assert_snapshot!(report(ModeName::NFTABLES, ModeName::IPTABLES, "", &KernelSnapshot::default(), &table()));
}

#[test]
fn switch_from_ipvs_to_nftables() {
    assert_snapshot!(report(ModeName::IPVS, ModeName::NFTABLES, "", &KernelSnapshot::default(), &table()));
}

#[test]
fn switches_to_and_from_userspace_name_the_source_address() {
    let kinds = |from, to| {
        let text = report(from, to, "", &KernelSnapshot::default(), &table());
        ["address of this node as the source", "see the addresses of clients again", "for ten minutes"]
            .map(|summary| text.contains(summary))
    };
    assert_eq!(kinds(ModeName::NFTABLES, ModeName::USERSPACE), [true, false, false]);
    assert_eq!(kinds(ModeName::USERSPACE, ModeName::NFTABLES), [false, true, true]);
    assert_eq!(kinds(ModeName::IPTABLES, ModeName::NFTABLES), [false; 3]);
}

/// Returns the differences of a switch that name Services, by kind, for a Service with both policies Local and an
/// endpoint on another node, a Service without endpoints, and a Service with SCTP.
fn services_by_kind(from: ModeName, to: ModeName) -> Vec<(Kind, Vec<String>)> {
    let table = Cluster::new("node-1")
        .service(
            service("shop/local")
                .cluster_ip("10.96.0.1")
                .port("", 80)
                .external_ip("198.51.100.1")
                .external_local()
                .with(|service| service.spec.internal_traffic_policy = Some("Local".to_owned())),
        )
        .slice(slice("shop/local-a", "local").port("", 8080).pod("10.244.1.2"))
        .service(service("shop/empty").cluster_ip("10.96.0.2").port("", 80).external_ip("198.51.100.2"))
        .service(
            service("shop/sctp")
                .cluster_ip("10.96.0.3")
                .port("", 80)
                .with(|service| service.spec.ports[0].protocol = Some("SCTP".to_owned())),
        )
        .slice(
            slice("shop/sctp-a", "sctp")
                .port("", 80)
                .with(|slice| slice.ports[0].protocol = Some("SCTP".to_owned()))
                .pod("10.244.1.3"),
        )
        .table(IpFamily::V4);
    let config = KubeProxyConfiguration::default().defaulted();
    let settings = [from, to].map(|mode| crate::preflight::resolve_for(&config, mode).unwrap().settings);
    let side = |mode, i: usize| Side { mode, settings: &settings[i], table: &table };
    let kernel = KernelSnapshot::default();
    let (from, to) = (side(from, 0), side(to, 1));
    let switch = Switch { from, to, has_weights: &|_| false, host_addresses: &[], kernel: &kernel };
    let with_services = differences(&switch).into_iter().filter(|difference| !difference.services.is_empty());
    with_services.map(|difference| (difference.kind, difference.services)).collect()
}

#[test]
fn services_that_only_one_of_the_modes_serves_are_listed() {
    let local = || (Kind::LocalPolicy, vec!["shop/local".to_owned()]);
    let own = || (Kind::OwnConnections, vec!["shop/empty".to_owned()]);
    let sctp = || (Kind::Protocols, vec!["shop/sctp".to_owned()]);
    for other in [ModeName::IPTABLES, ModeName::NFTABLES, ModeName::USERSPACE] {
        assert!(services_by_kind(ModeName::IPVS, other).contains(&local()), "{other}");
        assert!(services_by_kind(other, ModeName::IPVS).contains(&local()), "{other}");
    }
    for (from, to) in [(ModeName::IPTABLES, ModeName::NFTABLES), (ModeName::NFTABLES, ModeName::IPTABLES)] {
        assert_eq!(services_by_kind(from, to), [own()]);
    }
    assert!(services_by_kind(ModeName::NFTABLES, ModeName::USERSPACE).contains(&sctp()));
    assert!(services_by_kind(ModeName::USERSPACE, ModeName::NFTABLES).contains(&sctp()));
}

#[test]
fn switches_between_any_two_modes_list_services() {
    let names = REGISTRY.names();
    for from in &names {
        for to in &names {
            let differences = services_by_kind(*from, *to);
            assert_eq!(differences.is_empty(), from == to, "{from} to {to}: {differences:?}");
        }
    }
}

#[test]
fn explicit_settings_are_the_same_in_both_modes() {
    let fields = "nodePortAddresses: [192.168.0.0/24, 127.0.0.0/8]";
    let text = report(ModeName::IPTABLES, ModeName::NFTABLES, fields, &KernelSnapshot::default(), &table());
    assert!(!text.contains("served on"), "{text}");
    let same = report(ModeName::IPTABLES, ModeName::IPTABLES, "", &KernelSnapshot::default(), &table());
    assert!(same.contains("no differences"), "{same}");
}

#[test]
fn differences_without_affected_services_are_omitted() {
    let empty = Cluster::new("node-1").table(IpFamily::V4);
    let kernel = KernelSnapshot { drops_input: vec![IpFamily::V4], ..KernelSnapshot::default() };
    let text = report(ModeName::IPTABLES, ModeName::NFTABLES, "", &kernel, &empty);
    assert!(text.contains("no differences"), "{text}");
}

#[test]
fn differences_of_other_family_are_omitted() {
    let kernel = KernelSnapshot {
        references: vec![(IpFamily::V6, "-t nat -A THEIRS -j KUBE-MARK-MASQ".to_owned())],
        drops_forwarded: vec![IpFamily::V6],
        ..KernelSnapshot::default()
    };
    let text = report(ModeName::IPTABLES, ModeName::NFTABLES, "", &kernel, &table());
    assert!(!text.contains("THEIRS") && !text.contains("KUBE-FORWARD"), "{text}");
}

/// Annotations of Services with settings that not all modes support.
const SETTINGS: [(&str, &str); 8] = [
    (labels::LOAD_BALANCING, "source-hash"),
    (labels::LOAD_BALANCING, "random"),
    (labels::SLOW_START, "30s"),
    (labels::ZONE_WEIGHT, "5"),
    (labels::DRAIN_TIMEOUT, "60s"),
    (labels::SOURCE_RANGES, "192.0.2.0/24"),
    (labels::SOURCE_RANGES_SCOPE, "all"),
    (labels::MAX_CONNECTIONS, "5"),
];

/// Replaces answers for several clients by one for each. The node's own connections always have one of its addresses.
fn separate_clients(frontend: &mut ExplainedFrontend) {
    let all = std::mem::take(&mut frontend.answers);
    let of = |clients: Clients, groups: &[Clients]| {
        let answer = all.iter().find(|answer| groups.contains(&answer.clients))?;
        let outcome = match answer.outcome {
            explain::Outcome::Served { policy, endpoints, source } => {
                let source = match (clients, source) {
                    (Clients::Node, _) | (Clients::Others, Source::PodOrNode) => Source::Node,
                    (_, Source::PodOrNode) => Source::Client,
                    (_, source) => source,
                };
                explain::Outcome::Served { policy, endpoints, source }
            }
            other => other,
        };
        Some(Answer { clients, outcome })
    };
    frontend.answers = [
        of(Clients::Pods, &[Clients::All, Clients::PodsAndNode, Clients::Pods, Clients::Others]),
        of(Clients::Node, &[Clients::All, Clients::PodsAndNode, Clients::Node, Clients::Others]),
        of(Clients::Others, &[Clients::All, Clients::Others]),
        of(Clients::OutsideSourceRanges, &[Clients::OutsideSourceRanges]),
        of(Clients::OthersOutsideSourceRanges, &[Clients::OthersOutsideSourceRanges]),
    ]
    .into_iter()
    .flatten()
    .collect();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What a user reads in the answers of `explain` in two modes and in `preflight` is the same.
    #[test]
    fn services_are_listed_if_their_explanations_differ(
        mut cluster in arbitrary::cluster(),
        chosen in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
        weighted in any::<bool>(),
        node_port_addresses in prop::sample::subsequence(vec!["127.0.0.0/8", "192.0.2.0/24", "2001:db8::/64"], 0..3),
    ) {
        let node_port_addresses: Vec<String> = node_port_addresses.into_iter().map(str::to_owned).collect();
        for (service, setting) in chosen {
            let (key, value) = SETTINGS[setting.index(SETTINGS.len())];
            if !cluster.services.is_empty() {
                let at = service.index(cluster.services.len());
                cluster.services[at].metadata.annotations.insert(key.to_owned(), value.to_owned());
            }
        }
        for slice in cluster.slices.iter_mut().take(weighted.into()) {
            slice.metadata.annotations.insert(labels::WEIGHT.to_owned(), "7".to_owned());
        }
        let config = KubeProxyConfiguration { node_port_addresses, ..Default::default() }.defaulted();
        let objects = cluster.tracker();
        let more = ["127.0.0.1", "192.0.2.1", "::1", "2001:db8::1", "fe80::1"].map(|address| address.parse().unwrap());
        let host_addresses: Vec<IpAddr> = objects.node().addresses.iter().copied().chain(more).collect();
        let external = cluster.services.iter().take(1).flat_map(|service| &service.spec.external_ips);
        let others: Vec<IpAddr> = external.filter_map(|address| address.parse().ok()).collect();
        let kernel = KernelSnapshot::default();
        let names = REGISTRY.names();
        let settings: Vec<ProxySettings> =
            names.iter().map(|mode| crate::preflight::resolve_for(&config, *mode).unwrap().settings).collect();
        let trackers: Vec<Tracker> = (0..names.len())
            .map(|i| {
                let traits = REGISTRY.active(names[i]).traits();
                let addresses = traits.binds_service_addresses.then(|| others.clone());
                let mut tracker = objects.for_mode(traits, OtherHosts { addresses, ..OtherHosts::default() });
                for family in IpFamily::BOTH {
                    tracker.set_host_addresses(family, &settings[i], &host_addresses);
                    tracker.update(family);
                }
                tracker
            })
            .collect();
        let explained = |service: &ferroute_api::Service, i: usize| {
            let inputs = Inputs {
                tracker: &trackers[i],
                settings: &settings[i],
                traits: REGISTRY.active(names[i]).traits(),
                addresses: &host_addresses,
                pod: &|_| None,
                node: &|_| None,
                health_check: None,
            };
            match explain::explain(service, &inputs).handling {
                Handling::Served { mut ports, policies, .. } => {
                    ports.iter_mut().flat_map(|port| &mut port.frontends).for_each(separate_clients);
                    Some((ports, policies))
                }
                _ => None,
            }
        };
        for i in 0..names.len() {
            for j in 0..names.len() {
                let of_family = |family| {
                    let side =
                        |i: usize| Side { mode: names[i], settings: &settings[i], table: trackers[i].table(family) };
                    let has_weights = |port: &ServicePortName| crate::preflight::has_weights(&objects, family, port);
                    let (from, to, host_addresses) = (side(i), side(j), host_addresses.as_slice());
                    differences(&Switch { from, to, has_weights: &has_weights, host_addresses, kernel: &kernel })
                };
                let differences: Vec<Difference> = IpFamily::BOTH.into_iter().flat_map(of_family).collect();
                let services_of = |left_out: &[Kind]| -> BTreeSet<&String> {
                    let kept = differences.iter().filter(|difference| !left_out.contains(&difference.kind));
                    kept.flat_map(|difference| &difference.services).collect()
                };
                let listed = services_of(&[Kind::Affinity]);
                // Other addresses for node ports are listed with all Services that have some. Health checks are not
                // explained here.
                let exact = services_of(&[
                    Kind::Affinity,
                    Kind::NodePortAddresses,
                    Kind::LocalhostNodePorts,
                    Kind::HealthChecks,
                ]);
                for service in &cluster.services {
                    let name = NamespacedName::from_metadata(&service.metadata).to_string();
                    let (before, after) = (explained(service, i), explained(service, j));
                    let is_served = before.as_ref().is_some_and(|(ports, _)| !ports.is_empty());
                    let differs = is_served && before != after;
                    let json = [&before, &after].map(|it| serde_json::to_string(it).unwrap());
                    let what = format!("{name} from {} to {}: {json:#?}", names[i], names[j]);
                    prop_assert!(listed.contains(&name) || !differs, "{}: {:#?}", what, differences);
                    prop_assert!(differs || !exact.contains(&name), "{}: {:#?}", what, differences);
                }
            }
        }
    }
}
