use std::{collections::BTreeSet, num::NonZeroU16};

use super::*;
use crate::{
    Endpoint, IpFamily, ServicePortName,
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

/// A UDP service port with a cluster IP only.
fn plain(name: &str, socket: &str, endpoints: &[&str]) -> (ServicePortName, ServicePortEntry) {
    (udp_port_name(name), entry(service_port(socket), endpoints.iter().map(|socket| endpoint(socket))))
}

fn with_node_port(
    (name, mut entry): (ServicePortName, ServicePortEntry),
    port: u16,
) -> (ServicePortName, ServicePortEntry) {
    Arc::make_mut(&mut entry.service).node_port = NonZeroU16::new(port);
    (name, entry)
}

fn with_external_ip(
    (name, mut entry): (ServicePortName, ServicePortEntry),
    address: &str,
) -> (ServicePortName, ServicePortEntry) {
    Arc::make_mut(&mut entry.service).external_ips.push(address.parse().unwrap());
    (name, entry)
}

fn service_table(entries: &Entries) -> ServiceTable {
    table(IpFamily::V4, node("node-1"), entries.clone())
}

/// Returns the filter for a change from one set of entries to another.
fn change(before: &Entries, after: &Entries) -> StaleConntrackEntries {
    let (before, after) = (service_table(before), service_table(after));
    let names: BTreeSet<&ServicePortName> = before.entries.keys().chain(after.entries.keys()).collect();
    let differs = names.into_iter().filter(|name| before.entries.get(*name) != after.entries.get(*name));
    let previous = differs.map(|name| (name.clone(), before.entries.get(name).cloned())).collect();
    StaleConntrackEntries::from_changes(&after, &Changes { previous, ..Changes::default() })
}

/// Reports whether an entry is stale on the host with address 192.168.0.1.
fn is_stale(filter: &StaleConntrackEntries, destination: &str, reply_source: &str) -> bool {
    let is_local = |address: IpAddr| address == "192.168.0.1".parse::<IpAddr>().unwrap();
    let is_endpoint = |address: IpAddr| address == A.parse::<SocketAddr>().unwrap().ip();
    filter.is_stale(destination.parse().unwrap(), reply_source.parse().unwrap(), is_local, is_endpoint)
}

/// Asserts whether entries of all frontends of [`dns`] are stale.
#[track_caller]
fn assert_all(filter: &StaleConntrackEntries, reply_source: &str, stale: bool) {
    for destination in [CLUSTER, EXTERNAL, BALANCED, NODE] {
        assert_eq!(
            is_stale(filter, destination, reply_source),
            stale,
            "{destination} with replies from {reply_source}"
        );
    }
}

#[test]
fn without_changes_nothing_is_stale() {
    let dns = vec![dns([endpoint(A)])];
    let filter = change(&dns, &dns);
    assert!(filter.is_empty());
    assert_all(&filter, A, false);
    assert_all(&filter, B, false);
    assert!(StaleConntrackEntries::default().is_empty());
    assert!(StaleConntrackEntries::from_table(&service_table(&vec![])).is_empty());
}

#[test]
fn entries_of_removed_endpoint_are_stale() {
    let filter = change(&vec![dns([endpoint(A), endpoint(B)])], &vec![dns([endpoint(B)])]);
    assert!(!filter.is_empty());
    assert_all(&filter, A, true);
    assert_all(&filter, B, false);
}

#[test]
fn entries_of_serving_endpoint_are_not_stale() {
    let before = vec![dns([endpoint(A), endpoint(B)])];
    let leaving = Endpoint { ready: false, terminating: true, ..endpoint(A) };
    assert_all(&change(&before, &vec![dns([leaving.clone(), endpoint(B)])]), A, false);
    let starting = Endpoint { ready: false, ..endpoint(A) };
    assert_all(&change(&before, &vec![dns([starting, endpoint(B)])]), A, false);
    let not_serving = Endpoint { serving: false, ..leaving };
    assert_all(&change(&before, &vec![dns([not_serving, endpoint(B)])]), A, true);
}

/// The rules of a Service are removed before its entries are, and a proxy may be killed in between.
#[test]
fn flows_to_frontends_that_nothing_shows_are_known_by_their_endpoints() {
    let service = vec![dns([endpoint(A)])];
    let mut filter = StaleConntrackEntries::from_table(&service_table(&service));
    let removed = "10.96.0.99:53";
    assert!(!is_stale(&filter, removed, A));
    filter.add_unknown();
    assert!(is_stale(&filter, removed, A));
    assert!(is_stale(&filter, removed, "10.244.0.2:9000"), "another port of the pod");
    assert!(!is_stale(&filter, removed, B), "not an endpoint");
    assert!(!is_stale(&filter, A, A), "not translated");
    assert!(!is_stale(&filter, "192.168.0.1:5353", A), "a host port");
    assert!(is_stale(&filter, "192.168.0.1:30099", A), "a node port");
    assert!(!is_stale(&filter, "192.168.0.1:30099", B), "not an endpoint");
    assert_all(&filter, A, false);
}

#[test]
fn traffic_policies_do_not_make_entries_stale() {
    let before = vec![dns([endpoint(A), endpoint(B)])];
    let mut after = before.clone();
    let service = Arc::make_mut(&mut after[0].1.service);
    service.internal_policy = crate::TrafficPolicy::Local;
    service.external_policy = crate::TrafficPolicy::Local;
    let filter = change(&before, &after);
    assert_all(&filter, A, false);
    assert_all(&filter, B, false);
}

#[test]
fn entries_of_previous_target_port_are_stale() {
    let filter = change(&vec![dns([endpoint("10.244.0.2:53")])], &vec![dns([endpoint(A)])]);
    assert_all(&filter, "10.244.0.2:53", true);
    assert_all(&filter, A, false);
}

#[test]
fn all_entries_are_stale_without_endpoints() {
    let filter = change(&vec![dns([endpoint(A)])], &vec![dns([])]);
    assert_all(&filter, A, true);
    assert_all(&filter, B, true);
}

#[test]
fn only_entries_of_its_endpoints_are_stale_after_a_service_is_deleted() {
    let filter = change(&vec![dns([endpoint(A)])], &vec![]);
    assert!(!filter.is_empty());
    assert_all(&filter, A, true);
    assert_all(&filter, B, false);
}

#[test]
fn deleted_service_without_endpoints_has_no_stale_entries() {
    assert!(change(&vec![dns([])], &vec![]).is_empty());
}

#[test]
fn entries_of_removed_address_are_stale() {
    let mut after = dns([endpoint(A)]);
    let service = Arc::make_mut(&mut after.1.service);
    service.external_ips.clear();
    service.node_port = None;
    let filter = change(&vec![dns([endpoint(A)])], &vec![after]);
    for (destination, stale) in [(CLUSTER, false), (EXTERNAL, true), (BALANCED, false), (NODE, true)] {
        assert_eq!(is_stale(&filter, destination, A), stale, "{destination}");
    }
    // Not Ferroute's: the entries do not lead to an endpoint of the Service.
    assert!(!is_stale(&filter, EXTERNAL, EXTERNAL));
    assert!(!is_stale(&filter, NODE, NODE));
}

#[test]
fn entries_older_than_the_service_are_stale() {
    // Without translation, replies come from the destination.
    let filter = change(&vec![], &vec![dns([endpoint(A)])]);
    for destination in [CLUSTER, EXTERNAL, BALANCED, NODE] {
        assert!(is_stale(&filter, destination, destination), "{destination}");
        assert!(!is_stale(&filter, destination, A), "{destination}");
    }
}

#[test]
fn entries_of_previous_owner_of_address_are_stale() {
    let old = plain("a/old", CLUSTER, &[A]);
    let new = plain("a/new", CLUSTER, &[B]);
    let filter = change(&vec![old], &vec![new]);
    assert!(is_stale(&filter, CLUSTER, A));
    assert!(!is_stale(&filter, CLUSTER, B));
    assert!(is_stale(&filter, CLUSTER, CLUSTER));
}

#[test]
fn entries_of_previous_owner_of_node_port_are_stale() {
    let old = with_node_port(plain("a/old", "10.96.0.1:53", &[A]), 30053);
    let new = plain("a/new", "10.96.0.2:53", &[B]);
    let filter = change(&vec![old, new.clone()], &vec![with_node_port(new, 30053)]);
    assert!(is_stale(&filter, NODE, A));
    assert!(!is_stale(&filter, NODE, B));
    assert!(is_stale(&filter, "10.96.0.1:53", A));
    assert!(!is_stale(&filter, "10.96.0.2:53", B));
}

#[test]
fn endpoints_of_another_service_with_the_same_address_are_valid() {
    let shared = |name, socket, endpoints: &[&str]| with_external_ip(plain(name, socket, endpoints), "203.0.113.1");
    let kept = shared("a/kept", "10.96.0.1:53", &[A]);
    let removed = shared("a/removed", "10.96.0.2:53", &[B]);
    let filter = change(&vec![kept.clone(), removed.clone()], &vec![kept.clone()]);
    assert!(!is_stale(&filter, EXTERNAL, A));
    assert!(is_stale(&filter, EXTERNAL, B));
    // While both exist, entries of either are valid, whichever changes.
    let changed = shared("a/removed", "10.96.0.2:53", &["10.244.0.9:5353"]);
    let filter = change(&vec![kept.clone(), removed], &vec![kept.clone(), changed.clone()]);
    assert!(!is_stale(&filter, EXTERNAL, A));
    assert!(!is_stale(&filter, EXTERNAL, "10.244.0.9:5353"));
    assert!(is_stale(&filter, EXTERNAL, B));
    let filter = StaleConntrackEntries::from_table(&service_table(&vec![kept, changed]));
    assert!(!is_stale(&filter, EXTERNAL, A));
    assert!(!is_stale(&filter, EXTERNAL, "10.244.0.9:5353"));
    assert!(is_stale(&filter, EXTERNAL, B));
}

#[test]
fn endpoints_of_another_service_with_the_same_node_port_are_valid() {
    let kept = with_node_port(plain("a/kept", "10.96.0.1:53", &[A]), 30053);
    let removed = with_node_port(plain("a/removed", "10.96.0.2:53", &[B]), 30053);
    let filter = change(&vec![kept.clone(), removed], &vec![kept]);
    assert!(!is_stale(&filter, NODE, A));
    assert!(is_stale(&filter, NODE, B));
}

#[test]
fn node_ports_are_on_local_addresses() {
    let filter = change(&vec![dns([endpoint(A)])], &vec![dns([endpoint(B)])]);
    let other = "10.244.0.9:5353";
    assert!(is_stale(&filter, "192.168.0.1:30053", other));
    assert!(!is_stale(&filter, "192.168.0.2:30053", other));
}

/// An address may leave the host and return; flows to node ports at the address continue in the meantime.
#[test]
fn node_ports_at_addresses_that_left_the_host_are_known_by_their_endpoints() {
    const FORMER: &str = "192.168.9.9:30053";
    let before = vec![dns([endpoint(A), endpoint(B)])];
    for after in [vec![dns([endpoint(B)])], vec![]] {
        let filter = change(&before, &after);
        assert!(is_stale(&filter, FORMER, A), "{after:?}");
        assert_eq!(is_stale(&filter, FORMER, B), after.is_empty(), "{after:?}");
        assert!(!is_stale(&filter, FORMER, "203.0.113.9:5353"), "translated by another program: {after:?}");
        assert!(!is_stale(&filter, FORMER, FORMER), "not translated: {after:?}");
    }
}

#[test]
fn address_takes_precedence_over_node_port_with_the_same_number() {
    // An address of the host is an external IP, and the port is the node port of another Service.
    let external = || with_external_ip(plain("a/external", "10.96.0.1:30053", &[A]), "192.168.0.1");
    let other = |endpoints: &[&str]| with_node_port(plain("a/other", "10.96.0.2:53", endpoints), 30053);
    let filter = change(&vec![], &vec![external(), other(&[B])]);
    assert!(!is_stale(&filter, NODE, A));
    assert!(is_stale(&filter, NODE, B));
    // Without the external IP, the node port matches.
    let filter = change(&vec![external(), other(&[B])], &vec![other(&[])]);
    assert!(is_stale(&filter, NODE, A));
    assert!(is_stale(&filter, NODE, B));
}

#[test]
fn other_ports_and_addresses_are_ignored() {
    let filter = change(&vec![dns([endpoint(A)])], &vec![dns([endpoint(B)])]);
    for destination in ["10.96.0.10:54", "10.96.0.11:53", "203.0.113.1:30054", "192.168.0.1:53"] {
        assert!(!is_stale(&filter, destination, A), "{destination}");
    }
}

#[test]
fn tcp_is_ignored() {
    let tcp = |endpoints: &[&str]| {
        let (_, entry) = with_node_port(plain("a/web", CLUSTER, endpoints), 30053);
        vec![(port_name("a/web"), entry)]
    };
    for filter in [
        change(&tcp(&[A]), &tcp(&[B])),
        change(&tcp(&[A]), &vec![]),
        change(&vec![], &tcp(&[A])),
        StaleConntrackEntries::from_table(&service_table(&tcp(&[A]))),
    ] {
        assert!(filter.is_empty());
        assert!(!is_stale(&filter, CLUSTER, A));
        assert!(!is_stale(&filter, NODE, A));
    }
    // A TCP port with the same address does not make UDP entries valid.
    let both = |endpoints: &[&str]| [tcp(&[A]), vec![plain("a/dns", CLUSTER, endpoints)]].concat();
    assert!(is_stale(&change(&both(&[A]), &both(&[B])), CLUSTER, A));
}

#[test]
fn table_filter_keeps_entries_of_serving_endpoints_only() {
    let not_serving = Endpoint { serving: false, ..endpoint("10.244.0.4:5353") };
    let starting = Endpoint { ready: false, ..endpoint(B) };
    let filter = StaleConntrackEntries::from_table(&service_table(&vec![dns([endpoint(A), starting, not_serving])]));
    assert_all(&filter, A, false);
    assert_all(&filter, B, false);
    assert_all(&filter, "10.244.0.4:5353", true);
    assert_all(&filter, "10.244.0.5:5353", true);
    assert!(!is_stale(&filter, "10.96.0.11:53", A));
}

#[test]
fn merge_keeps_endpoints_of_earlier_changes() {
    let (both, one, none) = (vec![dns([endpoint(A), endpoint(B)])], vec![dns([endpoint(B)])], vec![]);
    // A is removed, the sync fails, then the Service is deleted.
    let mut filter = change(&both, &one);
    filter.merge(change(&one, &none));
    assert_all(&filter, A, true);
    assert_all(&filter, B, true);
    assert_all(&filter, "10.244.0.9:5353", false);
    // The Service is deleted, the sync fails, then it is created again with one endpoint.
    let mut filter = change(&both, &none);
    filter.merge(change(&none, &one));
    assert_all(&filter, A, true);
    assert_all(&filter, B, false);
    // Only the later change affects the frontends.
    let mut filter = StaleConntrackEntries::default();
    filter.merge(change(&both, &one));
    assert_all(&filter, A, true);
    assert_all(&filter, B, false);
    // A is added again.
    let mut filter = change(&both, &one);
    filter.merge(change(&one, &both));
    assert_all(&filter, A, false);
    assert_all(&filter, B, false);
    // A Service lost its endpoints and was then deleted.
    let empty = vec![dns([])];
    let mut filter = change(&one, &empty);
    filter.merge(change(&empty, &none));
    assert!(!filter.is_empty());
    assert_all(&filter, B, true);
    assert_all(&filter, A, false);
}

#[test]
fn merge_keeps_changes_of_different_services() {
    let first = |endpoints: &[&str]| plain("a/first", "10.96.0.1:53", endpoints);
    let second = |endpoints: &[&str]| with_node_port(plain("a/second", "10.96.0.2:53", endpoints), 30053);
    let mut filter = change(&vec![first(&[A]), second(&[A])], &vec![first(&[B]), second(&[A])]);
    filter.merge(change(&vec![first(&[B]), second(&[A])], &vec![first(&[B])]));
    for (destination, reply_source, stale) in [
        ("10.96.0.1:53", A, true),
        ("10.96.0.1:53", B, false),
        ("10.96.0.2:53", A, true),
        ("10.96.0.2:53", B, false),
        (NODE, A, true),
        (NODE, B, false),
    ] {
        assert_eq!(
            is_stale(&filter, destination, reply_source),
            stale,
            "{destination} with replies from {reply_source}"
        );
    }
}

/// A proxy that has just started has the frontends of the kernel's rules, but not their endpoints.
#[test]
fn translated_flows_to_frontends_without_service_port_are_stale() {
    let found = |node_port: u16, address: &str| {
        let socket: SocketAddr = address.parse().unwrap();
        let udp = |address, port| Frontend { address, protocol: Protocol::Udp, port };
        [udp(Some(socket.ip()), socket.port()), udp(None, node_port)]
    };
    let table = service_table(&vec![dns([endpoint(A)])]);
    let mut filter = StaleConntrackEntries::from_table(&table);
    filter.add_removed(&table, &found(30053, CLUSTER));
    filter.add_removed(&table, &found(30054, "10.96.0.11:53"));
    assert_all(&filter, A, false);
    assert_all(&filter, B, true);
    for (destination, reply_source, stale) in [
        ("10.96.0.11:53", A, true),
        ("192.168.0.1:30054", A, true),
        // Not translated: a server on the host, or on a host behind the address.
        ("10.96.0.11:53", "10.96.0.11:53", false),
        ("192.168.0.1:30054", "192.168.0.1:30054", false),
        // Not this host's.
        ("192.168.0.2:30054", A, false),
        ("10.96.0.11:54", A, false),
    ] {
        assert_eq!(
            is_stale(&filter, destination, reply_source),
            stale,
            "{destination} with replies from {reply_source}"
        );
    }
    let mut none = StaleConntrackEntries::default();
    none.add_removed(&table, &found(30053, CLUSTER));
    assert!(none.is_empty());
    none.add_removed(&table, &[Frontend { protocol: Protocol::Tcp, ..found(1, "10.96.0.11:53")[0] }]);
    assert!(none.is_empty());
    // A Service that appears before the entries are deleted takes over.
    none.add_removed(&table, &found(30054, "10.96.0.11:53"));
    assert!(!none.is_empty());
    none.merge(StaleConntrackEntries::from_table(&service_table(&vec![plain("a/b:c", "10.96.0.11:53", &[B])])));
    assert!(!is_stale(&none, "10.96.0.11:53", B) && is_stale(&none, "10.96.0.11:53", A));
}
