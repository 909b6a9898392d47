use std::{collections::VecDeque, time::SystemTime};

use ferroute_core::{
    IpFamily, NodeView, NamespacedName, Tracker,
    tracker::{NamedPort, SliceView, TrackerEvent},
};

use ipnet::IpNet;

use crate::recording::{FamilyRecord, Outcome};

/// How much a [`Recorder`] keeps. Whatever comes first makes it forget the oldest sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Syncs.
    pub syncs: usize,
    /// Bytes that the changes take, about.
    pub bytes: usize,
}

impl Default for Limits {
    /// A few minutes of a busy cluster, in memory that nobody misses.
    fn default() -> Self {
        Self { syncs: 256, bytes: 2 << 20 }
    }
}

/// Keeps the last syncs: what each change replaced, and what came of the sync.
///
/// The record begins when the first rules are in force: until then every object is new, and what is wanted then is where
/// a bundle starts from anyway.
#[derive(Debug)]
pub struct Recorder {
    limits: Limits,
    syncs: VecDeque<Recorded>,
    /// What they take, so that a sync costs the same however many are kept.
    bytes: usize,
    /// Replaced since the last sync.
    pending: Vec<Before>,
    /// Families whose first rules are in force; what follows after them is recorded.
    started: Vec<IpFamily>,
    begun: bool,
}

/// One sync.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) at: SystemTime,
    pub(crate) replaced: Vec<Before>,
    pub(crate) families: Vec<FamilyRecord>,
}

/// What a change replaced: `None` where there was nothing before.
#[derive(Clone, Debug)]
pub(crate) enum Before {
    Service(NamespacedName, Option<Ports>),
    Slice(NamespacedName, Option<SliceView>),
    Node(NodeView),
    ServiceCidrs(Vec<IpNet>),
}

/// A Service's ports by [`IpFamily::index`].
pub(crate) type Ports = [Box<[NamedPort]>; 2];

/// Everything that a [`crate::recording::Bundle`] is made of, taken at one moment. To take it is quick; the rest can be done while
/// the proxy goes on.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) node: NodeView,
    pub(crate) services: Vec<(NamespacedName, Ports)>,
    pub(crate) slices: Vec<SliceView>,
    pub(crate) service_cidrs: Vec<IpNet>,
    pub(crate) syncs: Vec<Recorded>,
    pub(crate) pending: Vec<Before>,
}

impl Recorder {
    /// A recorder with nothing in it.
    pub fn new(limits: Limits) -> Self {
        Self { limits, syncs: VecDeque::new(), bytes: 0, pending: Vec::new(), started: Vec::new(), begun: false }
    }

    /// Records a change before it is applied to `tracker`.
    pub fn record(&mut self, event: &TrackerEvent, tracker: &Tracker) {
        self.begun |= !self.started.is_empty();
        if !self.begun {
            return;
        }
        let service = |name: &NamespacedName| Before::Service(name.clone(), tracker.ports_of(name).cloned());
        let slice = |name: &NamespacedName| Before::Slice(name.clone(), tracker.slice(name));
        self.pending.push(match event {
            TrackerEvent::ServiceApplied(view) => service(&view.name),
            TrackerEvent::ServiceDeleted(name) => service(name),
            TrackerEvent::SliceApplied(view) => slice(&view.name),
            TrackerEvent::SliceDeleted(name) => slice(name),
            TrackerEvent::NodeApplied(_) => Before::Node(tracker.node().clone()),
            TrackerEvent::ServiceCidrsApplied(_) => Before::ServiceCidrs(tracker.service_cidrs().collect()),
        });
    }

    /// Whether the next sync of a family will be in the record.
    pub fn records(&self, family: IpFamily) -> bool {
        self.begun || self.started.contains(&family)
    }

    /// What has come of a family's sync. The families of one sync are told one after another, with no change in between.
    pub fn synced(&mut self, at: SystemTime, family: FamilyRecord) {
        self.begun = self.records(family.family);
        if !self.begun {
            self.started.extend(matches!(family.outcome, Outcome::InForce { .. }).then_some(family.family));
            return;
        }
        let same_sync = |sync: &Recorded| sync.families.iter().all(|known| known.family != family.family);
        match self.syncs.back_mut().filter(|last| self.pending.is_empty() && same_sync(last)) {
            Some(last) => last.families.push(family),
            None => {
                let replaced = std::mem::take(&mut self.pending);
                let sync = Recorded { at, replaced, families: vec![family] };
                self.bytes += sync.size();
                self.syncs.push_back(sync);
                self.forget();
            }
        }
    }

    fn forget(&mut self) {
        while self.syncs.len() > self.limits.syncs || (self.bytes > self.limits.bytes && self.syncs.len() > 1) {
            let Some(oldest) = self.syncs.pop_front() else { break };
            self.bytes -= oldest.size();
        }
    }

    /// All of it, with what is wanted now.
    pub fn snapshot(&self, tracker: &Tracker) -> Snapshot {
        let services = tracker.services().filter_map(|name| Some((name.clone(), tracker.ports_of(name)?.clone())));
        Snapshot {
            node: tracker.node().clone(),
            services: services.collect(),
            slices: tracker.slices().filter_map(|name| tracker.slice(name)).collect(),
            service_cidrs: tracker.service_cidrs().collect(),
            syncs: self.syncs.iter().cloned().collect(),
            pending: self.pending.clone(),
        }
    }
}

impl Recorded {
    fn size(&self) -> usize {
        self.replaced.iter().map(Before::size).sum::<usize>() + size_of::<Self>()
    }
}

impl Before {
    /// About so many bytes; what names share is counted each time.
    fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Service(name, ports) => {
                    let ports = ports.iter().flatten().map(|ports| ports.len() * size_of::<NamedPort>());
                    name.as_str().len() + ports.sum::<usize>()
                }
                Self::Slice(name, slice) => {
                    let slice = slice.as_ref().map_or(0, |slice| {
                        size_of_val(slice.endpoints.as_slice()) + size_of_val(slice.ports.as_slice())
                    });
                    name.as_str().len() + slice
                }
                Self::Node(node) => node.name.len() + size_of_val(node.addresses.as_slice()),
                Self::ServiceCidrs(networks) => size_of_val(networks.as_slice()),
            }
    }
}

impl FamilyRecord {
    /// The record of a sync that did not come to its end.
    pub fn failed(family: IpFamily, error: String) -> Self {
        Self { family, outcome: Outcome::Failed { error } }
    }
}
