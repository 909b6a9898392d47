use std::collections::BTreeSet;

use ferroute_core::testing::service_name;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A history with a clock in the test's hands, which begins at 2026-01-02T15:00:00Z.
struct Rig {
    history: History,
    start: Now,
    now: Duration,
}

const START: u64 = 1_767_366_000;

impl Rig {
    fn new(families: &[IpFamily]) -> Self {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(START);
        let start = Now { instant: Instant::now(), wall };
        let mut history = History::new(wall);
        history.serve(families);
        Self { history, start, now: Duration::ZERO }
    }

    /// A dual-stack proxy whose first sync has found `shop/web`, version 7, in both families.
    fn in_force() -> Self {
        let mut rig = Self::new(&IpFamily::BOTH);
        rig.change(Subject::Service([true, true]), "shop/web", 7, None);
        rig.pass(1000);
        rig.sync(&IpFamily::BOTH, &["shop/web"]);
        rig
    }

    fn now(&self) -> Now {
        Now { instant: self.start.instant + self.now, wall: self.start.wall + self.now }
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    /// `triggered` is in milliseconds before now.
    fn change(&mut self, subject: Subject, name: &str, version: u64, triggered: Option<u64>) {
        let Now { instant: received, wall } = self.now();
        let version = ObjectVersion { resource: Some(version), generation: None };
        let trigger = triggered.map(|before| wall - Duration::from_millis(before));
        self.history.changed(ObjectChange {
            subject,
            name: service_name(name),
            version,
            received,
            trigger,
            written: None,
        });
    }

    /// A sync of half a second, in which these Services differ; returns what came into force.
    fn sync(&mut self, families: &[IpFamily], changed: &[&str]) -> Vec<Finished> {
        let mut finished = Vec::new();
        for family in families {
            self.history.begins(*family, self.now().instant);
        }
        self.pass(500);
        let changed: BTreeSet<ServiceName> = changed.iter().map(|name| service_name(name)).collect();
        let kernel = Duration::from_millis(400);
        let sync = InForce { now: self.now(), full: false, changed: &changed, kernel };
        for family in families {
            self.history.in_force(*family, &sync, |one| finished.push(one.clone()));
        }
        finished
    }

    fn receipt(&self, name: &str) -> Value {
        let name = service_name(name);
        let filter = Filter { namespace: Some(name.namespace().to_owned()), name: Some(name.name().to_owned()) };
        let page: Value = serde_json::from_str(&self.history.receipts(&filter).to_json()).unwrap();
        page["services"].get(0).cloned().unwrap_or_default()
    }

    fn slow(&self) -> Vec<Value> {
        let page: Value = serde_json::from_str(&self.history.slow_changes(self.now().instant).to_json()).unwrap();
        page["changes"].as_array().unwrap().clone()
    }
}

#[test]
fn a_receipt_tells_each_family_from_the_first_word_to_the_kernel() {
    let mut rig = Rig::new(&IpFamily::BOTH);
    rig.change(Subject::Service([true, true]), "shop/web", 7, None);
    let waiting = json!({"pending": true});
    let receipt = json!({"namespace": "shop", "name": "web", "resourceVersion": "7",
        "families": {"IPv4": waiting, "IPv6": waiting}});
    assert_eq!(rig.receipt("shop/web"), receipt);
    rig.pass(1000);
    rig.sync(&[IpFamily::V4], &["shop/web"]);
    let time = "2026-01-02T15:00:01.5Z";
    let in_force = json!({"pending": false,
        "inForce": {"resourceVersion": "7", "since": time, "lastChange": time}});
    assert_eq!(rig.receipt("shop/web")["families"], json!({"IPv4": in_force, "IPv6": waiting}));
}

#[test]
fn a_new_version_is_pending_beside_the_old_one_until_a_sync_succeeds() {
    let mut rig = Rig::in_force();
    rig.change(Subject::Service([true, false]), "shop/web", 8, None);
    let receipt = rig.receipt("shop/web");
    assert_eq!(receipt["resourceVersion"], "8");
    assert_eq!(receipt["families"]["IPv4"]["pending"], true);
    assert_eq!(receipt["families"]["IPv4"]["inForce"]["resourceVersion"], "7");
    // The second change before a sync does not make the first one the version that is in force.
    rig.change(Subject::Service([true, false]), "shop/web", 9, None);
    assert_eq!(rig.receipt("shop/web")["families"]["IPv4"]["inForce"]["resourceVersion"], "7");
    rig.sync(&IpFamily::BOTH, &["shop/web"]);
    let time = "2026-01-02T15:00:02Z";
    let in_force = json!({"pending": false,
        "inForce": {"resourceVersion": "9", "since": time, "lastChange": time}});
    assert_eq!(rig.receipt("shop/web")["families"], json!({"IPv4": in_force}), "IPv6 has no address any more");
}

#[test]
fn endpoints_change_the_rules_but_not_the_version_of_the_service() {
    let mut rig = Rig::in_force();
    rig.change(Subject::Slice(IpFamily::V4), "shop/web", 12, None);
    let receipt = rig.receipt("shop/web");
    assert_eq!([&receipt["families"]["IPv4"]["pending"], &receipt["families"]["IPv6"]["pending"]], [true, false]);
    rig.sync(&IpFamily::BOTH, &["shop/web"]);
    let (since, changed) = ("2026-01-02T15:00:01.5Z", "2026-01-02T15:00:02Z");
    assert_eq!(
        rig.receipt("shop/web")["families"]["IPv4"],
        json!({"pending": false, "inForce": {"resourceVersion": "7", "since": since, "lastChange": changed}})
    );
}

#[test]
fn the_receipt_of_a_service_goes_with_its_last_rule() {
    let mut rig = Rig::in_force();
    rig.change(Subject::ServiceGone, "shop/web", 0, None);
    assert_eq!(rig.receipt("shop/web")["families"]["IPv6"]["pending"], true);
    rig.sync(&[IpFamily::V4], &["shop/web"]);
    assert_ne!(rig.receipt("shop/web"), Value::Null);
    rig.sync(&[IpFamily::V6], &["shop/web"]);
    assert_eq!(rig.receipt("shop/web"), Value::Null);
}

#[test]
fn receipts_are_filtered_by_namespace_and_name() {
    let mut rig = Rig::new(&[IpFamily::V4]);
    for name in ["shop/web", "shop/db", "blog/web"] {
        rig.change(Subject::Service([true, false]), name, 1, None);
    }
    let names = |namespace: Option<&str>, name: Option<&str>| -> Vec<String> {
        let filter = Filter { namespace: namespace.map(str::to_owned), name: name.map(str::to_owned) };
        let page: Value = serde_json::from_str(&rig.history.receipts(&filter).to_json()).unwrap();
        let text = |service: &Value, field: &str| service[field].as_str().unwrap().to_owned();
        let services = page["services"].as_array().unwrap().iter();
        services.map(|service| format!("{}/{}", text(service, "namespace"), text(service, "name"))).collect()
    };
    assert_eq!(names(None, None), ["blog/web", "shop/db", "shop/web"]);
    assert_eq!(names(Some("shop"), None), ["shop/db", "shop/web"]);
    assert_eq!(names(None, Some("web")), ["blog/web", "shop/web"]);
    assert_eq!(names(Some("shop"), Some("web")), ["shop/web"]);
    assert_eq!(names(Some("none"), Some("web")), [""; 0]);
}

#[test]
fn a_slow_change_tells_where_its_time_went() {
    let mut rig = Rig::in_force();
    rig.pass(5000);
    rig.change(Subject::Slice(IpFamily::V4), "shop/web", 12, Some(2000));
    rig.pass(250);
    rig.sync(&IpFamily::BOTH, &["shop/web"]);
    let slow = json!({
        "kind": "EndpointSlice", "event": "applied", "namespace": "shop", "name": "web", "resourceVersion": "12",
        "ipFamily": "IPv4",
        "triggered": "2026-01-02T15:00:04.5Z", "received": "2026-01-02T15:00:06.5Z",
        "syncBegan": "2026-01-02T15:00:06.75Z", "inForce": "2026-01-02T15:00:07.25Z",
        "seconds": {"total": 2.75, "watch": 2.0, "queue": 0.25, "sync": 0.5, "kernel": 0.4},
    });
    assert_eq!(rig.slow(), [slow]);
    rig.pass(3_600_001);
    assert_eq!(rig.slow(), [Value::Null; 0], "an hour later");
}

#[test]
fn the_time_of_controllers_is_told_apart_where_the_api_server_tells_when_it_wrote() {
    let seconds = |triggered_before: u64, written_before: u64| {
        let mut rig = Rig::in_force();
        rig.pass(5000);
        let Now { instant: received, wall } = rig.now();
        rig.history.changed(ObjectChange {
            subject: Subject::Slice(IpFamily::V4),
            name: service_name("shop/web"),
            version: ObjectVersion::default(),
            received,
            trigger: Some(wall - Duration::from_millis(triggered_before)),
            written: Some(wall - Duration::from_millis(written_before)),
        });
        let finished = rig.sync(&[IpFamily::V4], &["shop/web"]).remove(0);
        (finished.api(), finished.watch(), finished.total())
    };
    let ms = Duration::from_millis;
    assert_eq!(seconds(2000, 500), (Some(ms(1500)), Some(ms(500)), ms(2500)));
    // Cut to whole seconds, it seems to have been written before it happened.
    assert_eq!(seconds(300, 900), (Some(ms(0)), Some(ms(300)), ms(800)));
}

#[test]
fn only_the_slowest_changes_are_kept() {
    let mut rig = Rig::in_force();
    for wait in (0..200_u64).map(|i| i * 37 % 200) {
        rig.change(Subject::Slice(IpFamily::V4), "shop/web", wait, None);
        rig.pass(wait);
        rig.sync(&[IpFamily::V4], &["shop/web"]);
    }
    let versions: Vec<u64> =
        rig.slow().iter().map(|slow| slow["resourceVersion"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(versions, (136..200).rev().collect::<Vec<_>>());
}

#[test]
fn what_was_there_before_the_start_is_neither_slow_nor_measured() {
    let mut rig = Rig::new(&IpFamily::BOTH);
    rig.change(Subject::Slice(IpFamily::V4), "shop/web", 12, Some(60_000));
    rig.pass(1000);
    let finished = rig.sync(&IpFamily::BOTH, &["shop/web"]);
    assert_eq!(finished.len(), 0);
    assert_eq!(rig.slow(), [Value::Null; 0]);
}

#[test]
fn the_time_to_the_rule_is_measured_where_something_changed() {
    let mut rig = Rig::in_force();
    rig.change(Subject::Slice(IpFamily::V4), "shop/web", 12, Some(300));
    rig.change(Subject::Slice(IpFamily::V4), "shop/none", 13, Some(300));
    rig.change(Subject::Service([true, true]), "shop/web", 14, None);
    let measured: Vec<_> = rig.sync(&[IpFamily::V4], &["shop/web"]).iter().map(Finished::programming).collect();
    assert_eq!(measured, [Some(Duration::from_millis(800)), None, None]);
}

proptest! {
    /// Whatever comes and goes: every change comes into force once in each family that it concerns, nothing that is
    /// pending is told to be in force, and nothing is remembered of Services that are gone.
    #[test]
    fn changes_add_up(steps in prop::collection::vec((0..6_u8, 0..3_u8), 1..60)) {
        let mut rig = Rig::in_force();
        let (mut told, mut finished, mut pending) = (0, 0, (0, 0));
        let mut there = BTreeSet::from(["shop/web".to_owned()]);
        for (step, service) in steps {
            let name = format!("shop/web-{service}");
            match step {
                0 | 1 => {
                    rig.change(Subject::Service([true, true]), &name, 1, None);
                    there.insert(name);
                    told += 2;
                    pending.0 += 1;
                }
                2 => {
                    rig.change(Subject::ServiceGone, &name, 0, None);
                    there.remove(&name);
                    told += 2;
                    pending.0 += 1;
                }
                3 => {
                    rig.change(Subject::Slice(IpFamily::V6), &name, 1, None);
                    told += 1;
                    pending.1 += 1;
                }
                4 => {
                    rig.change(Subject::SliceGone, &name, 0, None);
                    told += 2;
                    pending.1 += 1;
                }
                _ => {
                    finished += rig.sync(&IpFamily::BOTH, &[]).len();
                    pending = (0, 0);
                }
            }
            prop_assert_eq!(rig.history.pending(), pending);
        }
        finished += rig.sync(&IpFamily::BOTH, &[]).len();
        prop_assert_eq!(finished, told);
        let page: Value = serde_json::from_str(&rig.history.receipts(&Filter::default()).to_json()).unwrap();
        let services = page["services"].as_array().unwrap();
        let names: BTreeSet<String> =
            services.iter().map(|service| format!("shop/{}", service["name"].as_str().unwrap())).collect();
        prop_assert_eq!(names, there);
        prop_assert!(services.iter().all(|service| service["families"]["IPv4"]["pending"] == false));
    }
}
