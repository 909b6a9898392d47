use std::{collections::BTreeSet, num::NonZeroU16};

use super::*;
use crate::{
    IpFamily, ServicePortName,
    testing::{endpoint, entry, node, port_name, service_port, table, udp_port_name},
};

const A: &str = "10.244.0.2:5353";
const B: &str = "10.244.0.3:5353";
const CLUSTER: &str = "10.96.0.10:53";
const EXTERNAL: &str = "203.0.113.1:53";
const BALANCED: &str = "198.51.100.1:53";
const NODE: &str = "192.168.0.1:30053";

type Entries = Vec<(ServicePortName, ServicePortEntry)>;

/// A service port with a frontend of each kind.
fn dns(endpoints: impl IntoIterator<Item = Endpoint>) -> (ServicePortName, ServicePortEntry) {
    let service = ServicePort {
        external_ips: vec!["203.0.113.1".parse().unwrap()],
        load_balancer_vips: vec!["198.51.100.1".parse().unwrap()],
        node_port: NonZeroU16::new(30053),
        ..service_port(CLUSTER)
    };
    (udp_port_name("kube-system/dns:dns"), entry(service, endpoints))
}

/// A UDP service port with nothing but a cluster IP.
fn plain(name: &str, socket: &str, endpoints: &[&str]) -> (ServicePortName, ServicePortEntry) {
    (udp_port_name(name), entry(service_port(socket), endpoints.iter().map(|socket| endpoint(socket))))
}

fn with_node_port((name, mut entry): (ServicePortName, ServicePortEntry), port: u16) -> (ServicePortName, ServicePortEntry) {
    Arc::make_mut(&mut entry.service).node_port = NonZeroU16::new(port);
    (name, entry)
}

fn with_external_ip((name, mut entry): (ServicePortName, ServicePortEntry), address: &str) -> (ServicePortName, ServicePortEntry) {
    Arc::make_mut(&mut entry.service).external_ips.push(address.parse().unwrap());
    (name, entry)
}

fn table_of(entries: &Entries) -> ServiceTable {
    table(IpFamily::V4, node("node-1"), entries.clone())
}

/// What has to be looked for when one set of entries becomes another.
fn change(before: &Entries, after: &Entries) -> StaleConntrackEntries {
    let (before, after) = (table_of(before), table_of(after));
    let names: BTreeSet<&ServicePortName> = before.entries.keys().chain(after.entries.keys()).collect();
    let differs = names.into_iter().filter(|name| before.entries.get(*name) != after.entries.get(*name));
    let previous = differs.map(|name| (name.clone(), before.entries.get(name).cloned())).collect();
    StaleConntrackEntries::from_changes(&after, &Changes { previous, ..Changes::default() })
}

/// Whether a flow to `destination` that is answered from `answers_from` is stale on the host with 192.168.0.1.
fn is_stale(flows: &StaleConntrackEntries, destination: &str, answers_from: &str) -> bool {
    let is_local = |address: IpAddr| address == "192.168.0.1".parse::<IpAddr>().unwrap();
    flows.is_stale(destination.parse().unwrap(), answers_from.parse().unwrap(), is_local)
}

/// Asserts the same of flows to every frontend of [`dns`].
#[track_caller]
fn assert_everywhere(flows: &StaleConntrackEntries, answers_from: &str, stale: bool) {
    for destination in [CLUSTER, EXTERNAL, BALANCED, NODE] {
        assert_eq!(is_stale(flows, destination, answers_from), stale, "{destination} answered from {answers_from}");
    }
}

#[test]
fn where_nothing_changed_nothing_is_stale() {
    let dns = vec![dns([endpoint(A)])];
    let flows = change(&dns, &dns);
    assert!(flows.is_empty());
    assert_everywhere(&flows, A, false);
    assert_everywhere(&flows, B, false);
    assert!(StaleConntrackEntries::default().is_empty());
    assert!(StaleConntrackEntries::from_table(&table_of(&vec![])).is_empty());
}

#[test]
fn flows_to_an_endpoint_that_went_are_stale_and_others_are_not() {
    let flows = change(&vec![dns([endpoint(A), endpoint(B)])], &vec![dns([endpoint(B)])]);
    assert!(!flows.is_empty());
    assert_everywhere(&flows, A, true);
    assert_everywhere(&flows, B, false);
}

#[test]
fn flows_stay_with_an_endpoint_as_long_as_it_serves() {
    let before = vec![dns([endpoint(A), endpoint(B)])];
    let leaving = Endpoint { ready: false, terminating: true, ..endpoint(A) };
    assert_everywhere(&change(&before, &vec![dns([leaving.clone(), endpoint(B)])]), A, false);
    let waking = Endpoint { ready: false, ..endpoint(A) };
    assert_everywhere(&change(&before, &vec![dns([waking, endpoint(B)])]), A, false);
    let dead = Endpoint { serving: false, ..leaving };
    assert_everywhere(&change(&before, &vec![dns([dead, endpoint(B)])]), A, true);
}

#[test]
fn policies_and_hints_do_not_make_flows_stale() {
    let before = vec![dns([endpoint(A), endpoint(B)])];
    let mut after = before.clone();
    let service = Arc::make_mut(&mut after[0].1.service);
    service.internal_policy = crate::TrafficPolicy::Local;
    service.external_policy = crate::TrafficPolicy::Local;
    let flows = change(&before, &after);
    assert_everywhere(&flows, A, false);
    assert_everywhere(&flows, B, false);
}

#[test]
fn flows_to_the_old_target_port_are_stale() {
    let flows = change(&vec![dns([endpoint("10.244.0.2:53")])], &vec![dns([endpoint(A)])]);
    assert_everywhere(&flows, "10.244.0.2:53", true);
    assert_everywhere(&flows, A, false);
}

#[test]
fn all_flows_are_stale_when_the_last_endpoint_went() {
    let flows = change(&vec![dns([endpoint(A)])], &vec![dns([])]);
    assert_everywhere(&flows, A, true);
    assert_everywhere(&flows, B, true);
}

#[test]
fn flows_of_a_service_that_went_are_stale_and_what_was_never_its_own_is_not() {
    let flows = change(&vec![dns([endpoint(A)])], &vec![]);
    assert!(!flows.is_empty());
    assert_everywhere(&flows, A, true);
    assert_everywhere(&flows, B, false);
}

#[test]
fn a_service_that_went_without_endpoints_leaves_nothing_to_look_for() {
    assert!(change(&vec![dns([])], &vec![]).is_empty());
}

#[test]
fn flows_to_an_address_that_a_service_gave_up_are_stale() {
    let mut after = dns([endpoint(A)]);
    let service = Arc::make_mut(&mut after.1.service);
    service.external_ips.clear();
    service.node_port = None;
    let flows = change(&vec![dns([endpoint(A)])], &vec![after]);
    for (destination, stale) in [(CLUSTER, false), (EXTERNAL, true), (BALANCED, false), (NODE, true)] {
        assert_eq!(is_stale(&flows, destination, A), stale, "{destination}");
    }
    // Somebody else's: they were never sent to the service's endpoint.
    assert!(!is_stale(&flows, EXTERNAL, EXTERNAL));
    assert!(!is_stale(&flows, NODE, NODE));
}

#[test]
fn flows_that_were_there_before_the_service_are_stale() {
    // Nobody translated them, so their answers come from where they were sent.
    let flows = change(&vec![], &vec![dns([endpoint(A)])]);
    for destination in [CLUSTER, EXTERNAL, BALANCED, NODE] {
        assert!(is_stale(&flows, destination, destination), "{destination}");
        assert!(!is_stale(&flows, destination, A), "{destination}");
    }
}

#[test]
fn a_service_that_takes_over_an_address_takes_over_its_flows() {
    let old = plain("a/old", CLUSTER, &[A]);
    let new = plain("a/new", CLUSTER, &[B]);
    let flows = change(&vec![old], &vec![new]);
    assert!(is_stale(&flows, CLUSTER, A));
    assert!(!is_stale(&flows, CLUSTER, B));
    assert!(is_stale(&flows, CLUSTER, CLUSTER));
}

#[test]
fn a_service_that_takes_over_a_node_port_takes_over_its_flows() {
    let old = with_node_port(plain("a/old", "10.96.0.1:53", &[A]), 30053);
    let new = plain("a/new", "10.96.0.2:53", &[B]);
    let flows = change(&vec![old, new.clone()], &vec![with_node_port(new, 30053)]);
    assert!(is_stale(&flows, NODE, A));
    assert!(!is_stale(&flows, NODE, B));
    assert!(is_stale(&flows, "10.96.0.1:53", A));
    assert!(!is_stale(&flows, "10.96.0.2:53", B));
}

#[test]
fn endpoints_of_a_service_that_had_the_same_address_all_along_are_right() {
    let shared = |name, socket, endpoints: &[&str]| with_external_ip(plain(name, socket, endpoints), "203.0.113.1");
    let stays = shared("a/stays", "10.96.0.1:53", &[A]);
    let goes = shared("a/goes", "10.96.0.2:53", &[B]);
    let flows = change(&vec![stays.clone(), goes.clone()], &vec![stays.clone()]);
    assert!(!is_stale(&flows, EXTERNAL, A));
    assert!(is_stale(&flows, EXTERNAL, B));
    // And while both are there, flows of either may stay, whichever of them changes.
    let changed = shared("a/goes", "10.96.0.2:53", &["10.244.0.9:5353"]);
    let flows = change(&vec![stays.clone(), goes], &vec![stays.clone(), changed.clone()]);
    assert!(!is_stale(&flows, EXTERNAL, A));
    assert!(!is_stale(&flows, EXTERNAL, "10.244.0.9:5353"));
    assert!(is_stale(&flows, EXTERNAL, B));
    let flows = StaleConntrackEntries::from_table(&table_of(&vec![stays, changed]));
    assert!(!is_stale(&flows, EXTERNAL, A));
    assert!(!is_stale(&flows, EXTERNAL, "10.244.0.9:5353"));
    assert!(is_stale(&flows, EXTERNAL, B));
}

#[test]
fn a_node_port_that_two_services_had_is_still_the_one_that_stays() {
    let stays = with_node_port(plain("a/stays", "10.96.0.1:53", &[A]), 30053);
    let goes = with_node_port(plain("a/goes", "10.96.0.2:53", &[B]), 30053);
    let flows = change(&vec![stays.clone(), goes], &vec![stays]);
    assert!(!is_stale(&flows, NODE, A));
    assert!(is_stale(&flows, NODE, B));
}

#[test]
fn only_the_hosts_own_addresses_have_node_ports() {
    let flows = change(&vec![dns([endpoint(A)])], &vec![dns([endpoint(B)])]);
    assert!(is_stale(&flows, "192.168.0.1:30053", A));
    assert!(!is_stale(&flows, "192.168.0.2:30053", A));
    let gone = change(&vec![dns([endpoint(A)])], &vec![]);
    assert!(is_stale(&gone, "192.168.0.1:30053", A));
    assert!(!is_stale(&gone, "192.168.0.2:30053", A));
}

#[test]
fn an_address_comes_before_a_node_port_with_its_number() {
    // The host's own address as external IP, on a port that is another service's node port.
    let own = || with_external_ip(plain("a/own", "10.96.0.1:30053", &[A]), "192.168.0.1");
    let other = |endpoints: &[&str]| with_node_port(plain("a/other", "10.96.0.2:53", endpoints), 30053);
    let flows = change(&vec![], &vec![own(), other(&[B])]);
    assert!(!is_stale(&flows, NODE, A));
    assert!(is_stale(&flows, NODE, B));
    // Once it is given up, the node port has the flows.
    let flows = change(&vec![own(), other(&[B])], &vec![other(&[])]);
    assert!(is_stale(&flows, NODE, A));
    assert!(is_stale(&flows, NODE, B));
}

#[test]
fn other_ports_and_addresses_are_none_of_ours() {
    let flows = change(&vec![dns([endpoint(A)])], &vec![dns([endpoint(B)])]);
    for destination in ["10.96.0.10:54", "10.96.0.11:53", "203.0.113.1:30053", "192.168.0.1:53"] {
        assert!(!is_stale(&flows, destination, A), "{destination}");
    }
}

#[test]
fn tcp_is_left_alone() {
    let tcp = |endpoints: &[&str]| {
        let (_, entry) = with_node_port(plain("a/web", CLUSTER, endpoints), 30053);
        vec![(port_name("a/web"), entry)]
    };
    for flows in [
        change(&tcp(&[A]), &tcp(&[B])),
        change(&tcp(&[A]), &vec![]),
        change(&vec![], &tcp(&[A])),
        StaleConntrackEntries::from_table(&table_of(&tcp(&[A]))),
    ] {
        assert!(flows.is_empty());
        assert!(!is_stale(&flows, CLUSTER, A));
        assert!(!is_stale(&flows, NODE, A));
    }
    // A TCP port with the frontends of a UDP port does not vouch for the UDP port's flows.
    let both = |endpoints: &[&str]| [tcp(&[A]), vec![plain("a/dns", CLUSTER, endpoints)]].concat();
    assert!(is_stale(&change(&both(&[A]), &both(&[B])), CLUSTER, A));
}

#[test]
fn at_the_start_only_flows_to_serving_endpoints_are_good() {
    let dead = Endpoint { serving: false, ..endpoint("10.244.0.4:5353") };
    let waking = Endpoint { ready: false, ..endpoint(B) };
    let flows = StaleConntrackEntries::from_table(&table_of(&vec![dns([endpoint(A), waking, dead])]));
    assert_everywhere(&flows, A, false);
    assert_everywhere(&flows, B, false);
    assert_everywhere(&flows, "10.244.0.4:5353", true);
    assert_everywhere(&flows, "10.244.0.5:5353", true);
    assert!(!is_stale(&flows, "10.96.0.11:53", A));
}

#[test]
fn what_a_failed_sync_left_to_do_is_not_forgotten() {
    let (both, one, none) = (vec![dns([endpoint(A), endpoint(B)])], vec![dns([endpoint(B)])], vec![]);
    // A goes, the sync fails, then the service goes.
    let mut flows = change(&both, &one);
    flows.merge(change(&one, &none));
    assert_everywhere(&flows, A, true);
    assert_everywhere(&flows, B, true);
    assert_everywhere(&flows, "10.244.0.9:5353", false);
    // The service goes, the sync fails, then it comes back with one endpoint.
    let mut flows = change(&both, &none);
    flows.merge(change(&none, &one));
    assert_everywhere(&flows, A, true);
    assert_everywhere(&flows, B, false);
    // The later one alone has something to say.
    let mut flows = StaleConntrackEntries::default();
    flows.merge(change(&both, &one));
    assert_everywhere(&flows, A, true);
    assert_everywhere(&flows, B, false);
    // What was stale is good again.
    let mut flows = change(&both, &one);
    flows.merge(change(&one, &both));
    assert_everywhere(&flows, A, false);
    assert_everywhere(&flows, B, false);
    // A service that lost its endpoints and then went.
    let empty = vec![dns([])];
    let mut flows = change(&one, &empty);
    flows.merge(change(&empty, &none));
    assert!(!flows.is_empty());
    assert_everywhere(&flows, B, true);
    assert_everywhere(&flows, A, false);
}

#[test]
fn two_failed_syncs_about_different_services_are_both_remembered() {
    let first = |endpoints: &[&str]| plain("a/first", "10.96.0.1:53", endpoints);
    let second = |endpoints: &[&str]| with_node_port(plain("a/second", "10.96.0.2:53", endpoints), 30053);
    let mut flows = change(&vec![first(&[A]), second(&[A])], &vec![first(&[B]), second(&[A])]);
    flows.merge(change(&vec![first(&[B]), second(&[A])], &vec![first(&[B])]));
    for (destination, answers_from, stale) in [
        ("10.96.0.1:53", A, true),
        ("10.96.0.1:53", B, false),
        ("10.96.0.2:53", A, true),
        ("10.96.0.2:53", B, false),
        (NODE, A, true),
        (NODE, B, false),
    ] {
        assert_eq!(is_stale(&flows, destination, answers_from), stale, "{destination} answered from {answers_from}");
    }
}
