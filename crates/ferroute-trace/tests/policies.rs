//! In every cluster, every new connection ends where the Service's policies allow, or is refused or dropped where they
//! say so; and the one who answers sees the source that it should see.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use common::{
    specification::{Expected, Frontend, Port, ports},
    world::{Client, World, ip, world},
};
use ferroute_api::{EndpointConditions, EndpointHints, LoadBalancerIngress};
use ferroute_core::{
    IpFamily,
    testing::{Cluster, arbitrary},
};
use ferroute_iptables::{HostFacts, PlanContext, RuleSet, render};
use ferroute_trace::{Choice, Ending, Packet, Verdict, iptables};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

/// The rules that the planner makes.
fn rules(cluster: &Cluster, world: &World, family: IpFamily) -> RuleSet {
    let table = cluster.table(family);
    let facts = HostFacts { addresses: world.addresses(), random_fully: true, ..HostFacts::default() };
    render(&table, &PlanContext::new(&world.settings, &table, &facts))
}

/// Lets an endpoint that is in several slices of a Service be in the same state in all of them: which state is right
/// else is not for policies to say.
fn agree(cluster: &mut Cluster) {
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

/// What the endings come to.
fn observed(packet: &Packet, endings: &[Ending]) -> Result<(Expected, BTreeMap<SocketAddr, f64>), TestCaseError> {
    let mut seen = BTreeMap::new();
    let mut shares: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    let total: f64 = endings.iter().map(|ending| ending.share).sum();
    prop_assert!((total - 1.0).abs() < ROUNDING, "shares add up to {total}");
    for ending in endings {
        prop_assert!(ending.share > 0.0 && ending.assuming.is_empty(), "{ending:?}");
        match &ending.verdict {
            Verdict::Delivered { to, from, translated: true, .. } => {
                prop_assert!(seen.insert(*to, *from).is_none_or(|other| other == *from));
                *shares.entry(*to).or_default() += ending.share;
            }
            other => {
                prop_assert_eq!(endings.len(), 1, "{:?}", other);
                let what = match other {
                    Verdict::Rejected { .. } => Expected::Refused,
                    Verdict::Dropped => Expected::Dropped,
                    Verdict::Delivered { to, from, .. } if (*to, *from) == (packet.destination, packet.source.ip()) => {
                        Expected::Untouched
                    }
                    other => return Err(TestCaseError::fail(format!("unexpected {other:?}"))),
                };
                return Ok((what, shares));
            }
        }
    }
    Ok((Expected::OneOf(seen), shares))
}

struct Checker<'a> {
    world: &'a World,
    rules: &'a RuleSet,
}

impl Checker<'_> {
    fn check(&self, packet: &Packet, expected: &Expected, what: &str) -> Result<(), TestCaseError> {
        let endings = iptables::endings(self.rules, &self.world.host(), packet);
        let (found, shares) = observed(packet, &endings)?;
        prop_assert_eq!(&found, expected, "{}: {:?}", what, packet);
        for (endpoint, share) in &shares {
            let fair = 1.0 / shares.len() as f64;
            prop_assert!((share - fair).abs() < ROUNDING, "{what}: {endpoint} gets {share}, not {fair}: {packet:?}");
        }
        Ok(())
    }

    /// A client that is remembered gets its endpoint again, whichever it was.
    fn check_affinity(&self, packet: &Packet, expected: &Expected) -> Result<(), TestCaseError> {
        let Expected::OneOf(endpoints) = expected else { return Ok(()) };
        let host = self.world.host();
        let groups = iptables::summary(self.rules, &host, packet).groups;
        let choices: Vec<&Choice> = groups.iter().flat_map(|group| &group.choices).collect();
        prop_assert_eq!(choices.len(), endpoints.len());
        for Choice { chain, to, .. } in choices {
            let mut again = packet.clone();
            again.remembered.insert(chain.clone(), 0);
            let endings = iptables::endings(self.rules, &host, &again);
            let (found, _) = observed(&again, &endings)?;
            prop_assert_eq!(found, Expected::OneOf([(*to, endpoints[to])].into()), "{:?}", again);
        }
        Ok(())
    }

    fn check_port(&self, port: &Port<'_>, client: &Client) -> Result<(), TestCaseError> {
        for (frontend, address) in port.frontends() {
            // Nobody else can reach the node's localhost.
            if address.ip().is_loopback() && !matches!(client, Client::Node) {
                continue;
            }
            let packet = client.packet(self.world, port.protocol, address);
            let expected = port.expected(client, packet.source.ip(), frontend);
            let what = || format!("{}/{} {:?}", port.service.metadata.namespace, port.service.metadata.name, frontend);
            self.check(&packet, &expected, &what())?;
            if port.service.spec.session_affinity.as_deref() == Some("ClientIP") {
                self.check_affinity(&packet, &expected)?;
            }
            if frontend != Frontend::NodePort {
                let other = client.packet(self.world, port.protocol, SocketAddr::new(address.ip(), UNUSED));
                self.check(&other, &Expected::Untouched, "a port that no Service has")?;
            }
        }
        Ok(())
    }

    /// Addresses of the node on which a node port does not answer.
    fn check_beside(&self, port: &Port<'_>, client: &Client) -> Result<(), TestCaseError> {
        let Some(number) = port.node_port else { return Ok(()) };
        let answers: Vec<IpAddr> = port.node_port_addresses().collect();
        for address in self.world.addresses() {
            let reachable = !address.is_loopback() || matches!(client, Client::Node);
            if IpFamily::of(address) != port.family || answers.contains(&address) || !reachable {
                continue;
            }
            let packet = client.packet(self.world, port.protocol, SocketAddr::new(address, number));
            self.check(&packet, &port.expected_beside(), "beside a node port")?;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_connection_ends_where_the_policies_of_its_service_say(
        mut cluster in arbitrary::cluster(),
        world in world(),
    ) {
        agree(&mut cluster);
        check_cluster(&cluster, &world)?;
    }

    #[test]
    fn source_ranges_close_the_addresses_of_load_balancers_and_no_others(
        mut cluster in arbitrary::cluster(),
        world in world(),
        ranges in vec(vec(select(RANGES.to_vec()), 1..5), 12),
    ) {
        agree(&mut cluster);
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
        let rules = rules(cluster, world, family);
        let checker = Checker { world, rules: &rules };
        for client in Client::all(family) {
            for port in ports(cluster, world, family) {
                checker.check_port(&port, &client)?;
                checker.check_beside(&port, &client)?;
            }
            let stranger = ip(["203.0.113.240", "2001:db8:ff::1"][family.index()]);
            let packet = client.packet(world, ferroute_core::Protocol::Tcp, SocketAddr::new(stranger, 80));
            checker.check(&packet, &Expected::Untouched, "an address that no Service has")?;
        }
    }
    Ok(())
}

/// The property is only worth something if every kind of end is met at every kind of frontend.
#[test]
fn every_kind_of_client_meets_every_kind_of_end_at_every_kind_of_frontend() {
    // A fixed seed: this is about the strategies, not about one run's luck.
    let mut runner =
        TestRunner::new_with_rng(ProptestConfig::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut met: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for _ in 0..800 {
        let mut cluster = arbitrary::cluster().new_tree(&mut runner).unwrap().current();
        let world = world().new_tree(&mut runner).unwrap().current();
        agree(&mut cluster);
        for family in IpFamily::BOTH {
            let clients = Client::all(family);
            let ports = ports(&cluster, &world, family);
            for (port, client) in ports.iter().flat_map(|port| clients.iter().map(move |client| (port, client))) {
                for (frontend, address) in port.frontends() {
                    let source = client.packet(&world, port.protocol, address).source.ip();
                    let end = match port.expected(client, source, frontend) {
                        Expected::OneOf(seen) if seen.values().all(|from| *from == source) => "source kept",
                        Expected::OneOf(seen) if seen.values().any(|from| *from == source) => {
                            "only hairpin masqueraded"
                        }
                        Expected::OneOf(_) => "masqueraded",
                        Expected::Refused => "refused",
                        Expected::Dropped => "dropped",
                        Expected::Untouched => "untouched",
                    };
                    met.entry(format!("{frontend:?}, {}", client.kind())).or_default().insert(end);
                }
            }
        }
    }
    let lines = met.iter().map(|(who, ends)| {
        format!(
            "{who}: {}
",
            Vec::from_iter(ends.iter().copied()).join(", ")
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

/// Some that hold clients of a kind, some that hold the node, some that hold nobody.
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

/// A port that no generated Service has.
const UNUSED: u16 = 4242;

/// More than the kernel's 31 bits of chance lose, over a choice among a dozen.
const ROUNDING: f64 = 1e-7;
