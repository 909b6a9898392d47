use ferroute_core::{
    IpFamily, Protocol, ProxySettings,
    testing::{Cluster, pod, service, slice},
};
use ferroute_iptables::{HostFacts, PlanContext, render};

use super::*;
use crate::{Route, write_effects_into};

/// The nginx example: three pods behind a Service, as node `node` sees them.
fn nginx() -> RuleSet {
    let cluster = Cluster::of_node("node")
        .service(service("default/nginx-service").cluster_ip("10.111.175.78").port("", 80).node_port(31628))
        .slice(
            slice("default/nginx-service-a", "nginx-service")
                .port("", 80)
                .pod(pod("172.17.0.4").on("node"))
                .pod(pod("172.17.0.5").on("node"))
                .pod(pod("172.17.0.6").on("node")),
        );
    let table = cluster.table(IpFamily::V4);
    let facts = HostFacts { random_fully: true, ..HostFacts::default() };
    render(&table, &PlanContext::new(&ProxySettings::default(), &table, &facts))
}

fn host() -> Host {
    let route = |to: &str, interface: &str, source: &str| Route {
        to: to.parse().unwrap(),
        interface: interface.to_owned(),
        source: source.parse().unwrap(),
    };
    Host {
        addresses: vec!["192.168.49.2".parse().unwrap(), "172.17.0.1".parse().unwrap()],
        routes: vec![route("172.17.0.0/24", "cni0", "172.17.0.1"), route("0.0.0.0/0", "eth0", "192.168.49.2")],
        route_localnet: true,
    }
}

fn socket(text: &str) -> std::net::SocketAddr {
    text.parse().unwrap()
}

fn told(packet: &Packet) -> String {
    let mut text = String::new();
    for story in stories(&nginx(), &host(), packet) {
        write_effects_into(&mut text, &story).unwrap();
        text.push('\n');
    }
    text
}

#[test]
fn a_pod_reaches_each_endpoint_of_a_cluster_ip_and_keeps_its_address() {
    let packet = Packet::arriving(Protocol::Tcp, socket("172.17.0.14:40000"), socket("10.111.175.78:80"), "cni0");
    insta::assert_snapshot!(told(&packet), @r"
    nat    PREROUTING → KUBE-SERVICES → KUBE-SVC-V2OKYYMBY3REGZOG → KUBE-SEP-3VDHYO53IOQ2XWUD: DNAT 10.111.175.78:80 becomes 172.17.0.4:80
     33.3 % delivered to 172.17.0.4:80, seen as from 172.17.0.14

    nat    PREROUTING → KUBE-SERVICES → KUBE-SVC-V2OKYYMBY3REGZOG → KUBE-SEP-C54WIGIB4NQVIFB3: DNAT 10.111.175.78:80 becomes 172.17.0.5:80
     33.3 % delivered to 172.17.0.5:80, seen as from 172.17.0.14

    nat    PREROUTING → KUBE-SERVICES → KUBE-SVC-V2OKYYMBY3REGZOG → KUBE-SEP-KN3IA7DQGTHQJWSD: DNAT 10.111.175.78:80 becomes 172.17.0.6:80
     33.3 % delivered to 172.17.0.6:80, seen as from 172.17.0.14
    ");
}
