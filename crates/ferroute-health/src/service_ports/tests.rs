use ferroute_core::{IpFamily, testing::*};

use super::*;

fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("not zero")
}

fn check(number: u16, local_endpoints: usize) -> HealthCheck {
    HealthCheck { port: port(number), local_endpoints }
}

fn wanted(items: &[(&str, HealthCheck)]) -> BTreeMap<ServiceName, HealthCheck> {
    items.iter().map(|(name, check)| (service_name(name), *check)).collect()
}

/// Who has which port after `current`, and what is wrong.
fn assigned(current: &[(u16, &str)], wanted_items: &[(&str, HealthCheck)]) -> (Vec<(u16, String, usize)>, Vec<String>) {
    let current = current
        .iter()
        .map(|(number, name)| (port(*number), Owner { service: service_name(name), local_endpoints: 0 }))
        .collect();
    let mut errors = Vec::new();
    let owners = assign(&current, &wanted(wanted_items), &mut errors)
        .into_iter()
        .map(|(port, owner)| (port.get(), owner.service.as_str().to_owned(), owner.local_endpoints))
        .collect();
    (owners, errors.iter().map(ToString::to_string).collect())
}

#[test]
fn each_service_gets_its_port() {
    let (owners, errors) = assigned(&[], &[("ns/a", check(1, 5)), ("ns/b", check(2, 6))]);
    assert_eq!(owners, [(1, "ns/a".into(), 5), (2, "ns/b".into(), 6)]);
    assert_eq!(errors, [""; 0]);
}

#[test]
fn of_two_services_with_one_port_the_first_has_it_unless_the_other_had_it_before() {
    let both = [("ns/a", check(1, 5)), ("ns/b", check(1, 6))];
    let (owners, errors) = assigned(&[], &both);
    assert_eq!(owners, [(1, "ns/a".into(), 5)]);
    assert_eq!(errors, ["failed to start health check of ns/b on port 1: the port is that of ns/a"]);
    let (owners, errors) = assigned(&[(1, "ns/b")], &both);
    assert_eq!(owners, [(1, "ns/b".into(), 6)]);
    assert_eq!(errors, ["failed to start health check of ns/a on port 1: the port is that of ns/b"]);
}

#[test]
fn a_port_can_change_hands() {
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
    Cluster::of_node("node-1")
        .service(web)
        .service(plain)
        .slice(slice_of("shop/web-a", "10.244.0.2", "10.244.0.3", "10.244.1.2"))
        .slice(slice_of("shop/web-b", "fd00:10:244::2", "fd00:10:244::3", "fd00:10:244:1::2"))
}

#[test]
fn ready_endpoints_of_this_node_count_by_address() {
    for family in IpFamily::BOTH {
        assert_eq!(HealthCheck::of_table(&cluster().table(family)), wanted(&[("shop/web", check(30500, 1))]));
    }
}

#[test]
fn pods_with_two_addresses_count_once() {
    let ipv4 = wanted(&[("ns/a", check(1, 2)), ("ns/b", check(2, 3))]);
    let ipv6 = wanted(&[("ns/a", check(1, 2)), ("ns/b", check(2, 1)), ("ns/c", check(3, 0))]);
    let merged = wanted(&[("ns/a", check(1, 2)), ("ns/b", check(2, 3)), ("ns/c", check(3, 0))]);
    assert_eq!(HealthCheck::merge([&ipv4, &ipv6]), merged);
}

#[test]
fn names_from_a_file_cannot_break_the_answer() {
    let owner = Owner { service: ServiceName::new("n\"s\n", "\\"), local_endpoints: 1 };
    let mut body = Box::pin(owner.response(true).into_body());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Some(Ok(frame))) = hyper::body::Body::poll_frame(body.as_mut(), &mut context) else {
        panic!("a body in memory is there at once")
    };
    let value: serde_json::Value =
        serde_json::from_slice(&frame.into_data().expect("data")).expect("an answer in JSON");
    assert_eq!(value["service"], serde_json::json!({"namespace": "n\"s\n", "name": "\\"}));
}
