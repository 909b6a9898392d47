//! The recent syncs of a proxy, from its recording. Pure.

use std::collections::BTreeMap;

use ferroute_api::{EndpointSlice, ObjectMeta};
use ferroute_core::rfc3339;
use ferroute_proxy::recording::{Bundle, Outcome, RecordedChange, SyncRecord};
use serde::Serialize;

/// The syncs of a bundle, oldest first.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Timeline {
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Whether the proxy has applied rules, which it also has before the first recorded change.
    applied: bool,
    syncs: Vec<Sync>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sync {
    number: usize,
    at: String,
    /// The changes are not applied yet.
    pending: bool,
    cause: Cause,
    /// Number of rules that another program had changed.
    repaired: usize,
    changes: Vec<Change>,
    families: Vec<Family>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Cause {
    /// Objects changed.
    Changes,
    /// All rules were compared with the kernel's.
    Resync,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    kind: &'static str,
    name: String,
    deleted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    endpoints: Option<Endpoints>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Endpoints {
    ready: usize,
    total: usize,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Family {
    family: &'static str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    work: Option<Work>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Work {
    services: usize,
    full: bool,
    written: usize,
    removed: usize,
    total: usize,
    took_us: u64,
    kernel_us: u64,
    stale_flows: usize,
}

impl Timeline {
    /// Returns the syncs of a bundle.
    pub(crate) fn new(bundle: &Bundle) -> Self {
        // A deleted EndpointSlice is recorded by its name only.
        let mut owners = BTreeMap::new();
        bundle.base.endpoint_slices.iter().for_each(|slice| remember(&mut owners, slice));
        let syncs = (1..).zip(&bundle.syncs).map(|(number, record)| sync(number, record, &mut owners)).collect();
        // The addresses are known from the first sync on.
        let applied = !bundle.host_addresses.is_empty() || !bundle.syncs.is_empty();
        Self { available: true, reason: None, applied, syncs }
    }

    /// Returns the answer of a source without a recording.
    pub(crate) fn unavailable(reason: String) -> Self {
        Self { available: false, reason: Some(reason), applied: false, syncs: Vec::new() }
    }
}

fn remember(owners: &mut BTreeMap<String, String>, slice: &EndpointSlice) {
    if let Some(service) = service_of(slice) {
        owners.insert(full_name(&slice.metadata), service);
    }
}

fn sync(number: usize, record: &SyncRecord, owners: &mut BTreeMap<String, String>) -> Sync {
    let changes: Vec<Change> = record.changes.iter().map(|recorded| change(recorded, owners)).collect();
    let families: Vec<Family> =
        record.families.iter().map(|record| family(record.family.as_str(), &record.outcome)).collect();
    let works = || families.iter().filter_map(|family| family.work.as_ref());
    let is_full = works().any(|work| work.full);
    // The first sync writes all rules, and is not a repair.
    let repaired = if changes.is_empty() && is_full && number > 1 {
        works().map(|work| work.written + work.removed).sum()
    } else {
        0
    };
    Sync {
        number,
        at: rfc3339::format(record.at, 6).unwrap_or_default(),
        pending: record.families.is_empty(),
        cause: if changes.is_empty() { Cause::Resync } else { Cause::Changes },
        repaired,
        changes,
        families,
    }
}

fn change(recorded: &RecordedChange, owners: &mut BTreeMap<String, String>) -> Change {
    let simple = |kind, name: String, deleted| {
        let service = (kind == "Service").then(|| name.clone());
        Change { kind, name, deleted, service, endpoints: None }
    };
    match recorded {
        RecordedChange::Service(service) => simple("Service", full_name(&service.metadata), false),
        RecordedChange::ServiceDeleted(name) => simple("Service", name.clone(), true),
        RecordedChange::EndpointSlice(slice) => {
            remember(owners, slice);
            let ready = slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready != Some(false)).count();
            Change {
                service: service_of(slice),
                endpoints: Some(Endpoints { ready, total: slice.endpoints.len() }),
                ..simple("EndpointSlice", full_name(&slice.metadata), false)
            }
        }
        RecordedChange::EndpointSliceDeleted(name) => {
            Change { service: owners.remove(name), ..simple("EndpointSlice", name.clone(), true) }
        }
        RecordedChange::Node(node) => simple("Node", node.metadata.name.clone(), false),
        RecordedChange::ServiceCidrs(cidrs) => {
            let networks: Vec<&str> = cidrs.iter().flat_map(|cidr| &cidr.spec.cidrs).map(String::as_str).collect();
            simple("ServiceCIDR", networks.join(" "), false)
        }
        RecordedChange::Ejected(ejected) => {
            let names: Vec<&str> = ejected.keys().map(String::as_str).collect();
            simple("Ejected endpoints", names.join(" "), ejected.is_empty())
        }
        RecordedChange::Shares(shares) => {
            let names: Vec<&str> = shares.iter().map(|shares| shares.service_port.as_str()).collect();
            simple("Shares of endpoints", names.join(" "), shares.is_empty())
        }
    }
}

fn family(family: &'static str, outcome: &Outcome) -> Family {
    match outcome {
        Outcome::Unchanged => Family { family, outcome: "unchanged", error: None, work: None },
        Outcome::Failed { error } => Family { family, outcome: "failed", error: Some(error.clone()), work: None },
        Outcome::Synced {
            services,
            full,
            written,
            removed,
            total,
            conntrack_deleted,
            took_us,
            kernel_us,
            rules: _,
        } => {
            let work = Work {
                services: *services,
                full: *full,
                written: *written,
                removed: *removed,
                total: *total,
                took_us: *took_us,
                kernel_us: *kernel_us,
                stale_flows: *conntrack_deleted,
            };
            Family { family, outcome: "applied", error: None, work: Some(work) }
        }
    }
}

fn full_name(metadata: &ObjectMeta) -> String {
    format!("{}/{}", metadata.namespace, metadata.name)
}

fn service_of(slice: &EndpointSlice) -> Option<String> {
    Some(format!("{}/{}", slice.metadata.namespace, slice.service_name()?))
}
