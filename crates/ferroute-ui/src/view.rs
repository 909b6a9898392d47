//! The state of the node as the page shows it. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ferroute_api::Service;
use ferroute_core::{
    Eligibility, EndpointEligibility, Frontend, FrontendKind, IpFamily, NamespacedName, Protocol,
    parse::{SkipReason, parse_service},
};
use ferroute_demo::layout::OUTSIDE;
use ferroute_inspect::desired::{AddressOwner, Desired};
use ferroute_modes::REGISTRY;
use serde::Serialize;

use crate::differences::VersionedList;

/// A state of the node.
pub(crate) struct View {
    /// The number of the state, from 1.
    pub(crate) revision: u64,
    /// The desired state.
    pub(crate) desired: Arc<Desired>,
    /// The numbers in the head of the page.
    pub(crate) counts: Counts,
    /// The rows of all Services, by name.
    pub(crate) rows: VersionedList,
    /// Known nodes, this node first.
    pub(crate) nodes: Vec<String>,
    /// The machines that can send packets, by name.
    pub(crate) machines: VersionedList,
}

/// The numbers in the head of the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Counts {
    /// All Services.
    services: usize,
    /// Number of service ports; those of both IP families count twice.
    service_ports: usize,
    /// Endpoints of all Services.
    endpoints: usize,
    /// Endpoints that receive new connections.
    used: usize,
    /// Services that the proxy skips.
    not_served: usize,
    /// Invalid Services.
    invalid: usize,
}

/// A machine that can send packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    /// Name for a trace.
    name: String,
    /// `pod`, `node` or `outside`.
    kind: &'static str,
    /// The node of a pod, or the node itself.
    node: Option<String>,
    /// Addresses; the address that other hosts use comes first.
    addresses: Vec<IpAddr>,
}

/// A Service in the table.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Row<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    type_: &'a str,
    state: Handling,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    frontends: Vec<RowFrontend>,
    endpoints: usize,
    used: usize,
    /// The number of endpoints that did not answer and are ejected.
    #[serde(skip_serializing_if = "is_zero")]
    ejected: usize,
    /// Frontends that another Service owns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conflicts: Vec<RowConflict>,
    ports: BTreeSet<String>,
    /// Names and addresses of endpoints, for the search.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    search: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Handling {
    Served,
    /// Served, but not with the last version, or not with the last rules of all ports.
    NotApplied,
    NotServed,
    Invalid,
}

#[derive(Debug, PartialEq, Serialize)]
struct RowFrontend {
    kind: FrontendKind,
    /// Empty for node ports.
    address: String,
    port: u16,
    protocol: Protocol,
}

/// A frontend that several Services claim.
#[derive(Debug, PartialEq, Serialize)]
struct RowConflict {
    #[serde(flatten)]
    frontend: RowFrontend,
    /// The service port that owns it.
    owner: String,
}

impl RowFrontend {
    fn new(kind: FrontendKind, frontend: Frontend) -> Self {
        let address = frontend.address.map(|address| address.to_string()).unwrap_or_default();
        Self { kind, address, port: frontend.port, protocol: frontend.protocol }
    }
}

impl View {
    /// Creates the view of a state that follows `previous`. Packets from outside of the cluster come from addresses for
    /// documentation, unless the state has other addresses with that name.
    pub(crate) fn new(mut desired: Desired, previous: Option<&Self>) -> Self {
        if desired.names.addresses(OUTSIDE).is_empty() {
            desired.names.add_machine(OUTSIDE, EXAMPLE_CLIENTS);
        }
        let revision = previous.map_or(1, |view| view.revision + 1);
        let next = |list: fn(&Self) -> &VersionedList, items: Vec<(String, String)>| match previous {
            Some(view) => list(view).next(revision, items),
            None => VersionedList::new(revision, items),
        };
        let (rows, counts) = rows(&desired);
        let rows = next(|view| &view.rows, rows);
        let machines = next(|view| &view.machines, machines(&desired));
        let own = desired.node().name.clone();
        let others = desired.names.nodes().into_iter().filter(|node| *node != own).map(str::to_owned);
        let nodes = [own.clone()].into_iter().chain(others).collect();
        Self { revision, desired: Arc::new(desired), counts, rows, nodes, machines }
    }

    /// Reports whether another state has the same Services and endpoints.
    pub(crate) fn is_same(&self, desired: &Desired) -> bool {
        IpFamily::BOTH.into_iter().all(|family| self.desired.table(family) == desired.table(family))
            && self.desired.services == desired.services
            && self.desired.unapplied == desired.unapplied
            && self.desired.outdated == desired.outdated
            && self.desired.resolved.mode == desired.resolved.mode
    }
}

fn machines(desired: &Desired) -> Vec<(String, String)> {
    let machine = |(owner, addresses): (&AddressOwner, Vec<IpAddr>)| {
        let node = addresses.iter().find_map(|address| desired.names.node(*address));
        let (name, kind) = match owner {
            AddressOwner::Pod { namespace, name } => (format!("{namespace}/{name}"), "pod"),
            AddressOwner::Node(name) => (name.clone(), "node"),
            AddressOwner::Machine(name) => ((*name).to_owned(), "outside"),
        };
        let node = match kind {
            "pod" => node.map(str::to_owned),
            "node" => Some(name.clone()),
            _ => None,
        };
        let machine = Machine { name, kind, node, addresses };
        let json = to_json(&machine);
        (machine.name, json)
    };
    desired.names.owners().into_iter().map(machine).collect()
}

fn rows(desired: &Desired) -> (Vec<(String, String)>, Counts) {
    let mut counts = Counts::default();
    let services = desired.services.iter();
    let rows = services.map(|(name, service)| (name.to_string(), to_json(&row(name, service, desired, &mut counts))));
    (rows.collect(), counts)
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("text and numbers under text keys are always JSON")
}

fn row<'a>(name: &'a str, service: &'a Service, desired: &Desired, counts: &mut Counts) -> Row<'a> {
    let key = NamespacedName::from_metadata(&service.metadata);
    let (state, reason, code) = state(service, &key, desired);
    let mut row = Row {
        name,
        type_: service.spec.type_.as_deref().filter(|text| !text.is_empty()).unwrap_or("ClusterIP"),
        state,
        reason,
        code,
        frontends: Vec::new(),
        endpoints: 0,
        used: 0,
        ejected: 0,
        conflicts: Vec::new(),
        ports: BTreeSet::new(),
        search: BTreeSet::new(),
    };
    let mut endpoints: BTreeMap<_, bool> = BTreeMap::new();
    let mut ejected = BTreeSet::new();
    let traits = REGISTRY.active(desired.resolved.mode).traits();
    for table in IpFamily::BOTH.map(|family| desired.table(family)) {
        for (port, entry) in table.ports_of(&key) {
            counts.service_ports += 1;
            row.ports.insert(port.to_string());
            let frontends = entry.service.claims(port.protocol);
            row.frontends.extend(frontends.map(|(kind, frontend)| RowFrontend::new(kind, frontend)));
            let lost = table.lost.get(port).into_iter().flat_map(|lost| &lost.frontends);
            row.conflicts.extend(lost.map(|lost| RowConflict {
                frontend: RowFrontend::new(lost.kind, lost.frontend),
                owner: match &lost.owner {
                    ferroute_core::FrontendOwner::ServicePort(claim) => claim.name.to_string(),
                    ferroute_core::FrontendOwner::Reserved(reservation) => reservation.to_string(),
                },
            }));
            let eligibility = table.eligibility_in(port, entry, traits);
            for (i, endpoint) in entry.endpoints.iter().enumerate() {
                *endpoints.entry(endpoint.socket()).or_default() |= is_used(&eligibility, i);
                ejected.extend(endpoint.ejected.then(|| endpoint.socket()));
                if row.search.len() < MAX_SEARCH {
                    row.search.insert(endpoint.address.to_string());
                    if let Some(AddressOwner::Pod { name, .. }) = desired.names.owner(endpoint.address) {
                        row.search.insert(name.clone());
                    }
                }
            }
        }
    }
    row.endpoints = endpoints.len();
    row.ejected = ejected.len();
    row.used = endpoints.values().filter(|used| **used).count();
    counts.services += 1;
    counts.endpoints += row.endpoints;
    counts.used += row.used;
    counts.not_served += usize::from(state == Handling::NotServed);
    counts.invalid += usize::from(state == Handling::Invalid);
    row
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn state(
    service: &Service,
    name: &NamespacedName,
    desired: &Desired,
) -> (Handling, Option<String>, Option<&'static str>) {
    match (SkipReason::for_service(service), parse_service(service)) {
        (_, Err(invalid)) => {
            let errors: Vec<String> = invalid.errors.iter().map(ToString::to_string).collect();
            (Handling::Invalid, Some(errors.join("; ")), None)
        }
        (Some(reason), Ok(_)) => (Handling::NotServed, Some(reason.to_string()), Some(reason.code())),
        (None, Ok(_)) => {
            let unapplied = desired.unapplied.iter().filter(|port| port.is_of(name));
            let outdated = desired.outdated.get(&name.to_string());
            let outdated = outdated.map(|errors| {
                format!("the last version is invalid, and the one before applies: {}", errors.join("; "))
            });
            let reasons: Vec<String> = outdated.into_iter().chain(unapplied.map(ToString::to_string)).collect();
            let state = if reasons.is_empty() { Handling::Served } else { Handling::NotApplied };
            (state, (!reasons.is_empty()).then(|| reasons.join("; ")), None)
        }
    }
}

fn is_used(eligibility: &EndpointEligibility, i: usize) -> bool {
    let used = |all: &Option<Vec<Eligibility>>| all.as_ref().is_some_and(|all| all[i].is_eligible());
    used(&eligibility.cluster) || used(&eligibility.local)
}

/// Clients outside of the cluster, from the networks for documentation (RFC 5737, RFC 3849).
const EXAMPLE_CLIENTS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 10))];

/// Maximum number of search words in a row, which exceeds the number of endpoints of most Services.
const MAX_SEARCH: usize = 64;
