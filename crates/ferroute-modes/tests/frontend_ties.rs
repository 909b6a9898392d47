//! A cluster IP that is an address of the node, and the node port of another Service with the same number: in every
//! mode the cluster IP gets the connections to this address, and the node port gets those to other addresses,
//! regardless of the order in which they are created and deleted.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::net::{IpAddr, SocketAddr};

use ferroute_config::{KubeProxyConfiguration, Resolved};
use ferroute_core::{
    IpFamily, NamespacedName, Protocol, Tracker,
    testing::{Cluster, Edit, pod, service, slice},
};
use ferroute_modes::{Mode, REGISTRY};
use ferroute_trace::{Host, Packet, Route, Ruleset, Verdict};

const FAMILY: IpFamily = IpFamily::V4;
const ADDRESSES: [&str; 3] = ["127.0.0.1", "192.168.0.1", "192.168.7.1"];

fn addresses() -> Vec<IpAddr> {
    ADDRESSES.map(|address| address.parse().unwrap()).into()
}

/// Returns each mode, with node ports on all addresses.
fn modes() -> impl Iterator<Item = (&'static dyn Mode, Resolved)> {
    REGISTRY.names().into_iter().map(|mode| {
        let networks = vec!["192.168.0.0/16".to_owned()];
        let config = KubeProxyConfiguration {
            mode: mode.as_str().to_owned(),
            node_port_addresses: networks,
            ..KubeProxyConfiguration::default()
        };
        (REGISTRY.active(mode), REGISTRY.resolve(&config.defaulted()).unwrap())
    })
}

/// A Service with the cluster IP and one with the node port, with an endpoint each.
fn cluster(names: [&str; 2]) -> Cluster {
    let [by_cluster_ip, by_node_port] = names;
    let endpoints = |name: &str, address| {
        let owner = name.split_once('/').unwrap().1;
        slice(&format!("{name}-a"), owner).port("http", 8080).pod(pod(address))
    };
    Cluster::new("node-1")
        .service(service(by_cluster_ip).cluster_ip("192.168.0.1").port("http", 30080))
        .service(service(by_node_port).cluster_ip("10.96.0.2").port("http", 80).node_port(30080))
        .slice(endpoints(by_cluster_ip, "10.244.1.1"))
        .slice(endpoints(by_node_port, "10.244.2.2"))
}

/// Returns the endpoint that a client outside reaches.
fn reached(mode: &dyn Mode, resolved: &Resolved, tracker: &Tracker, address: &str) -> SocketAddr {
    let planned = mode.plan(resolved, tracker.table(FAMILY), &addresses()).unwrap();
    let host = Host {
        addresses: addresses(),
        routes: vec![Route {
            to: "0.0.0.0/0".parse().unwrap(),
            interface: "eth0".to_owned(),
            source: "192.168.0.1".parse().unwrap(),
        }],
        ..Host::default()
    };
    let to = SocketAddr::new(address.parse().unwrap(), 30080);
    let packet = Packet::arriving(Protocol::Tcp, "192.0.2.1:40000".parse().unwrap(), to, "eth0");
    match &Ruleset::from_rules(&*planned).verdicts(&host, &packet)[..] {
        [leaf] => match leaf.verdict {
            Verdict::Delivered { to, .. } => to,
            ref other => panic!("{other:?}"),
        },
        leaves => panic!("{leaves:?}"),
    }
}

#[test]
fn cluster_ip_wins_over_node_port_in_all_modes_and_orders() {
    let orders = [["shop/a", "shop/b"], ["shop/b", "shop/a"]];
    for (names, arrival) in orders.into_iter().flat_map(|names| [[0, 1], [1, 0]].map(|arrival| (names, arrival))) {
        let cluster = cluster(names);
        for (mode, resolved) in modes() {
            let mut tracker = Cluster { services: Vec::new(), ..cluster.clone() }.tracker();
            let mut simulation = mode.simulate(FAMILY, &resolved, addresses());
            tracker.update_for_resync(FAMILY);
            simulation.resync(tracker.table(FAMILY)).unwrap();
            let mut step = |tracker: &mut Tracker, edit: Edit| {
                edit.apply_to(tracker);
                let changes = tracker.update(FAMILY);
                simulation.sync(tracker.table(FAMILY), &changes).unwrap();
                // A full sync finds no difference: two in a row write the same. It may remove unused chains.
                let [rest, nothing] = [(); 2].map(|()| simulation.resync(tracker.table(FAMILY)).unwrap());
                let counts = [&rest, &nothing].map(|sync| (sync.written, sync.total));
                assert_eq!(counts[0], counts[1], "{} {names:?} {arrival:?}: {}", mode.name(), rest.text);
            };
            let applied = |i: usize| Edit::SetService(Box::new(cluster.services[i].clone()));
            let deleted = |i: usize| Edit::RemoveService(NamespacedName::from_metadata(&cluster.services[i].metadata));
            for i in arrival {
                step(&mut tracker, applied(i));
            }
            let ends = ["192.168.0.1", "192.168.7.1"].map(|address| reached(mode, &resolved, &tracker, address));
            assert_eq!(ends.map(|end| end.to_string()), ["10.244.1.1:8080", "10.244.2.2:8080"], "{}", mode.name());

            step(&mut tracker, deleted(0));
            assert_eq!(reached(mode, &resolved, &tracker, "192.168.0.1").to_string(), "10.244.2.2:8080");
            step(&mut tracker, applied(0));
            step(&mut tracker, deleted(1));
            assert_eq!(reached(mode, &resolved, &tracker, "192.168.0.1").to_string(), "10.244.1.1:8080");
        }
    }
}
