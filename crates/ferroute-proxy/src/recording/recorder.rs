//! A bounded record of syncs.

use std::{collections::VecDeque, time::SystemTime};

use ferroute_core::{
    IpFamily, NamespacedName, NodeView, OtherHosts, ServicePort, Share, Tracker,
    tracker::{Ejections, NamedPort, Shares, SliceView, TrackerEvent},
};
use ipnet::IpNet;

use super::{FamilyRecord, Outcome};

/// The capacity of a [`Recorder`]. If either limit is exceeded, it discards the oldest syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of syncs.
    pub syncs: usize,
    /// Approximate maximum size of all changes in bytes.
    pub bytes: usize,
}

impl Default for Limits {
    /// Suffices for a few minutes of a busy cluster.
    fn default() -> Self {
        Self { syncs: 256, bytes: 2 << 20 }
    }
}

/// Keeps the last syncs: their outcomes, and the values that their changes replaced.
///
/// Recording starts after the first sync, because all objects are new before it. The state at that time is the base of
/// a bundle.
#[derive(Debug)]
pub struct Recorder {
    limits: Limits,
    syncs: VecDeque<RecordedSync>,
    /// The size of `syncs`.
    bytes: usize,
    /// Values replaced since the last sync.
    pending: Vec<Replaced>,
    /// IP families whose first sync has succeeded.
    started: Vec<IpFamily>,
    is_recording: bool,
}

/// A sync.
#[derive(Clone, Debug)]
pub(super) struct RecordedSync {
    pub(super) at: SystemTime,
    pub(super) replaced: Vec<Replaced>,
    pub(super) families: Vec<FamilyRecord>,
}

/// The value that a change replaced; `None` if the object is new.
#[derive(Clone, Debug)]
pub(super) enum Replaced {
    Service(NamespacedName, Option<Ports>),
    Slice(NamespacedName, Option<SliceView>),
    Node(NodeView),
    ServiceCidrs(Vec<IpNet>),
    Ejections(Ejections),
    Shares(Shares),
}

/// A Service's ports by [`IpFamily::index`].
pub(super) type Ports = [Box<[NamedPort]>; 2];

/// A copy of the record and of the desired state. It is cheap to create; the conversion to a [`Bundle`](super::Bundle) can
/// run on another thread.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) node: NodeView,
    pub(super) services: Vec<(NamespacedName, Ports)>,
    pub(super) slices: Vec<SliceView>,
    pub(super) service_cidrs: Vec<IpNet>,
    pub(super) ejections: Ejections,
    pub(super) shares: Shares,
    pub(super) other_hosts: OtherHosts,
    pub(super) syncs: Vec<RecordedSync>,
    pub(super) pending: Vec<Replaced>,
}

impl Recorder {
    /// Creates an empty recorder.
    pub fn new(limits: Limits) -> Self {
        Self { limits, syncs: VecDeque::new(), bytes: 0, pending: Vec::new(), started: Vec::new(), is_recording: false }
    }

    /// Records a change that has not been applied to `tracker` yet.
    pub fn record(&mut self, event: &TrackerEvent, tracker: &Tracker) {
        self.is_recording |= !self.started.is_empty();
        if !self.is_recording {
            return;
        }
        let service = |name: &NamespacedName| Replaced::Service(name.clone(), tracker.ports_of(name).cloned());
        let slice = |name: &NamespacedName| Replaced::Slice(name.clone(), tracker.slice(name));
        self.pending.push(match event {
            TrackerEvent::ServiceApplied(view) => service(&view.name),
            TrackerEvent::ServiceDeleted(name) => service(name),
            TrackerEvent::SliceApplied(view) => slice(&view.name),
            TrackerEvent::SliceDeleted(name) => slice(name),
            TrackerEvent::NodeApplied(_) => Replaced::Node(tracker.node().clone()),
            TrackerEvent::ServiceCidrsApplied(_) => Replaced::ServiceCidrs(tracker.service_cidrs().collect()),
            TrackerEvent::EndpointsEjected(_) => Replaced::Ejections(tracker.ejections().clone()),
            TrackerEvent::SharesApplied(_) => Replaced::Shares(tracker.shares().clone()),
            // A snapshot has the current ones.
            TrackerEvent::OtherHostsApplied(_) => return,
        });
    }

    /// Reports whether the next sync of a family will be recorded.
    pub fn is_recording(&self, family: IpFamily) -> bool {
        self.is_recording || self.started.contains(&family)
    }

    /// Records the outcome of a family's sync. The families of one sync are recorded without a change in between.
    pub fn synced(&mut self, at: SystemTime, family: FamilyRecord) {
        self.is_recording = self.is_recording(family.family);
        if !self.is_recording {
            self.started.extend(matches!(family.outcome, Outcome::Synced { .. }).then_some(family.family));
            return;
        }
        let is_same_sync = |sync: &RecordedSync| sync.families.iter().all(|other| other.family != family.family);
        match self.syncs.back_mut().filter(|last| self.pending.is_empty() && is_same_sync(last)) {
            Some(last) => last.families.push(family),
            None => {
                let replaced = std::mem::take(&mut self.pending);
                let sync = RecordedSync { at, replaced, families: vec![family] };
                self.bytes += sync.size();
                self.syncs.push_back(sync);
                self.discard_oldest();
            }
        }
    }

    fn discard_oldest(&mut self) {
        while self.syncs.len() > self.limits.syncs || (self.bytes > self.limits.bytes && self.syncs.len() > 1) {
            let Some(oldest) = self.syncs.pop_front() else { break };
            self.bytes -= oldest.size();
        }
    }

    /// Returns a copy of the record and of the desired state.
    pub fn snapshot(&self, tracker: &Tracker) -> Snapshot {
        let services = tracker.services().filter_map(|name| Some((name.clone(), tracker.ports_of(name)?.clone())));
        Snapshot {
            node: tracker.node().clone(),
            services: services.collect(),
            slices: tracker.slices().filter_map(|name| tracker.slice(name)).collect(),
            service_cidrs: tracker.service_cidrs().collect(),
            ejections: tracker.ejections().clone(),
            shares: tracker.shares().clone(),
            other_hosts: tracker.other_hosts().clone(),
            syncs: self.syncs.iter().cloned().collect(),
            pending: self.pending.clone(),
        }
    }
}

impl RecordedSync {
    fn size(&self) -> usize {
        self.replaced.iter().map(Replaced::size).sum::<usize>() + size_of::<Self>()
    }
}

/// Returns the approximate size of a port in bytes, with the addresses that each version of a Service has.
fn port_size(port: &NamedPort) -> usize {
    let ServicePort { external_ips, load_balancer_vips, load_balancer_source_ranges, .. } = &*port.port;
    size_of::<NamedPort>()
        + size_of::<ServicePort>()
        + size_of_val(external_ips.as_slice())
        + size_of_val(load_balancer_vips.as_slice())
        + size_of_val(load_balancer_source_ranges.as_slice())
}

impl Replaced {
    /// Returns the approximate size in bytes. Shared names count each time.
    fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Service(name, ports) => {
                    let ports = ports.iter().flatten().flat_map(|ports| ports.iter()).map(port_size);
                    name.as_str().len() + ports.sum::<usize>()
                }
                Self::Slice(name, slice) => {
                    let slice = slice.as_ref().map_or(0, |slice| {
                        let hints = slice.endpoints.iter().filter_map(|endpoint| endpoint.hints.as_ref());
                        let names =
                            hints.flat_map(|hints| hints.zones.iter().chain(&hints.nodes)).map(|name| name.len());
                        size_of_val(slice.endpoints.as_slice())
                            + size_of_val(slice.ports.as_slice())
                            + names.sum::<usize>()
                    });
                    name.as_str().len() + slice
                }
                Self::Node(node) => node.name.len() + size_of_val(node.addresses.as_slice()),
                Self::ServiceCidrs(networks) => size_of_val(networks.as_slice()),
                Self::Shares(shares) => {
                    let sizes = shares.iter().map(|(name, endpoints)| {
                        name.service.as_str().len() + endpoints.len() * size_of::<(std::net::SocketAddr, Share)>()
                    });
                    sizes.sum()
                }
                Self::Ejections(ejections) => {
                    let sizes = ejections.iter().map(|(name, endpoints)| {
                        name.service.as_str().len() + endpoints.len() * size_of::<std::net::SocketAddr>()
                    });
                    sizes.sum()
                }
            }
    }
}
