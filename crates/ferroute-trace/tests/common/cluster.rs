//! The lab's cluster, its clients and its frontends.

use std::net::SocketAddr;

use ferroute_core::{
    IpFamily,
    testing::{Cluster, ServiceBuilder, SliceBuilder, pod, service, slice},
};

use super::world::{Client, ip};

/// A cluster with Services of every kind that the planner distinguishes; the addresses of Service `n` end in `n`.
pub fn cluster(family: IpFamily) -> Cluster {
    let pick = |v4: &str, v6: &str| if family == IpFamily::V4 { v4.to_owned() } else { v6.to_owned() };
    let plain = |n: u16, name: &str| -> ServiceBuilder {
        service(&format!("lab/{name}"))
            .cluster_ip(&address(family, "cluster", n))
            .udp("", 80)
            .node_port(30_000 + n)
            .external_ip(&address(family, "external", n))
            .load_balancer(&address(family, "balancer", n))
    };
    let slice = |name: &str, port| -> SliceBuilder { slice(&format!("lab/{name}"), name).udp("", port) };
    let local = |v4, v6| pod(&pick(v4, v6)).on("node-1");
    let first = || local("10.244.0.3", "fd00:244::3");
    let second = || local("10.244.0.6", "fd00:244::6");
    let remote = || pod(&pick("10.244.1.1", "fd00:244:0:1::1")).on("node-2");
    let outside = pick("192.168.0.9/32", "fd00:168::9/128");
    Cluster::new("node-1")
        .service(plain(1, "everywhere"))
        .slice(slice("everywhere", 8080).pod(first()).pod(second()).pod(remote()))
        .service(plain(2, "local").external_local().source_range(&outside))
        .slice(slice("local", 8080).pod(first()).pod(remote()))
        .service(plain(3, "away").external_local().internal_local())
        .slice(slice("away", 8080).pod(remote()))
        .service(plain(4, "nowhere"))
        .service(plain(5, "node"))
        .slice(slice("node", 9000).pod(local("192.168.0.1", "fd00:168::1")))
        .service(plain(6, "one").affinity(3600))
        .slice(slice("one", 8080).pod(first()))
}

/// Returns the address of a kind of Service `n`.
pub fn address(family: IpFamily, kind: &str, n: u16) -> String {
    let prefixes = match kind {
        "cluster" => ["10.96.0.", "fd00:96::"],
        "external" => ["203.0.113.", "2001:db8:ee::"],
        _ => ["198.51.100.", "2001:db8:1b::"],
    };
    format!("{}{n}", prefixes[family.index()])
}

/// Returns one client of each kind, and an endpoint that may connect to itself.
pub fn clients(family: IpFamily) -> Vec<Client> {
    let [caller, endpoint, outside] = match family {
        IpFamily::V4 => ["10.244.0.200", "10.244.0.3", "192.168.0.9"].map(ip),
        IpFamily::V6 => ["fd00:244::200", "fd00:244::3", "fd00:168::9"].map(ip),
    };
    vec![Client::Pod(caller), Client::Pod(endpoint), Client::Elsewhere(outside), Client::Node]
}

/// Returns all frontends, and a port of no Service.
pub fn frontends(family: IpFamily) -> Vec<SocketAddr> {
    let mut all = Vec::new();
    for n in 1..=6 {
        let by_address = ["cluster", "external", "balancer"].map(|kind| ip(&address(family, kind, n)));
        all.extend(by_address.map(|ip| SocketAddr::new(ip, 80)));
        let own: &[&str] = match family {
            IpFamily::V4 => &["192.168.0.1", "10.244.0.1", "127.0.0.1"],
            IpFamily::V6 => &["fd00:168::1", "fd00:244::1", "::1"],
        };
        all.extend(own.iter().map(|own| SocketAddr::new(ip(own), 30_000 + n)));
    }
    // Not a port of the Service.
    all.push(SocketAddr::new(ip(&address(family, "cluster", 1)), 81));
    all
}
