//! Explanations agree with the results of packets in the planned rules, for every mode of the registry, every frontend
//! and every class of clients.

#![expect(clippy::unwrap_used, reason = "test helpers fail like tests")]

use std::net::{IpAddr, SocketAddr};

use ferroute_config::KubeProxyConfiguration;
use ferroute_core::{
    IpFamily, LocalTraffic, LocalTrafficDetector, Protocol,
    testing::{Cluster, arbitrary},
};
use ferroute_inspect::{
    diff::{Outcomes, PacketOutcome, outcomes},
    explain::{Clients, ExplainedEndpoint, ExplainedFrontend, Handling, Inputs, Outcome, Source, explain},
};
use ferroute_modes::REGISTRY;
use ferroute_trace::{Host, Packet, Route, Ruleset};
use ipnet::IpNet;
use proptest::{prelude::*, sample::select};

const NODE: [&str; 2] = ["192.168.0.1", "fd00:168::1"];
const OUTSIDE: [&str; 2] = ["192.0.2.123", "2001:db8:77::1"];
/// In the networks of [`arbitrary::cluster`]'s node, and not an endpoint.
const POD: [&str; 2] = ["10.244.0.200", "fd00:244::200"];

fn address(family: IpFamily, texts: [&str; 2]) -> IpAddr {
    texts[family.index()].parse().unwrap()
}

fn host() -> Host {
    let route = |to: &str, interface: &str, family| Route {
        to: to.parse().unwrap(),
        interface: interface.to_owned(),
        source: address(family, NODE),
    };
    Host {
        addresses: IpFamily::BOTH.map(|family| address(family, NODE)).into(),
        routes: vec![
            route("0.0.0.0/0", "eth0", IpFamily::V4),
            route("::/0", "eth0", IpFamily::V6),
            route("10.244.0.0/24", "cbr0", IpFamily::V4),
            route("fd00:244::/64", "cbr0", IpFamily::V6),
        ],
        route_localnet: true,
        ..Host::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Pod,
    Node,
    Outside,
}

/// Returns the first packet of a connection. When the node connects to one of its addresses, it sends from that
/// address.
fn packet(client: Client, family: IpFamily, protocol: Protocol, to: SocketAddr, is_own: bool) -> Packet {
    let from = |texts| SocketAddr::new(address(family, texts), 40_000);
    match client {
        Client::Pod => Packet::arriving(protocol, from(POD), to, "cbr0"),
        Client::Node if is_own => Packet::local(protocol, SocketAddr::new(to.ip(), 40_000), to),
        Client::Node => Packet::local(protocol, from(NODE), to),
        Client::Outside => Packet::arriving(protocol, from(OUTSIDE), to, "eth0"),
    }
}

/// Returns the answer for a client.
fn answer(frontend: &ExplainedFrontend, client: Client, is_permitted: bool) -> Outcome {
    let find = |groups: &[Clients]| frontend.answers.iter().find(|answer| groups.contains(&answer.clients));
    let excluded = match client {
        _ if is_permitted => None,
        Client::Node => find(&[Clients::OutsideSourceRanges]),
        Client::Pod | Client::Outside => find(&[Clients::OutsideSourceRanges, Clients::OthersOutsideSourceRanges]),
    };
    let answer = match client {
        _ if excluded.is_some() => excluded,
        Client::Pod => find(&[Clients::All, Clients::PodsAndNode, Clients::Pods, Clients::Others]),
        Client::Node => find(&[Clients::All, Clients::PodsAndNode, Clients::Node]),
        Client::Outside => find(&[Clients::All, Clients::Others]),
    };
    answer.unwrap_or_else(|| panic!("no answer for {client:?}: {frontend:?}")).outcome
}

fn agrees(
    answer: Outcome,
    client: Client,
    is_pod: bool,
    is_bound: bool,
    packet: &Packet,
    outcomes: &Outcomes,
    endpoints: &[ExplainedEndpoint],
) -> bool {
    let keeps_sources =
        |to: &SocketAddr| endpoints.iter().any(|endpoint| endpoint.address == *to && endpoint.keeps_sources);
    match answer {
        Outcome::Rejected { .. } => outcomes.keys().eq([&PacketOutcome::Rejected]),
        Outcome::Dropped { .. } => outcomes.keys().eq([&PacketOutcome::Dropped]),
        Outcome::NotHandled => outcomes.keys().eq([&PacketOutcome::Untouched]),
        Outcome::Served { endpoints: count, source, .. } => {
            let is_kept = source == Source::Client || source == Source::PodOrNode && is_pod;
            let is_delivered = |outcome: &PacketOutcome| match outcome {
                PacketOutcome::Delivered { from, .. } if source == Source::Service => *from == packet.destination.ip(),
                // Packets to the node itself are not masqueraded.
                PacketOutcome::Delivered { interface: None, .. } => true,
                // The node's own packets have one of its addresses in any case: the Service's or another.
                PacketOutcome::Delivered { from, .. } if client == Client::Node => {
                    !is_bound || is_kept == (*from == packet.source.ip())
                }
                PacketOutcome::Delivered { to, from, .. } => {
                    (*from == packet.source.ip()) == (is_kept || keeps_sources(to))
                }
                _ => false,
            };
            outcomes.len() == count && outcomes.keys().all(is_delivered)
        }
    }
}

fn check(
    cluster: &Cluster,
    masquerade_all: bool,
    detector: &LocalTrafficDetector,
    no_masquerade_cidrs: &[IpNet],
) -> Result<(), TestCaseError> {
    let (tracker, host) = (cluster.tracker(), host());
    for name in REGISTRY.names() {
        let config = KubeProxyConfiguration { mode: name.as_str().to_owned(), ..KubeProxyConfiguration::default() };
        let mut resolved = REGISTRY.resolve(&config.defaulted()).unwrap();
        resolved.settings.masquerade_all = masquerade_all;
        resolved.settings.detector = detector.clone();
        resolved.settings.no_masquerade_cidrs = no_masquerade_cidrs.to_vec();
        let (mode, settings) = (REGISTRY.active(name), &resolved.settings);
        let inputs = Inputs {
            tracker: &tracker,
            settings,
            traits: mode.traits(),
            addresses: &host.addresses,
            health_check: None,
            pod: &|_| None,
            node: &|_| None,
        };
        let rules = IpFamily::BOTH.map(|family| mode.plan(&resolved, tracker.table(family), &host.addresses).unwrap());
        let binds_service_addresses = mode.traits().binds_service_addresses;
        for service in &cluster.services {
            let explanation = explain(service, &inputs);
            let Handling::Served { policies, ports, .. } = &explanation.handling else { continue };
            for port in ports {
                let mut ruleset = Ruleset::default();
                rules[port.family.index()].add_to(&mut ruleset);
                let detected = settings.local_traffic(port.family, tracker.node());
                let ranges: Vec<&IpNet> =
                    policies.source_ranges.iter().filter(|net| IpFamily::of(net.addr()) == port.family).collect();
                for frontend in port.frontends.iter().filter(|frontend| frontend.owner.is_none()) {
                    let to = SocketAddr::new(
                        frontend.addresses.first().copied().unwrap_or(address(port.family, NODE)),
                        frontend.port,
                    );
                    for client in [Client::Pod, Client::Node, Client::Outside] {
                        let is_own = binds_service_addresses || host.addresses.contains(&to.ip());
                        let is_bound = is_own && !host.addresses.contains(&to.ip());
                        let packet = packet(client, port.family, port.protocol, to, is_own);
                        let source = packet.source.ip();
                        let is_pod = match &detected {
                            Some(LocalTraffic::Source(net)) => net.contains(&source),
                            _ => false,
                        };
                        let judged = match client {
                            Client::Node if is_own => tracker.node().primary_address(port.family),
                            _ => Some(source),
                        };
                        let is_in_ranges = judged.is_some_and(|source| ranges.iter().any(|net| net.contains(&source)));
                        let is_permitted = ranges.is_empty() || is_in_ranges;
                        let answer = answer(frontend, client, is_permitted);
                        let outcomes = outcomes(&packet, ruleset.verdicts(&host, &packet));
                        prop_assert!(
                            agrees(answer, client, is_pod, is_bound, &packet, &outcomes, &port.endpoints),
                            "{name} mode, {client:?} {packet:?}: {outcomes:?}, explained as {answer:?} of {frontend:?}"
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn answers_agree_with_traced_packets_in_all_modes(
        cluster in arbitrary::cluster(),
        masquerade_all in any::<bool>(),
        detector in select(vec![LocalTrafficDetector::None, LocalTrafficDetector::NodeCidr]),
        no_masquerade_cidrs in arbitrary::no_masquerade_cidrs(),
    ) {
        check(&cluster, masquerade_all, &detector, &no_masquerade_cidrs)?;
    }
}
