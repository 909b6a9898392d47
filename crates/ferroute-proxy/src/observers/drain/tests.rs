use std::convert::Infallible;

use ferroute_core::testing::{Cluster, pod, port_name, service, slice};

use super::*;

fn shop() -> Cluster {
    let slices = |port| slice("shop/web-a", "web").port("http", port);
    Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080))
        .service(service("shop/other").cluster_ip("10.96.0.2").port("http", 80))
        .slice(slices(8080).pod("10.244.0.2").pod(pod("10.244.0.3").terminating()))
        .slice(slice("shop/other-a", "other").port("http", 8080).pod(pod("10.244.0.3").terminating()))
}

fn ports(cluster: &Cluster) -> Vec<DrainingPort> {
    let shared = Arc::new(DrainState::default());
    let mut observer = DrainObserver::new(Arc::clone(&shared), Tasks::new().0, &ModeTraits::NFTABLES);
    let table = cluster.table(IpFamily::V4);
    for name in table.entries.keys() {
        observer.update(&table, &name.service);
    }
    let ([ports, _], _) = shared.ports.get();
    ports
}

/// A TCP connection to a frontend that reached an endpoint.
fn connection(to: &str, endpoint: &str, is_open: bool) -> Entry {
    let client = "192.0.2.1:4000".parse().unwrap();
    Entry {
        protocol: Protocol::Tcp,
        original_source: client,
        original_destination: to.parse().unwrap(),
        reply_source: endpoint.parse().unwrap(),
        reply_destination: client,
        is_open,
        is_answered: true,
    }
}

fn count_of(cluster: &Cluster, entries: &[Entry]) -> Option<Draining> {
    let read = |protocol, _: &BTreeSet<IpAddr>, each: &mut dyn FnMut(&Entry)| {
        entries.iter().filter(|entry| entry.protocol == protocol).for_each(each);
        Ok::<(), Infallible>(())
    };
    count(IpFamily::V4, &ports(cluster), read).unwrap()
}

#[test]
fn open_connections_to_terminating_endpoints_are_counted_by_service_port() {
    let endpoint = "10.244.0.3:8080";
    let entries = [
        connection("10.96.0.1:80", endpoint, true),
        connection("192.0.2.9:30080", endpoint, true),
        connection("10.96.0.2:80", endpoint, true),
        // A closed connection, and connections to another endpoint, to another port, to the pod itself, and to an
        // address without a Service.
        connection("10.96.0.1:80", endpoint, false),
        connection("10.96.0.1:80", "10.244.0.2:8080", true),
        connection("10.96.0.1:80", "10.244.0.3:9090", true),
        connection(endpoint, endpoint, true),
        connection("10.96.0.7:80", endpoint, true),
    ];
    let draining = count_of(&shop(), &entries).unwrap();
    let services = vec![("shop/web:http".to_owned(), 2), ("shop/other:http".to_owned(), 1)];
    assert_eq!(draining, Draining { family: IpFamily::V4, endpoints: 1, services, other_services: 0 });
}

#[test]
fn nothing_is_counted_without_terminating_endpoints() {
    let cluster = shop()
        .slice(slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2"))
        .slice(slice("shop/other-a", "other").port("http", 8080).pod("10.244.0.3"));
    assert_eq!(count_of(&cluster, &[connection("10.96.0.1:80", "10.244.0.3:8080", true)]), None);
}

#[test]
fn service_ports_beyond_the_limit_share_one_count() {
    let mut cluster = Cluster::new("node-1");
    let mut entries = Vec::new();
    for number in 0..MAX_PORTS + 5 {
        let (name, ip) = (format!("web-{number:03}"), format!("10.96.1.{number}"));
        let endpoint = format!("10.244.1.{number}");
        cluster = cluster
            .service(service(&format!("shop/{name}")).cluster_ip(&ip).port("http", 80))
            .slice(slice(&format!("shop/{name}-a"), &name).port("http", 8080).pod(pod(&endpoint).terminating()));
        entries.push(connection(&format!("{ip}:80"), &format!("{endpoint}:8080"), true));
    }
    // The service port with the most connections has a separate count.
    entries.push(*entries.last().unwrap());
    let draining = count_of(&cluster, &entries).unwrap();
    assert_eq!((draining.services.len(), draining.other_services), (MAX_PORTS, 5));
    assert_eq!(draining.services[0], (format!("shop/web-{}:http", MAX_PORTS + 4), 2));
}

#[test]
fn service_without_terminating_endpoints_is_removed_with_its_counts() {
    let shared = Arc::new(DrainState::default());
    let mut observer = DrainObserver::new(Arc::clone(&shared), Tasks::new().0, &ModeTraits::NFTABLES);
    let name = port_name("shop/web:http").service;
    let mut cluster = shop();
    observer.update(&cluster.table(IpFamily::V4), &name);
    assert!(shared.ports.has_some(IpFamily::V4));
    *shared.lock() = vec![Draining { family: IpFamily::V4, endpoints: 1, services: Vec::new(), other_services: 0 }];
    cluster = cluster.slice(slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2"));
    observer.update(&cluster.table(IpFamily::V4), &name);
    assert!(!shared.ports.has_some(IpFamily::V4));
    assert_eq!(shared.counts(), []);
}

#[test]
fn deadlines_follow_the_annotation_from_the_same_start() {
    let shared = Arc::new(DrainState::default());
    let mut observer = DrainObserver::new(Arc::clone(&shared), Tasks::new().0, &ModeTraits::NFTABLES);
    let web = |timeout: Option<&str>| {
        let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
        timeout.map_or(web.clone(), |timeout| web.annotation("ferroute.io/drain-timeout", timeout))
    };
    let mut end_after = |timeout| {
        let table = shop().service(web(timeout)).table(IpFamily::V4);
        observer.update(&table, &port_name("shop/web:http").service);
        let ([ports, _], _) = shared.ports.get();
        let termination = ports[0].endpoints[&"10.244.0.3:8080".parse().unwrap()];
        (termination.since, termination.deadline.map(|deadline| deadline - termination.since.unwrap()))
    };
    let (since, end) = end_after(Some("60s"));
    assert_eq!(end, Some(Duration::from_secs(60)));
    for (timeout, seconds) in [(Some("2s"), Some(2)), (None, None), (Some("90s"), Some(90))] {
        assert_eq!(end_after(timeout), (since, seconds.map(Duration::from_secs)));
    }
}

#[test]
fn deadline_of_the_last_endpoint_starts_once_there_is_another() {
    let shared = Arc::new(DrainState::default());
    let mut observer = DrainObserver::new(Arc::clone(&shared), Tasks::new().0, &ModeTraits::NFTABLES);
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
    let alone = Cluster::new("node-1")
        .service(web.annotation("ferroute.io/drain-timeout", "60s"))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.3").terminating()));
    let mut termination = |cluster: &Cluster| {
        observer.update(&cluster.table(IpFamily::V4), &port_name("shop/web:http").service);
        shared.ports.get().0[0][0].endpoints[&"10.244.0.3:8080".parse().unwrap()]
    };
    assert_eq!(termination(&alone), Termination { since: None, deadline: None, has_left: false });
    let before = Instant::now();
    let ended = termination(&alone.slice(slice("shop/web-b", "web").port("http", 8080).pod("10.244.0.2")));
    assert!(ended.since.is_some_and(|since| since >= before) && ended.deadline.is_some());
}

#[test]
fn endpoint_that_leaves_its_slice_keeps_its_deadline() {
    let shared = Arc::new(DrainState::default());
    let mut observer = DrainObserver::new(Arc::clone(&shared), Tasks::new().0, &ModeTraits::NFTABLES);
    let mut terminations = |cluster: &Cluster| -> Vec<(SocketAddr, Termination)> {
        observer.update(&cluster.table(IpFamily::V4), &port_name("shop/web:http").service);
        let ([ports, _], _) = shared.ports.get();
        ports.into_iter().flat_map(|port| port.endpoints).collect()
    };
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
    let with_deadline = shop().service(web.clone().annotation("ferroute.io/drain-timeout", "60s"));
    let before = terminations(&with_deadline);
    let slice = || slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2");
    let gone = with_deadline.clone().slice(slice());
    let left = Termination { has_left: true, ..before[0].1 };
    assert_eq!(terminations(&gone), [(before[0].0, left)]);
    // A further change does not forget it. A new pod with its address does, and so does the end of the annotation.
    assert_eq!(terminations(&gone), [(before[0].0, left)]);
    assert_eq!(terminations(&with_deadline.clone().slice(slice().pod("10.244.0.3"))), []);
    assert_eq!((terminations(&with_deadline).len(), terminations(&gone).len()), (1, 1));
    assert_eq!(terminations(&gone.clone().service(web)), []);
    // Once its connections have ended, it is forgotten.
    assert_eq!((terminations(&with_deadline).len(), terminations(&gone).len()), (1, 1));
    shared.ports.remove(|termination| termination.has_left && termination.has_expired(Instant::now()));
    assert!(shared.ports.has_some(IpFamily::V4));
    let later = Instant::now() + Duration::from_secs(60);
    shared.ports.remove(|termination| termination.has_left && termination.has_expired(later));
    assert!(!shared.ports.has_some(IpFamily::V4));
}
