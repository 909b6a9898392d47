use std::sync::Arc;

use ferroute_core::testing::{namespaced_name, node, pod, port_name, service, slice};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A history with a test clock that starts at 2026-01-02T15:00:00Z.
struct Rig {
    history: Arc<History>,
    start: Moment,
    now: Duration,
    /// Services for which a limit is exceeded.
    limited: BTreeSet<NamespacedName>,
}

const START: u64 = 1_767_366_000;

impl Rig {
    fn new(families: &[IpFamily]) -> Self {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(START);
        let start = Moment { instant: Instant::now(), wall };
        let history = Arc::new(History::new(wall, true));
        history.set_families(families);
        Self { history, start, now: Duration::ZERO, limited: BTreeSet::new() }
    }

    /// A dual-stack proxy that has applied `shop/web`, version 7, in both families.
    fn synced() -> Self {
        let mut rig = Self::new(&IpFamily::BOTH);
        rig.change(ChangeKind::ServiceApplied([true, true]), "shop/web", 7, None);
        rig.pass(1000);
        rig.sync(&IpFamily::BOTH, &["shop/web"]);
        rig
    }

    fn now(&self) -> Moment {
        Moment { instant: self.start.instant + self.now, wall: self.start.wall + self.now }
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    /// `triggered` is in milliseconds before now.
    fn change(&self, kind: ChangeKind, name: &str, version: u64, triggered: Option<u64>) {
        let Moment { instant: received, wall } = self.now();
        let version = ObjectVersion { resource: Some(version), generation: None };
        let trigger = triggered.map(|before| wall - Duration::from_millis(before));
        let origin = ChangeOrigin { received, version, trigger, written: None };
        self.history.received(object_change(kind, name, origin));
    }

    /// Runs a sync of half a second that changes these Services, and returns the applied changes.
    fn sync(&mut self, families: &[IpFamily], changed: &[&str]) -> Vec<AppliedChange> {
        self.sync_refusing(families, changed, &[])
    }

    /// Runs a sync that refuses some Services; for each, states whether the kernel has rules of it.
    fn sync_refusing(
        &mut self,
        families: &[IpFamily],
        changed: &[&str],
        refused: &[(&str, bool)],
    ) -> Vec<AppliedChange> {
        let unapplied = refused.iter().map(|(name, has_rules)| refused_service(name, *has_rules)).collect();
        self.sync_with(families, changed, &unapplied)
    }

    /// Runs a sync that does not apply all service ports.
    fn sync_with(
        &mut self,
        families: &[IpFamily],
        changed: &[&str],
        unapplied: &BTreeMap<NamespacedName, UnappliedService>,
    ) -> Vec<AppliedChange> {
        let mut applied = Vec::new();
        for family in families {
            self.history.sync_started(*family, self.now().instant);
        }
        self.pass(500);
        let changed: BTreeSet<NamespacedName> = changed.iter().map(|name| namespaced_name(name)).collect();
        let report = SyncReport { kernel_time: Duration::from_millis(400), ..SyncReport::default() };
        let took = Duration::from_millis(500);
        let sync = Synced {
            ended: self.now(),
            took,
            full: false,
            report: Some(&report),
            counts: ServicePortCounts::default(),
            changed: &changed,
            unapplied,
            limited: &self.limited,
            conntrack: None,
        };
        for family in families {
            self.history.synced(*family, &sync, |change| applied.push(change.clone()));
        }
        applied
    }

    /// The entry of a Service on `/services`.
    fn service(&self, name: &str) -> Value {
        let name = namespaced_name(name);
        let page = self.services(&format!("namespace={}&name={}", name.namespace(), name.name()));
        page["services"].get(0).cloned().unwrap_or_default()
    }

    /// `/services` with this query.
    fn services(&self, query: &str) -> Value {
        let query = ServiceQuery::parse(query).unwrap();
        let after = query.after_service().unwrap();
        let chunks = ServicesBody::new(Arc::clone(&self.history), query, after);
        let text: Vec<u8> = chunks.flat_map(|chunk| chunk.to_vec()).collect();
        serde_json::from_slice(&text).unwrap()
    }

    fn slow(&self) -> Vec<Value> {
        let page: Value =
            serde_json::from_str(&self.history.slow_changes(self.now().instant, 0, usize::MAX).to_json()).unwrap();
        page["changes"].as_array().unwrap().clone()
    }
}

/// A change of a Service, or of the EndpointSlice of the same name.
fn object_change(kind: ChangeKind, name: &str, origin: ChangeOrigin) -> ObjectChange {
    let name = namespaced_name(name);
    let (families, slice) = match kind {
        ChangeKind::ServiceApplied(_) | ChangeKind::ServiceDeleted => ([true; 2], None),
        ChangeKind::SliceApplied(family) => (IpFamily::BOTH.map(|other| other == family), Some(name.clone())),
        ChangeKind::SliceDeleted => ([true; 2], Some(name.clone())),
    };
    ObjectChange { kind, name, families, slice, origin }
}

/// A Service with a service port that the kernel refuses.
fn refused_service(name: &str, has_rules: bool) -> (NamespacedName, UnappliedService) {
    let port = UnappliedPort::new(&port_name(&format!("{name}:http")), IpFamily::V4, Some("exists".to_owned()), true);
    (namespaced_name(name), UnappliedService { has_rules, ports: vec![port] })
}

fn state(is_applied: bool, is_refused: bool) -> Applied {
    Applied { is_served: true, is_applied, is_refused, is_limited: false }
}

#[test]
fn refused_service_is_pending_and_has_the_version_of_its_rules() {
    let mut rig = Rig::synced();
    let name = namespaced_name("shop/web");
    rig.change(ChangeKind::ServiceApplied([true, true]), "shop/web", 8, None);
    rig.sync_refusing(&[IpFamily::V4], &["shop/web"], &[("shop/web", true)]);
    rig.sync(&[IpFamily::V6], &["shop/web"]);
    let v4 = || rig.service("shop/web")["families"]["IPv4"].clone();
    let time = "2026-01-02T15:00:01.5Z";
    let old = json!({"resourceVersion": "7", "since": time, "lastChange": time});
    assert_eq!(v4(), json!({"pending": true, "refused": true, "applied": old}));
    assert_eq!(rig.service("shop/web")["families"]["IPv6"]["pending"], false);
    assert_eq!(rig.history.applied(&name, Some([true; 2])), state(false, true));
    // A full sync leaves no rules of it.
    rig.sync_refusing(&[IpFamily::V4], &[], &[("shop/web", false)]);
    assert_eq!(rig.service("shop/web")["families"]["IPv4"], json!({"pending": true, "refused": true}));
    rig.sync(&[IpFamily::V4], &["shop/web"]);
    let time = "2026-01-02T15:00:03.5Z";
    let new = json!({"resourceVersion": "8", "since": time, "lastChange": time});
    assert_eq!(rig.service("shop/web")["families"]["IPv4"], json!({"pending": false, "applied": new}));
    assert_eq!(rig.history.applied(&name, Some([true; 2])), state(true, false));
}

#[test]
fn service_without_changes_is_pending_once_it_is_refused() {
    let mut rig = Rig::synced();
    rig.sync_refusing(&[IpFamily::V4], &[], &[("shop/web", false)]);
    assert_eq!(rig.service("shop/web")["families"]["IPv4"], json!({"pending": true, "refused": true}));
}

#[test]
fn refused_services_stay_pending_with_their_reasons() {
    let mut rig = Rig::new(&IpFamily::BOTH);
    rig.change(ChangeKind::ServiceApplied([true, true]), "shop/web", 7, None);
    assert_eq!(rig.history.pending(), 1);
    rig.sync(&IpFamily::BOTH, &["shop/web"]);
    assert_eq!((rig.history.pending(), rig.history.unapplied()), (0, vec![]));
    rig.change(ChangeKind::SliceApplied(IpFamily::V4), "shop/web", 8, None);
    assert_eq!(rig.history.pending(), 1);
    for _ in 0..2 {
        rig.sync_refusing(&IpFamily::BOTH[..1], &[], &[("shop/web", true)]);
        assert_eq!((rig.history.pending(), rig.history.pending_changes()), (1, (0, 0)));
        assert_eq!(rig.history.unapplied(), refused_service("shop/web", true).1.ports);
    }
    rig.sync(&IpFamily::BOTH, &[]);
    assert_eq!((rig.history.pending(), rig.history.unapplied()), (0, vec![]));
}

#[test]
fn service_beyond_a_limit_is_limited_and_not_refused() {
    let mut rig = Rig::synced();
    let name = namespaced_name("shop/web");
    rig.limited = [name.clone()].into();
    rig.sync(&IpFamily::BOTH[..1], &[]);
    let applied = |rig: &Rig| rig.history.applied(&name, Some([true; 2]));
    assert_eq!(applied(&rig), Applied { is_limited: true, ..state(true, false) });
    let v4 = rig.service("shop/web")["families"]["IPv4"].clone();
    assert_eq!((&v4["pending"], &v4["limited"], &v4["refused"]), (&json!(false), &json!(true), &Value::Null));
    // A service port for which the mode has no number left.
    rig.sync_with(
        &IpFamily::BOTH[..1],
        &[],
        &[(
            name.clone(),
            UnappliedService {
                has_rules: false,
                ports: vec![UnappliedPort::new(&port_name("shop/web:http"), IpFamily::V4, None, false)],
            },
        )]
        .into(),
    );
    assert_eq!(applied(&rig), Applied { is_limited: true, ..state(false, false) });
    assert_eq!(rig.service("shop/web")["families"]["IPv4"], json!({"pending": true, "limited": true}));
    rig.limited.clear();
    rig.sync(&IpFamily::BOTH[..1], &[]);
    assert_eq!(applied(&rig), state(true, false));
}

#[test]
fn service_is_pending_until_synced_in_each_family() {
    let mut rig = Rig::new(&IpFamily::BOTH);
    rig.change(ChangeKind::ServiceApplied([true, true]), "shop/web", 7, None);
    let waiting = json!({"pending": true});
    let service = json!({"namespace": "shop", "name": "web", "resourceVersion": "7",
        "families": {"IPv4": waiting, "IPv6": waiting}});
    assert_eq!(rig.service("shop/web"), service);
    rig.pass(1000);
    rig.sync(&[IpFamily::V4], &["shop/web"]);
    let time = "2026-01-02T15:00:01.5Z";
    let applied = json!({"pending": false,
        "applied": {"resourceVersion": "7", "since": time, "lastChange": time}});
    assert_eq!(rig.service("shop/web")["families"], json!({"IPv4": applied, "IPv6": waiting}));
}

#[test]
fn old_version_stays_applied_until_sync_succeeds() {
    let mut rig = Rig::synced();
    rig.change(ChangeKind::ServiceApplied([true, false]), "shop/web", 8, None);
    let service = rig.service("shop/web");
    assert_eq!(service["resourceVersion"], "8");
    assert_eq!(service["families"]["IPv4"]["pending"], true);
    assert_eq!(service["families"]["IPv4"]["applied"]["resourceVersion"], "7");
    // A second pending change does not make the first one the applied version.
    rig.change(ChangeKind::ServiceApplied([true, false]), "shop/web", 9, None);
    assert_eq!(rig.service("shop/web")["families"]["IPv4"]["applied"]["resourceVersion"], "7");
    rig.sync(&IpFamily::BOTH, &["shop/web"]);
    let time = "2026-01-02T15:00:02Z";
    let applied = json!({"pending": false,
        "applied": {"resourceVersion": "9", "since": time, "lastChange": time}});
    assert_eq!(rig.service("shop/web")["families"], json!({"IPv4": applied}), "IPv6 port removed");
}

#[test]
fn endpoint_changes_keep_the_applied_version() {
    let mut rig = Rig::synced();
    rig.change(ChangeKind::SliceApplied(IpFamily::V4), "shop/web", 12, None);
    let service = rig.service("shop/web");
    assert_eq!([&service["families"]["IPv4"]["pending"], &service["families"]["IPv6"]["pending"]], [true, false]);
    rig.sync(&IpFamily::BOTH, &["shop/web"]);
    let (since, changed) = ("2026-01-02T15:00:01.5Z", "2026-01-02T15:00:02Z");
    assert_eq!(
        rig.service("shop/web")["families"]["IPv4"],
        json!({"pending": false, "applied": {"resourceVersion": "7", "since": since, "lastChange": changed}})
    );
}

#[test]
fn deleted_service_disappears_after_sync_of_both_families() {
    let mut rig = Rig::synced();
    rig.change(ChangeKind::ServiceDeleted, "shop/web", 0, None);
    assert_eq!(rig.service("shop/web")["families"]["IPv6"]["pending"], true);
    rig.sync(&[IpFamily::V4], &["shop/web"]);
    assert_ne!(rig.service("shop/web"), Value::Null);
    rig.sync(&[IpFamily::V6], &["shop/web"]);
    assert_eq!(rig.service("shop/web"), Value::Null);
}

#[test]
fn delays_are_those_of_the_last_changes() {
    let mut rig = Rig::synced();
    // The initial list does not count.
    assert_eq!(rig.history.delays(), None);
    for waited in (0..300).chain([5_000]) {
        rig.change(ChangeKind::SliceApplied(IpFamily::V4), "shop/web", 8, None);
        rig.pass(waited);
        rig.sync(&[IpFamily::V4], &["shop/web"]);
    }
    let delays = rig.history.delays().unwrap();
    assert_eq!((delays.changes, delays.longest_wait_seconds), (128, 5.0));
    assert!((0.23..0.24).contains(&delays.waited_seconds), "{delays:?}");
}

#[test]
fn services_are_filtered_by_namespace_and_name() {
    let rig = Rig::new(&[IpFamily::V4]);
    for name in ["shop/web", "shop/db", "blog/web"] {
        rig.change(ChangeKind::ServiceApplied([true, false]), name, 1, None);
    }
    let names = |namespace: Option<&str>, name: Option<&str>| -> Vec<String> {
        let parameter =
            |key: &str, value: Option<&str>| value.map(|value| format!("{key}={value}&")).unwrap_or_default();
        let page = rig.services(&format!("{}{}", parameter("namespace", namespace), parameter("name", name)));
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
fn pages_of_services_have_every_service_once() {
    let rig = Rig::new(&[IpFamily::V4]);
    // More than one part of the body.
    let names: Vec<String> = (0..300).map(|number| format!("shop/web-{number:03}")).collect();
    for name in &names {
        rig.change(ChangeKind::ServiceApplied([true, false]), name, 1, None);
        rig.change(ChangeKind::ServiceApplied([true, false]), &name.replace("shop", "other"), 1, None);
    }
    for limit in [1, 7, 64, 100, 299, 300, 1000] {
        let mut listed = Vec::new();
        let mut token = String::new();
        loop {
            let page = rig.services(&format!("namespace=shop&limit={limit}&continue={token}"));
            let services = page["services"].as_array().unwrap();
            assert!(services.len() <= limit && !services.is_empty(), "{limit}");
            listed.extend(services.iter().map(|service| format!("shop/{}", service["name"].as_str().unwrap())));
            match page["metadata"]["continue"].as_str() {
                Some(next) => token = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(listed, names, "{limit}");
    }
    assert_eq!(rig.services("namespace=shop")["services"].as_array().unwrap().len(), 300);
    assert_eq!(rig.services("namespace=none"), json!({"services": []}));
}

#[test]
fn pages_of_changes_have_every_change_once() {
    let mut rig = Rig::synced();
    for number in 0..5 {
        rig.change(ChangeKind::ServiceApplied([true, false]), &format!("shop/{number}"), 1, None);
        rig.sync(&[IpFamily::V4], &[&format!("shop/{number}")]);
    }
    let page = |skip, limit| -> Value {
        serde_json::from_str(&rig.history.slow_changes(rig.now().instant, skip, limit).to_json()).unwrap()
    };
    let all = page(0, usize::MAX);
    assert_eq!(all["metadata"], Value::Null);
    let (first, second) = (page(0, 3), page(3, 3));
    assert_eq!(first["metadata"]["continue"], "3");
    assert_eq!(second["metadata"], Value::Null);
    let changes = |page: &Value| page["changes"].as_array().unwrap().clone();
    assert_eq!([changes(&first), changes(&second)].concat(), changes(&all));
}

#[test]
fn slow_change_lists_time_of_each_stage() {
    let mut rig = Rig::synced();
    rig.pass(5000);
    rig.change(ChangeKind::SliceApplied(IpFamily::V4), "shop/web", 12, Some(2000));
    rig.pass(250);
    rig.sync(&IpFamily::BOTH, &["shop/web"]);
    let slow = json!({
        "kind": "EndpointSlice", "event": "applied", "namespace": "shop", "name": "web", "resourceVersion": "12",
        "ipFamily": "IPv4",
        "triggered": "2026-01-02T15:00:04.5Z", "received": "2026-01-02T15:00:06.5Z",
        "syncBegan": "2026-01-02T15:00:06.75Z", "applied": "2026-01-02T15:00:07.25Z",
        "seconds": {"total": 2.75, "watch": 2.0, "queue": 0.25, "sync": 0.5, "kernel": 0.4},
    });
    assert_eq!(rig.slow(), [slow]);
    rig.pass(3_600_001);
    assert_eq!(rig.slow(), [Value::Null; 0], "an hour later");
}

#[test]
fn controller_time_is_separate_if_write_time_is_known() {
    let seconds = |triggered_before: u64, written_before: u64| {
        let mut rig = Rig::synced();
        rig.pass(5000);
        let Moment { instant: received, wall } = rig.now();
        let origin = ChangeOrigin {
            received,
            version: ObjectVersion::default(),
            trigger: Some(wall - Duration::from_millis(triggered_before)),
            written: Some(wall - Duration::from_millis(written_before)),
        };
        let kind = ChangeKind::SliceApplied(IpFamily::V4);
        rig.history.received(object_change(kind, "shop/web", origin));
        let applied = rig.sync(&[IpFamily::V4], &["shop/web"]).remove(0);
        (applied.api(), applied.watch(), applied.total())
    };
    let ms = Duration::from_millis;
    assert_eq!(seconds(2000, 500), (Some(ms(1500)), Some(ms(500)), ms(2500)));
    // Truncated to seconds, the write seems to precede its cause.
    assert_eq!(seconds(300, 900), (Some(ms(0)), Some(ms(300)), ms(800)));
}

#[test]
fn only_the_slowest_changes_are_listed() {
    let mut rig = Rig::synced();
    for wait in (0..200_u64).map(|i| i * 37 % 200) {
        rig.change(ChangeKind::SliceApplied(IpFamily::V4), "shop/web", wait, None);
        rig.pass(wait);
        rig.sync(&[IpFamily::V4], &["shop/web"]);
    }
    let versions: Vec<u64> =
        rig.slow().iter().map(|slow| slow["resourceVersion"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(versions, (136..200).rev().collect::<Vec<_>>());
}

#[test]
fn events_before_the_start_are_not_measured() {
    let mut rig = Rig::new(&IpFamily::BOTH);
    rig.change(ChangeKind::SliceApplied(IpFamily::V4), "shop/web", 12, Some(60_000));
    rig.pass(1000);
    let applied = rig.sync(&IpFamily::BOTH, &["shop/web"]);
    assert_eq!(applied.len(), 0);
    assert_eq!(rig.slow(), [Value::Null; 0]);
}

#[test]
fn programming_time_is_measured_only_for_changes_with_effect() {
    let mut rig = Rig::synced();
    rig.change(ChangeKind::SliceApplied(IpFamily::V4), "shop/web", 12, Some(300));
    rig.change(ChangeKind::SliceApplied(IpFamily::V4), "shop/none", 13, Some(300));
    rig.change(ChangeKind::ServiceApplied([true, true]), "shop/web", 14, None);
    let measured: Vec<_> = rig.sync(&[IpFamily::V4], &["shop/web"]).iter().map(AppliedChange::programming).collect();
    assert_eq!(measured, [Some(Duration::from_millis(800)), None, None]);
}

proptest! {
    /// `/services` and `ferroute status --service` agree, even if a Service is refused or a sync has failed.
    #[test]
    fn services_page_equals_the_status_of_each_service(
        steps in prop::collection::vec((0..8_u8, 0..3_u8, any::<[bool; 2]>()), 1..60),
    ) {
        let mut rig = Rig::new(&IpFamily::BOTH);
        let mut tracker = Tracker::new(node("node-1"));
        for (step, number, has_family) in steps {
            let name = format!("shop/web-{number}");
            let family = IpFamily::BOTH[usize::from(has_family[0])];
            let origin = ChangeOrigin {
                received: rig.now().instant,
                version: ObjectVersion::default(),
                trigger: None,
                written: None,
            };
            let event = match step {
                0 | 1 => {
                    let [v4, v6] = [format!("10.96.0.{number}"), format!("fd00::{number}")];
                    let service = service(&name).port("http", 80);
                    let service = match has_family {
                        [true, true] => service.cluster_ip(&v4).cluster_ip(&v6),
                        [false, _] => service.cluster_ip(&v6),
                        [_, false] => service.cluster_ip(&v4),
                    };
                    TrackerEvent::from_service(&service.build()).ok()
                }
                2 => Some(TrackerEvent::ServiceDeleted(namespaced_name(&name))),
                3 => {
                    let slice = slice(&format!("{name}-a"), &format!("web-{number}")).port("http", 80);
                    TrackerEvent::from_slice(&slice.pod(pod("10.244.0.2")).build(), "node-1").ok()
                }
                4 => Some(TrackerEvent::SliceDeleted(namespaced_name(&format!("{name}-a")))),
                _ => None,
            };
            match step {
                5 => _ = rig.sync(&[family], &[&name]),
                6 => _ = rig.sync_refusing(&[family], &[&name], &[(&name, has_family[1])]),
                7 => rig.history.failed(family),
                _ => {
                    let event = event.expect("a valid object");
                    rig.history.received(ObjectChange::from_event(&event, origin, &tracker).expect("a change"));
                    tracker.apply(event);
                }
            }
            let page = rig.services("");
            let mut pending = 0;
            for service in page["services"].as_array().unwrap() {
                let name = namespaced_name(&format!("shop/{}", service["name"].as_str().unwrap()));
                let ports = tracker.ports_of(&name);
                let applied = rig.history.applied(&name, ports.map(|ports| [0, 1].map(|i| !ports[i].is_empty())));
                let families: Vec<&Value> = service["families"].as_object().unwrap().values().collect();
                let shows = |field: &str| families.iter().any(|family| family[field] == true);
                let is_served = ports.is_some_and(|ports| ports.iter().any(|ports| !ports.is_empty()));
                prop_assert_eq!(applied, Applied { is_served, ..state(!shows("pending"), shows("refused")) });
                pending += usize::from(shows("pending"));
            }
            prop_assert_eq!(rig.history.pending(), pending);
        }
    }

    /// Every change is applied once in each family that it affects, no pending change is reported as applied, and no
    /// state of a deleted Service remains.
    #[test]
    fn each_change_is_applied_once_per_family(steps in prop::collection::vec((0..6_u8, 0..3_u8), 1..60)) {
        let mut rig = Rig::synced();
        let (mut received, mut applied, mut pending) = (0, 0, (0, 0));
        let mut names = BTreeSet::from(["shop/web".to_owned()]);
        for (step, service) in steps {
            let name = format!("shop/web-{service}");
            match step {
                0 | 1 => {
                    rig.change(ChangeKind::ServiceApplied([true, true]), &name, 1, None);
                    names.insert(name);
                    received += 2;
                    pending.0 += 1;
                }
                2 => {
                    rig.change(ChangeKind::ServiceDeleted, &name, 0, None);
                    names.remove(&name);
                    received += 2;
                    pending.0 += 1;
                }
                3 => {
                    rig.change(ChangeKind::SliceApplied(IpFamily::V6), &name, 1, None);
                    received += 1;
                    pending.1 += 1;
                }
                4 => {
                    rig.change(ChangeKind::SliceDeleted, &name, 0, None);
                    received += 2;
                    pending.1 += 1;
                }
                _ => {
                    applied += rig.sync(&IpFamily::BOTH, &[]).len();
                    pending = (0, 0);
                }
            }
            prop_assert_eq!(rig.history.pending_changes(), pending);
        }
        applied += rig.sync(&IpFamily::BOTH, &[]).len();
        prop_assert_eq!(applied, received);
        let page = rig.services("");
        let services = page["services"].as_array().unwrap();
        let listed: BTreeSet<String> =
            services.iter().map(|service| format!("shop/{}", service["name"].as_str().unwrap())).collect();
        prop_assert_eq!(listed, names);
        prop_assert!(services.iter().all(|service| service["families"]["IPv4"]["pending"] == false));
    }
}
