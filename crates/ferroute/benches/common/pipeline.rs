//! From events to the kernel, within this process.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ferroute_api::{EndpointSlice, Service};
use ferroute_core::{
    Dataplane, IpFamily, LocalTrafficDetector, NodeView, ProxySettings, SyncReport, Tracker,
    tracker::TrackerEvent,
};
use ferroute_host::KernelAddresses;
use ferroute_iptables::{GenerationTracker, HostAccess, HostExec, IptablesDataplane, IptablesPrograms, exec::search_path};
use ferroute_nftables::{NftablesDataplane, plan::NftablesSettings};

use super::{
    arguments::Mode,
    cluster::{self, Size},
};

/// What a source tells.
pub(crate) enum Event {
    Service(Box<Service>),
    Slice(Box<EndpointSlice>),
}

/// A proxy for IPv4 without source, schedule and log.
pub(crate) struct Pipeline {
    tracker: Tracker,
    dataplane: Box<dyn Dataplane>,
}

impl Pipeline {
    /// Opens what a mode needs, in the calling thread's network namespace.
    pub(crate) fn open(mode: Mode) -> Self {
        let proxy = ProxySettings {
            detector: LocalTrafficDetector::ClusterCidr(vec![cluster::CLUSTER_CIDR.parse().unwrap()]),
            ..ProxySettings::default()
        };
        let node = NodeView { name: cluster::NODE.into(), ..NodeView::default() };
        let dataplane: Box<dyn Dataplane> = match mode {
            Mode::Iptables => {
                let programs = Arc::new(HostExec);
                let tools = IptablesPrograms::find(IpFamily::V4, &*programs, &search_path()).unwrap();
                let (host, generations) = (HostAccess::open().unwrap(), GenerationTracker::open().unwrap());
                Box::new(IptablesDataplane::new(tools, proxy, programs, host, generations))
            }
            Mode::Nftables => {
                let settings = NftablesSettings { proxy, ..NftablesSettings::default() };
                let addresses = Box::new(KernelAddresses::open().unwrap());
                Box::new(NftablesDataplane::open(IpFamily::V4, settings, addresses).unwrap())
            }
        };
        Self { tracker: Tracker::new(node), dataplane }
    }

    /// Tells all of a cluster, and brings nothing into force yet.
    pub(crate) fn tell_all(&mut self, size: Size) {
        for number in 0..size.services {
            self.tell(&Event::Service(Box::new(cluster::service(number))));
            self.tell(&Event::Slice(Box::new(cluster::slice(size, number))));
        }
    }

    fn tell(&mut self, event: &Event) {
        self.tracker.apply(match event {
            Event::Service(service) => TrackerEvent::from_service(service).unwrap(),
            Event::Slice(slice) => TrackerEvent::from_slice(slice, cluster::NODE).unwrap(),
        });
    }

    /// Brings what was told into force. The time is that from the last object to the kernel's acknowledgement.
    pub(crate) fn first_sync(&mut self) -> (Duration, SyncReport) {
        let start = Instant::now();
        self.tracker.update(IpFamily::V4);
        let report = self.dataplane.resync(self.tracker.table(IpFamily::V4)).unwrap();
        (start.elapsed(), report)
    }

    /// Brings events into force, each of which changes a Service of its own. The time is that from the first event to
    /// the kernel's acknowledgement.
    pub(crate) fn sync(&mut self, events: impl Iterator<Item = Event>) -> (Duration, SyncReport) {
        let events: Vec<Event> = events.collect();
        let start = Instant::now();
        for event in &events {
            self.tell(event);
        }
        let changes = self.tracker.update(IpFamily::V4);
        assert_eq!(changes.previous.len(), events.len(), "each event changes a Service");
        let report = self.dataplane.sync(self.tracker.table(IpFamily::V4), &changes).unwrap();
        let took = start.elapsed();
        assert!(report.written > 0 && !report.full, "{report:?}");
        (took, report)
    }

    /// Brings many single events into force, one after the other.
    pub(crate) fn repeat(&mut self, times: u32, event: impl Fn(u32) -> Event) -> Vec<Duration> {
        (0..times).map(|turn| self.sync(std::iter::once(event(turn))).0).collect()
    }
}
