//! Health-check node ports over real connections.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use common::{Client, get, is_refused, own_address, own_ports, port};
use ferroute_admin::health::{Health, HealthCheck, HealthCheckPorts, PortError};
use ferroute_admin::http::{Budget, HttpThread, Limits, ListenScope};
use ferroute_core::{IpFamily, NamespacedName};

struct Bench {
    ports: HealthCheckPorts,
    health: Arc<Health>,
}

impl Bench {
    fn new(timeout: Duration) -> Self {
        Self::with_budget(timeout, Budget::default())
    }

    fn with_budget(timeout: Duration, budget: Budget) -> Self {
        let health = Arc::new(Health::new(timeout));
        let http = Arc::new(HttpThread::start(budget).expect("a thread"));
        Self { ports: HealthCheckPorts::new(http, Arc::clone(&health), Limits::default()), health }
    }

    /// `checks` lists for each Service its port and its number of endpoints.
    fn update(&mut self, on: &[SocketAddr], checks: &[(&str, SocketAddr, usize)]) -> Vec<String> {
        let scopes: Vec<ListenScope> = on.iter().map(|address| ListenScope::Address(address.ip())).collect();
        let checks: BTreeMap<NamespacedName, HealthCheck> = checks
            .iter()
            .map(|(name, address, local_endpoints)| {
                let (port, local_endpoints) = (port(*address), *local_endpoints);
                let check = HealthCheck { port, local_endpoints, load_balancer_addresses: BTreeSet::new() };
                (NamespacedName::new("ns1", name), check)
            })
            .collect();
        self.ports.update(&scopes, &checks).iter().map(chain).collect()
    }
}

fn chain(error: &PortError) -> String {
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
fn every_path_reports_the_number_of_endpoints() {
    let address = own_address();
    let mut bench = Bench::new(LONG);
    assert_eq!(bench.update(&[address], &[("web", address, 2)]), NONE);
    for path in ["/", "/healthz", "/any/path?x=y"] {
        assert_eq!(get(address, path), answer("200 OK", "web", 2, true));
    }
    assert_eq!(bench.update(&[address], &[("web", address, 0)]), NONE);
    assert_eq!(get(address, "/"), answer("503 Service Unavailable", "web", 0, true));
}

#[test]
fn unhealthy_proxy_answers_503_with_weight() {
    let address = own_address();
    let mut bench = Bench::new(Duration::ZERO);
    bench.update(&[address], &[("web", address, 2)]);
    bench.health.updated(IpFamily::V4);
    assert_eq!(get(address, "/"), answer("200 OK", "web", 2, true));
    // With a timeout of zero a change is late immediately.
    bench.health.queued(IpFamily::V4);
    assert_eq!(get(address, "/"), answer("503 Service Unavailable", "web", 2, false));
    bench.health.updated(IpFamily::V4);
    // Eligibility of the node has no effect on these ports.
    bench.health.set_node_eligible(false);
    assert_eq!(get(address, "/"), answer("200 OK", "web", 2, true));
}

#[test]
fn removed_service_closes_its_port_only() {
    let [one, two] = own_ports();
    let mut bench = Bench::new(LONG);
    assert_eq!(bench.update(&[one], &[("a", one, 1), ("b", two, 2)]), NONE);
    let mut removed = Client::connect(one).expect("a connection");
    let mut kept = Client::connect(two).expect("a connection");
    assert_eq!(removed.request("GET", "/"), answer("200 OK", "a", 1, true));
    assert_eq!(kept.request("GET", "/"), answer("200 OK", "b", 2, true));

    assert_eq!(bench.update(&[one], &[("b", two, 3)]), NONE);
    assert!(is_refused(one));
    assert!(removed.is_closed());
    assert_eq!(kept.request("GET", "/"), answer("200 OK", "b", 3, true));

    assert_eq!(bench.update(&[one], &[("a", one, 4), ("b", two, 3)]), NONE);
    assert_eq!(get(one, "/"), answer("200 OK", "a", 4, true));
}

#[test]
fn swapped_ports_stay_open() {
    let [one, two] = own_ports();
    let mut bench = Bench::new(LONG);
    bench.update(&[one], &[("a", one, 1), ("b", two, 2)]);
    let mut client = Client::connect(one).expect("a connection");
    assert_eq!(client.request("GET", "/"), answer("200 OK", "a", 1, true));
    assert_eq!(bench.update(&[one], &[("a", two, 1), ("b", one, 2)]), NONE);
    assert_eq!(client.request("GET", "/"), answer("200 OK", "b", 2, true));
    assert_eq!(get(two, "/"), answer("200 OK", "a", 1, true));
}

#[test]
fn service_with_new_port_closes_the_old_one() {
    let [one, two] = own_ports();
    let mut bench = Bench::new(LONG);
    bench.update(&[one], &[("a", one, 1)]);
    assert_eq!(bench.update(&[one], &[("a", two, 1)]), NONE);
    assert!(is_refused(one));
    assert_eq!(get(two, "/"), answer("200 OK", "a", 1, true));
}

#[test]
fn taken_port_is_reported_and_retried_by_next_update() {
    let [one, two] = own_ports();
    let taken = TcpListener::bind(one).expect("the port");
    let mut bench = Bench::new(LONG);
    let checks = [("a", one, 1), ("b", two, 2)];
    let error = format!("cannot serve health check of ns1/a on port {}: cannot listen on {one}", one.port());
    assert_eq!(bench.update(&[one], &checks), [error.as_str()]);
    assert_eq!(get(two, "/"), answer("200 OK", "b", 2, true));
    assert_eq!(bench.update(&[one], &checks), [error]);
    drop(taken);
    assert_eq!(bench.update(&[one], &checks), NONE);
    assert_eq!(get(one, "/"), answer("200 OK", "a", 1, true));
}

#[test]
fn ports_beyond_the_budget_are_reported_and_others_are_served() {
    let [one, two, three] = own_ports();
    let mut bench = Bench::with_budget(LONG, Budget { descriptors: 4, connections: 4, least_connections: 2 });
    let error = |name: &str, at: SocketAddr| {
        format!(
            "cannot serve health check of ns1/{name} on port {}: too many open ports (2) for the limit of open files; \
             raise LimitNOFILE or ulimit -n",
            at.port()
        )
    };
    let checks = [("a", one, 1), ("b", two, 1), ("c", three, 1)];
    let errors = bench.update(&[one], &checks);
    // Ports are opened in the order of their numbers.
    let (last_name, last) = [("a", one), ("b", two), ("c", three)].into_iter().max_by_key(|(_, at)| at.port()).unwrap();
    assert_eq!(errors, [error(last_name, last)]);
    let served = checks.iter().filter(|(name, ..)| *name != last_name);
    served.clone().for_each(|(name, at, _)| assert_eq!(get(*at, "/"), answer("200 OK", name, 1, true)));
    // Once a port is closed, another one can be opened.
    let (closed, ..) = served.clone().next().unwrap();
    let left: Vec<_> = checks.iter().copied().filter(|(name, ..)| name != closed).collect();
    assert_eq!(bench.update(&[one], &left), NONE);
    assert_eq!(get(last, "/"), answer("200 OK", last_name, 1, true));
}

#[test]
fn addresses_are_added_and_removed() {
    let (one, two) = (own_address(), own_address());
    let on_two = SocketAddr::new(two.ip(), one.port());
    // Documentation network: no host has this address.
    let foreign = SocketAddr::new("192.0.2.1".parse().expect("an address"), 0);
    let mut bench = Bench::new(LONG);
    let checks = [("a", one, 1)];
    let error = format!("cannot serve health check of ns1/a on port {0}: cannot listen on 192.0.2.1:{0}", one.port());
    assert_eq!(bench.update(&[one, foreign], &checks), [error]);
    let mut client = Client::connect(one).expect("a connection");
    assert_eq!(client.request("GET", "/"), answer("200 OK", "a", 1, true));
    assert!(is_refused(on_two));

    assert_eq!(bench.update(&[one, two], &checks), NONE);
    assert_eq!(client.request("GET", "/"), answer("200 OK", "a", 1, true));
    assert_eq!(get(on_two, "/"), answer("200 OK", "a", 1, true));

    assert_eq!(bench.update(&[two], &checks), NONE);
    assert!(is_refused(one));
    assert!(client.is_closed());
    assert_eq!(get(on_two, "/"), answer("200 OK", "a", 1, true));
    assert_eq!(bench.update(&[], &checks), NONE);
    assert!(is_refused(on_two));
}

#[test]
fn dropping_closes_every_port() {
    let address = own_address();
    let mut bench = Bench::new(LONG);
    bench.update(&[address], &[("a", address, 1)]);
    assert!(!is_refused(address));
    drop(bench);
    assert!(is_refused(address));
}
