use std::collections::BTreeSet;

use ferroute_api::{EndpointSlice, LoadBalancerIngress, Service};
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::NODE;
use crate::{
    Protocol,
    testing::{Cluster, service, slice},
};

/// Returns the name of the nth contested Service.
pub fn contested_name(number: usize) -> String {
    format!("shop/web-{number}")
}

/// Generates a Service that claims the same few addresses and ports as all others, in any field and several times, and
/// addresses that no proxy can serve.
pub fn contested_service() -> impl Strategy<Value = Service> {
    (0..CONTESTED).prop_flat_map(numbered)
}

/// Generates a cluster of contested Services. Each has one endpoint that is ready, `10.244.1.N:8080`, and others that no
/// proxy can serve.
pub fn contested_cluster() -> impl Strategy<Value = Cluster> {
    let services: Vec<_> = (0..CONTESTED).map(|number| option::weighted(0.8, numbered(number))).collect();
    services.prop_map(|services| {
        let services: Vec<Service> = services.into_iter().flatten().collect();
        let slices = services.iter().flat_map(endpoints).collect();
        Cluster { services, slices, ..Cluster::new(NODE) }
    })
}

fn numbered(number: usize) -> impl Strategy<Value = Service> {
    let address = || prop_oneof![4 => select(CONTESTED_ADDRESSES.to_vec()), 1 => select(SPECIAL.to_vec())];
    let addresses = || prop_oneof![9 => vec(address(), 0..4), 1 => vec(address(), 200..300)];
    let protocol = || select(vec![Protocol::Tcp, Protocol::Udp]);
    let ports = vec((protocol(), select(vec![80_u16, 81, 30_080]), option::of(select(vec![30_080_u16, 30_081]))), 1..3);
    let created = option::of(select(vec!["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]));
    let cluster_ip = prop_oneof![
        3 => Just(format!("10.96.0.{}", 1 + number)),
        2 => select(CONTESTED_ADDRESSES[..2].to_vec()).prop_map(str::to_owned),
        1 => select(SPECIAL[..5].to_vec()).prop_map(str::to_owned),
    ];
    (cluster_ip, addresses(), addresses(), ports, created).prop_map(
        move |(cluster_ip, external, balancers, ports, created)| {
            let mut built = service(&contested_name(number)).cluster_ip(&cluster_ip);
            let (mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new());
            for (i, (protocol, port, node_port)) in ports.into_iter().enumerate() {
                if !numbers.insert((protocol, port)) {
                    continue;
                }
                built = built.port_over(protocol, &format!("p{i}"), port);
                if let Some(node_port) = node_port.filter(|port| node_ports.insert((protocol, *port))) {
                    built = built.node_port(node_port);
                }
            }
            built
                .with(|service| {
                    service.spec.type_ = Some("LoadBalancer".to_owned());
                    service.metadata.creation_timestamp = created.map(str::to_owned);
                    service.spec.external_ips = external.into_iter().map(str::to_owned).collect();
                    let point = |ip: &str| LoadBalancerIngress { ip: ip.to_owned(), ip_mode: None };
                    service.status.load_balancer.ingress = balancers.into_iter().map(point).collect();
                })
                .build()
        },
    )
}

fn endpoints(service: &Service) -> Vec<EndpointSlice> {
    let name = &service.metadata.name;
    let number = name.rsplit('-').next().unwrap_or_default();
    let of_protocol = |protocol: Protocol| {
        let mut built = slice(&format!("shop/{name}-{protocol}"), name);
        for port in
            service.spec.ports.iter().filter(|port| port.protocol.as_deref() == Some(&protocol.as_str().to_uppercase()))
        {
            built = built.port_over(protocol, &port.name, 8080);
        }
        built.pod("127.0.0.1").pod(&*format!("10.244.1.{number}")).pod("0.0.0.0").pod("224.0.0.1").build()
    };
    [Protocol::Tcp, Protocol::Udp].map(of_protocol).into()
}

/// The number of contested Services.
pub const CONTESTED: usize = 5;

/// The addresses that contested Services claim; the last one is the node's.
pub const CONTESTED_ADDRESSES: [&str; 3] = ["203.0.113.1", "203.0.113.2", "192.168.0.1"];

/// Addresses that no proxy can serve, and other forms of contested ones.
const SPECIAL: [&str; 8] = [
    "0.0.0.0",
    "127.0.0.1",
    "169.254.169.254",
    "224.0.0.1",
    "255.255.255.255",
    "203.000.113.01",
    "::ffff:203.0.113.2",
    "::",
];
