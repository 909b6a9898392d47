//! Health-check node ports over real connections.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod common;

use std::{
    collections::BTreeMap,
    error::Error,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use common::{Client, ask, ip, is_refused, own_address, own_ports, port};
use ferroute_core::{IpFamily, ServiceName};
use ferroute_health::{Health, HealthCheck, HealthCheckPorts, HttpThread, Limits, ListenScope, PortError};

struct Bench {
    ports: HealthCheckPorts,
    health: Arc<Health>,
}

impl Bench {
    fn new(timeout: Duration) -> Self {
        let health = Arc::new(Health::new(timeout));
        let http = Arc::new(HttpThread::start().expect("a thread"));
        Self { ports: HealthCheckPorts::new(http, Arc::clone(&health), Limits::default()), health }
    }

    /// Where to listen, and for each Service its port and its number of endpoints.
    fn update(&mut self, on: &[SocketAddr], wanted: &[(&str, SocketAddr, usize)]) -> Vec<String> {
        let scopes: Vec<ListenScope> = on.iter().map(|address| ListenScope::One(ip(*address))).collect();
        let wanted: BTreeMap<ServiceName, HealthCheck> = wanted
            .iter()
            .map(|(name, address, local_endpoints)| {
                let check = HealthCheck { port: port(*address), local_endpoints: *local_endpoints };
                (ServiceName::new("ns1", name), check)
            })
            .collect();
        self.ports.update(&scopes, &wanted).iter().map(shown).collect()
    }
}

fn shown(error: &PortError) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn answer(status: &str, name: &str, endpoints: usize, healthy: bool) -> String {
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"ns1\",\n\t\t\"name\": \"{name}\"\n\t}},\n\
         \t\"localEndpoints\": {endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    );
    format!(
        "HTTP/1.1 {status}\nContent-Type: application/json\nX-Content-Type-Options: nosniff\n\
         X-Load-Balancing-Endpoint-Weight: {endpoints}\nContent-Length: {}\nDate: <date>\n\n{body}",
        body.len()
    )
}

const NONE: [&str; 0] = [];
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn every_path_tells_the_number_of_endpoints() {
    let address = own_address();
    let mut bench = Bench::new(LONG);
    assert_eq!(bench.update(&[address], &[("web", address, 2)]), NONE);
    for path in ["/", "/healthz", "/any/path?x=y"] {
        assert_eq!(ask(address, path), answer("200 OK", "web", 2, true));
    }
    assert_eq!(bench.update(&[address], &[("web", address, 0)]), NONE);
    assert_eq!(ask(address, "/"), answer("503 Service Unavailable", "web", 0, true));
}

#[test]
fn an_unhealthy_proxy_is_no_target_but_keeps_its_weight() {
    let address = own_address();
    let mut bench = Bench::new(Duration::ZERO);
    bench.update(&[address], &[("web", address, 2)]);
    bench.health.updated(IpFamily::V4);
    assert_eq!(ask(address, "/"), answer("200 OK", "web", 2, true));
    // With no time to write it, a change is late at once.
    bench.health.queued(IpFamily::V4);
    assert_eq!(ask(address, "/"), answer("503 Service Unavailable", "web", 2, false));
    bench.health.updated(IpFamily::V4);
    // Whether load balancers may use the node is another question.
    bench.health.node_eligible(false);
    assert_eq!(ask(address, "/"), answer("200 OK", "web", 2, true));
}

#[test]
fn a_port_goes_with_its_service_and_the_others_stay_open() {
    let [one, two] = own_ports();
    let mut bench = Bench::new(LONG);
    assert_eq!(bench.update(&[one], &[("a", one, 1), ("b", two, 2)]), NONE);
    let mut going = Client::connect(one).expect("a connection");
    let mut staying = Client::connect(two).expect("a connection");
    assert_eq!(going.ask("GET", "/"), answer("200 OK", "a", 1, true));
    assert_eq!(staying.ask("GET", "/"), answer("200 OK", "b", 2, true));

    assert_eq!(bench.update(&[one], &[("b", two, 3)]), NONE);
    assert!(is_refused(one));
    assert!(going.is_closed());
    assert_eq!(staying.ask("GET", "/"), answer("200 OK", "b", 3, true));

    assert_eq!(bench.update(&[one], &[("a", one, 4), ("b", two, 3)]), NONE);
    assert_eq!(ask(one, "/"), answer("200 OK", "a", 4, true));
}

#[test]
fn a_port_that_changes_hands_is_not_closed() {
    let [one, two] = own_ports();
    let mut bench = Bench::new(LONG);
    bench.update(&[one], &[("a", one, 1), ("b", two, 2)]);
    let mut client = Client::connect(one).expect("a connection");
    assert_eq!(client.ask("GET", "/"), answer("200 OK", "a", 1, true));
    assert_eq!(bench.update(&[one], &[("a", two, 1), ("b", one, 2)]), NONE);
    assert_eq!(client.ask("GET", "/"), answer("200 OK", "b", 2, true));
    assert_eq!(ask(two, "/"), answer("200 OK", "a", 1, true));
}

#[test]
fn a_service_that_moves_to_another_port_leaves_the_old_one() {
    let [one, two] = own_ports();
    let mut bench = Bench::new(LONG);
    bench.update(&[one], &[("a", one, 1)]);
    assert_eq!(bench.update(&[one], &[("a", two, 1)]), NONE);
    assert!(is_refused(one));
    assert_eq!(ask(two, "/"), answer("200 OK", "a", 1, true));
}

#[test]
fn a_port_that_is_taken_is_told_and_tried_again_at_the_next_update() {
    let [one, two] = own_ports();
    let taken = TcpListener::bind(one).expect("the port");
    let mut bench = Bench::new(LONG);
    let wanted = [("a", one, 1), ("b", two, 2)];
    let error = format!("failed to start health check of ns1/a on port {}: failed to listen on {one}", one.port());
    assert_eq!(bench.update(&[one], &wanted), [error.as_str()]);
    assert_eq!(ask(two, "/"), answer("200 OK", "b", 2, true));
    assert_eq!(bench.update(&[one], &wanted), [error]);
    drop(taken);
    assert_eq!(bench.update(&[one], &wanted), NONE);
    assert_eq!(ask(one, "/"), answer("200 OK", "a", 1, true));
}

#[test]
fn addresses_may_come_and_go() {
    let (one, two) = (own_address(), own_address());
    let on_two = SocketAddr::new(two.ip(), one.port());
    // A network for documentation: no host has addresses of it.
    let elsewhere = SocketAddr::new("192.0.2.1".parse().expect("an address"), 0);
    let mut bench = Bench::new(LONG);
    let wanted = [("a", one, 1)];
    let error =
        format!("failed to start health check of ns1/a on port {0}: failed to listen on 192.0.2.1:{0}", one.port());
    assert_eq!(bench.update(&[one, elsewhere], &wanted), [error]);
    let mut client = Client::connect(one).expect("a connection");
    assert_eq!(client.ask("GET", "/"), answer("200 OK", "a", 1, true));
    assert!(is_refused(on_two));

    assert_eq!(bench.update(&[one, two], &wanted), NONE);
    assert_eq!(client.ask("GET", "/"), answer("200 OK", "a", 1, true));
    assert_eq!(ask(on_two, "/"), answer("200 OK", "a", 1, true));

    assert_eq!(bench.update(&[two], &wanted), NONE);
    assert!(is_refused(one));
    assert!(client.is_closed());
    assert_eq!(ask(on_two, "/"), answer("200 OK", "a", 1, true));
    assert_eq!(bench.update(&[], &wanted), NONE);
    assert!(is_refused(on_two));
}

#[test]
fn the_end_of_it_closes_every_port() {
    let address = own_address();
    let mut bench = Bench::new(LONG);
    bench.update(&[address], &[("a", address, 1)]);
    assert!(!is_refused(address));
    drop(bench);
    assert!(is_refused(address));
}
