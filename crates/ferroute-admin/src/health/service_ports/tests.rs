use ferroute_core::{IpFamily, testing::*};

use super::*;
use crate::http::testing::body;

fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("not zero")
}

fn check(number: u16, local_endpoints: usize) -> HealthCheck {
    HealthCheck { port: port(number), local_endpoints, load_balancer_addresses: BTreeSet::new() }
}

/// A check that is also served on an address of the load balancer.
fn check_at(number: u16, local_endpoints: usize, address: &str) -> HealthCheck {
    let load_balancer_addresses = BTreeSet::from([address.parse().expect("an address")]);
    HealthCheck { load_balancer_addresses, ..check(number, local_endpoints) }
}

fn checks(items: &[(&str, HealthCheck)]) -> BTreeMap<NamespacedName, HealthCheck> {
    items.iter().map(|(name, check)| (namespaced_name(name), check.clone())).collect()
}

/// Returns port, Service and number of endpoints for each owner that follows `current`, and the errors.
fn assigned(current: &[(u16, &str)], items: &[(&str, HealthCheck)]) -> (Vec<(u16, String, usize)>, Vec<String>) {
    let current = current
        .iter()
        .map(|(number, name)| (port(*number), Owner { service: namespaced_name(name), local_endpoints: 0 }))
        .collect();
    let mut errors = Vec::new();
    let owners = assign(&current, &checks(items), &mut errors)
        .into_iter()
        .map(|(port, owner)| (port.get(), owner.service.as_str().to_owned(), owner.local_endpoints))
        .collect();
    (owners, errors.iter().map(ToString::to_string).collect())
}

#[test]
fn ports_are_assigned_to_their_services() {
    let (owners, errors) = assigned(&[], &[("ns/a", check(1, 5)), ("ns/b", check(2, 6))]);
    assert_eq!(owners, [(1, "ns/a".into(), 5), (2, "ns/b".into(), 6)]);
    assert_eq!(errors, [""; 0]);
}

#[test]
fn port_of_two_services_stays_with_its_owner_or_goes_to_first_by_name() {
    let both = [("ns/a", check(1, 5)), ("ns/b", check(1, 6))];
    let (owners, errors) = assigned(&[], &both);
    assert_eq!(owners, [(1, "ns/a".into(), 5)]);
    assert_eq!(errors, ["cannot serve health check of ns/b on port 1: port belongs to ns/a"]);
    let (owners, errors) = assigned(&[(1, "ns/b")], &both);
    assert_eq!(owners, [(1, "ns/b".into(), 6)]);
    assert_eq!(errors, ["cannot serve health check of ns/a on port 1: port belongs to ns/b"]);
}

#[test]
fn ports_can_be_swapped() {
    let (owners, errors) = assigned(&[(1, "ns/a"), (2, "ns/b")], &[("ns/a", check(2, 5)), ("ns/b", check(1, 6))]);
    assert_eq!(owners, [(1, "ns/b".into(), 6), (2, "ns/a".into(), 5)]);
    assert_eq!(errors, [""; 0]);
}

fn cluster() -> Cluster {
    let web = service("shop/web")
        .cluster_ip("10.96.0.1")
        .cluster_ip("fd00:10:96::1")
        .port("http", 80)
        .port("https", 443)
        .load_balancer("198.51.100.1")
        .load_balancer("2001:db8::1")
        .external_local()
        .health_check_node_port(30500);
    let plain = service("shop/plain").cluster_ip("10.96.0.2").port("http", 80).node_port(30080);
    let slice_of = |name: &str, first: &str, second: &str, elsewhere: &str| {
        slice(name, "web")
            .port("http", 8080)
            .port("https", 8443)
            .pod(pod(first).on("node-1"))
            .pod(pod(second).on("node-1").terminating())
            .pod(pod(elsewhere).on("node-2"))
    };
    Cluster::new("node-1")
        .service(web)
        .service(plain)
        .slice(slice_of("shop/web-a", "10.244.0.2", "10.244.0.3", "10.244.1.2"))
        .slice(slice_of("shop/web-b", "fd00:10:244::2", "fd00:10:244::3", "fd00:10:244:1::2"))
}

#[test]
fn ready_local_endpoints_are_counted_by_address() {
    for (family, address) in [(IpFamily::V4, "198.51.100.1"), (IpFamily::V6, "2001:db8::1")] {
        let expected = checks(&[("shop/web", check_at(30500, 1, address))]);
        assert_eq!(HealthCheck::from_table(&cluster().table(family)), expected);
    }
}

#[test]
fn endpoints_without_weight_are_not_counted() {
    let mut cluster = cluster();
    cluster.slices[0].metadata.annotations.insert("ferroute.io/weight".to_owned(), "10.244.0.2=0".to_owned());
    let expected = checks(&[("shop/web", check_at(30500, 0, "198.51.100.1"))]);
    assert_eq!(HealthCheck::from_table(&cluster.table(IpFamily::V4)), expected);
}

#[test]
fn dual_stack_pods_are_counted_once_and_addresses_are_joined() {
    let ipv4 = checks(&[("ns/a", check(1, 2)), ("ns/b", check_at(2, 3, "198.51.100.1"))]);
    let ipv6 = checks(&[("ns/a", check(1, 2)), ("ns/b", check(2, 1)), ("ns/c", check(3, 0))]);
    let merged = checks(&[("ns/a", check(1, 2)), ("ns/b", check_at(2, 3, "198.51.100.1")), ("ns/c", check(3, 0))]);
    assert_eq!(HealthCheck::merge([&ipv4, &ipv6]), merged);
}

#[test]
fn names_are_escaped_in_the_answer() {
    let owner = Owner { service: NamespacedName::new("n\"s\n", "\\"), local_endpoints: 1 };
    let value: serde_json::Value = serde_json::from_str(&body(owner.response(true))).expect("an answer in JSON");
    assert_eq!(value["service"], serde_json::json!({"namespace": "n\"s\n", "name": "\\"}));
}

#[test]
fn addresses_of_the_load_balancer_are_added_unless_node_addresses_include_them() {
    let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let check = HealthCheck {
        load_balancer_addresses: BTreeSet::from([address("198.51.100.1"), address("2001:db8::1")]),
        ..check(1, 1)
    };
    let scopes = |scopes: &[ListenScope]| check.scopes(scopes).collect::<Vec<_>>();
    let (v4, v6) = (address("198.51.100.1"), address("2001:db8::1"));
    let node = ListenScope::Address(address("192.0.2.1"));
    assert_eq!(scopes(&[node]), [node, ListenScope::Floating(v4), ListenScope::Floating(v6)]);
    assert_eq!(scopes(&[ListenScope::Any]), [ListenScope::Any]);
    let any_v4 = ListenScope::AnyOf(IpFamily::V4);
    assert_eq!(scopes(&[any_v4]), [any_v4, ListenScope::Floating(v6)]);
    assert_eq!(scopes(&[ListenScope::Address(v4)]), [ListenScope::Address(v4), ListenScope::Floating(v6)]);
}
