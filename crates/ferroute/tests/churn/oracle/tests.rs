//! Violations that the oracle must detect, with fictitious connections.

use ferroute_core::testing::{ServiceBuilder, pod, service, slice};

use super::*;

const CLUSTER_IP: &str = "10.96.0.1:80";
const POD: &str = "10.244.0.3";
const OUTSIDE: &str = "192.168.0.9";
const ENDPOINTS: [&str; 2] = ["10.244.1.1:8080", "10.244.1.4:8080"];

fn web() -> ServiceBuilder {
    service("shop/web").cluster_ip("10.96.0.1").port("tcp", 80)
}

fn cluster(services: Vec<Service>) -> Cluster {
    let pods = |name: &str, pods: [&str; 2]| {
        let built = slice(&format!("shop/{name}-1"), name).port("tcp", 8080).port("more", 8080).udp("udp", 8080);
        pods.into_iter().fold(built, |built, address| built.pod(pod(address))).build()
    };
    let slices = vec![pods("web", ["10.244.1.1", "10.244.1.4"]), pods("other", ["10.244.2.2", "10.244.2.5"])];
    Cluster { services, slices, ..Cluster::new(ferroute_core::testing::arbitrary::NODE) }
}

fn oracle(mode: ModeName, services: Vec<ServiceBuilder>) -> Oracle {
    let networks = ["10.244.0.0/16", "fd00:244::/32"].map(|net| net.parse().unwrap()).to_vec();
    let detector = ferroute_core::LocalTrafficDetector::ClusterCidr(networks);
    let settings = ProxySettings { detector, ..ProxySettings::default() };
    let cluster = cluster(services.into_iter().map(ServiceBuilder::build).collect());
    Oracle::new(settings, mode, &cluster, Instant::now())
}

/// A connection of a pod of the node, which happens now.
fn record(protocol: Protocol, target: &str, outcome: Outcome) -> Record {
    let client = Client::Pod(POD.parse().unwrap());
    let (start, target) = (Instant::now(), target.parse().unwrap());
    Record { client, protocol, target, port: 40_000, start, end: start, outcome, continues: false, was_repeated: false }
}

fn reply(endpoint: &str, source: &str) -> Outcome {
    Outcome::Endpoint(Reply { endpoint: endpoint.parse().unwrap(), source: source.parse().unwrap() })
}

#[test]
fn endpoints_see_the_required_source() {
    let mut oracle = oracle(ModeName::IPTABLES, vec![web()]);
    let mut from = |client: &str, source: &str| {
        let record = record(Protocol::Tcp, CLUSTER_IP, reply(ENDPOINTS[0], source));
        let client = client.parse().unwrap();
        let client =
            if client == POD.parse::<IpAddr>().unwrap() { Client::Pod(client) } else { Client::Elsewhere(client) };
        oracle.check(&Record { client, ..record }).is_ok()
    };
    assert!(from(POD, POD));
    assert!(!from(POD, "192.168.8.1"), "masqueraded without need");
    assert!(from(OUTSIDE, "192.168.8.1"));
    assert!(!from(OUTSIDE, OUTSIDE), "not masqueraded");
    assert!(!from(OUTSIDE, "192.168.7.1"), "an address of another network");
}

#[test]
fn a_repeated_segment_is_a_lost_one_while_all_versions_deliver() {
    let mut oracle = oracle(ModeName::NFTABLES, vec![web()]);
    let repeated = |target: &str| {
        let record = record(Protocol::Tcp, target, reply(ENDPOINTS[0], POD));
        Record { was_repeated: true, ..record }
    };
    assert!(oracle.check(&repeated(CLUSTER_IP)).unwrap_err().contains("lost"));
    let before = Instant::now();
    oracle.publish_services(&[web().port("more", 81).build()], before);
    assert!(oracle.check(&repeated("10.96.0.1:81")).is_ok(), "the port may not have existed when the connection began");
    oracle.applied(Instant::now());
    assert!(oracle.check(&repeated("10.96.0.1:81")).is_err());
    oracle.fault_starts(true);
    assert!(oracle.check(&repeated("10.96.0.1:81")).is_ok(), "another program changes rules");
}

#[test]
fn flows_follow_changes_of_endpoints_and_frontends() {
    let both = || web().udp("udp", 53);
    let mut oracle = oracle(ModeName::IPTABLES, vec![both()]);
    let later = |endpoint: &str| {
        let record = record(Protocol::Udp, "10.96.0.1:53", reply(endpoint, POD));
        let after = Instant::now() + STALE + Duration::from_secs(1);
        Record { continues: true, start: after, end: after, ..record }
    };
    assert!(oracle.check(&later(ENDPOINTS[0])).is_ok());
    let mut changed = cluster(vec![both().build()]);
    changed.slices[0].endpoints.remove(0);
    oracle.publish_slices(&changed.slices, Instant::now());
    assert!(oracle.check(&later(ENDPOINTS[0])).is_ok(), "the change may not have been applied");
    oracle.applied(Instant::now());
    assert!(oracle.check(&later(ENDPOINTS[0])).is_err(), "an entry of an endpoint that is gone");
    assert!(oracle.check(&later(ENDPOINTS[1])).is_ok());
    oracle.publish_services(&[web().build()], Instant::now());
    oracle.applied(Instant::now());
    assert!(oracle.check(&later(ENDPOINTS[1])).is_err(), "an entry of a frontend that is gone");
}

#[test]
fn flows_that_a_killed_proxy_leaves_behind_are_expected_unless_their_endpoint_shows_them() {
    let both = || web().udp("udp", 53);
    let mut oracle = oracle(ModeName::IPTABLES, vec![both()]);
    let later = |port: u16, endpoint: &str| {
        let record = record(Protocol::Udp, "10.96.0.1:53", reply(endpoint, POD));
        let after = Instant::now() + STALE + Duration::from_secs(1);
        Record { continues: true, port, start: after, end: after, ..record }
    };
    oracle.fault_starts(false);
    oracle.proxy_was_killed();
    assert!(oracle.check(&later(1, ENDPOINTS[0])).is_ok());
    assert!(oracle.check(&later(2, ENDPOINTS[1])).is_ok());
    let mut changed = cluster(vec![]);
    changed.slices[0].endpoints.remove(0);
    oracle.publish_slices(&changed.slices, Instant::now());
    oracle.publish_services(&[web().build()], Instant::now());
    oracle.faults_end();
    oracle.applied(Instant::now());
    assert!(oracle.check(&later(1, ENDPOINTS[0])).is_ok(), "nothing has this endpoint");
    assert!(oracle.check(&later(3, ENDPOINTS[0])).is_err(), "a flow that did not exist");
    assert!(oracle.check(&later(2, ENDPOINTS[1])).is_err(), "a Service has this endpoint");
}

#[test]
fn flows_of_the_node_to_its_own_address_are_lost_with_the_address() {
    let mut oracle = oracle(ModeName::NFTABLES, vec![web()]);
    let result = |oracle: &mut Oracle, port: u16, continues: bool, outcome: Outcome| {
        let record = record(Protocol::Udp, "10.99.0.1:30901", outcome);
        let at = if continues { record.start + STALE + Duration::from_secs(1) } else { record.start };
        oracle.check(&Record { client: Client::Node, port, continues, start: at, end: at, ..record }).is_ok()
    };
    let others = node_addresses();
    let all = others.iter().copied().chain(["10.99.0.1".parse().unwrap()]).collect();
    oracle.publish_host(&all, Instant::now());
    oracle.tick(Instant::now());
    assert!(result(&mut oracle, 1, false, Outcome::Refused));
    assert!(!result(&mut oracle, 1, true, Outcome::Timeout), "the host refuses the datagram");
    oracle.publish_host(&others, Instant::now());
    oracle.tick(Instant::now());
    assert!(result(&mut oracle, 1, true, Outcome::Timeout), "the answer goes to an address that is gone");
    assert!(result(&mut oracle, 2, false, Outcome::Unreachable));
    assert!(!result(&mut oracle, 2, true, Outcome::Timeout), "this flow comes from another address");
}

#[test]
fn clients_keep_their_endpoint() {
    for mode in [ModeName::IPTABLES, ModeName::NFTABLES] {
        let mut oracle = oracle(mode, vec![web().affinity(10_800)]);
        let mut uses = |endpoint: &str, continues: bool| {
            std::thread::sleep(Duration::from_millis(1));
            let record = record(Protocol::Tcp, CLUSTER_IP, reply(endpoint, POD));
            oracle.check(&Record { continues, ..record })
        };
        assert_eq!(uses(ENDPOINTS[0], false), Ok(()));
        assert_eq!(uses(ENDPOINTS[0], false), Ok(()));
        assert_eq!(uses(ENDPOINTS[1], true), Ok(()), "a flow that is older than the affinity");
        assert!(uses(ENDPOINTS[1], false).unwrap_err().contains("affinity"));
    }
}

#[test]
fn contested_addresses_have_one_owner() {
    let claim = |name: &str, created: &str| {
        let mut service = service(name).cluster_ip(if name.ends_with('r') { "10.96.0.2" } else { "10.96.0.1" });
        service = service.port("tcp", 80).external_ip("203.0.113.7");
        service.with(|service| service.metadata.creation_timestamp = Some(created.to_owned()))
    };
    let services = vec![claim("shop/web", "2026-01-02T00:00:00Z"), claim("shop/other", "2026-01-01T00:00:00Z")];
    let mut oracle = oracle(ModeName::NFTABLES, services);
    let mut reaches =
        |endpoint: &str| oracle.check(&record(Protocol::Tcp, "203.0.113.7:80", reply(endpoint, "192.168.8.1"))).is_ok();
    assert!(reaches("10.244.2.2:8080"), "the endpoint of the older Service");
    assert!(!reaches(ENDPOINTS[0]), "one of the younger Service");
}

#[test]
fn each_mode_has_its_own_expectations() {
    let unknown_port =
        |mode, outcome| oracle(mode, vec![web()]).check(&record(Protocol::Tcp, "10.96.0.1:9", outcome)).is_ok();
    assert!(unknown_port(ModeName::NFTABLES, Outcome::Refused));
    assert!(!unknown_port(ModeName::NFTABLES, Outcome::Unreachable));
    assert!(!unknown_port(ModeName::IPTABLES, Outcome::Refused));
    assert!(unknown_port(ModeName::IPTABLES, Outcome::Unreachable));
    let mut switched = oracle(ModeName::IPTABLES, vec![web()]);
    switched.select_mode(ModeName::NFTABLES);
    for outcome in [Outcome::Refused, Outcome::Unreachable] {
        assert!(switched.check(&record(Protocol::Tcp, "10.96.0.1:9", outcome)).is_ok(), "either mode may be active");
    }
}
