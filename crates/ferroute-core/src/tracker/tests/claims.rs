use std::ops::RangeInclusive;

use super::*;
use crate::{Frontend, FrontendKind, HostState, OtherHosts, Protocol, ProxySettings};

fn dns() -> ServiceBuilder {
    service("kube-system/kube-dns").cluster_ip("10.96.0.10").udp("dns", 53)
}

fn evil() -> ServiceBuilder {
    service("aaa/evil").cluster_ip("10.96.0.66").udp("dns", 53).external_ip("10.96.0.10")
}

fn created(builder: ServiceBuilder, text: &str) -> ServiceBuilder {
    builder.with(|service| service.metadata.creation_timestamp = Some(text.to_owned()))
}

/// Returns the IPv4 service ports with a frontend at an address; a node port's is `*`.
fn owners(tracker: &Tracker, address: &str) -> Vec<String> {
    let address = (address != "*").then(|| address.parse().unwrap());
    let has = |(name, entry): &(&ServicePortName, &ServicePortEntry)| {
        entry.service.frontends(name.protocol).any(|(_, frontend)| frontend.address == address)
    };
    tracker.table(IpFamily::V4).entries.iter().filter(has).map(|(name, _)| name.to_string()).collect()
}

fn lost(tracker: &Tracker) -> Vec<String> {
    let lost = &tracker.table(IpFamily::V4).lost;
    lost.iter().flat_map(|(name, lost)| lost.frontends.iter().map(move |lost| format!("{name}: {lost}"))).collect()
}

/// Sets the host's addresses, all of which serve node ports.
fn set_host(tracker: &mut Tracker, addresses: &[&str]) {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    let host = HostState { addresses, ..HostState::default() };
    tracker.set_host_addresses(IpFamily::V4, &ProxySettings::default(), &host.addresses);
}

#[test]
fn external_ip_cannot_take_over_a_cluster_ip() {
    let mut tracker = tracker();
    set_service(&mut tracker, evil());
    update(&mut tracker);
    assert_eq!(owners(&tracker, "10.96.0.10"), ["aaa/evil:dns"], "no other Service claims it");
    set_service(&mut tracker, dns());
    assert_eq!(update(&mut tracker), ["~aaa/evil:dns", "+kube-system/kube-dns:dns"]);
    assert_eq!(owners(&tracker, "10.96.0.10"), ["kube-system/kube-dns:dns"]);
    assert_eq!(owners(&tracker, "10.96.0.66"), ["aaa/evil:dns"], "its own address is served");
    let expected = "aaa/evil:dns: external IP 10.96.0.10:53/udp belongs to kube-system/kube-dns:dns (cluster IP)";
    assert_eq!(lost(&tracker), [expected]);
}

#[test]
fn claims_are_per_port_and_protocol() {
    let mut tracker = tracker();
    set_service(&mut tracker, dns());
    set_service(&mut tracker, evil().port("other", 53).udp("else", 54));
    update(&mut tracker);
    assert_eq!(
        owners(&tracker, "10.96.0.10"),
        ["aaa/evil:else", "aaa/evil:other", "kube-system/kube-dns:dns"],
        "as in kube-proxy, unused ports of a cluster IP are free"
    );
    assert_eq!(lost(&tracker).len(), 1);
}

#[test]
fn next_claim_inherits_a_frontend() {
    let claim = |name: &str, ip: &str, time| {
        created(service(name).cluster_ip(ip).port("http", 80).external_ip("203.0.113.1"), time)
    };
    let mut tracker = tracker();
    set_service(&mut tracker, claim("shop/a", "10.96.0.1", "2026-01-03T00:00:00Z"));
    set_service(&mut tracker, claim("shop/b", "10.96.0.2", "2026-01-01T00:00:00Z"));
    set_service(&mut tracker, claim("shop/c", "10.96.0.3", "2026-01-02T00:00:00Z"));
    update(&mut tracker);
    let owner = |tracker: &Tracker| owners(tracker, "203.0.113.1");
    assert_eq!(owner(&tracker), ["shop/b:http"], "the oldest");
    assert_eq!(lost(&tracker).len(), 2);
    tracker.delete_service(&namespaced_name("shop/b"));
    let changes = tracker.update(IpFamily::V4);
    assert_eq!(summary(&tracker, &changes, IpFamily::V4), ["-shop/b:http", "~shop/c:http"]);
    assert_eq!(changes.lost, BTreeSet::from(["shop/a:http", "shop/c:http"].map(port_name)), "one gets another owner");
    assert_eq!(owner(&tracker), ["shop/c:http"]);
    set_service(&mut tracker, claim("shop/c", "10.96.0.3", "2026-01-04T00:00:00Z"));
    assert_eq!(update(&mut tracker), ["~shop/a:http", "~shop/c:http"], "the Service was created again");
    assert_eq!(owner(&tracker), ["shop/a:http"]);
    tracker.delete_service(&namespaced_name("shop/a"));
    tracker.delete_service(&namespaced_name("shop/c"));
    update(&mut tracker);
    assert_eq!((owner(&tracker), lost(&tracker)), (vec![], vec![]));
}

#[test]
fn load_balancer_ip_comes_before_external_ip() {
    let mut tracker = tracker();
    let old = "2020-01-01T00:00:00Z";
    let external = service("shop/a").cluster_ip("10.96.0.1").port("http", 80).external_ip("198.51.100.1");
    set_service(&mut tracker, created(external, old));
    set_service(&mut tracker, service("shop/b").cluster_ip("10.96.0.2").port("http", 80).load_balancer("198.51.100.1"));
    update(&mut tracker);
    assert_eq!(owners(&tracker, "198.51.100.1"), ["shop/b:http"]);
    assert_eq!(
        lost(&tracker),
        ["shop/a:http: external IP 198.51.100.1:80/tcp belongs to shop/b:http (load balancer IP)"]
    );
}

/// Otherwise the node could not reach the API server any more, and the proxy would not receive the deletion of the
/// Service.
#[test]
fn endpoints_of_the_api_server_belong_to_it() {
    let api_server = |address: &str| slice("default/kubernetes", "kubernetes").port("https", 6443).pod(pod(address));
    let kubernetes = || service("default/kubernetes").cluster_ip("10.96.0.1").port("https", 443);
    let external = || service("shop/a").cluster_ip("10.96.0.2").port("a", 6443).port("b", 80).external_ip("192.0.2.1");
    let balanced = || service("shop/b").cluster_ip("10.96.0.3").port("b", 6443).load_balancer("192.0.2.2");
    let expected = ["shop/a:a: external IP 192.0.2.1:6443/tcp is reserved for the API server".to_owned()];

    let mut first = tracker();
    set_service(&mut first, kubernetes());
    set_slice(&mut first, api_server("192.0.2.1"));
    set_service(&mut first, external());
    update(&mut first);
    assert_eq!(lost(&first), expected);
    assert_eq!(owners(&first, "192.0.2.1"), ["shop/a:b"], "its other ports are free");

    let mut last = tracker();
    for service in [external(), balanced()] {
        set_service(&mut last, service);
    }
    update(&mut last);
    set_service(&mut last, kubernetes());
    set_slice(&mut last, api_server("192.0.2.1"));
    assert!(update(&mut last).contains(&"~shop/a:a".to_owned()));
    assert_eq!(lost(&last), expected, "also if the API server is known later");

    set_slice(&mut last, api_server("192.0.2.2"));
    update(&mut last);
    let balanced = "shop/b:b: load balancer IP 192.0.2.2:6443/tcp is reserved for the API server";
    assert_eq!(lost(&last), [balanced], "it has moved");
    last.delete_service(&namespaced_name("default/kubernetes"));
    update(&mut last);
    assert_eq!(lost(&last), Vec::<String>::new());
}

/// The address in a kubeconfig may be the address of a load balancer, which `default/kubernetes` does not have.
#[test]
fn address_of_the_api_server_that_the_proxy_uses_is_reserved() {
    let others = |addresses: Option<&[&str]>| {
        let parse = |addresses: &[&str]| addresses.iter().map(|text| text.parse().unwrap()).collect();
        TrackerEvent::OtherHostsApplied(OtherHosts {
            api_server: vec!["192.0.2.1:6443".parse().unwrap()],
            addresses: addresses.map(parse),
        })
    };
    let mut tracker = tracker();
    let external = service("shop/a").cluster_ip("10.96.0.2").port("a", 6443).port("b", 80).external_ip("192.0.2.1");
    set_service(&mut tracker, external);
    update(&mut tracker);
    tracker.apply(others(None));
    assert!(tracker.has_pending_changes(IpFamily::V4));
    assert_eq!(update(&mut tracker), ["~shop/a:a"]);
    assert_eq!(lost(&tracker), ["shop/a:a: external IP 192.0.2.1:6443/tcp is reserved for the API server"]);
    assert_eq!(owners(&tracker, "192.0.2.1"), ["shop/a:b"], "its other ports are free");
    assert_eq!(owners(&tracker, "10.96.0.2"), ["shop/a:a", "shop/a:b"]);

    tracker.apply(others(Some(&["192.0.2.254", "192.168.0.1"])));
    set_service(&mut tracker, service("shop/b").cluster_ip("10.96.0.3").port("b", 80).load_balancer("192.0.2.254"));
    set_service(&mut tracker, service("shop/c").cluster_ip("10.96.0.4").port("c", 80).external_ip("192.168.0.1"));
    update(&mut tracker);
    assert_eq!(owners(&tracker, "192.0.2.1"), [""; 0], "in a mode that makes addresses local, no port is free");
    assert_eq!(owners(&tracker, "192.0.2.254"), [""; 0]);
    assert_eq!(owners(&tracker, "192.168.0.1"), [""; 0]);
    set_host(&mut tracker, &["192.168.0.1"]);
    assert_eq!(update(&mut tracker), ["~shop/c:c"], "it is an address of this host");
    tracker.apply(others(None));
    assert_eq!(update(&mut tracker), ["~shop/a:b", "~shop/b:b"]);
    assert_eq!(lost(&tracker).len(), 1);
}

#[test]
fn cluster_ip_of_the_api_server_is_served_although_the_proxy_connects_to_it() {
    let mut tracker = tracker();
    set_service(&mut tracker, service("default/kubernetes").cluster_ip("10.96.0.1").port("https", 443));
    set_service(&mut tracker, service("aaa/evil").cluster_ip("10.96.0.66").port("a", 443).external_ip("10.96.0.1"));
    let api_server = vec!["10.96.0.1:443".parse().unwrap()];
    tracker.apply(TrackerEvent::OtherHostsApplied(OtherHosts { api_server, addresses: Some(Vec::new()) }));
    update(&mut tracker);
    assert_eq!(owners(&tracker, "10.96.0.1"), ["default/kubernetes:https"]);
    assert_eq!(
        lost(&tracker),
        ["aaa/evil:a: external IP 10.96.0.1:443/tcp belongs to default/kubernetes:https (cluster IP)"]
    );
}

#[test]
fn ports_of_the_node_are_reserved_on_request_and_those_of_the_proxy_always() {
    let mut tracker = tracker();
    let external = service("shop/a").cluster_ip("10.96.0.1").port("ssh", 22).port("http", 80).port("metrics", 10249);
    let external = external.port("healthz", 10256).udp("dns", 53).external_ip("192.168.0.1").external_ip("203.0.113.1");
    set_service(&mut tracker, external);
    let own_listeners: Vec<_> =
        ["127.0.0.1:10249", "0.0.0.0:10256"].into_iter().map(|text| text.parse().unwrap()).collect();
    let host = ["127.0.0.1", "192.168.0.1"].map(|text| text.parse().unwrap());
    let lost_with = |tracker: &mut Tracker, protected_node_ports: &[RangeInclusive<u16>]| {
        let protected_node_ports = protected_node_ports.to_vec();
        let own_listeners = own_listeners.clone();
        let settings = ProxySettings { own_listeners, protected_node_ports, ..ProxySettings::default() };
        tracker.set_host_addresses(IpFamily::V4, &settings, &host);
        update(tracker);
        lost(tracker)
    };
    let healthz = "shop/a:healthz: external IP 192.168.0.1:10256/tcp is reserved for the proxy's own health checks and \
                   metrics";
    let ssh = "shop/a:ssh: external IP 192.168.0.1:22/tcp is reserved for the node, by --protect-node-ports";
    assert_eq!(lost_with(&mut tracker, &[]), [healthz]);
    assert_eq!(lost_with(&mut tracker, &[22..=22, 1000..=2000]), [healthz, ssh]);
    assert_eq!(lost_with(&mut tracker, &[0..=u16::MAX]).len(), 5);
    assert_eq!(owners(&tracker, "203.0.113.1").len(), 5, "not an address of the node");
    assert_eq!(lost_with(&mut tracker, &[]), [healthz]);
}

#[test]
fn ports_of_the_proxy_and_of_an_api_server_on_this_host_are_no_node_ports() {
    let mut tracker = tracker();
    let nodes = service("shop/a").cluster_ip("10.96.0.1").port("api", 80).node_port(6443);
    set_service(&mut tracker, nodes.port("other", 81).node_port(30081).port("healthz", 82).node_port(10256));
    let api_server = vec!["192.168.0.1:6443".parse().unwrap(), "192.168.0.3:30081".parse().unwrap()];
    tracker.apply(TrackerEvent::OtherHostsApplied(OtherHosts { api_server, addresses: None }));
    let own_listeners = vec!["0.0.0.0:10256".parse().unwrap()];
    let settings = ProxySettings { own_listeners, ..ProxySettings::default() };
    tracker.set_host_addresses(IpFamily::V4, &settings, &["192.168.0.1".parse().unwrap()]);
    update(&mut tracker);
    assert_eq!(
        lost(&tracker),
        [
            "shop/a:api: node port 6443/tcp is reserved for the API server",
            "shop/a:healthz: node port 10256/tcp is reserved for the proxy's own health checks and metrics",
        ]
    );
    assert_eq!(owners(&tracker, "*"), ["shop/a:other"]);
}

/// The rules of the Service would take the load balancer's health checks of this node.
#[test]
fn health_check_node_ports_are_no_frontends_of_services_on_addresses_of_the_node() {
    let checked = || {
        let service = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).load_balancer("198.51.100.1");
        service.external_local().health_check_node_port(32000)
    };
    let mut tracker = tracker();
    set_host(&mut tracker, &["192.168.0.1"]);
    let external = service("shop/a").cluster_ip("10.96.0.2").port("a", 32000).udp("b", 32000);
    set_service(&mut tracker, external.external_ip("192.168.0.1").external_ip("203.0.113.1"));
    set_service(&mut tracker, service("shop/b").cluster_ip("10.96.0.3").port("c", 80).node_port(32000));
    set_service(&mut tracker, service("shop/d").cluster_ip("10.96.0.4").port("d", 32000).load_balancer("192.168.0.9"));
    update(&mut tracker);
    let conflict = "shop/a:a: external IP 192.168.0.1:32000/tcp belongs to shop/b:c (node port)";
    assert_eq!(lost(&tracker), [conflict], "no health checks yet");
    set_service(&mut tracker, checked());
    update(&mut tracker);
    let reserved = "is reserved for the health checks of a Service (healthCheckNodePort)";
    let external = format!("shop/a:a: external IP 192.168.0.1:32000/tcp {reserved}");
    let node_port = format!("shop/b:c: node port 32000/tcp {reserved}");
    assert_eq!(lost(&tracker), [external.clone(), node_port.clone()]);
    assert_eq!(owners(&tracker, "203.0.113.1"), ["shop/a:a", "shop/a:b"], "not an address of the node");
    set_host(&mut tracker, &["192.168.0.1", "192.168.0.9"]);
    update(&mut tracker);
    let balanced = format!("shop/d:d: load balancer IP 192.168.0.9:32000/tcp {reserved}");
    assert_eq!(lost(&tracker), [external, node_port, balanced]);
    tracker.delete_service(&namespaced_name("shop/web"));
    update(&mut tracker);
    assert_eq!(lost(&tracker).len(), 2, "shop/b has the node port again");
    assert_eq!(owners(&tracker, "*"), ["shop/b:c"]);
}

#[test]
fn node_port_comes_before_external_ip_on_addresses_of_the_node() {
    let mut tracker = tracker();
    set_service(&mut tracker, service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080));
    let evil = service("aaa/evil").cluster_ip("10.96.0.66").port("http", 30080);
    set_service(&mut tracker, evil.external_ip("192.168.0.1").external_ip("203.0.113.1"));
    update(&mut tracker);
    assert_eq!(owners(&tracker, "192.168.0.1"), ["aaa/evil:http"], "not an address of the node");
    set_host(&mut tracker, &["192.168.0.1", "192.168.0.9"]);
    assert!(tracker.has_pending_changes(IpFamily::V4));
    assert_eq!(update(&mut tracker), ["~aaa/evil:http"]);
    assert_eq!(owners(&tracker, "192.168.0.1"), [""; 0]);
    assert_eq!(owners(&tracker, "203.0.113.1"), ["aaa/evil:http"]);
    assert_eq!(
        lost(&tracker),
        ["aaa/evil:http: external IP 192.168.0.1:30080/tcp belongs to shop/web:http (node port)"]
    );
    tracker.delete_service(&namespaced_name("shop/web"));
    assert_eq!(update(&mut tracker), ["~aaa/evil:http", "-shop/web:http"]);
    assert_eq!((owners(&tracker, "192.168.0.1"), lost(&tracker)), (vec!["aaa/evil:http".to_owned()], vec![]));
    set_service(&mut tracker, service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080));
    assert_eq!(update(&mut tracker), ["~aaa/evil:http", "+shop/web:http"]);
    set_host(&mut tracker, &["192.168.0.9"]);
    assert_eq!(update(&mut tracker), ["~aaa/evil:http"]);
    assert_eq!(owners(&tracker, "192.168.0.1"), ["aaa/evil:http"]);
}

#[test]
fn service_port_does_not_compete_with_itself() {
    let mut tracker = tracker();
    set_host(&mut tracker, &["192.168.0.1"]);
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 30080).node_port(30080);
    set_service(&mut tracker, web.external_ip("192.168.0.1").load_balancer("192.168.0.1"));
    update(&mut tracker);
    assert_eq!(lost(&tracker), [""; 0]);
    let entry = &tracker.table(IpFamily::V4).entries[&port_name("shop/web:http")];
    let kinds: Vec<FrontendKind> = entry.service.frontends(Protocol::Tcp).map(|(kind, _)| kind).collect();
    use FrontendKind::*;
    assert_eq!(kinds, [ClusterIp, ExternalIp, LoadBalancer, NodePort]);
}

#[test]
fn duplicate_cluster_ips_and_node_ports_in_files_have_one_owner() {
    let mut tracker = tracker();
    for name in ["shop/b", "shop/a"] {
        set_service(&mut tracker, service(name).cluster_ip("10.96.0.1").port("http", 80).node_port(30080));
    }
    update(&mut tracker);
    assert_eq!(owners(&tracker, "10.96.0.1"), ["shop/a:http"]);
    assert_eq!(owners(&tracker, "*"), ["shop/a:http"]);
    assert_eq!(
        lost(&tracker),
        [
            "shop/b:http: cluster IP 10.96.0.1:80/tcp belongs to shop/a:http (cluster IP)",
            "shop/b:http: node port 30080/tcp belongs to shop/a:http (node port)",
        ]
    );
}

#[test]
fn change_of_endpoints_keeps_lost_frontends() {
    let mut tracker = tracker();
    set_service(&mut tracker, dns());
    set_service(&mut tracker, evil());
    update(&mut tracker);
    let service =
        |tracker: &Tracker| tracker.table(IpFamily::V4).entries[&udp_port_name("aaa/evil:dns")].service.clone();
    let before = service(&tracker);
    set_slice(&mut tracker, slice("aaa/evil-a", "evil").port_over(Protocol::Udp, "dns", 53).pod("10.244.0.2"));
    let changes = tracker.update(IpFamily::V4);
    assert_eq!(summary(&tracker, &changes, IpFamily::V4), ["~aaa/evil:dns"]);
    assert!(changes.lost.is_empty() && Arc::ptr_eq(&before, &service(&tracker)), "nothing is computed again");
    let frontend = Frontend { address: "10.96.0.10".parse().ok(), protocol: Protocol::Udp, port: 53 };
    assert_eq!(tracker.table(IpFamily::V4).lost[&udp_port_name("aaa/evil:dns")].frontends[0].frontend, frontend);
}

#[test]
fn many_services_at_once_get_the_table_that_they_get_one_by_one() {
    let (mut at_once, mut one_by_one) = (tracker(), tracker());
    for (pod, claimants) in [("10.244.0.2", 100), ("10.244.0.3", 7)] {
        for number in 0..u32::try_from(MIN_PARALLEL).unwrap() + 50 {
            let (name, claimed) = (format!("s-{number}"), format!("203.0.113.{}", number / claimants % 200));
            let cluster_ip = std::net::Ipv4Addr::from(0x0a60_0001 + number).to_string();
            for tracker in [&mut at_once, &mut one_by_one] {
                let service = service(&format!("shop/{name}")).cluster_ip(&cluster_ip).port("http", 80);
                set_service(tracker, service.external_ip(&claimed));
                set_slice(tracker, slice(&format!("shop/{name}-a"), &name).port("http", 8080).pod(pod));
            }
            one_by_one.update(IpFamily::V4);
        }
        at_once.update(IpFamily::V4);
        assert_eq!(at_once.table(IpFamily::V4), one_by_one.table(IpFamily::V4));
        assert!(!at_once.table(IpFamily::V4).lost.is_empty(), "several Services claim an address");
    }
}
