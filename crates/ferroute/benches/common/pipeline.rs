//! The path from events to the kernel, in this process.

use std::time::{Duration, Instant};

use ferroute_api::{EndpointSlice, Service};
use ferroute_core::{
    Dataplane, IpFamily, LocalTrafficDetector, NodeView, ProxySettings, SyncReport, Tracker, tracker::TrackerEvent,
};
use ferroute_host::KernelAddresses;
use ferroute_iptables::{GenerationTracker, HostAccess, IptablesDataplane, exec::RuleAccess, native::NativeRules};
use ferroute_nftables::{NftablesDataplane, plan::NftablesSettings};

use super::{
    arguments::Mode,
    cluster::{self, Size},
};

/// An event of a source.
pub(crate) enum Event {
    Service(Box<Service>),
    Slice(Box<EndpointSlice>),
    Node(NodeView),
}

/// An IPv4 proxy without source, scheduling and logging.
pub(crate) struct Pipeline {
    tracker: Tracker,
    dataplane: Box<dyn Dataplane>,
}

impl Pipeline {
    /// Opens a mode's dataplane in the calling thread's network namespace.
    pub(crate) fn open(mode: Mode) -> Self {
        let proxy = ProxySettings {
            detector: LocalTrafficDetector::ClusterCidr(vec![cluster::CLUSTER_CIDR.parse().unwrap()]),
            ..ProxySettings::default()
        };
        let node = NodeView { name: cluster::NODE.into(), ..NodeView::default() };
        let dataplane: Box<dyn Dataplane> = match mode {
            Mode::Iptables => {
                let rules = RuleAccess::netlink(NativeRules::open(IpFamily::V4).unwrap());
                let (host, generations) = (HostAccess::open().unwrap(), GenerationTracker::open().unwrap());
                Box::new(IptablesDataplane::new(rules, proxy, host, generations))
            }
            Mode::Nftables => {
                let settings = NftablesSettings { proxy, ..NftablesSettings::default() };
                let addresses = Box::new(KernelAddresses::open().unwrap());
                Box::new(NftablesDataplane::open(IpFamily::V4, settings, addresses).unwrap())
            }
        };
        Self { tracker: Tracker::new(node), dataplane }
    }

    /// Adds all objects of a cluster to the tracker, without a sync.
    pub(crate) fn load(&mut self, size: Size) {
        for number in 0..size.services {
            self.apply(&Event::Service(Box::new(cluster::service(number))));
            self.apply(&Event::Slice(Box::new(cluster::slice(size, number))));
        }
    }

    fn apply(&mut self, event: &Event) {
        self.tracker.apply(match event {
            Event::Service(service) => TrackerEvent::from_service(service).unwrap(),
            Event::Slice(slice) => TrackerEvent::from_slice(slice, cluster::NODE).unwrap(),
            Event::Node(node) => TrackerEvent::NodeApplied(node.clone()),
        });
    }

    /// Syncs all objects. The duration is from the last object to the kernel's acknowledgement.
    pub(crate) fn first_sync(&mut self) -> (Duration, SyncReport) {
        let start = Instant::now();
        self.tracker.update_for_resync(IpFamily::V4);
        let report = self.dataplane.resync(self.tracker.table(IpFamily::V4)).unwrap();
        (start.elapsed(), report)
    }

    /// Syncs events, each of which changes a different Service. The duration is from the first event to the kernel's
    /// acknowledgement.
    pub(crate) fn sync(&mut self, events: impl Iterator<Item = Event>) -> (Duration, SyncReport) {
        let events: Vec<Event> = events.collect();
        let (took, changed, report) = self.sync_all(&events);
        assert_eq!(changed, events.len(), "each event changes a Service");
        assert!(report.written > 0 && !report.full, "{report:?}");
        (took, report)
    }

    /// Syncs events that might change a Service but do not. The duration is as for [`Pipeline::sync`].
    pub(crate) fn sync_same(&mut self, events: impl Iterator<Item = Event>) -> Duration {
        let (took, changed, report) = self.sync_all(&events.collect::<Vec<_>>());
        assert_eq!(changed, 0, "a Service has changed");
        assert_eq!(report.written + report.removed, 0, "{report:?}");
        took
    }

    /// Returns the duration, the number of Services that changed, and the report.
    fn sync_all(&mut self, events: &[Event]) -> (Duration, usize, SyncReport) {
        let start = Instant::now();
        for event in events {
            self.apply(event);
        }
        let changes = self.tracker.update(IpFamily::V4);
        let report = self.dataplane.sync(self.tracker.table(IpFamily::V4), &changes).unwrap();
        (start.elapsed(), changes.previous.len(), report)
    }

    /// Syncs events one by one.
    pub(crate) fn repeat(&mut self, times: u32, event: impl Fn(u32) -> Event) -> Vec<Duration> {
        (0..times).map(|round| self.sync(std::iter::once(event(round))).0).collect()
    }
}
