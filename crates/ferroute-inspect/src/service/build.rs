use std::net::IpAddr;

use ferroute_api as api;
use ferroute_core::{
    Frontend, FrontendKind,
    Endpoint, ServicePortEntry, IpFamily, NodePortMatch, Protocol, EndpointSets, NamespacedName, ServicePort, ServicePortName,
    ServiceTable, EndpointEligibility, TrafficPolicy,
    parse::{SkipReason, parse_service},
    tracker::SliceView,
};

use super::{
    Affinity, Answer, Clients, EndpointState, ExplainedEndpoint, ExplainedFrontend, ExplainedPort, Explanation, Facts,
    Handling, Outcome, Policies, Source, Stray, Usage,
};

pub(super) fn explanation(service: &api::Service, facts: &Facts<'_>) -> Explanation {
    let metadata = &service.metadata;
    let name = NamespacedName::new(&metadata.namespace, &metadata.name);
    let node = &facts.tracker.table(IpFamily::V4).node;
    let handling = match (SkipReason::for_service(service), parse_service(service)) {
        (_, Err(invalid)) => Handling::Invalid { faults: invalid.errors.iter().map(ToString::to_string).collect() },
        (Some(why), Ok(_)) => Handling::NotServed { why: why.to_string() },
        (None, Ok(_)) => served(service, &name, facts),
    };
    Explanation {
        service: name.to_string(),
        type_: service.spec.type_.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| "ClusterIP".to_owned()),
        node: node.name.clone(),
        zone: node.zone.clone(),
        handling,
        unread: None,
    }
}

fn served(service: &api::Service, name: &NamespacedName, facts: &Facts<'_>) -> Handling {
    let tables = IpFamily::BOTH.map(|family| facts.tracker.table(family));
    let ports: Vec<(&ServiceTable, &ServicePortName, &ServicePortEntry)> = tables
        .into_iter()
        .flat_map(|table| table.ports_of(name).map(move |(name, entry)| (table, name, entry)))
        .collect();
    let slices: Vec<SliceView> = facts.tracker.slices_of(name).collect();
    let unserved = slices.iter().filter(|slice| ports.iter().all(|(table, _, _)| table.family != slice.family));
    Handling::Served {
        policies: policies(service, &ports, facts),
        strays: unserved.map(of_no_family).collect(),
        ports: ports.iter().map(|(table, name, entry)| port(table, name, entry, &slices, facts)).collect(),
    }
}

/// A slice of a family that the Service has no cluster IP of.
fn of_no_family(slice: &SliceView) -> Stray {
    let why = format!("the Service has no cluster IP of {}", slice.family);
    Stray { slice: slice.name.to_string(), endpoints: slice.endpoints.len(), why }
}

fn policies(
    service: &api::Service,
    ports: &[(&ServiceTable, &ServicePortName, &ServicePortEntry)],
    facts: &Facts<'_>,
) -> Policies {
    // What a Service asks for is the same for all its ports, but for addresses, which depend on the family.
    let all = || ports.iter().map(|(_, _, entry)| &entry.service);
    let external = all().find(|port| port.externally_accessible());
    let mut source_ranges: Vec<_> = all().flat_map(|port| port.load_balancer_source_ranges.iter().copied()).collect();
    source_ranges.sort_unstable();
    source_ranges.dedup();
    Policies {
        internal_traffic: all().next().map(|port| port.internal_policy).unwrap_or_default(),
        external_traffic: external.map(|port| port.external_policy),
        affinity: all().find_map(|port| port.affinity).map(|it| Affinity { timeout_seconds: it.timeout_seconds }),
        source_ranges,
        traffic_distribution: service.spec.traffic_distribution.clone(),
        health_check: facts.health_check,
    }
}

fn port(
    table: &ServiceTable,
    name: &ServicePortName,
    entry: &ServicePortEntry,
    slices: &[SliceView],
    facts: &Facts<'_>,
) -> ExplainedPort {
    let eligibility = table.eligibility(entry);
    let endpoints = entry.endpoints.iter().enumerate();
    ExplainedPort {
        name: name.port.to_string(),
        family: table.family,
        protocol: name.protocol,
        frontends: frontends(table, name.protocol, &entry.service, &table.endpoint_sets(entry), facts),
        endpoints: endpoints.map(|(i, endpoint)| explained(endpoint, i, &eligibility, facts)).collect(),
        strays: slices.iter().filter_map(|slice| portless(slice, table.family, name)).collect(),
        in_force: None,
    }
}

fn explained(endpoint: &Endpoint, i: usize, eligibility: &EndpointEligibility, facts: &Facts<'_>) -> ExplainedEndpoint {
    let names = |names: &[Box<str>]| names.iter().map(ToString::to_string).collect();
    let hints = endpoint.hints.as_deref();
    let usage = |eligibility: &Option<Vec<_>>| eligibility.as_ref().map(|all| Usage(all[i]));
    ExplainedEndpoint {
        address: endpoint.socket(),
        pod: (facts.pod)(endpoint.address),
        state: state(endpoint),
        local: endpoint.local,
        hinted_zones: hints.map(|hints| names(&hints.zones)).unwrap_or_default(),
        hinted_nodes: hints.map(|hints| names(&hints.nodes)).unwrap_or_default(),
        cluster: usage(&eligibility.cluster),
        local_only: usage(&eligibility.local),
    }
}

fn state(endpoint: &Endpoint) -> EndpointState {
    match (endpoint.ready, endpoint.terminating) {
        (true, false) => EndpointState::Ready,
        (true, true) => EndpointState::ReadyTerminating,
        (false, false) => EndpointState::NotReady,
        (false, true) if endpoint.serving => EndpointState::ServingTerminating,
        (false, true) => EndpointState::Terminating,
    }
}

// === frontends ===

fn frontends(
    table: &ServiceTable,
    protocol: Protocol,
    service: &ServicePort,
    sets: &EndpointSets<'_>,
    facts: &Facts<'_>,
) -> Vec<ExplainedFrontend> {
    let knows_pods = facts.settings.local_traffic(table.family, &table.node).is_some();
    let internal = vec![internal_answer(service, sets, knows_pods, facts.settings.masquerade_all)];
    let external = external_answers(service, sets, knows_pods);
    let explained = |(kind, frontend): (FrontendKind, Frontend)| ExplainedFrontend {
        kind,
        addresses: match frontend.address {
            Some(address) => vec![address],
            None => match facts.settings.node_ports(table.family, &table.node, facts.addresses) {
                NodePortMatch::AnyLocal => Vec::new(),
                NodePortMatch::Addresses(addresses) => addresses,
            },
        },
        port: frontend.port,
        answers: if kind == FrontendKind::ClusterIp { internal.clone() } else { external.clone() },
    };
    service.frontends(protocol).map(explained).collect()
}

fn internal_answer(service: &ServicePort, sets: &EndpointSets<'_>, knows_pods: bool, masquerade_all: bool) -> Answer {
    let policy = service.internal_policy;
    let source = match (masquerade_all, knows_pods) {
        (true, _) => Source::Node,
        (false, true) => Source::PodOrNode,
        (false, false) => Source::Client,
    };
    Answer { clients: Clients::All, outcome: outcome(policy, sets, source) }
}

fn external_answers(service: &ServicePort, sets: &EndpointSets<'_>, knows_pods: bool) -> Vec<Answer> {
    let refused_or = |outcome| if sets.has_any_endpoints { outcome } else { Outcome::Refused };
    if !service.external_local() || !sets.has_any_endpoints {
        let outcome = refused_or(outcome(TrafficPolicy::Cluster, sets, Source::Node));
        return vec![Answer { clients: Clients::All, outcome }];
    }
    // The policy is about those outside; from inside, the Service's other endpoints can be reached as well.
    let (inside, source) =
        if knows_pods { (Clients::PodsAndNode, Source::PodOrNode) } else { (Clients::Node, Source::Node) };
    vec![
        Answer { clients: inside, outcome: outcome(TrafficPolicy::Cluster, sets, source) },
        Answer { clients: Clients::Others, outcome: outcome(TrafficPolicy::Local, sets, Source::Client) },
    ]
}

fn outcome(policy: TrafficPolicy, sets: &EndpointSets<'_>, source: Source) -> Outcome {
    let endpoints = match policy {
        TrafficPolicy::Cluster => sets.cluster.len(),
        TrafficPolicy::Local => sets.local.len(),
    };
    match endpoints {
        0 if sets.has_any_endpoints => Outcome::Dropped,
        0 => Outcome::Refused,
        endpoints => Outcome::Served { policy, endpoints, source },
    }
}

// === slices ===

/// A slice of the port's family that has no port of its name and protocol.
fn portless(slice: &SliceView, family: IpFamily, name: &ServicePortName) -> Option<Stray> {
    if slice.family != family || slice.ports_for(name).next().is_some() {
        return None;
    }
    let has = slice.ports.iter().map(|port| describe(&port.name, port.protocol)).collect::<Vec<_>>();
    let has = if has.is_empty() { "none with a number".to_owned() } else { has.join(", ") };
    let why = format!("has no port {}, but {has}", describe(&name.port, name.protocol));
    Some(Stray { slice: slice.name.to_string(), endpoints: slice.endpoints.len(), why })
}

fn describe(name: &str, protocol: Protocol) -> String {
    if name.is_empty() { format!("without a name over {protocol}") } else { format!("{name}/{protocol}") }
}
