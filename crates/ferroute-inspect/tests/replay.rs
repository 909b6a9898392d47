//! Bundles reproduce the recorded desired states, for arbitrary clusters and edits.

use std::time::{Duration, SystemTime};

use ferroute_config::KubeProxyConfiguration;
use ferroute_core::{
    Changes, IpFamily, RulesDigest, ServiceTable, SyncReport, Tracker,
    testing::{Cluster, Edit, HOSTILE, arbitrary, assert_visible, namespaced_name, pod, service, slice},
    tracker::TrackerEvent,
};
use ferroute_inspect::replay::{Options, Replay, replay};
use ferroute_modes::REGISTRY;
use ferroute_proxy::recording::{Bundle, FamilyRecord, Limits, Outcome, ReadError, RecordedChange, Recorder};
use proptest::prelude::*;

/// A tracker and a recorder, as in a proxy.
struct Recording {
    cluster: Cluster,
    tracker: Tracker,
    recorder: Recorder,
    now: SystemTime,
    /// The tables after each sync.
    tables: Vec<[ServiceTable; 2]>,
}

impl Recording {
    fn new(cluster: Cluster, limits: Limits) -> Self {
        let tracker = cluster.tracker();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let mut recording = Self { cluster, tracker, recorder: Recorder::new(limits), now, tables: Vec::new() };
        recording.sync();
        recording
    }

    fn edit(&mut self, edit: &Edit) {
        self.cluster.apply(edit);
        self.apply(edit.event(&self.tracker.node().name));
    }

    fn apply(&mut self, event: TrackerEvent) {
        self.recorder.record(&event, &self.tracker);
        self.tracker.apply(event);
    }

    fn sync(&mut self) {
        self.now += Duration::from_secs(1);
        for family in IpFamily::BOTH {
            let changes = self.tracker.update(family);
            let report = (!changes.is_empty() || self.tables.is_empty()).then(SyncReport::default);
            let record = FamilyRecord::synced(family, &changes, report.as_ref(), 0, Duration::from_millis(1));
            self.recorder.synced(self.now, record);
        }
        self.tables.push(IpFamily::BOTH.map(|family| self.tracker.table(family).clone()));
    }

    fn bundle(&self) -> Bundle {
        let snapshot = self.recorder.snapshot(&self.tracker);
        Bundle::new(snapshot, "1.2.3", self.now, "iptables", "mode: iptables\n".to_owned(), Vec::new())
    }
}

/// The tables before the first sync of a bundle and after each.
fn replayed(bundle: &Bundle) -> Vec<[ServiceTable; 2]> {
    let mut replay = Replay::new(bundle).expect("a valid bundle");
    let mut tables = vec![tables(&mut replay.tracker)];
    for sync in &bundle.syncs {
        replay.apply(sync).expect("a valid bundle");
        tables.push(self::tables(&mut replay.tracker));
    }
    tables
}

fn tables(tracker: &mut Tracker) -> [ServiceTable; 2] {
    IpFamily::BOTH.map(|family| {
        tracker.update(family);
        tracker.table(family).clone()
    })
}

fn web() -> Cluster {
    Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn replay_reproduces_all_tables(
        cluster in arbitrary::cluster(),
        syncs in prop::collection::vec(arbitrary::edits(0..4), 0..6),
    ) {
        let mut recording = Recording::new(cluster, Limits::default());
        for edits in &syncs {
            edits.iter().for_each(|edit| recording.edit(edit));
            recording.sync();
        }
        let mut text = Vec::new();
        recording.bundle().write(&mut text).unwrap();
        let bundle = Bundle::read(text.as_slice()).unwrap();
        prop_assert_eq!(&bundle, &recording.bundle());
        prop_assert_eq!(replayed(&bundle), recording.tables);
    }

    #[test]
    fn dropped_syncs_only_move_the_start(
        cluster in arbitrary::cluster(),
        syncs in prop::collection::vec(arbitrary::edits(1..4), 4..8),
    ) {
        let mut recording = Recording::new(cluster, Limits { syncs: 3, ..Limits::default() });
        for edits in &syncs {
            edits.iter().for_each(|edit| recording.edit(edit));
            recording.sync();
        }
        let bundle = recording.bundle();
        prop_assert_eq!(bundle.syncs.len(), 3);
        prop_assert_eq!(replayed(&bundle), recording.tables[recording.tables.len() - 4..].to_vec());
    }
}

#[test]
fn names_in_bundles_control_no_terminal() {
    let mut recording = Recording::new(web(), Limits::default());
    recording.edit(&Edit::RemoveService(namespaced_name("shop/web")));
    recording.sync();
    let recorded = recording.bundle();
    let replayed = |change: &dyn Fn(&mut Bundle), manifests| {
        let mut bundle = recorded.clone();
        bundle.configuration = KubeProxyConfiguration::default().defaulted().to_yaml();
        change(&mut bundle);
        // The report contains the line also if the next step fails.
        let mut out = Vec::new();
        let _ = replay(&REGISTRY, &bundle, &Options { rules: true, manifests, ..Options::default() }, &mut out);
        String::from_utf8(out).unwrap()
    };
    let hostile = HOSTILE.to_owned();
    assert_visible(&replayed(&|bundle| bundle.version = hostile.clone(), false));
    assert_visible(&replayed(&|bundle| bundle.base.node.metadata.name = hostile.clone(), false));
    let deleted = |name: String| {
        move |bundle: &mut Bundle| {
            bundle.syncs[0].changes.push(RecordedChange::ServiceDeleted(name.clone()));
            bundle.syncs[0].changes.push(RecordedChange::EndpointSliceDeleted(name.clone()));
        }
    };
    assert_visible(&replayed(&deleted(format!("a/{HOSTILE}")), false));
    let failed = |bundle: &mut Bundle| {
        let outcome = Outcome::Failed { error: hostile.clone() };
        bundle.syncs[0].families[0].outcome = outcome;
    };
    assert_visible(&replayed(&failed, false));

    let manifests = replayed(&|bundle| bundle.base.node.metadata.name = hostile.clone(), true);
    assert!(!manifests.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\r']), "{manifests:?}");
    let read = ferroute_api::manifest::read(&manifests);
    let Ok(ferroute_api::manifest::Parsed::Object(node)) = &read[0] else { panic!("{read:?}") };
    assert!(matches!(&**node, ferroute_api::Object::Node(node) if node.metadata.name == HOSTILE));
}

#[test]
fn pending_changes_are_last_and_have_no_outcome() {
    let mut recording = Recording::new(web(), Limits::default());
    recording.edit(&Edit::RemoveService(namespaced_name("shop/web")));
    let bundle = recording.bundle();
    assert_eq!(bundle.base.services.len(), 1);
    let [sync] = bundle.syncs.as_slice() else { panic!("{:?}", bundle.syncs) };
    assert_eq!(sync.changes, [RecordedChange::ServiceDeleted("shop/web".to_owned())]);
    assert_eq!(sync.families, []);
}

#[test]
fn changes_of_failed_sync_are_recorded_with_it() {
    let mut recording = Recording::new(web(), Limits::default());
    let two = slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2").pod(pod("10.244.0.3"));
    recording.edit(&Edit::SetSlice(two.build()));
    recording.recorder.synced(recording.now, FamilyRecord::failed(IpFamily::V4, "cannot write ipv4 rules".to_owned()));
    recording.sync();
    let bundle = recording.bundle();
    let outcomes: Vec<Vec<&Outcome>> =
        bundle.syncs.iter().map(|sync| sync.families.iter().map(|family| &family.outcome).collect()).collect();
    let [first, second] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    assert!(matches!(first.as_slice(), [Outcome::Failed { error }] if error == "cannot write ipv4 rules"));
    assert!(matches!(second.as_slice(), [Outcome::Synced { services: 1, .. }, Outcome::Unchanged]), "{second:?}");
}

#[test]
fn oldest_syncs_are_dropped_beyond_byte_limit() {
    let mut recording = Recording::new(web(), Limits { syncs: 100, bytes: 10_000 });
    for round in 0..50_u8 {
        let pods = (0..50).map(|i| pod(&format!("10.244.{round}.{i}")));
        let slice = pods.fold(slice("shop/web-a", "web").port("http", 8080), |slice, pod| slice.pod(pod));
        recording.edit(&Edit::SetSlice(slice.build()));
        recording.sync();
    }
    let kept = recording.bundle().syncs.len();
    assert!((1..20).contains(&kept), "{kept} syncs kept");
    assert_eq!(replayed(&recording.bundle()), recording.tables[recording.tables.len() - kept - 1..].to_vec());
}

#[test]
fn other_files_are_rejected() {
    assert!(matches!(Bundle::read(&b"kind: Service"[..]), Err(ReadError::Invalid(_))));
    let mut later = Recording::new(web(), Limits::default()).bundle();
    later.format = "ferroute-bundle/2".to_owned();
    let mut text = Vec::new();
    later.write(&mut text).unwrap();
    let error = Bundle::read(text.as_slice()).unwrap_err();
    assert!(matches!(&error, ReadError::Format { got } if got == "ferroute-bundle/2"), "{error:?}");
}

#[test]
fn service_networks_are_recorded_before_and_after_each_change() {
    let mut recording = Recording::new(web(), Limits::default());
    for networks in [&["10.96.0.0/16", "fd00:96::/112"][..], &["10.96.0.0/16", "10.112.0.0/16"], &[]] {
        let cidrs = networks.iter().map(|network| network.parse().unwrap()).collect();
        recording.apply(TrackerEvent::ServiceCidrsApplied(cidrs));
        recording.sync();
    }
    let mut text = Vec::new();
    recording.bundle().write(&mut text).unwrap();
    let bundle = Bundle::read(text.as_slice()).unwrap();
    assert_eq!(bundle.base.service_cidrs, []);
    assert_eq!(replayed(&bundle), recording.tables);
    let counts = recording.tables.iter().map(|tables| tables.each_ref().map(|table| table.service_cidrs.len()));
    assert_eq!(counts.collect::<Vec<_>>(), [[0, 0], [1, 1], [2, 0], [0, 0]]);
}

#[test]
fn full_syncs_have_optional_digest() {
    let mut recording = Recording::new(web(), Limits::default());
    assert!(recording.recorder.is_recording(IpFamily::V4));
    let rules = RulesDigest::compute(|out| out.write_str("-A KUBE-SERVICES -j RETURN"));
    for family in IpFamily::BOTH {
        let record = FamilyRecord::synced(family, &Changes::default(), Some(&SyncReport::default()), 0, Duration::ZERO);
        recording.recorder.synced(recording.now, record.with_digest((family == IpFamily::V4).then_some(rules)));
    }
    let digests = |bundle: &Bundle| {
        let families = bundle.syncs[0].families.iter();
        families
            .map(|family| match family.outcome {
                Outcome::Synced { full, rules, .. } => (full, rules),
                _ => (false, None),
            })
            .collect::<Vec<_>>()
    };
    let mut text = Vec::new();
    recording.bundle().write(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(digests(&Bundle::read(text.as_bytes()).unwrap()), [(true, Some(rules)), (true, None)]);
    let older = text.replace(&format!(",\"rules\":\"{rules}\""), "");
    assert_eq!(digests(&Bundle::read(older.as_bytes()).unwrap()), [(true, None), (true, None)]);
    let modified = text.replace(&rules.to_string(), "none");
    let error = Bundle::read(modified.as_bytes()).unwrap_err();
    assert!(matches!(error, ReadError::Invalid(_)), "{error:?}");
}
