//! What comes out of a bundle is what went in, for every cluster and every history.

use std::time::{Duration, SystemTime};

use ferroute_core::{
    Changes, IpFamily, RulesDigest, ServiceTable, SyncReport, Tracker,
    testing::{Cluster, Edit, arbitrary, namespaced_name, pod, service, slice},
    tracker::TrackerEvent,
};
use ferroute_proxy::recording::{Bundle, Change, FamilyRecord, Limits, Outcome, ReadError, Recorder, Replay};
use proptest::prelude::*;

/// A proxy's tracker and recorder, without a proxy.
struct Rig {
    cluster: Cluster,
    tracker: Tracker,
    recorder: Recorder,
    now: SystemTime,
    /// The tables after each sync.
    tables: Vec<[ServiceTable; 2]>,
}

impl Rig {
    fn new(cluster: Cluster, limits: Limits) -> Self {
        let tracker = cluster.tracker();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let mut rig = Self { cluster, tracker, recorder: Recorder::new(limits), now, tables: Vec::new() };
        rig.sync();
        rig
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
            let record = FamilyRecord::in_force(family, &changes, report.as_ref(), 0, Duration::from_millis(1));
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
    let mut replay = Replay::new(bundle).expect("a bundle of ours");
    let mut tables = vec![tables(&mut replay.tracker)];
    for sync in &bundle.syncs {
        replay.apply(sync).expect("a bundle of ours");
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
    fn a_replay_goes_through_the_same_tables(
        cluster in arbitrary::cluster(),
        syncs in prop::collection::vec(arbitrary::edits(0..4), 0..6),
    ) {
        let mut rig = Rig::new(cluster, Limits::default());
        for edits in &syncs {
            edits.iter().for_each(|edit| rig.edit(edit));
            rig.sync();
        }
        let mut text = Vec::new();
        rig.bundle().write(&mut text).unwrap();
        let bundle = Bundle::read(text.as_slice()).unwrap();
        prop_assert_eq!(&bundle, &rig.bundle());
        prop_assert_eq!(replayed(&bundle), rig.tables);
    }

    #[test]
    fn what_is_forgotten_only_moves_the_beginning(
        cluster in arbitrary::cluster(),
        syncs in prop::collection::vec(arbitrary::edits(1..4), 4..8),
    ) {
        let mut rig = Rig::new(cluster, Limits { syncs: 3, ..Limits::default() });
        for edits in &syncs {
            edits.iter().for_each(|edit| rig.edit(edit));
            rig.sync();
        }
        let bundle = rig.bundle();
        prop_assert_eq!(bundle.syncs.len(), 3);
        prop_assert_eq!(replayed(&bundle), rig.tables[rig.tables.len() - 4..].to_vec());
    }
}

#[test]
fn what_is_not_in_force_yet_comes_last_and_without_outcome() {
    let mut rig = Rig::new(web(), Limits::default());
    rig.edit(&Edit::RemoveService(namespaced_name("shop/web")));
    let bundle = rig.bundle();
    assert_eq!(bundle.base.services.len(), 1);
    let [sync] = bundle.syncs.as_slice() else { panic!("{:?}", bundle.syncs) };
    assert_eq!(sync.changes, [Change::ServiceGone("shop/web".to_owned())]);
    assert_eq!(sync.families, []);
}

#[test]
fn changes_of_a_failed_sync_belong_to_it() {
    let mut rig = Rig::new(web(), Limits::default());
    let two = slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2").pod(pod("10.244.0.3"));
    rig.edit(&Edit::SetSlice(two.build()));
    rig.recorder.synced(rig.now, FamilyRecord::failed(IpFamily::V4, "cannot write ipv4 rules".to_owned()));
    rig.sync();
    let bundle = rig.bundle();
    let outcomes: Vec<Vec<&Outcome>> =
        bundle.syncs.iter().map(|sync| sync.families.iter().map(|family| &family.outcome).collect()).collect();
    let [first, second] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    assert!(matches!(first.as_slice(), [Outcome::Failed { error }] if error == "cannot write ipv4 rules"));
    assert!(matches!(second.as_slice(), [Outcome::InForce { services: 1, .. }, Outcome::Unchanged]), "{second:?}");
}

#[test]
fn many_bytes_make_room_as_many_syncs_do() {
    let mut rig = Rig::new(web(), Limits { syncs: 100, bytes: 10_000 });
    for round in 0..50_u8 {
        let pods = (0..50).map(|i| pod(&format!("10.244.{round}.{i}")));
        let slice = pods.fold(slice("shop/web-a", "web").port("http", 8080), |slice, pod| slice.pod(pod));
        rig.edit(&Edit::SetSlice(slice.build()));
        rig.sync();
    }
    let kept = rig.bundle().syncs.len();
    assert!((1..20).contains(&kept), "{kept} syncs kept");
    assert_eq!(replayed(&rig.bundle()), rig.tables[rig.tables.len() - kept - 1..].to_vec());
}

#[test]
fn other_files_are_refused() {
    assert!(matches!(Bundle::read(&b"kind: Service"[..]), Err(ReadError::Shape(_))));
    let mut later = Rig::new(web(), Limits::default()).bundle();
    later.format = "ferroute-bundle/2".to_owned();
    let mut text = Vec::new();
    later.write(&mut text).unwrap();
    let error = Bundle::read(text.as_slice()).unwrap_err();
    assert_eq!(error.to_string(), r#"the bundle's format is "ferroute-bundle/2" (want "ferroute-bundle/1")"#);
}

#[test]
fn networks_of_cluster_ips_are_in_the_record_before_and_after_they_change() {
    let mut rig = Rig::new(web(), Limits::default());
    for networks in [&["10.96.0.0/16", "fd00:96::/112"][..], &["10.96.0.0/16", "10.112.0.0/16"], &[]] {
        let cidrs = networks.iter().map(|network| network.parse().unwrap()).collect();
        rig.apply(TrackerEvent::ServiceCidrsApplied(cidrs));
        rig.sync();
    }
    let mut text = Vec::new();
    rig.bundle().write(&mut text).unwrap();
    let bundle = Bundle::read(text.as_slice()).unwrap();
    assert_eq!(bundle.base.service_cidrs, []);
    assert_eq!(replayed(&bundle), rig.tables);
    let counts = rig.tables.iter().map(|tables| tables.each_ref().map(|table| table.service_cidrs.len()));
    assert_eq!(counts.collect::<Vec<_>>(), [[0, 0], [1, 1], [2, 0], [0, 0]]);
}

#[test]
fn a_full_sync_is_recorded_with_its_rules_and_a_bundle_without_them_is_read() {
    let mut rig = Rig::new(web(), Limits::default());
    assert!(rig.recorder.records(IpFamily::V4));
    let rules = RulesDigest::compute(|out| out.write_str("-A KUBE-SERVICES -j RETURN"));
    for family in IpFamily::BOTH {
        let record =
            FamilyRecord::in_force(family, &Changes::default(), Some(&SyncReport::default()), 0, Duration::ZERO);
        rig.recorder.synced(rig.now, record.of_everything((family == IpFamily::V4).then_some(rules)));
    }
    let told = |bundle: &Bundle| {
        let families = bundle.syncs[0].families.iter();
        families
            .map(|family| match family.outcome {
                Outcome::InForce { full, rules, .. } => (full, rules),
                _ => (false, None),
            })
            .collect::<Vec<_>>()
    };
    let mut text = Vec::new();
    rig.bundle().write(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(told(&Bundle::read(text.as_bytes()).unwrap()), [(true, Some(rules)), (true, None)]);
    let older = text.replace(&format!(",\"rules\":\"{rules}\""), "");
    assert_eq!(told(&Bundle::read(older.as_bytes()).unwrap()), [(true, None), (true, None)]);
    let spoilt = text.replace(&rules.to_string(), "none");
    let error = Bundle::read(spoilt.as_bytes()).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("a digest has 4 characters (want 32)"), "{source}");
}
