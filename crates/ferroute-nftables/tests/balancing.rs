//! Shares of the endpoints of a Service, by the method that its annotation requests. Real packets in network namespaces.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, UdpSocket},
    time::Duration,
};

use common::{
    Host,
    case::Case,
    lab::{Outcome, PORT, pod_ip, pod_ip6, tcp, udp},
    settings,
};

use ferroute_core::{
    Dataplane, IpFamily, Share,
    testing::{Cluster, PodBuilder, ServiceBuilder, SliceBuilder, pod, port_name, service, slice},
    tracker::TrackerEvent,
};
use ferroute_nftables::NftablesDataplane;

/// Sends a datagram from this source and returns the pod that replies.
fn pod_of(case: &Case, source: &str, to: &str) -> usize {
    let source = (source.parse::<IpAddr>().unwrap(), 0);
    let socket = case.lab.client.run(|| UdpSocket::bind(source).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.connect(to).unwrap();
    socket.send(b"?").unwrap();
    let mut buffer = [0; 128];
    let length = ferroute_testing::restart(|| socket.recv(&mut buffer)).unwrap();
    str::from_utf8(&buffer[..length]).unwrap().split_once(' ').unwrap().0.parse().unwrap()
}

/// Returns the pod of each source.
fn all_pods_of(case: &Case, sources: &[String], to: &str) -> Vec<usize> {
    sources.iter().map(|source| pod_of(case, source, to)).collect()
}

fn by(method: &str) -> ServiceBuilder {
    let web = service("shop/web").cluster_ip("10.96.0.1").udp("dns", 53).port("http", 80);
    web.annotation(METHOD, method)
}

fn local(number: usize) -> PodBuilder {
    pod(&pod_ip(number).to_string()).on("node-1")
}

fn pods_of(name: &str, pods: impl IntoIterator<Item = PodBuilder>) -> SliceBuilder {
    let slice = slice(&format!("shop/{name}-a"), name).port("http", PORT).udp("dns", PORT);
    pods.into_iter().fold(slice, SliceBuilder::pod)
}

fn cluster(service: ServiceBuilder, pods: impl IntoIterator<Item = PodBuilder>) -> Cluster {
    Cluster::new("node-1").service(service).slice(pods_of("web", pods))
}

fn pod_number(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Pod(pod, _) => pod,
        other => panic!("{other:?}"),
    }
}

fn counts(pods: impl IntoIterator<Item = usize>) -> BTreeMap<usize, usize> {
    pods.into_iter().fold(BTreeMap::new(), |mut counts, pod| {
        *counts.entry(pod).or_default() += 1;
        counts
    })
}

/// Gives the external client these addresses.
fn addresses(case: &Case, count: usize) -> Vec<String> {
    let addresses: Vec<String> = (0..count).map(|i| format!("192.168.0.{}", 20 + i)).collect();
    for address in &addresses {
        case.lab.client.command("ip", &["addr", "add", &format!("{address}/24"), "dev", "eth0"]);
    }
    addresses
}

#[test]
fn round_robin_serves_each_endpoint_in_turn_and_each_service_by_itself() {
    let cart = service("shop/cart").cluster_ip("10.96.0.2").port("http", 80);
    let both = cluster(by("round-robin").node_port(30080), (0..3).map(local))
        .service(cart.annotation(METHOD, "round-robin"))
        .slice(pods_of("cart", (0..3).map(local)));
    let case = Case::new(3, IpFamily::V4, &both);
    // Connections to the other Service in between must not skip endpoints.
    let connect = |to: &str| pod_number(tcp(&case.lab.client, to));
    let (web, cart): (Vec<usize>, Vec<usize>) =
        (0..12).map(|_| (connect("10.96.0.1:80"), connect("10.96.0.2:80"))).unzip();
    for pods in [&web, &cart] {
        assert!(pods.windows(3).all(|round| round.iter().collect::<BTreeSet<_>>().len() == 3), "{pods:?}");
    }
    // Datagrams have a separate round; frontends of a service port share one.
    let datagrams = counts((0..9).map(|_| pod_number(udp(&case.lab.pods[0], "10.96.0.1:53"))));
    assert_eq!(datagrams, counts([0, 1, 2].repeat(3)));
    let shared = ["10.96.0.1:80", "192.168.0.1:30080", "10.96.0.1:80"].map(connect);
    assert_eq!(counts(shared), counts([0, 1, 2]));
}

#[test]
fn source_hash_keeps_the_endpoint_of_a_client_and_moves_only_those_of_a_removed_one() {
    let mut case = Case::new(4, IpFamily::V4, &cluster(by("source-hash"), (0..4).map(local)));
    let sources = addresses(&case, 48);
    let before = all_pods_of(&case, &sources, "10.96.0.1:53");
    assert_eq!(all_pods_of(&case, &sources, "10.96.0.1:53"), before, "other ports of a client");
    assert_eq!(counts(before.iter().copied()).len(), 4, "{before:?}");
    case.update_to(&cluster(by("source-hash"), (0..3).map(local)));
    let after = all_pods_of(&case, &sources, "10.96.0.1:53");
    let moved = before.iter().zip(&after).filter(|(before, after)| **before != 3 && before != after).count();
    assert!(moved <= 2 && !after.contains(&3), "{moved} of {before:?} to {after:?}");
    case.update_to(&cluster(by("source-hash"), (0..4).map(local)));
    assert_eq!(all_pods_of(&case, &sources, "10.96.0.1:53"), before, "the same endpoints have the same table");
    // Another node, and the same node after a restart.
    let other = Case::new(4, IpFamily::V4, &cluster(by("source-hash"), (0..4).map(local)));
    addresses(&other, 48);
    assert_eq!(all_pods_of(&other, &sources, "10.96.0.1:53"), before);
    let table = case.tracker.table(IpFamily::V4);
    let mut restarted =
        case.lab.node.run(|| NftablesDataplane::open(IpFamily::V4, settings(), Box::new(Host::default())).unwrap());
    let report = restarted.resync(table).unwrap();
    assert_eq!((report.written, report.removed), (0, 0), "the table in the kernel is recognised");
}

#[test]
fn source_port_hash_spreads_the_connections_of_a_client() {
    let case = Case::new(3, IpFamily::V4, &cluster(by("source-port-hash"), (0..3).map(local)));
    let pods = counts((0..60).map(|_| pod_number(tcp(&case.lab.client, "10.96.0.1:80"))));
    assert_eq!(pods.len(), 3, "{pods:?}");
}

#[test]
fn ipv6_addresses_are_hashed_as_a_whole() {
    let web = service("shop/web").cluster_ip("fd00:96::1").udp("dns", 53);
    for method in ["source-hash", "source-port-hash", "round-robin"] {
        let service = web.clone().annotation(METHOD, method);
        let pods = (0..3).map(|number| pod(&pod_ip6(number).to_string()).on("node-1"));
        let case = Case::new(3, IpFamily::V6, &cluster(service, pods));
        let pods = counts((0..30).map(|_| pod_number(udp(&case.lab.pods[0], "[fd00:96::1]:53"))));
        let expected = if method == "source-hash" { 1 } else { 3 };
        assert_eq!(pods.len(), expected, "{method}: {pods:?}");
    }
}

#[test]
fn endpoints_get_connections_in_proportion_to_their_weights() {
    let weighted = |method: &str, weights: &str| {
        let slice = pods_of("web", (0..3).map(local)).with(|slice| {
            slice.metadata.annotations.insert("ferroute.io/weight".to_owned(), weights.to_owned());
        });
        Cluster::new("node-1").service(by(method)).slice(slice)
    };
    let one_of_each = "10.244.0.2=70 10.244.1.2=20 10.244.2.2=10";
    let mut case = Case::new(3, IpFamily::V4, &weighted("round-robin", one_of_each));
    let connect = |case: &Case, count| {
        let mut counts = counts((0..count).map(|_| pod_number(tcp(&case.lab.client, "10.96.0.1:80"))));
        [0, 1, 2].map(|pod| counts.remove(&pod).unwrap_or_default())
    };
    assert_eq!(connect(&case, 20), [14, 4, 2]);
    // An expected value of 210 of 300 with a standard deviation of 8.
    case.update_to(&weighted("random", one_of_each));
    let [many, some, few] = connect(&case, 300);
    assert!((160..=260).contains(&many) && some > few && few > 0, "{many}, {some}, {few}");
    case.update_to(&weighted("random", "10.244.0.2=0"));
    assert_eq!(connect(&case, 60)[0], 0, "weight 0");
    case.update_to(&weighted("random", "0"));
    assert_eq!(tcp(&case.lab.client, "10.96.0.1:80"), Outcome::Refused);
}

#[test]
fn a_changed_method_takes_effect_and_leaves_nothing_behind() {
    let random = || service("shop/web").cluster_ip("10.96.0.1").udp("dns", 53).port("http", 80);
    let pods = || (0..3).map(local);
    let mut case = Case::new(3, IpFamily::V4, &cluster(random(), pods()));
    for method in ["source-hash", "round-robin", "source-port-hash", "random"] {
        case.update_to(&cluster(by(method), pods()));
        let pods = counts((0..30).map(|_| pod_number(tcp(&case.lab.client, "10.96.0.1:80"))));
        match method {
            "source-hash" => assert_eq!(pods.len(), 1, "{pods:?}"),
            "round-robin" => assert_eq!(pods, counts([0, 1, 2].repeat(10))),
            _ => assert_eq!(pods.len(), 3, "{pods:?}"),
        }
    }
    case.update_to(&cluster(random(), pods()));
    // Chains that are not used any more are kept for a while, until a full sync.
    let resync = |case: &mut Case| case.dataplane.resync(case.tracker.table(IpFamily::V4)).unwrap();
    assert_eq!(resync(&mut case).written, 0);
    let mut fresh = Case::new(3, IpFamily::V4, &cluster(random(), pods()));
    let (report, expected) = (resync(&mut case), resync(&mut fresh));
    assert_eq!((report.written, report.removed, report.total), (0, 0, expected.total));
}

/// Five standard deviations of the number of connections to one of four endpoints.
#[test]
fn each_method_gives_each_endpoint_its_share() {
    let pods = || (0..4).map(local);
    let mut case = Case::new(4, IpFamily::V4, &cluster(by("random"), pods()));
    let sources = addresses(&case, 160);
    for method in ["random", "least-connections", "source-port-hash", "round-robin"] {
        case.update_to(&cluster(by(method), pods()));
        let counts = counts((0..400).map(|_| pod_number(tcp(&case.lab.client, "10.96.0.1:80"))));
        let expected = if method == "round-robin" { 100..=100 } else { 57..=143 };
        assert!(counts.len() == 4 && counts.values().all(|count| expected.contains(count)), "{method}: {counts:?}");
    }
    case.update_to(&cluster(by("source-hash"), pods()));
    let counts = counts(all_pods_of(&case, &sources, "10.96.0.1:53"));
    assert!(counts.len() == 4 && counts.values().all(|count| (13..=67).contains(count)), "{counts:?}");
}

#[test]
fn zones_and_shares_change_the_connections_of_endpoints() {
    let zoned = |annotation: &str, value: &str| {
        let pods = (0..3).map(|number| local(number).in_zone(["zone-a", "zone-b", "zone-b"][number]));
        let service = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).annotation(annotation, value);
        Cluster::new("node-1").zone("zone-a").service(service).slice(pods_of("web", pods))
    };
    let connections = |case: &Case| {
        let mut counts = counts((0..300).map(|_| pod_number(tcp(&case.lab.client, "10.96.0.1:80"))));
        [0, 1, 2].map(|pod| counts.remove(&pod).unwrap_or_default())
    };
    let mut case = Case::new(3, IpFamily::V4, &zoned("ferroute.io/zone-weight", "8"));
    // Eight tenths, with a standard deviation of 7.
    let [near, ..] = connections(&case);
    assert!((205..=275).contains(&near), "{near} of 300");
    // With an eighth of its weight, it gets as many connections as each of the others.
    let endpoint = (pod_ip(0), PORT).into();
    let shares = [(port_name("shop/web:http"), [(endpoint, Share::new(2).unwrap())].into())];
    case.tracker.apply(TrackerEvent::SharesApplied(shares.into()));
    case.sync();
    let counts = connections(&case);
    assert!(counts.iter().all(|count| (59..=141).contains(count)), "{counts:?}");
    assert_eq!(case.dataplane.resync(case.tracker.table(IpFamily::V4)).unwrap().written, 0);
}

#[test]
fn a_table_with_everything_is_recognised_and_repaired() {
    let methods = ["random", "round-robin", "source-hash", "source-port-hash", "least-connections"];
    let mut all = Cluster::new("node-1").zone("zone-a");
    for (number, method) in (1..).zip(methods) {
        let name = format!("all-{number}");
        let service = service(&format!("shop/{name}")).cluster_ip(&format!("10.96.1.{number}")).port("http", 80);
        let service = service.annotation(METHOD, method).annotation("ferroute.io/hash-table-size", "1024");
        let service = [
            ("zone-weight", "3"),
            ("max-connections", "1000"),
            ("source-ranges", "192.168.0.0/16"),
            ("source-ranges-scope", "cluster-ip"),
        ]
        .into_iter()
        .fold(service, |service, (name, value)| service.annotation(&format!("ferroute.io/{name}"), value));
        let service = if number % 2 == 0 { service.affinity(600) } else { service };
        let pods = (0..3).map(|number| local(number).in_zone(["zone-a", "zone-b", "zone-b"][number]));
        all = all.service(service).slice(pods_of(&name, pods));
    }
    let case = Case::new(3, IpFamily::V4, &all);
    let serves = |case: &Case| {
        let connect = |number| pod_number(tcp(&case.lab.client, &format!("10.96.1.{number}:80"))) < 3;
        (1..=methods.len()).all(connect)
    };
    assert!(serves(&case));
    let table = case.tracker.table(IpFamily::V4);
    let open =
        || case.lab.node.run(|| NftablesDataplane::open(IpFamily::V4, settings(), Box::new(Host::default())).unwrap());
    let report = open().resync(table).unwrap();
    assert_eq!((report.written, report.removed), (0, 0), "the table in the kernel is recognised");
    for damage in
        ["flush map ip ferroute tcp-endpoints", "flush chain ip ferroute services", "flush map ip ferroute refusals"]
    {
        case.lab.node.command("nft", &[damage]);
        let report = open().resync(table).unwrap();
        assert!(report.written > 0, "{damage}");
        assert!(serves(&case), "{damage}");
        let report = open().resync(table).unwrap();
        assert_eq!((report.written, report.removed), (0, 0), "{damage}");
    }
}

const METHOD: &str = "ferroute.io/load-balancing";
