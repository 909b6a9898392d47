use ferroute_api as api;
use ferroute_core::{
    Endpoint, EndpointEligibility, EndpointSets, Frontend, FrontendKind, IpFamily, NamespacedName, NodePortMatch,
    Protocol, ServicePort, ServicePortEntry, ServicePortName, ServiceTable, TrafficPolicy,
    parse::{SkipReason, parse_service},
    tracker::SliceView,
};

use super::{
    Affinity, Answer, Clients, EndpointState, ExplainedEndpoint, ExplainedFrontend, ExplainedPort, Explanation,
    FrontendOwner, Handling, Inputs, Outcome, Policies, Source, UnusedSlice, Usage,
};

pub(super) fn explanation(service: &api::Service, inputs: &Inputs<'_>) -> Explanation {
    let metadata = &service.metadata;
    let name = NamespacedName::new(&metadata.namespace, &metadata.name);
    let node = &inputs.tracker.table(IpFamily::V4).node;
    let handling = match (SkipReason::for_service(service), parse_service(service)) {
        (_, Err(invalid)) => Handling::Invalid { errors: invalid.errors.iter().map(ToString::to_string).collect() },
        (Some(reason), Ok(_)) => Handling::Skipped { reason: reason.to_string() },
        (None, Ok(view)) => {
            let ignored = view.map(|view| view.ignored).unwrap_or_default();
            served(service, &name, ignored.iter().map(ToString::to_string).collect(), inputs)
        }
    };
    Explanation {
        service: name.to_string(),
        type_: service.spec.type_.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| "ClusterIP".to_owned()),
        node: node.name.clone(),
        zone: node.zone.clone(),
        handling,
        kernel_error: None,
    }
}

fn served(service: &api::Service, name: &NamespacedName, ignored: Vec<String>, inputs: &Inputs<'_>) -> Handling {
    let tables = IpFamily::BOTH.map(|family| inputs.tracker.table(family));
    let ports: Vec<(&ServiceTable, &ServicePortName, &ServicePortEntry)> = tables
        .into_iter()
        .flat_map(|table| table.ports_of(name).map(move |(name, entry)| (table, name, entry)))
        .collect();
    let slices: Vec<SliceView> = inputs.tracker.slices_of(name).collect();
    let unserved = slices.iter().filter(|slice| ports.iter().all(|(table, _, _)| table.family != slice.family));
    Handling::Served {
        policies: policies(service, &ports, inputs),
        ignored,
        unused_slices: unserved.map(slice_of_unserved_family).collect(),
        ports: ports.iter().map(|(table, name, entry)| port(table, name, entry, &slices, inputs)).collect(),
    }
}

fn slice_of_unserved_family(slice: &SliceView) -> UnusedSlice {
    let reason = format!("the Service has no {} cluster IP", slice.family);
    UnusedSlice { slice: slice.name.to_string(), endpoints: slice.endpoints.len(), reason }
}

fn policies(
    service: &api::Service,
    ports: &[(&ServiceTable, &ServicePortName, &ServicePortEntry)],
    inputs: &Inputs<'_>,
) -> Policies {
    // Policies are the same for all ports; only addresses depend on the IP family.
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
        health_check: inputs.health_check,
    }
}

fn port(
    table: &ServiceTable,
    name: &ServicePortName,
    entry: &ServicePortEntry,
    slices: &[SliceView],
    inputs: &Inputs<'_>,
) -> ExplainedPort {
    let eligibility = table.eligibility(entry);
    let endpoints = entry.endpoints.iter().enumerate();
    ExplainedPort {
        name: name.port.to_string(),
        family: table.family,
        protocol: name.protocol,
        frontends: frontends(table, name, entry, inputs),
        endpoints: endpoints.map(|(i, endpoint)| explained(&endpoint, i, &eligibility, inputs)).collect(),
        excess_endpoints: table.excess.get(name).copied().unwrap_or_default(),
        unused_slices: slices.iter().filter_map(|slice| slice_without_port(slice, table.family, name)).collect(),
        kernel: None,
    }
}

fn explained(
    endpoint: &Endpoint,
    i: usize,
    eligibility: &EndpointEligibility,
    inputs: &Inputs<'_>,
) -> ExplainedEndpoint {
    let names = |names: &[Box<str>]| names.iter().map(ToString::to_string).collect();
    let hints = endpoint.hints.as_deref();
    let usage = |eligibility: &Option<Vec<_>>| eligibility.as_ref().map(|all| Usage(all[i]));
    ExplainedEndpoint {
        address: endpoint.socket(),
        pod: (inputs.pod)(endpoint.address),
        node: (inputs.node)(endpoint.address),
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
    name: &ServicePortName,
    entry: &ServicePortEntry,
    inputs: &Inputs<'_>,
) -> Vec<ExplainedFrontend> {
    let (service, sets) = (table.claimed(name).unwrap_or(&entry.service), &table.endpoint_sets(entry));
    let lost = table.lost.get(name).map(|lost| lost.frontends.as_slice()).unwrap_or_default();
    let owner = |kind, frontend| {
        let lost = lost.iter().find(|lost| (lost.kind, lost.frontend) == (kind, frontend))?;
        Some(FrontendOwner { service_port: lost.owner.name.to_string(), kind: lost.owner.kind })
    };
    let detects_pods = inputs.settings.local_traffic(table.family, &table.node).is_some();
    let internal = vec![internal_answer(service, sets, detects_pods, inputs.settings.masquerade_all)];
    let external = external_answers(service, sets, detects_pods);
    let explained = |(kind, frontend): (FrontendKind, Frontend)| ExplainedFrontend {
        kind,
        addresses: match frontend.address {
            Some(address) => vec![address],
            None => match inputs.settings.node_ports(table.family, &table.node, inputs.addresses) {
                NodePortMatch::AnyLocal => Vec::new(),
                NodePortMatch::Addresses(addresses) => addresses,
            },
        },
        port: frontend.port,
        owner: owner(kind, frontend),
        answers: match kind {
            _ if owner(kind, frontend).is_some() => Vec::new(),
            FrontendKind::ClusterIp => internal.clone(),
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer | FrontendKind::NodePort => external.clone(),
        },
    };
    service.frontends(name.protocol).map(explained).collect()
}

fn internal_answer(service: &ServicePort, sets: &EndpointSets, detects_pods: bool, masquerade_all: bool) -> Answer {
    let policy = service.internal_policy;
    let source = match (masquerade_all, detects_pods) {
        (true, _) => Source::Node,
        (false, true) => Source::PodOrNode,
        (false, false) => Source::Client,
    };
    Answer { clients: Clients::All, outcome: outcome(policy, sets, source) }
}

fn external_answers(service: &ServicePort, sets: &EndpointSets, detects_pods: bool) -> Vec<Answer> {
    let rejected_or = |outcome| if sets.has_any_endpoints { outcome } else { Outcome::Rejected };
    if !service.external_local() || !sets.has_any_endpoints {
        let outcome = rejected_or(outcome(TrafficPolicy::Cluster, sets, Source::Node));
        return vec![Answer { clients: Clients::All, outcome }];
    }
    // Policy Local only applies to clients outside of the cluster; pods and the node may use all endpoints.
    let (inside, source) =
        if detects_pods { (Clients::PodsAndNode, Source::PodOrNode) } else { (Clients::Node, Source::Node) };
    vec![
        Answer { clients: inside, outcome: outcome(TrafficPolicy::Cluster, sets, source) },
        Answer { clients: Clients::Others, outcome: outcome(TrafficPolicy::Local, sets, Source::Client) },
    ]
}

fn outcome(policy: TrafficPolicy, sets: &EndpointSets, source: Source) -> Outcome {
    let endpoints = match policy {
        TrafficPolicy::Cluster => sets.cluster.len(),
        TrafficPolicy::Local => sets.local.len(),
    };
    match endpoints {
        0 if sets.has_any_endpoints => Outcome::Dropped,
        0 => Outcome::Rejected,
        endpoints => Outcome::Served { policy, endpoints, source },
    }
}

// === slices ===

/// Returns the slice as unused if it is of the port's family, but has no port with its name and protocol.
fn slice_without_port(slice: &SliceView, family: IpFamily, name: &ServicePortName) -> Option<UnusedSlice> {
    if slice.family != family || slice.ports_for(name).next().is_some() {
        return None;
    }
    let ports = slice.ports.iter().map(|port| port_text(&port.name, port.protocol)).collect::<Vec<_>>();
    let ports = if ports.is_empty() { "no port numbers".to_owned() } else { ports.join(", ") };
    let reason = format!("it has no port {}, only {ports}", port_text(&name.port, name.protocol));
    Some(UnusedSlice { slice: slice.name.to_string(), endpoints: slice.endpoints.len(), reason })
}

fn port_text(name: &str, protocol: Protocol) -> String {
    if name.is_empty() { format!("(unnamed)/{protocol}") } else { format!("{name}/{protocol}") }
}
