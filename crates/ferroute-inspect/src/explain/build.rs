use std::net::{Ipv4Addr, Ipv6Addr};

use ferroute_admin::{health::HealthCheck, http::ListenScope};
use ferroute_api::{self as api, Kind};
use ferroute_core::{
    Balancing, Client, Endpoint, EndpointEligibility, FamilySettings, Frontend, FrontendKind, IpFamily, ModeTraits,
    NamespacedName, NodePortMatch, PortForwarding, Protocol, Route, ServicePortEntry, ServicePortName, ServiceTable,
    SourceAddress, forwarding,
    parse::{SkipReason, parse_service, unrestricted_families},
    tracker::SliceView,
};

use super::{
    Answer, Clients, EndpointState, ExplainedBalancing, ExplainedEndpoint, ExplainedFrontend, ExplainedHealthCheck,
    ExplainedPort, Explanation, FrontendOwner, Handling, Inputs, NodeAddresses, Outcome, Policies, Source, UnusedSlice,
    Usage,
};
use crate::some_of;

pub(super) fn explanation(service: &api::Service, inputs: &Inputs<'_>) -> Explanation {
    let metadata = &service.metadata;
    let name = NamespacedName::new(&metadata.namespace, &metadata.name);
    let node = &inputs.tracker.table(IpFamily::V4).node;
    let handling = match (SkipReason::for_service(service), parse_service(service)) {
        (_, Err(invalid)) => {
            let errors = invalid.errors.iter().map(ToString::to_string).collect();
            Handling::Invalid { file: None, line: None, errors }
        }
        (Some(reason), Ok(_)) => Handling::Skipped { reason: reason.to_string(), code: reason.code().into() },
        (None, Ok(view)) => {
            let view = view.map(|mut view| {
                view.ignore_unsupported(inputs.traits);
                view
            });
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
        unrouted: Vec::new(),
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
    let of_slices = slices.iter().flat_map(|slice| {
        let object = format!("{} {}", Kind::EndpointSlice.as_str(), slice.name);
        slice.ignored.iter().map(move |error| format!("{object}: {error}"))
    });
    let ignored = ignored.into_iter().chain(of_slices).collect();
    let unserved = slices.iter().filter(|slice| ports.iter().all(|(table, _, _)| table.family != slice.family));
    Handling::Served {
        policies: policies(service, &ports, inputs),
        ignored,
        invalid_update: Vec::new(),
        unused_slices: unserved.map(slice_of_unserved_family).collect(),
        ports: ports.iter().map(|(table, name, entry)| port(table, name, entry, &slices, inputs)).collect(),
    }
}

fn slice_of_unserved_family(slice: &SliceView) -> UnusedSlice {
    let reason = format!("the Service has no {} cluster IP", slice.family);
    let code = "otherFamily".into();
    UnusedSlice { slice: slice.name.to_string(), endpoints: slice.endpoints.len(), reason, code }
}

fn policies(
    service: &api::Service,
    ports: &[(&ServiceTable, &ServicePortName, &ServicePortEntry)],
    inputs: &Inputs<'_>,
) -> Policies {
    // Policies are the same for all ports; only addresses depend on the IP family.
    let all = || ports.iter().map(|(_, _, entry)| &entry.service);
    let has_tcp = ports.iter().any(|(_, name, _)| name.protocol == Protocol::Tcp);
    let external = all().find(|port| port.externally_accessible());
    let mut source_ranges: Vec<_> = all().flat_map(|port| port.load_balancer_source_ranges.iter().copied()).collect();
    source_ranges.sort_unstable();
    source_ranges.dedup();
    let scope = all().next().map(|port| port.source_ranges_scope).filter(|_| inputs.traits.source_ranges_scope);
    let scope = scope.unwrap_or_default().names();
    Policies {
        internal_traffic: all().next().map(|port| port.internal_policy).unwrap_or_default(),
        external_traffic: external.map(|port| port.external_policy),
        affinity: all().find_map(|port| port.affinity),
        source_ranges,
        source_ranges_scope: scope.map(str::to_owned).collect(),
        balancing: all().next().and_then(|port| balancing(&port.balancing, inputs.traits, has_tcp)),
        limits: all().find_map(|port| port.limits.as_deref().copied()).filter(|_| inputs.traits.limits),
        unrestricted_families: unrestricted_families(service),
        traffic_distribution: service.spec.traffic_distribution.clone(),
        health_check: inputs.health_check.clone().map(|check| health_check(check, inputs)),
    }
}

/// `has_tcp` reports whether the Service has a TCP port.
fn balancing(requested: &Balancing, traits: &ModeTraits, has_tcp: bool) -> Option<ExplainedBalancing> {
    let method = requested.method.filter(|method| traits.methods.contains(method));
    let table_size = method.filter(|method| method.hashes()).map(|_| requested.table_size.get());
    let drain_timeout_seconds = requested.drain_timeout.filter(|_| traits.drain_timeouts);
    let balancing = ExplainedBalancing {
        method,
        passive_ejection: requested.passive_ejection.filter(|_| requested.ejects() && has_tcp),
        slow_start_seconds: requested.slow_start.filter(|_| traits.weights),
        zone_weight: requested.zone_weight.filter(|_| traits.weights),
        drain_timeout_seconds,
        table_size,
    };
    (balancing != ExplainedBalancing::default()).then_some(balancing)
}

/// Adds the node's addresses that serve the check: the same as for node ports.
fn health_check(check: HealthCheck, inputs: &Inputs<'_>) -> ExplainedHealthCheck {
    let matched = IpFamily::BOTH.map(|family| {
        let node = &inputs.tracker.table(family).node;
        (family, inputs.settings.node_ports(family, node, inputs.addresses))
    });
    let addresses = |scope: ListenScope| match scope {
        ListenScope::Any => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        scope => vec![scope.with_port(0).ip()],
    };
    let node_addresses = ListenScope::for_node_ports(&matched).into_iter().flat_map(addresses).collect();
    ExplainedHealthCheck { check, node_addresses }
}

fn port(
    table: &ServiceTable,
    name: &ServicePortName,
    entry: &ServicePortEntry,
    slices: &[SliceView],
    inputs: &Inputs<'_>,
) -> ExplainedPort {
    let settings = FamilySettings::new(inputs.settings, table, inputs.traits, inputs.addresses);
    let forwarding = forwarding(table, name, entry, &settings, inputs.traits);
    let eligibility = table.eligibility_in(name, entry, inputs.traits);
    let endpoints = entry.endpoints.iter().enumerate();
    ExplainedPort {
        name: name.port.to_string(),
        family: table.family,
        protocol: name.protocol,
        not_applied: None,
        frontends: frontends(table, name, entry, &settings, &forwarding),
        endpoints: endpoints.map(|(i, endpoint)| explained(&endpoint, i, &eligibility, &forwarding, inputs)).collect(),
        excess_endpoints: table.excess.get(name).copied().unwrap_or_default(),
        unused_slices: slices.iter().filter_map(|slice| slice_without_port(slice, table.family, name)).collect(),
        kernel: None,
    }
}

fn explained(
    endpoint: &Endpoint,
    i: usize,
    eligibility: &EndpointEligibility,
    forwarding: &PortForwarding<'_>,
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
        keeps_sources: forwarding.keeps_sources(endpoint, false),
        weight: Some(endpoint.weight)
            .filter(|weight| *weight != Endpoint::DEFAULT_WEIGHT && !inputs.traits.ignores_weight(*weight)),
        node_unknown: endpoint.node_unknown,
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
    settings: &FamilySettings,
    forwarding: &PortForwarding<'_>,
) -> Vec<ExplainedFrontend> {
    let owner = |frontend| {
        Some(match &table.lost_frontend(name, frontend)?.owner {
            ferroute_core::FrontendOwner::ServicePort(claim) => {
                FrontendOwner::ServicePort { service_port: claim.name.to_string(), kind: claim.kind }
            }
            ferroute_core::FrontendOwner::Reserved(reservation) => FrontendOwner::Reserved { reserved: *reservation },
        })
    };
    let claimed = table.claimed(name).unwrap_or(&entry.service);
    let explained = |(kind, frontend): (FrontendKind, Frontend)| {
        let answers = answers(forwarding, kind, frontend, settings.local_traffic.is_some());
        let is_refused = |answer: &Answer| matches!(answer.outcome, Outcome::Rejected { .. } | Outcome::Dropped { .. });
        let elsewhere = Some(forwarding.outcome_at_other_address()).filter(|elsewhere| {
            frontend.address.is_none()
                && !settings.serves_node_ports_everywhere()
                && *elsewhere != ferroute_core::Outcome::NotOurs
        });
        let is_refused_everywhere = elsewhere.is_some() && answers.iter().all(is_refused);
        let elsewhere = elsewhere.filter(|_| !is_refused_everywhere).map(|elsewhere| outcome(forwarding, elsewhere));
        let mut except = Vec::new();
        let (addresses, unserved) = match (frontend.address, &settings.node_ports) {
            (Some(address), _) => (vec![address], false),
            (None, _) if is_refused_everywhere => (Vec::new(), false),
            (None, NodePortMatch::AnyLocal) => {
                let is_v6 = settings.family == IpFamily::V6;
                except.extend((!settings.localhost_node_ports).then_some(NodeAddresses::Localhost));
                except.extend((is_v6 && !settings.link_local_node_ports).then_some(NodeAddresses::LinkLocal));
                (Vec::new(), false)
            }
            (None, NodePortMatch::Addresses(addresses)) => (addresses.clone(), addresses.is_empty()),
        };
        let owner = owner(frontend);
        let answers = if owner.is_some() || unserved { Vec::new() } else { answers };
        let elsewhere = elsewhere.filter(|_| owner.is_none());
        ExplainedFrontend { kind, addresses, except, port: frontend.port, answers, elsewhere, unserved, owner }
    };
    claimed.claims(name.protocol).map(explained).collect()
}

/// Returns the outcomes of all clients; clients with the same outcome are combined.
fn answers(forwarding: &PortForwarding<'_>, kind: FrontendKind, frontend: Frontend, detects_pods: bool) -> Vec<Answer> {
    let of = |client| {
        let seen = forwarding.as_seen(forwarding.outcome(kind, client), client);
        let has_service_source = |route| forwarding.has_service_source(route, kind, client);
        match (outcome(forwarding, seen), seen) {
            (Outcome::Served { policy, endpoints, .. }, ferroute_core::Outcome::Forward(route))
                if has_service_source(route) =>
            {
                Outcome::Served { policy, endpoints, source: Source::Service }
            }
            (outcome, _) => outcome,
        }
    };
    let (pod, node, outside) = (of(Client::Pod), of(Client::Node), of(Client::Outside));
    let mut answers = if let Some(outcome) = pod.merge(node).and_then(|inside| inside.merge(outside)) {
        vec![(Clients::All, outcome)]
    } else if let Some(inside) = pod.merge(node).filter(|_| detects_pods) {
        vec![(Clients::PodsAndNode, inside), (Clients::Others, outside)]
    } else if pod == outside {
        vec![(Clients::Node, node), (Clients::Others, outside)]
    } else {
        vec![(Clients::Pods, pod), (Clients::Node, node), (Clients::Others, outside)]
    };
    let excluded = |client| outcome(forwarding, forwarding.outcome_outside_source_ranges(kind, client));
    if forwarding.is_restricted(kind, frontend) && excluded(Client::Outside) != outside {
        let includes_node = excluded(Client::Node) == excluded(Client::Outside);
        let clients = if includes_node { Clients::OutsideSourceRanges } else { Clients::OthersOutsideSourceRanges };
        answers.push((clients, excluded(Client::Outside)));
    }
    answers.into_iter().map(|(clients, outcome)| Answer { clients, outcome }).collect()
}

fn outcome(forwarding: &PortForwarding<'_>, outcome: ferroute_core::Outcome) -> Outcome {
    match outcome {
        ferroute_core::Outcome::Forward(Route { list, source }) => Outcome::Served {
            policy: list,
            endpoints: forwarding.list(list).map_or(0, <[Endpoint]>::len),
            source: match source {
                SourceAddress::Kept => Source::Client,
                SourceAddress::Node => Source::Node,
            },
        },
        ferroute_core::Outcome::Reject(reason) => Outcome::Rejected { reason: reason.into() },
        ferroute_core::Outcome::Drop(reason) => Outcome::Dropped { reason: reason.into() },
        ferroute_core::Outcome::NotOurs => Outcome::NotHandled,
    }
}

impl Outcome {
    /// Returns a common outcome of two groups of clients, of which only the first may contain pods; `None` if no value
    /// describes both.
    fn merge(self, other: Self) -> Option<Self> {
        let (
            Self::Served { policy, endpoints, source: Source::Client | Source::PodOrNode },
            Self::Served { policy: other_policy, endpoints: other_endpoints, source: Source::Node },
        ) = (self, other)
        else {
            return (self == other).then_some(self);
        };
        let is_same = (policy, endpoints) == (other_policy, other_endpoints);
        is_same.then_some(Self::Served { policy, endpoints, source: Source::PodOrNode })
    }
}

// === slices ===

/// Returns the slice as unused if it has the port's family, but no port with its name and protocol.
fn slice_without_port(slice: &SliceView, family: IpFamily, name: &ServicePortName) -> Option<UnusedSlice> {
    if slice.family != family || slice.ports_for(name).next().is_some() {
        return None;
    }
    let ports = slice.ports.iter().map(|port| port_text(&port.name, port.protocol)).collect::<Vec<_>>();
    let ports = if ports.is_empty() { "no port numbers".to_owned() } else { some_of(&ports) };
    let reason = format!("it has no port {}, only {ports}", port_text(&name.port, name.protocol));
    let code = "otherPorts".into();
    Some(UnusedSlice { slice: slice.name.to_string(), endpoints: slice.endpoints.len(), reason, code })
}

fn port_text(name: &str, protocol: Protocol) -> String {
    if name.is_empty() { format!("(unnamed)/{protocol}") } else { format!("{name}/{protocol}") }
}
