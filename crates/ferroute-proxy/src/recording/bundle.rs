mod spelled;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::IpAddr,
    time::{Duration, SystemTime},
};

use ferroute_api::{EndpointSlice, Node, Service, ServiceCidr};
use ferroute_core::{Changes, IpFamily, NodeView, RulesDigest, NamespacedName, SyncReport, tracker::SliceView};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::recording::{
    Snapshot, objects,
    recorder::{Before, Ports, Recorded},
};

/// The value of [`Bundle::format`]: what is in the file, and which version of it.
pub const FORMAT: &str = "ferroute-bundle/1";

/// The last syncs of a proxy with everything that its decisions came from, as it is written to a file: one JSON object,
/// in which Services, slices and the Node are Kubernetes objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program that made it.
    pub version: String,
    /// When it was made.
    #[serde(with = "spelled::time")]
    pub made: SystemTime,
    /// Mode whose rules were in force.
    pub mode: String,
    /// The configuration in force: a `KubeProxyConfiguration`, as YAML.
    pub configuration: String,
    /// Addresses of the host's interfaces when it was made.
    pub host_addresses: Vec<IpAddr>,
    /// What was in force before the first of the syncs.
    pub base: State,
    /// The syncs, the oldest first. The last has no families if its changes are not in force yet.
    pub syncs: Vec<SyncRecord>,
}

/// Everything that is wanted at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The node.
    pub node: Node,
    /// All Services that the proxy serves.
    pub services: Vec<Service>,
    /// All slices that it uses.
    pub endpoint_slices: Vec<EndpointSlice>,
    /// The networks that cluster IPs are taken from, where the cluster tells them.
    #[serde(default, rename = "serviceCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub service_cidrs: Vec<ServiceCidr>,
}

/// One sync, or what a next one would bring into force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncRecord {
    /// When it ended.
    #[serde(with = "spelled::time")]
    pub at: SystemTime,
    /// What has changed since the one before, in order.
    pub changes: Vec<Change>,
    /// What came of it.
    pub families: Vec<FamilyRecord>,
}

/// One change of what is wanted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// A Service is new or differs.
    Service(Box<Service>),
    /// A Service is gone or is none of ours any more: `namespace/name`.
    ServiceGone(String),
    /// A slice is new or differs.
    EndpointSlice(EndpointSlice),
    /// A slice is gone or is none of ours any more: `namespace/name`.
    EndpointSliceGone(String),
    /// The node differs.
    Node(Node),
    /// The networks that cluster IPs are taken from differ; all of them.
    #[serde(rename = "serviceCIDRs")]
    ServiceCidrs(Vec<ServiceCidr>),
}

/// One family's part of a sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyRecord {
    /// The family.
    #[serde(with = "spelled::family")]
    pub family: IpFamily,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a family's sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "outcome")]
pub enum Outcome {
    /// Nothing had changed for this family.
    Unchanged,
    /// Rules were written.
    InForce {
        /// Services that had changed.
        services: usize,
        /// Everything was gone through or compared with the kernel, not only what had changed.
        full: bool,
        /// Rules or elements written.
        written: usize,
        /// Chains or elements removed.
        removed: usize,
        /// Rules or elements in force afterwards.
        total: usize,
        /// UDP flows removed because they led to endpoints that are gone.
        stale_flows: usize,
        /// How long it took, in microseconds.
        took_us: u64,
        /// How long of it the kernel or the program that talks to it took, in microseconds.
        kernel_us: u64,
        /// What all rules together came to; of a full sync only, and not in bundles of the first versions.
        #[serde(default, with = "spelled::digest", skip_serializing_if = "Option::is_none")]
        rules: Option<RulesDigest>,
    },
    /// The old rules stayed in force.
    Failed {
        /// Why.
        error: String,
    },
}

/// Why a file is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not JSON, or not of the shape of a bundle.
    #[error("not a bundle")]
    Shape(#[from] serde_json::Error),
    /// Another version.
    #[error("the bundle's format is {got:?} (want {FORMAT:?})")]
    Format {
        /// What it says.
        got: String,
    },
}

impl FamilyRecord {
    /// The record of a sync that came to its end; `report` is `None` if nothing had changed.
    pub fn in_force(
        family: IpFamily,
        changes: &Changes,
        report: Option<&SyncReport>,
        stale_flows: usize,
        took: Duration,
    ) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let outcome = report.map_or(Outcome::Unchanged, |report| Outcome::InForce {
            services: changes.services.len(),
            full: report.full,
            written: report.written,
            removed: report.removed,
            total: report.total,
            stale_flows,
            took_us: micros(took),
            kernel_us: micros(report.kernel_time),
            rules: None,
        });
        Self { family, outcome }
    }

    /// The same of a sync that went through everything, which has come to these rules.
    #[must_use]
    pub fn of_everything(mut self, of_all: Option<RulesDigest>) -> Self {
        if let Outcome::InForce { full, rules, .. } = &mut self.outcome {
            *full = true;
            *rules = of_all;
        }
        self
    }
}

impl Bundle {
    /// Puts a bundle together, going back from what is wanted at the end.
    pub fn new(
        snapshot: Snapshot,
        version: &str,
        made: SystemTime,
        mode: &str,
        configuration: String,
        host_addresses: Vec<IpAddr>,
    ) -> Self {
        let Snapshot { node, services, slices, service_cidrs, syncs, pending } = snapshot;
        let mut wanted = Wanted {
            node,
            services: services.into_iter().collect(),
            slices: slices.into_iter().map(|slice| (slice.name.clone(), slice)).collect(),
            service_cidrs,
        };
        let waiting = (!pending.is_empty()).then_some(Recorded { at: made, replaced: pending, families: Vec::new() });
        let mut records: Vec<SyncRecord> =
            syncs.into_iter().chain(waiting).rev().map(|sync| wanted.undo(sync)).collect();
        records.reverse();
        Self {
            format: FORMAT.to_owned(),
            version: version.to_owned(),
            made,
            mode: mode.to_owned(),
            configuration,
            host_addresses,
            base: wanted.state(),
            syncs: records,
        }
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        out.write_all(b"\n")
    }

    /// Reads what [`Bundle::write`] has written.
    ///
    /// # Errors
    /// When it is something else; the cause tells line and column.
    pub fn read(input: impl Read) -> Result<Self, ReadError> {
        let bundle: Self = serde_json::from_reader(input)?;
        if bundle.format != FORMAT {
            return Err(ReadError::Format { got: bundle.format });
        }
        Ok(bundle)
    }
}

/// What is wanted at the moment that going back has come to.
struct Wanted {
    node: NodeView,
    services: BTreeMap<NamespacedName, Ports>,
    slices: BTreeMap<NamespacedName, SliceView>,
    service_cidrs: Vec<IpNet>,
}

impl Wanted {
    /// Goes back behind a sync.
    fn undo(&mut self, sync: Recorded) -> SyncRecord {
        let mut changes: Vec<Change> = sync.replaced.into_iter().rev().map(|before| self.undo_one(before)).collect();
        changes.reverse();
        SyncRecord { at: sync.at, changes, families: sync.families }
    }

    /// Goes back behind a change and tells what it was.
    fn undo_one(&mut self, before: Before) -> Change {
        match before {
            Before::Service(name, ports) => match replace(&mut self.services, name.clone(), ports) {
                Some(ports) => Change::Service(Box::new(objects::service(&name, ports.each_ref().map(AsRef::as_ref)))),
                None => Change::ServiceGone(name.to_string()),
            },
            Before::Slice(name, slice) => match replace(&mut self.slices, name.clone(), slice) {
                Some(slice) => Change::EndpointSlice(objects::slice(&slice, &self.node.name)),
                None => Change::EndpointSliceGone(name.to_string()),
            },
            Before::Node(node) => Change::Node(objects::node(&std::mem::replace(&mut self.node, node))),
            Before::ServiceCidrs(networks) => {
                Change::ServiceCidrs(objects::service_cidrs(std::mem::replace(&mut self.service_cidrs, networks)))
            }
        }
    }

    fn state(&self) -> State {
        let services = self.services.iter();
        State {
            node: objects::node(&self.node),
            services: services
                .map(|(name, ports)| objects::service(name, ports.each_ref().map(AsRef::as_ref)))
                .collect(),
            endpoint_slices: self.slices.values().map(|slice| objects::slice(slice, &self.node.name)).collect(),
            service_cidrs: objects::service_cidrs(self.service_cidrs.iter().copied()),
        }
    }
}

/// Puts a value in place of another, which may both be nothing.
fn replace<T>(map: &mut BTreeMap<NamespacedName, T>, name: NamespacedName, value: Option<T>) -> Option<T> {
    match value {
        Some(value) => map.insert(name, value),
        None => map.remove(&name),
    }
}
