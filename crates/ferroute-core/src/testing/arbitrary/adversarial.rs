use std::{collections::BTreeSet, net::Ipv4Addr};

use ferroute_api::{EndpointSlice, LoadBalancerIngress, Service};
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::NODE;
use crate::{
    Protocol,
    testing::{Cluster, SliceBuilder, pod, service, slice},
};

/// Generates a cluster of valid objects as an attacker would write them: names as long as the API allows, the same
/// address as cluster IP, external IP, load balancer, endpoint and node, hundreds of addresses and source ranges,
/// overlapping and repeated ones, endpoints in several slices with different conditions, ports 1 and 65535 and slices
/// without port numbers, the same port number in all protocols.
pub fn adversarial_cluster() -> impl Strategy<Value = Cluster> {
    let services: Vec<_> = (0..SERVICES).map(|number| option::weighted(0.8, with_slices(number))).collect();
    services.prop_map(|services| {
        let (services, slices): (Vec<Service>, Vec<Vec<EndpointSlice>>) = services.into_iter().flatten().unzip();
        Cluster { services, slices: slices.concat(), ..Cluster::new(NODE) }
    })
}

fn with_slices(number: usize) -> impl Strategy<Value = (Service, Vec<EndpointSlice>)> {
    numbered(number).prop_flat_map(|service| {
        let slices: Vec<_> = (0..SLICES).map(|number| slice_of(&service, number)).collect();
        slices.prop_map(move |slices| (service.clone(), slices.into_iter().flatten().collect()))
    })
}

#[derive(Clone, Debug)]
struct Port {
    protocol: Protocol,
    number: u16,
    node_port: Option<u16>,
}

fn numbered(number: usize) -> impl Strategy<Value = Service> {
    let type_ = select(vec!["ClusterIP", "NodePort", "LoadBalancer"]);
    let policies = (any::<bool>(), any::<bool>(), option::of(prop_oneof![select(vec![1, 86_400]), 1..=86_400_u32]));
    let created = option::of(select(vec!["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]));
    (type_, cluster_ips(number), ports(), many(address()), many(address()), many(source_range()), policies, created)
        .prop_map(move |(type_, cluster_ips, ports, external, balancers, ranges, policies, created)| {
            let (internal_local, external_local, affinity) = policies;
            let mut built = service(&format!("{}/{}", long("ns", number % 2), long("svc", number)));
            for address in &cluster_ips {
                built = built.cluster_ip(address);
            }
            let (mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new());
            for (i, Port { protocol, number, node_port }) in ports.into_iter().enumerate() {
                if !numbers.insert((protocol, number)) {
                    continue;
                }
                built = built.port_over(protocol, &long("p", i), number);
                let node_port = node_port.filter(|port| type_ != "ClusterIP" && node_ports.insert((protocol, *port)));
                built = node_port.into_iter().fold(built, |built, port| built.node_port(port));
            }
            built = if internal_local { built.internal_local() } else { built };
            built = if external_local { built.external_local() } else { built };
            built = affinity.into_iter().fold(built, |built, seconds| built.affinity(seconds));
            built
                .with(|service| {
                    service.spec.type_ = Some(type_.to_owned());
                    service.metadata.creation_timestamp = created.map(str::to_owned);
                    service.spec.external_ips = external;
                    service.spec.load_balancer_source_ranges = ranges;
                    let point = |ip| LoadBalancerIngress { ip, ip_mode: None };
                    service.status.load_balancer.ingress = balancers.into_iter().map(point).collect();
                })
                .build()
        })
}

fn cluster_ips(number: usize) -> impl Strategy<Value = Vec<String>> {
    let v4 = prop_oneof![4 => Just(format!("10.96.0.{}", 1 + number)), 1 => select(ADDRESSES_V4[..5].to_vec()).prop_map(str::to_owned)];
    let v6 = prop_oneof![4 => Just(format!("fd00:96::{}", 1 + number)), 1 => select(ADDRESSES_V6[..5].to_vec()).prop_map(str::to_owned)];
    (v4, v6, 0..4_u8).prop_map(|(v4, v6, families)| match families {
        0 => vec![v4],
        1 => vec![v6],
        2 => vec![v4, v6],
        _ => vec![v6, v4],
    })
}

fn ports() -> impl Strategy<Value = Vec<Port>> {
    let numbers = || select(vec![1_u16, 53, 80, 30_080, 65_535]);
    let port = (protocol(), numbers(), option::of(numbers()));
    vec(port.prop_map(|(protocol, number, node_port)| Port { protocol, number, node_port }), 1..6)
}

fn protocol() -> impl Strategy<Value = Protocol> {
    select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp])
}

/// Generates few or, rarely, hundreds of them.
fn many(item: impl Strategy<Value = String> + Clone) -> impl Strategy<Value = Vec<String>> {
    prop_oneof![12 => vec(item.clone(), 0..4), 1 => vec(item, 200..300)]
}

fn address() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        select([ADDRESSES_V4, ADDRESSES_V6].concat()).prop_map(str::to_owned),
        (0..512_u32).prop_map(|i| Ipv4Addr::from(0xcb00_7100 + i).to_string()),
        (0..512_u32).prop_map(|i| format!("2001:db8::{i:x}")),
    ]
}

fn source_range() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        (any::<u32>(), 1..=32_u8).prop_map(|(address, length)| format!("{}/{length}", Ipv4Addr::from(address))),
        (any::<u16>(), 1..=128_u8).prop_map(|(group, length)| format!("2001:{group:x}:ffff::1/{length}")),
        select(vec!["10.0.0.0/8", "10.1.2.3/8", " 10.0.0.0/9 ", "203.0.113.1/32", "fd00::/8", "fd00:168::1/128"])
            .prop_map(str::to_owned),
        prop::bool::weighted(0.1).prop_map(|v4| if v4 {
            "0.0.0.0/0".to_owned()
        } else {
            "255.255.255.255/32".to_owned()
        }),
    ]
}

fn slice_of(service: &Service, number: usize) -> impl Strategy<Value = Option<EndpointSlice>> + use<> {
    let service = service.clone();
    let numbers = prop_oneof![4 => Just(8080_u16), 1 => select(vec![0, 1, 80, 65_535])];
    let endpoint = (0..60_usize, any::<(bool, bool, bool, bool)>());
    let endpoints = prop_oneof![12 => vec(endpoint.clone(), 0..6), 1 => vec(endpoint, 60..100)];
    option::weighted(0.7, (any::<bool>(), vec(numbers, 6), endpoints)).prop_map(move |generated| {
        let (v6, numbers, endpoints) = generated?;
        let name =
            format!("{}/{}.{number}", service.metadata.namespace, "s".repeat(200) + &service.metadata.name[..40]);
        let mut built = slice(&name, &service.metadata.name);
        for (port, number) in service.spec.ports.iter().zip(numbers) {
            let protocol = port.protocol.as_deref().and_then(|text| text.to_lowercase().parse().ok());
            built = built.port_over(protocol.unwrap_or(Protocol::Tcp), &port.name, number);
        }
        Some(endpoints.into_iter().fold(built, |built, endpoint| add(built, v6, endpoint)).build())
    })
}

fn add(built: SliceBuilder, v6: bool, endpoint: (usize, (bool, bool, bool, bool))) -> SliceBuilder {
    let (i, (local, ready, serving, terminating)) = endpoint;
    let address = match v6 {
        true => ADDRESSES_V6.get(i).map_or_else(|| format!("fd00:244::{i:x}"), |address| (*address).to_owned()),
        false => ADDRESSES_V4.get(i).map_or_else(|| format!("10.244.0.{i}"), |address| (*address).to_owned()),
    };
    // A mapped address is an IPv4 address.
    let address = if address.starts_with("::ffff:") { "fd00:244::1".to_owned() } else { address };
    let endpoint = pod(&address).conditions(ready, serving, terminating);
    let built = if v6 { built.with(|slice| slice.address_type = "IPv6".to_owned()) } else { built };
    built.pod(if local { endpoint.on(NODE) } else { endpoint.on("node-2") })
}

/// Returns a DNS label of the maximum length.
fn long(prefix: &str, number: usize) -> String {
    format!("{prefix}{number}-{}", "x".repeat(63 - prefix.len() - 1 - number.to_string().len()))
}

const SERVICES: usize = 5;
const SLICES: usize = 4;

/// Cluster IPs, external addresses, endpoints, the node's address, and the first and last addresses that are valid
/// destinations.
const ADDRESSES_V4: [&str; 8] =
    ["10.96.0.1", "10.96.0.2", "203.0.113.1", "10.244.0.9", "192.168.0.1", "0.0.0.1", "240.0.0.1", "255.255.255.254"];
const ADDRESSES_V6: [&str; 8] = [
    "fd00:96::1",
    "fd00:96::2",
    "2001:DB8:0:0::1",
    "fd00:244::9",
    "fd00:168::1",
    "::2",
    "::ffff:203.0.113.1",
    "64:ff9b::1",
];
