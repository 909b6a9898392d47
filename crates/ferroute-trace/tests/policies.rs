//! In every mode and every cluster, every new connection reaches an endpoint that the Service's policies allow, with
//! the source that they require, or is rejected or dropped if they require that. This holds for the planned rules, and
//! for the decision that planners and commands share.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use common::{
    decision::{Decision, expected_on_unassigned_address, expected_on_unknown_port},
    specification::{Differences, Expected, Frontend, Port, ports},
    world::{Client, World, ip, world},
};
use ferroute_api::{EndpointConditions, EndpointHints, LoadBalancerIngress, Service};
use ferroute_config::{KubeProxyConfiguration, ModeName};
use ferroute_core::{
    IpFamily, ModeTraits, Protocol, ServiceTable,
    testing::{Cluster, arbitrary},
};
use ferroute_modes::{PlannedRules, REGISTRY};
use ferroute_trace::{Choice, Host, Leaf, Packet, Ruleset, Verdict};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

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

/// Adds the load balancer IPs of each Service to its external IPs.
fn overlap_frontends(cluster: &mut Cluster) {
    for service in &mut cluster.services {
        let addresses = service.status.load_balancer.ingress.iter().map(|point| point.ip.clone());
        service.spec.external_ips.extend(addresses);
    }
}

/// Returns the result of a walk, and the share of each endpoint.
fn observed(packet: &Packet, leaves: &[Leaf]) -> Result<(Expected, BTreeMap<SocketAddr, f64>), TestCaseError> {
    let mut results = Vec::new();
    let mut seen = BTreeMap::new();
    let mut shares: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    let total: f64 = leaves.iter().map(|leaf| leaf.share).sum();
    prop_assert!((total - 1.0).abs() < ROUNDING, "shares add up to {total}");
    for leaf in leaves {
        prop_assert!(leaf.share > 0.0 && leaf.assumptions.is_empty(), "{leaf:?}");
        let result = match &leaf.verdict {
            Verdict::Delivered { to, from, translated: true, .. } => {
                prop_assert!(seen.insert(*to, *from).is_none_or(|other| other == *from));
                *shares.entry(*to).or_default() += leaf.share;
                continue;
            }
            Verdict::Rejected { .. } => Expected::Refused,
            Verdict::Dropped => Expected::Dropped,
            Verdict::Delivered { to, from, .. } if (*to, *from) == (packet.destination, packet.source.ip()) => {
                Expected::Untouched
            }
            Verdict::Delivered { to, from, .. } if *to == packet.destination => Expected::Masqueraded(*from),
            other => return Err(TestCaseError::fail(format!("unexpected {other:?}"))),
        };
        if !results.contains(&result) {
            results.push(result);
        }
    }
    if !seen.is_empty() {
        results.push(Expected::OneOf(seen));
    }
    prop_assert_eq!(results.len(), 1, "{:?}", results);
    Ok((results.remove(0), shares))
}

/// Returns the part of the required result that a hash selects: the endpoint of `result`, if it is one of several.
fn chosen(expected: &Expected, result: &Expected) -> Expected {
    match (expected, result) {
        (Expected::OneOf(allowed), Expected::OneOf(observed)) if observed.len() == 1 => Expected::OneOf(
            allowed.iter().filter(|(to, _)| observed.contains_key(to)).map(|(to, from)| (*to, *from)).collect(),
        ),
        (expected, _) => expected.clone(),
    }
}

/// The rules that a mode plans for an IP family of a cluster.
struct Checker<'a> {
    mode: ModeName,
    differences: Differences,
    traits: &'static ModeTraits,
    cluster: &'a Cluster,
    world: &'a World,
    host: Host,
    table: ServiceTable,
    rules: Box<dyn PlannedRules>,
}

impl<'a> Checker<'a> {
    fn new(mode: ModeName, cluster: &'a Cluster, world: &'a World, table: ServiceTable) -> Self {
        let config = KubeProxyConfiguration { mode: mode.as_str().to_owned(), ..KubeProxyConfiguration::default() };
        let mut resolved = REGISTRY.resolve(&config.defaulted()).unwrap();
        resolved.settings = world.settings.clone();
        let registered = REGISTRY.active(mode);
        let rules = registered.plan(&resolved, &table, &world.addresses()).unwrap();
        let host = Host { route_localnet: registered.sets_route_localnet(&world.settings), ..world.host() };
        Self {
            mode,
            differences: Differences::new(mode),
            traits: registered.traits(),
            cluster,
            world,
            host,
            table,
            rules,
        }
    }

    /// Returns the first packet of a connection to an address of a Service, or to a node port.
    fn packet(&self, port: &Port<'_>, client: &Client, frontend: Frontend, to: SocketAddr) -> Packet {
        let packet = client.packet(self.world, port.protocol, to);
        match self.differences.has_service_source(client, frontend) {
            true => Packet::local(port.protocol, SocketAddr::new(to.ip(), packet.source.port()), to),
            false => packet,
        }
    }

    /// Checks that the rules and the decision satisfy the specification for a frontend of `port`, or for another
    /// address.
    fn check(
        &self,
        packet: &Packet,
        expected: &Expected,
        decided: &Expected,
        context: &str,
        port: Option<&Port<'_>>,
    ) -> Result<(), TestCaseError> {
        prop_assert_eq!(decided, expected, "decision of {} mode: {}: {:?}", self.mode.as_str(), context, packet);
        let leaves = Ruleset::from_rules(&*self.rules).verdicts(&self.host, packet);
        let (result, shares) = observed(packet, &leaves)?;
        let is_hashed = port.is_some_and(Port::is_hashed);
        let expected = &if is_hashed { chosen(expected, &result) } else { expected.clone() };
        let weight = |endpoint| port.map_or(1.0, |port| port.share(endpoint));
        prop_assert_eq!(&result, expected, "{}: {}: {:?}", self.mode.as_str(), context, packet);
        let total: f64 = shares.keys().map(|endpoint| weight(*endpoint)).sum();
        for (endpoint, share) in &shares {
            let fair = weight(*endpoint) / total;
            prop_assert!((share - fair).abs() < ROUNDING, "{context}: {endpoint} gets {share}, not {fair}: {packet:?}");
        }
        Ok(())
    }

    /// Checks session affinity: a client gets the same endpoint again.
    fn check_affinity(&self, packet: &Packet, expected: &Expected) -> Result<(), TestCaseError> {
        let Expected::OneOf(endpoints) = expected else { return Ok(()) };
        let ruleset = Ruleset::from_rules(&*self.rules);
        let branches = ruleset.summary(&self.host, packet).branches;
        let choices: Vec<&Choice> = branches.iter().flat_map(|branch| &branch.choices).collect();
        prop_assert_eq!(choices.len(), endpoints.len());
        for Choice { chain, to, .. } in choices {
            let mut again = packet.clone();
            again.remembered.insert(chain.clone(), 0);
            let leaves = ruleset.verdicts(&self.host, &again);
            let (result, _) = observed(&again, &leaves)?;
            prop_assert_eq!(result, Expected::OneOf([(*to, endpoints[to])].into()), "{:?}", again);
        }
        Ok(())
    }

    fn check_port(&self, port: &Port<'_>, client: &Client) -> Result<(), TestCaseError> {
        let decision = Decision::new(port, &self.table, self.traits);
        for (frontend, address) in port.frontends() {
            // Only the node itself can reach its loopback addresses.
            if address.ip().is_loopback() && !matches!(client, Client::Node) {
                continue;
            }
            let packet = self.packet(port, client, frontend, address);
            let expected = port.expected(client, packet.source.ip(), (frontend, address));
            let Service { metadata, spec, .. } = port.service;
            let context = format!("{}/{} {frontend:?}", metadata.namespace, metadata.name);
            let decided = decision.expected(client, packet.source.ip(), (frontend, address));
            self.check(&packet, &expected, &decided, &context, Some(port))?;
            // In iptables mode, the rules implement affinity; the trace of other modes does not follow it.
            if spec.session_affinity.as_deref() == Some("ClientIP") && self.mode == ModeName::IPTABLES {
                self.check_affinity(&packet, &expected)?;
            }
            if frontend != Frontend::NodePort {
                let unknown = SocketAddr::new(address.ip(), UNUSED);
                let packet = self.packet(port, client, frontend, unknown);
                let expected = self.differences.expected_on_unknown_port(frontend);
                let decided = expected_on_unknown_port(self.traits, frontend);
                self.check(&packet, &expected, &decided, "a port of no Service", None)?;
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
            let decided = Decision::new(port, &self.table, self.traits).expected_on_other_address();
            let expected = port.expected_on_other_address();
            self.check(&packet, &expected, &decided, "a node port on another address", None)?;
        }
        Ok(())
    }

    /// Checks all clients and frontends.
    fn check_all(&self) -> Result<(), TestCaseError> {
        let family = self.table.family;
        for client in Client::all(family) {
            for port in ports(self.cluster, self.world, family, self.differences) {
                self.check_port(&port, &client)?;
                self.check_other_addresses(&port, &client)?;
            }
            let [unknown, unassigned] = [["203.0.113.240", "10.96.0.200"], ["2001:db8:ff::1", "fd00:96::200"]]
                [family.index()]
            .map(|address| client.packet(self.world, Protocol::Tcp, SocketAddr::new(ip(address), 80)));
            self.check(&unknown, &Expected::Untouched, &Expected::Untouched, "an address of no Service", None)?;
            let has_service_cidrs = !self.table.service_cidrs.is_empty();
            let expected = self.differences.expected_on_unassigned_address(has_service_cidrs);
            let decided = expected_on_unassigned_address(self.traits, &self.table);
            self.check(&unassigned, &expected, &decided, "a cluster IP of no Service", None)?;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn connections_end_as_the_policies_require(
        mut cluster in arbitrary::cluster(),
        world in world(),
        with_service_cidrs in any::<bool>(),
        overlap in any::<bool>(),
    ) {
        unify_duplicates(&mut cluster);
        if overlap {
            overlap_frontends(&mut cluster);
        }
        check_cluster(&cluster, &world, with_service_cidrs)?;
    }

    #[test]
    fn methods_and_weights_apply_to_the_endpoints_that_the_policies_allow(
        mut cluster in arbitrary::cluster(),
        world in world(),
        methods in vec(select(METHODS.to_vec()), 4),
        first_weight in 0_usize..4,
    ) {
        unify_duplicates(&mut cluster);
        for (service, method) in cluster.services.iter_mut().zip(methods.into_iter().cycle()) {
            let annotations = [("ferroute.io/load-balancing", method), ("ferroute.io/hash-table-size", "1024")];
            service.metadata.annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        }
        for (service, weight) in cluster.services.iter_mut().zip(["2", "1", "5"].iter().cycle()) {
            service.metadata.annotations.insert("ferroute.io/zone-weight".to_owned(), (*weight).to_owned());
        }
        // The packet of a trace is within all limits.
        let limits = ["max-connections", "max-connections-per-client"].map(|name| (name, "1"));
        let rates = ["max-new-connections", "max-new-connections-per-client"].map(|name| (name, "1/hour"));
        for (service, (name, value)) in cluster.services.iter_mut().zip(limits.into_iter().chain(rates)) {
            service.metadata.annotations.insert(format!("ferroute.io/{name}"), value.to_owned());
        }
        // An endpoint has the same weight and zone in all slices.
        for slice in &mut cluster.slices {
            let weights = slice.endpoints.iter_mut().map(|endpoint| {
                let address = endpoint.addresses[0].parse::<IpAddr>().unwrap().to_string();
                let number = address.bytes().map(usize::from).sum::<usize>() + first_weight;
                endpoint.zone = [Some("zone-a"), Some("zone-b"), None][number % 3].map(str::to_owned);
                format!("{address}={}", number % 4)
            });
            let weights = weights.collect::<Vec<_>>().join(" ");
            slice.metadata.annotations.insert("ferroute.io/weight".to_owned(), weights);
        }
        check_cluster(&cluster, &world, false)?;
    }

    #[test]
    fn source_ranges_restrict_load_balancer_ips_and_the_addresses_of_their_scope(
        mut cluster in arbitrary::cluster(),
        world in world(),
        ranges in vec(vec(select(RANGES.to_vec()), 1..5), 12),
        scope in select(&["", "node-ports", "cluster-ip external-ips", "external-ips, node-ports"][..]),
        policy in select(&["allow", "deny"][..]),
    ) {
        unify_duplicates(&mut cluster);
        for (n, (service, ranges)) in cluster.services.iter_mut().zip(ranges).enumerate() {
            let annotations = [("ferroute.io/source-ranges-scope", scope), ("service.cilium.io/src-ranges-policy", policy)];
            service.metadata.annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            if service.spec.type_.as_deref() != Some("ExternalName") {
                service.spec.type_ = Some("LoadBalancer".to_owned());
                let points = [format!("198.51.100.{}", 100 + n), format!("2001:db8:1b::{}", 100 + n)];
                service.status.load_balancer.ingress =
                    points.map(|ip| LoadBalancerIngress { ip, ip_mode: None }).into();
                service.spec.load_balancer_source_ranges = ranges.into_iter().map(str::to_owned).collect();
            }
        }
        check_cluster(&cluster, &world, false)?;
    }
}

const METHODS: [&str; 5] = ["random", "round-robin", "source-hash", "source-port-hash", "least-connections"];

fn check_cluster(cluster: &Cluster, world: &World, with_service_cidrs: bool) -> Result<(), TestCaseError> {
    for family in IpFamily::BOTH {
        let mut table = cluster.table(family);
        if with_service_cidrs {
            table.service_cidrs = vec![["10.96.0.0/16", "fd00:96::/112"][family.index()].parse().unwrap()];
        }
        for mode in REGISTRY.names() {
            Checker::new(mode, cluster, world, table.clone()).check_all()?;
        }
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
            let ports = ports(&cluster, &world, family, Differences::default());
            for (port, client) in ports.iter().flat_map(|port| clients.iter().map(move |client| (port, client))) {
                for (frontend, address) in port.frontends() {
                    let source = client.packet(&world, port.protocol, address).source.ip();
                    let result = match port.expected(client, source, (frontend, address)) {
                        Expected::OneOf(seen) if seen.values().all(|from| *from == source) => "source kept",
                        Expected::OneOf(seen) if seen.values().any(|from| *from == source) => {
                            "only hairpin masqueraded"
                        }
                        Expected::OneOf(_) => "masqueraded",
                        Expected::Refused => "refused",
                        Expected::Dropped => "dropped",
                        Expected::Untouched => "untouched",
                        Expected::Masqueraded(_) => "only masqueraded",
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
