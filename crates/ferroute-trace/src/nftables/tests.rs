mod nginx;

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{
    IpFamily, LocalTrafficDetector, Protocol, ProxySettings,
    testing::{Cluster, ServiceBuilder, pod, service, slice},
};
use ferroute_nftables::{
    Class, Value,
    kernel::{Kernel, MemoryKernel},
    model::{Change, Datum, Element, Name, TableId, Transaction},
    plan::{NftablesSettings, TABLE, render},
};

use super::*;
use crate::{Route, Verdict, write_story_into, write_summary_into};

/// The nodes' kernel, with what is planned for a cluster; pods are told by their addresses.
fn kernel(cluster: &Cluster, service_networks: &[&str]) -> MemoryKernel {
    let detector = LocalTrafficDetector::ClusterCidr(vec!["172.17.0.0/16".parse().unwrap()]);
    let proxy = ProxySettings { detector, ..ProxySettings::default() };
    let service_networks = service_networks.iter().map(|net| net.parse().unwrap()).collect();
    let settings = NftablesSettings { proxy, service_networks, counters: false };
    let mut kernel = MemoryKernel::new();
    kernel.commit(&render(&cluster.table(IpFamily::V4), &settings, &host().addresses)).unwrap();
    kernel
}

fn id() -> TableId {
    TableId { family: IpFamily::V4, name: TABLE }
}

/// Three pods behind a Service, as their node sees them.
fn nginx(change: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> Cluster {
    let port = service("default/nginx-service").cluster_ip("10.111.175.78").port("", 80).node_port(31628);
    let pods = ["172.17.0.4", "172.17.0.5", "172.17.0.6"].map(|address| pod(address).on("node"));
    let slice = pods
        .into_iter()
        .fold(slice("default/nginx-service-a", "nginx-service").port("", 80), |slice, pod| slice.pod(pod));
    Cluster::of_node("node").service(change(port)).slice(slice)
}

/// A node with pods behind `cni0` and the rest of the world behind `eth0`.
fn host() -> Host {
    let route = |to: &str, interface: &str, source: &str| Route {
        to: to.parse().unwrap(),
        interface: interface.to_owned(),
        source: ip(source),
    };
    Host {
        addresses: ["192.168.49.2", "172.17.0.1"].map(ip).into(),
        routes: vec![route("172.17.0.0/24", "cni0", "172.17.0.1"), route("0.0.0.0/0", "eth0", "192.168.49.2")],
        route_localnet: true,
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A TCP connection from a pod.
fn from_pod(to: &str) -> Packet {
    Packet::arriving(Protocol::Tcp, socket("172.17.0.14:40000"), socket(to), "cni0")
}

/// A TCP connection from outside.
fn from_outside(to: &str) -> Packet {
    Packet::arriving(Protocol::Tcp, socket("203.0.113.7:40000"), socket(to), "eth0")
}

/// A TCP connection from the node itself.
fn from_node(to: &str) -> Packet {
    let destination = socket(to);
    let source = host().route(destination.ip()).map_or(destination.ip(), |route| route.source);
    Packet::local(Protocol::Tcp, SocketAddr::new(source, 40_000), destination)
}

fn told(kernel: &MemoryKernel, packet: &Packet) -> String {
    let mut text = String::new();
    write_summary_into(&mut text, &summary(kernel.table(&id()).unwrap(), &host(), packet)).unwrap();
    text
}

#[test]
fn stories_name_the_table_as_nft_does() {
    let kernel = kernel(&nginx(|it| it), &[]);
    let table = kernel.table(&id()).unwrap();
    let packet = from_pod("10.111.175.78:80");
    let first = stories(table, &host(), &packet).next().unwrap();
    assert!(matches!(first.events.first(), Some(crate::Event::Hook { table, .. }) if *table == id().to_string()));
}

#[test]
fn a_choice_among_very_many_endpoints_has_an_end_for_each_and_no_more() {
    let kernel = kernel(&Cluster::uniform(1, 1000), &[]);
    let endings = endings(kernel.table(&id()).unwrap(), &host(), &from_pod("10.96.0.1:80"));
    assert_eq!(endings.len(), 1000);
    assert!(endings.iter().all(|ending| ending.share == 0.001));
}

#[test]
fn a_client_that_is_remembered_gets_its_endpoint_until_that_is_gone() {
    let mut kernel = kernel(&nginx(|it| it.affinity(10_800)), &[]);
    let packet = from_pod("10.111.175.78:80");
    let frontend = || [ip("10.111.175.78").into(), Value::protocol(Protocol::Tcp), Value::Port(80)];
    let remember = |kernel: &mut MemoryKernel, slot: Class| {
        let [address, protocol, port] = frontend();
        let key = [address, protocol, port, packet.source.ip().into()];
        let element = Element::new(key).fields([slot.into()]);
        let mut transaction = Transaction::new(id());
        transaction.push(Change::AddElement(Name::fixed("affinity"), element));
        kernel.commit(&transaction).unwrap();
    };
    let table = kernel.table(&id()).unwrap();
    assert_eq!(endings(table, &host(), &packet).len(), 3);
    let (endpoints, frontend_key) = (Name::fixed("endpoints"), frontend());
    let element = table.elements(&endpoints).find(|element| {
        element.key.starts_with(&frontend_key)
            && matches!(&element.datum, Some(Datum::Fields(fields)) if fields.starts_with(&[ip("172.17.0.5").into()]))
    });
    let Some(Value::Class(slot)) = element.and_then(|element| element.key.last()).copied() else {
        panic!("172.17.0.5 has no slot")
    };
    let mut other = kernel.clone();
    remember(&mut kernel, slot);
    let endings_of = |kernel: &MemoryKernel| endings(kernel.table(&id()).unwrap(), &host(), &packet);
    assert!(matches!(
        endings_of(&kernel).as_slice(),
        [Ending { verdict: Verdict::Delivered { to, .. }, share: 1.0, .. }] if *to == socket("172.17.0.5:80")
    ));
    remember(&mut other, Class::new(0xfff0, 1));
    assert_eq!(endings_of(&other).len(), 3);
}
