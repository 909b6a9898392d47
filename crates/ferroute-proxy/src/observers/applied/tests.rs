use std::{
    collections::BTreeSet,
    time::{Duration, Instant, SystemTime},
};

use ferroute_admin::{
    history::{ChangeOrigin, ServicePortCounts, UnappliedPort, UnappliedService},
    metrics::Metrics,
};
use ferroute_core::{
    Changes, Dataplane, DataplaneError, IpFamily, NodeView, ServiceTable, SyncReport,
    parse::ObjectVersion,
    testing::{self, namespaced_name, pod, port_name},
    tracker::TrackerEvent,
};

use super::*;
use crate::{
    observers::{FamilySynced, status::MetricsObserver},
    sync::{Change, FamilyOutcome},
};

/// A dataplane that is only looked at.
struct NoDataplane;

impl Dataplane for NoDataplane {
    fn sync(&mut self, _: &ServiceTable, _: &Changes) -> Result<SyncReport, DataplaneError> {
        unreachable!("nothing is written")
    }

    fn resync(&mut self, _: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        unreachable!("nothing is written")
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        Ok(false)
    }
}

fn refused_service(name: &str) -> UnappliedService {
    let port = port_name(&format!("{name}:http"));
    let port = UnappliedPort::new(&port, IpFamily::V4, Some("exists".to_owned()), false);
    UnappliedService { has_rules: false, ports: vec![port] }
}

fn versions(applied: bool, slices: BTreeMap<String, Option<u64>>) -> ServiceVersions {
    ServiceVersions { served: true, applied, service: Some(7), slices, ..ServiceVersions::default() }
}

/// An observed tracker of an IPv4 proxy.
struct Rig {
    tracker: Tracker,
    observer: VersionsObserver,
    metrics: MetricsObserver,
}

impl Rig {
    fn new() -> Self {
        let node = NodeView { name: "node-1".to_owned(), ..NodeView::default() };
        let history = Arc::new(History::new(SystemTime::now(), false));
        let mut metrics = MetricsObserver::new(Arc::new(Metrics::new(&[])), Arc::clone(&history));
        metrics.on_start(&[IpFamily::V4]);
        Self { tracker: Tracker::new(node), observer: VersionsObserver::new(history), metrics }
    }

    fn apply(&mut self, event: TrackerEvent, version: u64) {
        let version = ObjectVersion { resource: Some(version), generation: None };
        let origin = ChangeOrigin { received: Instant::now(), version, trigger: None, written: None };
        self.metrics.on_change(&Change::Desired(event.clone(), origin), &self.tracker);
        self.tracker.apply(event);
    }

    fn service(&mut self, name: &str, version: u64) {
        let service = testing::service(name).cluster_ip("10.96.0.1").port("http", 80).build();
        self.apply(TrackerEvent::from_service(&service).unwrap(), version);
    }

    fn slice(&mut self, name: &str, version: u64) {
        let slice = testing::slice(name, "web").port("http", 80).pod(pod("10.244.0.2")).build();
        self.apply(TrackerEvent::from_slice(&slice, "node-1").unwrap(), version);
    }

    fn sync(&mut self, refused: &[&str]) {
        let changes = self.tracker.update(IpFamily::V4);
        let outcome = FamilyOutcome {
            report: Some(SyncReport::default()),
            counts: ServicePortCounts::default(),
            unapplied: refused.iter().map(|name| (namespaced_name(name), refused_service(name))).collect(),
            limited: BTreeSet::new(),
            changes,
            conntrack_deleted: 0,
            conntrack_took: None,
            conntrack_error: None,
            took: Duration::ZERO,
        };
        let table = self.tracker.table(IpFamily::V4);
        let dataplane = &NoDataplane;
        self.metrics.on_synced(&FamilySynced { table, outcome: &outcome, host_addresses: &[], dataplane });
    }

    /// Returns the response to a request for `shop/web`.
    fn web(&mut self) -> ServiceVersions {
        let mut response = self.observer.requests().send(namespaced_name("shop/web"));
        self.observer.on_tick(&self.tracker);
        response.try_recv().expect("a response")
    }

    fn is_applied(&mut self) -> bool {
        self.web().applied
    }
}

#[test]
fn versions_are_applied_after_the_sync_that_follows_them() {
    let mut rig = Rig::new();
    rig.service("shop/web", 7);
    rig.slice("shop/web-1", 8);
    let slices = BTreeMap::from([("web-1".to_owned(), Some(8))]);
    assert_eq!(rig.web(), versions(false, slices.clone()));
    rig.sync(&[]);
    assert_eq!(rig.web(), versions(true, slices));
    rig.slice("shop/web-1", 9);
    assert!(!rig.is_applied());
    rig.sync(&[]);
    assert_eq!(rig.web().slices["web-1"], Some(9));
    assert!(rig.is_applied());
    // Changes of other Services have no effect.
    rig.service("shop/cart", 10);
    assert!(rig.is_applied());
}

#[test]
fn deletions_are_pending_until_they_are_applied() {
    let mut rig = Rig::new();
    rig.service("shop/web", 7);
    rig.slice("shop/web-1", 8);
    rig.sync(&[]);
    rig.apply(TrackerEvent::SliceDeleted(namespaced_name("shop/web-1")), 9);
    assert_eq!(rig.web(), versions(false, BTreeMap::new()));
    rig.sync(&[]);
    assert!(rig.is_applied());
    rig.apply(TrackerEvent::ServiceDeleted(namespaced_name("shop/web")), 10);
    let deleted = |applied, reason: &str| ServiceVersions {
        applied,
        reason: Some(reason.to_owned()),
        ..ServiceVersions::default()
    };
    assert_eq!(rig.web(), deleted(false, "it was deleted, and its rules are not removed yet"));
    rig.sync(&[]);
    assert_eq!(rig.web(), deleted(true, "the proxy has not received the Service"));
    assert!(!rig.web().is_served_as_received());
}

#[test]
fn invalid_version_of_a_service_is_not_applied_whether_an_earlier_one_is_served_or_not() {
    for (served, stays) in [(true, "; the last valid version stays"), (false, "")] {
        let mut versions = ServiceVersions { served, applied: true, ..ServiceVersions::default() };
        versions.set_unused("its last version is invalid: spec.type".to_owned());
        assert!(!versions.is_served_as_received());
        assert_eq!(versions.reason, Some(format!("its last version is invalid: spec.type{stays}")));
    }
}

#[test]
fn nothing_is_applied_between_a_failure_and_the_next_success() {
    let mut rig = Rig::new();
    rig.service("shop/web", 7);
    rig.sync(&[]);
    let failure = DataplaneError::Write { rules: "IPv4 rules".to_owned(), source: "no memory".into() };
    rig.metrics.on_failure(IpFamily::V4, &failure);
    assert!(!rig.is_applied());
    rig.sync(&[]);
    assert!(rig.is_applied());
}

#[test]
fn refused_services_are_not_applied() {
    let mut rig = Rig::new();
    rig.service("shop/web", 7);
    rig.sync(&["shop/web"]);
    assert_eq!((rig.web().applied, rig.web().refused), (false, true));
    let reason = "the IPv4 rules of shop/web:http (tcp) are not applied: the kernel refuses the rules (exists); there are no earlier \
                  ones";
    assert_eq!(rig.web().reason.as_deref(), Some(reason));
    rig.sync(&["shop/web", "shop/cart"]);
    assert!(!rig.is_applied());
    rig.sync(&["shop/cart"]);
    assert_eq!((rig.web().applied, rig.web().refused, rig.web().reason), (true, false, None));
}
