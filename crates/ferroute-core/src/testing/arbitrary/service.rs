use ferroute_api::{Service, labels};
use proptest::{collection::vec, option, prelude::*, sample::select, sample::subsequence};

use super::{PORTS, SLOTS, namespace, protocol};
use crate::{IpFamily, Protocol, testing::service};

pub(super) fn full_name(slot: usize, name: usize) -> String {
    format!("{}/{}", namespace(slot), short_name(slot, name))
}

pub(super) fn short_name(slot: usize, name: usize) -> String {
    format!("svc-{slot}{}", ["", "-too"][name])
}

/// Generates a Service with the addresses and node ports of its slot.
pub(super) fn in_slot(slot: usize, name: usize) -> impl Strategy<Value = Service> {
    (frame(slot), ports(slot), policies(), external_addresses(slot), source_ranges(), skip_case()).prop_map(
        move |(frame, ports, policies, external, source_ranges, skip_case)| {
            let mut built = service(&full_name(slot, name));
            for family in frame.families.iter().copied() {
                built = built.cluster_ip(&address(family, CLUSTER_IPS, slot));
            }
            for Port { name, protocol, number, node_port } in frame.number(ports) {
                built = built.port_over(protocol, &name, number);
                // Node ports are optional in files and for load balancers.
                if let Some(node_port) = node_port.filter(|_| frame.type_ != "ClusterIP") {
                    built = built.node_port(node_port);
                }
            }
            for address in external.external_ips {
                built = built.external_ip(&address);
            }
            if frame.shared_address {
                built = built.external_ip(SHARED_EXTERNAL_IP);
            }
            if frame.type_ == "LoadBalancer" {
                for address in external.vips {
                    built = built.load_balancer(&address);
                }
                for address in external.proxied {
                    built = built.proxying_load_balancer(&address);
                }
                for range in source_ranges {
                    built = built.source_range(range);
                }
            }
            let (internal_local, external_local, affinity) = policies;
            if internal_local {
                built = built.internal_local();
            }
            if external_local {
                built = built.external_local();
                if frame.type_ == "LoadBalancer" {
                    built = built.health_check_node_port(31_000 + small(slot));
                }
            }
            if let Some(seconds) = affinity {
                built = built.affinity(seconds);
            }
            let built = built.with(|service| service.spec.type_ = Some(frame.type_.to_owned()));
            make_skipped(built.build(), skip_case)
        },
    )
}

/// Properties that determine other fields of a Service.
#[derive(Clone, Debug)]
struct Frame {
    slot: usize,
    type_: &'static str,
    families: Vec<IpFamily>,
    /// All ports have the same number and different protocols.
    one_number: bool,
    /// The Service shares an external IP with others and therefore has distinct port numbers.
    shared_address: bool,
}

struct Port {
    name: String,
    protocol: Protocol,
    number: u16,
    node_port: Option<u16>,
}

fn frame(slot: usize) -> impl Strategy<Value = Frame> {
    let families = vec![
        vec![IpFamily::V4],
        vec![IpFamily::V6],
        vec![IpFamily::V4, IpFamily::V6],
        vec![IpFamily::V6, IpFamily::V4],
    ];
    let type_ = select(vec!["ClusterIP", "NodePort", "LoadBalancer"]);
    (type_, select(families), any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        move |(type_, families, one_number, shared_address)| Frame {
            slot,
            type_,
            families,
            one_number,
            shared_address,
        },
    )
}

/// Generates for each port its protocol and whether it has a node port.
fn ports(slot: usize) -> impl Strategy<Value = Vec<(Protocol, bool)>> {
    (1..=PORTS)
        .prop_flat_map(move |n| (0..n).map(|i| (protocol(slot, i), prop::bool::weighted(0.8))).collect::<Vec<_>>())
}

impl Frame {
    fn number(&self, ports: Vec<(Protocol, bool)>) -> Vec<Port> {
        let first = if self.shared_address { 8000 + 10 * small(self.slot) } else { 80 };
        let single = ports.len() == 1;
        let mut numbered: Vec<Port> = Vec::new();
        for (i, (protocol, has_node_port)) in ports.into_iter().enumerate() {
            // Equal numbers require different protocols.
            let is_taken = numbered.iter().any(|port| port.number == first && port.protocol == protocol);
            let offset = if self.one_number && !is_taken { 0 } else { small(i) };
            // UDP ports have the numbers of the next slot's TCP ports.
            let slot = if protocol == Protocol::Udp { (self.slot + 1) % SLOTS } else { self.slot };
            numbered.push(Port {
                name: if single && self.slot.is_multiple_of(3) { String::new() } else { format!("p{i}") },
                protocol,
                number: first + offset,
                node_port: has_node_port.then_some(30_000 + 10 * small(slot) + offset),
            });
        }
        numbered
    }
}

fn policies() -> impl Strategy<Value = (bool, bool, Option<u32>)> {
    let affinity = option::weighted(0.3, select(vec![1, 10, 10_800, 86_400]));
    (prop::bool::weighted(0.3), prop::bool::weighted(0.4), affinity)
}

/// Addresses for external traffic.
#[derive(Clone, Debug)]
struct ExternalAddresses {
    external_ips: Vec<String>,
    vips: Vec<String>,
    proxied: Vec<String>,
}

fn external_addresses(slot: usize) -> impl Strategy<Value = ExternalAddresses> {
    let some_of = |[v4, v6]: [&'static str; 2]| {
        let both = vec![address(IpFamily::V4, [v4, v6], slot), address(IpFamily::V6, [v4, v6], slot)];
        subsequence(both, 0..=2)
    };
    (some_of(EXTERNAL_IPS), some_of(VIPS), some_of(PROXIED))
        .prop_map(|(external_ips, vips, proxied)| ExternalAddresses { external_ips, vips, proxied })
}

fn source_ranges() -> impl Strategy<Value = Vec<&'static str>> {
    let ranges = vec![
        "10.0.0.0/8",
        "192.168.0.0/24",
        "192.168.0.1/32",
        "203.0.113.0/24",
        " 198.51.100.7/24",
        "fd00:168::/64",
        "2001:db8::/32",
    ];
    let all = prop_oneof![8 => Just(vec![]), 1 => Just(vec!["0.0.0.0/0"]), 1 => Just(vec!["::/0"])];
    let some = prop_oneof![Just(vec![]), vec(select(ranges), 1..4)];
    (some, all).prop_map(|(some, all)| [some, all].concat())
}

/// A case in which the proxy skips a Service.
#[derive(Clone, Copy, Debug)]
enum SkipCase {
    Headless,
    ExternalName,
    OtherProxy,
}

fn skip_case() -> impl Strategy<Value = Option<SkipCase>> {
    let cases = vec![SkipCase::Headless, SkipCase::OtherProxy, SkipCase::ExternalName, SkipCase::OtherProxy];
    option::weighted(0.1, select(cases))
}

fn make_skipped(mut service: Service, case: Option<SkipCase>) -> Service {
    match case {
        None => {}
        Some(SkipCase::Headless) => {
            service.spec.cluster_ip = Some("None".to_owned());
            service.spec.cluster_ips = vec!["None".to_owned()];
        }
        Some(SkipCase::ExternalName) => {
            service.spec.type_ = Some("ExternalName".to_owned());
            service.spec.cluster_ip = None;
            service.spec.cluster_ips.clear();
        }
        Some(SkipCase::OtherProxy) => {
            service.metadata.labels.insert(labels::SERVICE_PROXY_NAME.to_owned(), "other".to_owned());
        }
    }
    service
}

fn address(family: IpFamily, prefixes: [&str; 2], slot: usize) -> String {
    format!("{}{}", prefixes[family.index()], slot + 1)
}

fn small(number: usize) -> u16 {
    u16::try_from(number).expect("slots and ports are few")
}

const CLUSTER_IPS: [&str; 2] = ["10.96.0.", "fd00:96::"];
const EXTERNAL_IPS: [&str; 2] = ["203.0.113.", "2001:db8:ee::"];
const VIPS: [&str; 2] = ["198.51.100.", "2001:db8:1b::"];
const PROXIED: [&str; 2] = ["198.51.100.10", "2001:db8:1b::10"];
const SHARED_EXTERNAL_IP: &str = "203.0.113.99";
