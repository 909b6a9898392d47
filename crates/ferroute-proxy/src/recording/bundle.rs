//! The bundle file: one JSON object, in which Services, endpoint slices and the Node are Kubernetes objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime},
};

use ferroute_admin::history::UnappliedPort;
use ferroute_api::{EndpointSlice, Node, Service, ServiceCidr};
use ferroute_config::FlagSettings;
use ferroute_core::{
    Changes, IpFamily, NamespacedName, NodeView, OtherHosts, Protocol, RulesDigest, ServicePortName, Share, SyncReport,
    tracker::{Ejections, Shares, SliceView},
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{
    Snapshot, UnusedServices, objects,
    recorder::{Ports, RecordedSync, Replaced},
};

/// The value of [`Bundle::format`]: the type and version of the file.
pub const FORMAT: &str = "ferroute-bundle/1";

/// The last syncs of a proxy with all their inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    /// [`FORMAT`].
    pub format: String,
    /// The version of the proxy.
    pub version: String,
    /// When the bundle was created.
    #[serde(with = "time")]
    pub made: SystemTime,
    /// The active mode.
    pub mode: String,
    /// The active configuration: a `KubeProxyConfiguration` as YAML.
    pub configuration: String,
    /// Settings of flags that are not fields of the configuration. Bundles of early versions have none.
    #[serde(default)]
    pub flags: FlagSettings,
    /// The addresses of the host's interfaces at the last sync.
    pub host_addresses: Vec<IpAddr>,
    /// Other hosts that the node connected to when the bundle was created. Bundles of early versions have none.
    #[serde(default)]
    pub other_hosts: OtherHosts,
    /// What the proxy did not use of Services when the bundle was created. Bundles of early versions have none.
    #[serde(default, skip_serializing_if = "UnusedServices::is_empty")]
    pub unused: UnusedServices,
    /// Problems because of which the proxy did not apply all that its source had when the bundle was created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_problems: Vec<String>,
    /// Service ports whose desired rules were not active when the bundle was created, although the last sync succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unapplied: Vec<UnappliedPort>,
    /// The applied state before the first sync.
    pub base: DesiredObjects,
    /// Syncs, oldest first. The last one has no families if its changes have not been applied yet.
    pub syncs: Vec<SyncRecord>,
}

/// The desired state at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DesiredObjects {
    /// The Node.
    pub node: Node,
    /// All Services that the proxy handles.
    pub services: Vec<Service>,
    /// Their endpoint slices.
    pub endpoint_slices: Vec<EndpointSlice>,
    /// The networks of cluster IPs, if the cluster has ServiceCIDRs.
    #[serde(default, rename = "serviceCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub service_cidrs: Vec<ServiceCidr>,
    /// The endpoints that did not answer, by service port, `namespace/name:port`. All are over TCP.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ejected: BTreeMap<String, BTreeSet<SocketAddr>>,
    /// Endpoints that had less than their full weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<RecordedShares>,
}

/// The shares of a service port's endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedShares {
    /// The service port, `namespace/name:port`.
    pub service_port: String,
    /// Protocol.
    pub protocol: Protocol,
    /// Sixteenths of the weights of endpoints that were in effect.
    pub sixteenths: BTreeMap<SocketAddr, Share>,
}

/// A sync, or the changes for the next one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncRecord {
    /// When the sync ended.
    #[serde(with = "time")]
    pub at: SystemTime,
    /// The changes since the previous sync, in order.
    pub changes: Vec<RecordedChange>,
    /// The outcome for each IP family.
    pub families: Vec<FamilyRecord>,
}

/// A change of the desired state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordedChange {
    /// A Service was added or changed.
    Service(Box<Service>),
    /// A Service was deleted, or is no longer handled by the proxy: `namespace/name`.
    #[serde(rename = "serviceGone")]
    ServiceDeleted(String),
    /// An endpoint slice was added or changed.
    EndpointSlice(EndpointSlice),
    /// An endpoint slice was deleted, or is no longer used by the proxy: `namespace/name`.
    #[serde(rename = "endpointSliceGone")]
    EndpointSliceDeleted(String),
    /// The Node changed.
    Node(Node),
    /// The networks of cluster IPs changed to these.
    #[serde(rename = "serviceCIDRs")]
    ServiceCidrs(Vec<ServiceCidr>),
    /// The endpoints that do not answer changed to these; see [`DesiredObjects::ejected`].
    Ejected(BTreeMap<String, BTreeSet<SocketAddr>>),
    /// The shares of endpoints changed to these.
    Shares(Vec<RecordedShares>),
}

/// A sync of one IP family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyRecord {
    /// The IP family.
    pub family: IpFamily,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a sync of one IP family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "outcome")]
pub enum Outcome {
    /// No change for this IP family.
    Unchanged,
    /// The sync succeeded.
    #[serde(rename = "applied")]
    Synced {
        /// Number of changed Services.
        services: usize,
        /// Whether all rules were compared or written, not only those that changed.
        full: bool,
        /// Number of rules or elements written.
        written: usize,
        /// Number of chains or elements removed.
        removed: usize,
        /// Number of active rules or elements after the sync.
        total: usize,
        /// Number of stale UDP conntrack entries deleted.
        #[serde(rename = "staleFlows")]
        conntrack_deleted: usize,
        /// Duration in microseconds.
        took_us: u64,
        /// Part of this time in microseconds that was spent in the kernel or in the programs that write rules to it.
        kernel_us: u64,
        /// The digest of all rules, after a full sync. Bundles of early versions have none.
        #[serde(default, with = "digest", skip_serializing_if = "Option::is_none")]
        rules: Option<RulesDigest>,
    },
    /// The sync failed; the previous rules stayed active.
    Failed {
        /// The error with its causes.
        error: String,
    },
}

/// Reason why a file is not a bundle.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is not JSON, or lacks fields of a bundle.
    #[error("not a bundle")]
    Invalid(#[from] serde_json::Error),
    /// The format is unsupported.
    #[error("unsupported format (got {got:?}, want {FORMAT:?})")]
    Format {
        /// The format of the file.
        got: String,
    },
}

impl FamilyRecord {
    /// The record of a successful sync; `report` is `None` if nothing had changed.
    pub fn synced(
        family: IpFamily,
        changes: &Changes,
        report: Option<&SyncReport>,
        conntrack_deleted: usize,
        took: Duration,
    ) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let outcome = report.map_or(Outcome::Unchanged, |report| Outcome::Synced {
            services: changes.services.len(),
            full: report.full,
            written: report.written,
            removed: report.removed,
            total: report.total,
            conntrack_deleted,
            took_us: micros(took),
            kernel_us: micros(report.kernel_time),
            rules: None,
        });
        Self { family, outcome }
    }

    /// The record of a failed sync.
    pub fn failed(family: IpFamily, error: String) -> Self {
        Self { family, outcome: Outcome::Failed { error } }
    }

    /// Marks a successful sync as full and adds the digest of all rules.
    #[must_use]
    pub fn with_digest(mut self, digest: Option<RulesDigest>) -> Self {
        if let Outcome::Synced { full, rules, .. } = &mut self.outcome {
            *full = true;
            *rules = digest;
        }
        self
    }
}

impl Bundle {
    /// Creates a bundle. Undoes the recorded syncs, from the desired state in the snapshot to the base.
    pub fn new(
        snapshot: Snapshot,
        version: &str,
        made: SystemTime,
        mode: &str,
        configuration: String,
        host_addresses: Vec<IpAddr>,
    ) -> Self {
        let Snapshot { node, services, slices, service_cidrs, ejections, shares, other_hosts, syncs, pending } =
            snapshot;
        let mut state = Rewind {
            node,
            services: services.into_iter().collect(),
            slices: slices.into_iter().map(|slice| (slice.name.clone(), slice)).collect(),
            service_cidrs,
            ejections,
            shares,
        };
        let waiting =
            (!pending.is_empty()).then_some(RecordedSync { at: made, replaced: pending, families: Vec::new() });
        let mut records: Vec<SyncRecord> =
            syncs.into_iter().chain(waiting).rev().map(|sync| state.undo(sync)).collect();
        records.reverse();
        Self {
            format: FORMAT.to_owned(),
            version: version.to_owned(),
            made,
            mode: mode.to_owned(),
            configuration,
            flags: FlagSettings::default(),
            host_addresses,
            other_hosts,
            unused: UnusedServices::default(),
            source_problems: Vec::new(),
            unapplied: Vec::new(),
            base: state.state(),
            syncs: records,
        }
    }

    /// Sets the settings of flags.
    #[must_use]
    pub fn with_flags(self, flags: FlagSettings) -> Self {
        Self { flags, ..self }
    }

    /// Sets what the proxy does not use of Services.
    #[must_use]
    pub fn with_unused(self, unused: UnusedServices) -> Self {
        Self { unused, ..self }
    }

    /// Sets the problems of the source.
    #[must_use]
    pub fn with_source_problems(self, source_problems: Vec<String>) -> Self {
        Self { source_problems, ..self }
    }

    /// Sets the service ports whose desired rules are not active.
    #[must_use]
    pub fn with_unapplied(self, unapplied: Vec<UnappliedPort>) -> Self {
        Self { unapplied, ..self }
    }

    /// Writes the bundle as JSON.
    ///
    /// # Errors
    /// If `out` returns an error.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        out.write_all(b"\n")
    }

    /// Reads a bundle.
    ///
    /// # Errors
    /// If the input is not a bundle; the cause contains line and column.
    pub fn read(input: impl Read) -> Result<Self, ReadError> {
        let bundle: Self = serde_json::from_reader(input)?;
        if bundle.format != FORMAT {
            return Err(ReadError::Format { got: bundle.format });
        }
        Ok(bundle)
    }
}

/// The desired state while syncs are undone.
struct Rewind {
    node: NodeView,
    services: BTreeMap<NamespacedName, Ports>,
    slices: BTreeMap<NamespacedName, SliceView>,
    service_cidrs: Vec<IpNet>,
    ejections: Ejections,
    shares: Shares,
}

impl Rewind {
    /// Undoes a sync and returns its record.
    fn undo(&mut self, sync: RecordedSync) -> SyncRecord {
        let mut changes: Vec<RecordedChange> =
            sync.replaced.into_iter().rev().map(|replaced| self.undo_change(replaced)).collect();
        changes.reverse();
        SyncRecord { at: sync.at, changes, families: sync.families }
    }

    /// Undoes a change and returns it.
    fn undo_change(&mut self, replaced: Replaced) -> RecordedChange {
        match replaced {
            Replaced::Service(name, ports) => match replace(&mut self.services, name.clone(), ports) {
                Some(ports) => {
                    RecordedChange::Service(Box::new(objects::service(&name, ports.each_ref().map(AsRef::as_ref))))
                }
                None => RecordedChange::ServiceDeleted(name.to_string()),
            },
            Replaced::Slice(name, slice) => match replace(&mut self.slices, name.clone(), slice) {
                Some(slice) => RecordedChange::EndpointSlice(objects::slice(&slice, &self.node.name)),
                None => RecordedChange::EndpointSliceDeleted(name.to_string()),
            },
            Replaced::Node(node) => RecordedChange::Node(objects::node(&std::mem::replace(&mut self.node, node))),
            Replaced::ServiceCidrs(networks) => RecordedChange::ServiceCidrs(objects::service_cidrs(
                std::mem::replace(&mut self.service_cidrs, networks),
            )),
            Replaced::Ejections(ejections) => {
                RecordedChange::Ejected(by_text(std::mem::replace(&mut self.ejections, ejections)))
            }
            Replaced::Shares(shares) => {
                RecordedChange::Shares(recorded_shares(std::mem::replace(&mut self.shares, shares)))
            }
        }
    }

    fn state(&self) -> DesiredObjects {
        let services = self.services.iter();
        DesiredObjects {
            node: objects::node(&self.node),
            services: services
                .map(|(name, ports)| objects::service(name, ports.each_ref().map(AsRef::as_ref)))
                .collect(),
            endpoint_slices: self.slices.values().map(|slice| objects::slice(slice, &self.node.name)).collect(),
            service_cidrs: objects::service_cidrs(self.service_cidrs.iter().copied()),
            ejected: by_text(self.ejections.clone()),
            shares: recorded_shares(self.shares.clone()),
        }
    }
}

fn by_text(ejections: Ejections) -> BTreeMap<String, BTreeSet<SocketAddr>> {
    ejections.into_iter().map(|(name, endpoints)| (name.to_string(), endpoints)).collect()
}

/// Returns the endpoints that do not answer, as they are recorded; without invalid names.
pub fn ejections(recorded: &BTreeMap<String, BTreeSet<SocketAddr>>) -> Ejections {
    let parse = |(name, endpoints): (&String, &BTreeSet<SocketAddr>)| {
        Some((service_port_name(name, Protocol::Tcp)?, endpoints.clone()))
    };
    recorded.iter().filter_map(parse).collect()
}

fn recorded_shares(shares: Shares) -> Vec<RecordedShares> {
    let record = |(name, sixteenths): (ServicePortName, _)| RecordedShares {
        service_port: name.to_string(),
        protocol: name.protocol,
        sixteenths,
    };
    shares.into_iter().map(record).collect()
}

/// Returns the shares of endpoints, as they are recorded; without invalid names.
pub fn shares(recorded: &[RecordedShares]) -> Shares {
    let parse = |recorded: &RecordedShares| {
        Some((service_port_name(&recorded.service_port, recorded.protocol)?, recorded.sixteenths.clone()))
    };
    recorded.iter().filter_map(parse).collect()
}

/// Parses `namespace/name:port`, as names of service ports are written.
fn service_port_name(name: &str, protocol: Protocol) -> Option<ServicePortName> {
    let (namespace, name) = name.split_once('/')?;
    let (name, port) = name.split_once(':').unwrap_or((name, ""));
    Some(ServicePortName { service: NamespacedName::new(namespace, name), port: port.into(), protocol })
}

/// Sets or removes a value. Returns the previous one.
fn replace<T>(map: &mut BTreeMap<NamespacedName, T>, name: NamespacedName, value: Option<T>) -> Option<T> {
    match value {
        Some(value) => map.insert(name, value),
        None => map.remove(&name),
    }
}

/// Times in RFC 3339, in UTC.
mod time {
    use std::time::SystemTime;

    use ferroute_core::rfc3339;
    use serde::{Deserialize, Deserializer, Serializer, de, ser};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        let text = rfc3339::format(*time, 6).ok_or_else(|| ser::Error::custom("the time is after the year 9999"))?;
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        let text = String::deserialize(deserializer)?;
        rfc3339::parse(&text).ok_or_else(|| de::Error::custom(format_args!("invalid time {text:?}")))
    }
}

/// Digests as text.
mod digest {
    use ferroute_core::RulesDigest;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(digest: &Option<RulesDigest>, serializer: S) -> Result<S::Ok, S::Error> {
        digest.map(|digest| digest.to_string()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RulesDigest>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}
