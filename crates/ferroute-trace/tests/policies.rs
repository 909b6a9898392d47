//! In every cluster, every new connection reaches an endpoint that the Service's policies allow, with the source that they
//! require, or is rejected or dropped where they require that.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use common::{
    relayed::Relayed,
    specification::{Expected, Frontend, Port, ports},
    world::{Client, World, ip, world},
};
use ferroute_api::{EndpointConditions, EndpointHints, LoadBalancerIngress};
use ferroute_core::{
    HostState, IpFamily, Protocol,
    testing::{Cluster, arbitrary},
};
use ferroute_iptables::{PlanContext, RuleSet, render};
use ferroute_trace::{Choice, Leaf, Packet, Ruleset, Traceable, Verdict};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

/// Plans the rules.
fn rules(cluster: &Cluster, world: &World, family: IpFamily) -> RuleSet {
    let table = cluster.table(family);
    let host_state = HostState { addresses: world.addresses(), random_fully: true, ..HostState::default() };
    render(&table, &PlanContext::new(&world.settings, &table, &host_state))
}

/// Gives an endpoint that is in several slices of a Service the same conditions and hints in all of them; policies do not
/// define the result otherwise.
fn unify_duplicates(cluster: &mut Cluster) {
    type State = (EndpointConditions, Option<EndpointHints>);
    let mut states: BTreeMap<(String, Option<String>, String), State> = BTreeMap::new();
    for slice in &mut cluster.slices {
        let service = slice.service_name().map(str::to_owned);
        for endpoint in &mut slice.endpoints {
            let key = (slice.metadata.namespace.clone(), service.clone(), endpoint.addresses[0].clone());
            let state = states.entry(key).or_insert_with(|| (endpoint.conditions, endpoint.hints.clone()));
            (endpoint.conditions, endpoint.hints) = state.clone();
        }
    }
}

/// Returns the result of a walk, and the share of each endpoint.
fn observed(packet: &Packet, leaves: &[Leaf]) -> Result<(Expected, BTreeMap<SocketAddr, f64>), TestCaseError> {
    let mut seen = BTreeMap::new();
    let mut shares: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    let total: f64 = leaves.iter().map(|leaf| leaf.share).sum();
    prop_assert!((total - 1.0).abs() < ROUNDING, "shares add up to {total}");
    for leaf in leaves {
        prop_assert!(leaf.share > 0.0 && leaf.assumptions.is_empty(), "{leaf:?}");
        match &leaf.verdict {
            Verdict::Delivered { to, from, translated: true, .. } => {
                prop_assert!(seen.insert(*to, *from).is_none_or(|other| other == *from));
                *shares.entry(*to).or_default() += leaf.share;
            }
            other => {
                prop_assert_eq!(leaves.len(), 1, "{:?}", other);
                let result = match other {
                    Verdict::Rejected { .. } => Expected::Refused,
                    Verdict::Dropped => Expected::Dropped,
                    Verdict::Delivered { to, from, .. } if (*to, *from) == (packet.destination, packet.source.ip()) => {
                        Expected::Untouched
                    }
                    other => return Err(TestCaseError::fail(format!("unexpected {other:?}"))),
                };
                return Ok((result, shares));
            }
        }
    }
    Ok((Expected::OneOf(seen), shares))
}

/// Returns the result in userspace mode: endpoints see the node, and SCTP is not supported.
fn relayed(expected: &Expected, packet: &Packet, world: &World) -> Expected {
    // The source of a connection to an IPv6 address of the host is the same address.
    let is_node = |to: &SocketAddr| world.owns(to.ip()) && to.is_ipv6();
    match expected {
        Expected::OneOf(_) if packet.protocol == Protocol::Sctp => Expected::Refused,
        Expected::Dropped if packet.protocol == Protocol::Sctp => Expected::Refused,
        Expected::OneOf(endpoints) => {
            let source = |to: &SocketAddr| if is_node(to) { to.ip() } else { world.address_towards(to.ip()) };
            Expected::OneOf(endpoints.keys().map(|to| (*to, source(to))).collect())
        }
        other => other.clone(),
    }
}

struct Checker<'a> {
    world: &'a World,
    rules: &'a dyn Traceable,
    is_relayed: bool,
}

impl Checker<'_> {
    fn check(&self, packet: &Packet, expected: &Expected, context: &str) -> Result<(), TestCaseError> {
        let leaves = Ruleset::from_rules(self.rules).verdicts(&self.world.host(), packet);
        let (result, shares) = observed(packet, &leaves)?;
        let expected = if self.is_relayed { relayed(expected, packet, self.world) } else { expected.clone() };
        if self.is_relayed && packet.protocol == Protocol::Sctp && expected == Expected::Untouched {
            prop_assert!([Expected::Untouched, Expected::Refused].contains(&result), "{}: {:?}", context, packet);
            return Ok(());
        }
        prop_assert_eq!(&result, &expected, "{}: {:?}", context, packet);
        for (endpoint, share) in &shares {
            let fair = 1.0 / shares.len() as f64;
            prop_assert!((share - fair).abs() < ROUNDING, "{context}: {endpoint} gets {share}, not {fair}: {packet:?}");
        }
        Ok(())
    }

    /// Checks session affinity: a client gets its endpoint again, whichever it was.
    fn check_affinity(&self, packet: &Packet, expected: &Expected) -> Result<(), TestCaseError> {
        let Expected::OneOf(endpoints) = expected else { return Ok(()) };
        let host = self.world.host();
        let ruleset = Ruleset::from_rules(self.rules);
        let branches = ruleset.summary(&host, packet).branches;
        let choices: Vec<&Choice> = branches.iter().flat_map(|branch| &branch.choices).collect();
        prop_assert_eq!(choices.len(), endpoints.len());
        for Choice { chain, to, .. } in choices {
            let mut again = packet.clone();
            again.remembered.insert(chain.clone(), 0);
            let leaves = ruleset.verdicts(&host, &again);
            let (result, _) = observed(&again, &leaves)?;
            prop_assert_eq!(result, Expected::OneOf([(*to, endpoints[to])].into()), "{:?}", again);
        }
        Ok(())
    }

    fn check_port(&self, port: &Port<'_>, client: &Client) -> Result<(), TestCaseError> {
        for (frontend, address) in port.frontends() {
            // Only the node itself can reach its loopback addresses.
            if address.ip().is_loopback() && !matches!(client, Client::Node) {
                continue;
            }
            let packet = client.packet(self.world, port.protocol, address);
            let expected = port.expected(client, packet.source.ip(), frontend);
            let context =
                || format!("{}/{} {:?}", port.service.metadata.namespace, port.service.metadata.name, frontend);
            self.check(&packet, &expected, &context())?;
            // The listeners of userspace mode have the affinity.
            if port.service.spec.session_affinity.as_deref() == Some("ClientIP") && !self.is_relayed {
                self.check_affinity(&packet, &expected)?;
            }
            if frontend != Frontend::NodePort {
                let other = client.packet(self.world, port.protocol, SocketAddr::new(address.ip(), UNUSED));
                self.check(&other, &Expected::Untouched, "a port of no Service")?;
            }
        }
        Ok(())
    }

    /// Checks the addresses of the node on which node ports are not served.
    fn check_other_addresses(&self, port: &Port<'_>, client: &Client) -> Result<(), TestCaseError> {
        let Some(number) = port.node_port else { return Ok(()) };
        let served: Vec<IpAddr> = port.node_port_addresses().collect();
        for address in self.world.addresses() {
            let reachable = !address.is_loopback() || matches!(client, Client::Node);
            if IpFamily::of(address) != port.family || served.contains(&address) || !reachable {
                continue;
            }
            let packet = client.packet(self.world, port.protocol, SocketAddr::new(address, number));
            self.check(&packet, &port.expected_on_other_address(), "a node port on another address")?;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn connections_end_as_the_policies_require(
        mut cluster in arbitrary::cluster(),
        world in world(),
    ) {
        unify_duplicates(&mut cluster);
        check_cluster(&cluster, &world)?;
    }

    #[test]
    fn source_ranges_restrict_only_load_balancer_ips(
        mut cluster in arbitrary::cluster(),
        world in world(),
        ranges in vec(vec(select(RANGES.to_vec()), 1..5), 12),
    ) {
        unify_duplicates(&mut cluster);
        for (n, (service, ranges)) in cluster.services.iter_mut().zip(ranges).enumerate() {
            if service.spec.type_.as_deref() != Some("ExternalName") {
                service.spec.type_ = Some("LoadBalancer".to_owned());
                let points = [format!("198.51.100.{}", 100 + n), format!("2001:db8:1b::{}", 100 + n)];
                service.status.load_balancer.ingress =
                    points.map(|ip| LoadBalancerIngress { ip, ip_mode: None }).into();
                service.spec.load_balancer_source_ranges = ranges.into_iter().map(str::to_owned).collect();
            }
        }
        check_cluster(&cluster, &world)?;
    }
}

fn check_cluster(cluster: &Cluster, world: &World) -> Result<(), TestCaseError> {
    for family in IpFamily::BOTH {
        check_rules(cluster, world, family, &rules(cluster, world, family), false)?;
        check_rules(cluster, world, family, &Relayed::new(cluster, world, family), true)?;
    }
    Ok(())
}

fn check_rules(
    cluster: &Cluster,
    world: &World,
    family: IpFamily,
    rules: &dyn Traceable,
    is_relayed: bool,
) -> Result<(), TestCaseError> {
    let checker = Checker { world, rules, is_relayed };
    for client in Client::all(family) {
        for port in ports(cluster, world, family) {
            checker.check_port(&port, &client)?;
            checker.check_other_addresses(&port, &client)?;
        }
        let unknown = ip(["203.0.113.240", "2001:db8:ff::1"][family.index()]);
        let packet = client.packet(world, ferroute_core::Protocol::Tcp, SocketAddr::new(unknown, 80));
        checker.check(&packet, &Expected::Untouched, "an address of no Service")?;
    }
    Ok(())
}

/// The properties are only meaningful if every kind of result occurs at every kind of frontend.
#[test]
fn every_kind_of_result_occurs_for_every_client_and_frontend() {
    // A fixed seed makes the result reproducible.
    let mut runner =
        TestRunner::new_with_rng(ProptestConfig::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut results: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for _ in 0..800 {
        let mut cluster = arbitrary::cluster().new_tree(&mut runner).unwrap().current();
        let world = world().new_tree(&mut runner).unwrap().current();
        unify_duplicates(&mut cluster);
        for family in IpFamily::BOTH {
            let clients = Client::all(family);
            let ports = ports(&cluster, &world, family);
            for (port, client) in ports.iter().flat_map(|port| clients.iter().map(move |client| (port, client))) {
                for (frontend, address) in port.frontends() {
                    let source = client.packet(&world, port.protocol, address).source.ip();
                    let result = match port.expected(client, source, frontend) {
                        Expected::OneOf(seen) if seen.values().all(|from| *from == source) => "source kept",
                        Expected::OneOf(seen) if seen.values().any(|from| *from == source) => {
                            "only hairpin masqueraded"
                        }
                        Expected::OneOf(_) => "masqueraded",
                        Expected::Refused => "refused",
                        Expected::Dropped => "dropped",
                        Expected::Untouched => "untouched",
                    };
                    results.entry(format!("{frontend:?}, {}", client.kind())).or_default().insert(result);
                }
            }
        }
    }
    let lines = results.iter().map(|(key, results)| {
        format!(
            "{key}: {}
",
            Vec::from_iter(results.iter().copied()).join(", ")
        )
    });
    insta::assert_snapshot!(lines.collect::<String>(), @r"
    ClusterIp, elsewhere: dropped, masqueraded, only hairpin masqueraded, refused, source kept
    ClusterIp, node: dropped, masqueraded, only hairpin masqueraded, refused, source kept
    ClusterIp, pod: dropped, masqueraded, only hairpin masqueraded, refused, source kept
    ExternalIp, elsewhere: dropped, masqueraded, only hairpin masqueraded, refused, source kept
    ExternalIp, node: masqueraded, only hairpin masqueraded, source kept, untouched
    ExternalIp, pod: dropped, masqueraded, only hairpin masqueraded, refused, source kept
    LoadBalancer, elsewhere: dropped, masqueraded, only hairpin masqueraded, refused, source kept
    LoadBalancer, node: dropped, masqueraded, only hairpin masqueraded, source kept, untouched
    LoadBalancer, pod: dropped, masqueraded, only hairpin masqueraded, refused, source kept
    NodePort, elsewhere: dropped, masqueraded, only hairpin masqueraded, refused, source kept
    NodePort, node: masqueraded, only hairpin masqueraded, refused, source kept
    NodePort, pod: dropped, masqueraded, only hairpin masqueraded, refused, source kept
    ");
}

/// Ranges with some of the clients, with the node, and without either.
const RANGES: [&str; 9] = [
    "10.0.0.0/8",
    "10.244.0.0/24",
    "192.0.2.0/24",
    "192.168.0.1/32",
    "203.0.113.0/24",
    "fd00:168::/64",
    "fd00:244::/64",
    "2001:db8::/32",
    "fd00:168::1/128",
];

/// A port that no generated Service uses.
const UNUSED: u16 = 4242;

/// An upper bound of the rounding errors of the kernel's 31-bit probabilities for a dozen endpoints.
const ROUNDING: f64 = 1e-7;
