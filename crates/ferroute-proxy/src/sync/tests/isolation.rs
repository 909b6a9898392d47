//! Service ports whose rules are refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use ferroute_admin::{
    history::{Applied, History},
    metrics::Metrics,
};
use ferroute_core::{Rejection, ServicePortName};

use super::*;
use crate::observers::status::MetricsObserver;

/// The way in which a mode reports a service port whose rules are refused.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Style {
    /// The mode applies all other rules and reports the service port.
    Reports,
    /// The mode applies no rules and names the service port.
    Fails,
}

/// A dataplane that refuses endpoints with one address.
#[derive(Clone)]
struct PickyDataplane {
    style: Style,
    refused: Arc<Mutex<&'static str>>,
    /// Number of further refusals.
    refusals: Arc<Mutex<usize>>,
    /// The endpoints of all service ports that have rules.
    applied: Arc<Mutex<BTreeMap<ServicePortName, Vec<String>>>>,
    attempts: Arc<Mutex<usize>>,
    history: Arc<History>,
}

impl PickyDataplane {
    fn write(&self, table: &ServiceTable, names: &BTreeSet<ServicePortName>) -> Result<SyncReport, DataplaneError> {
        let mut applied = self.applied.lock().unwrap().clone();
        let mut report = SyncReport::default();
        for name in names {
            let Some(entry) = table.entries.get(name) else {
                applied.remove(name);
                continue;
            };
            let endpoints: Vec<String> = entry.endpoints.iter().map(|it| it.address.to_string()).collect();
            let mut refusals = self.refusals.lock().unwrap();
            if *refusals == 0 || !endpoints.contains(&(*self.refused.lock().unwrap()).to_owned()) {
                applied.insert(name.clone(), endpoints);
                continue;
            }
            *refusals -= 1;
            *self.attempts.lock().unwrap() += 1;
            if self.style == Style::Fails {
                let (rules, service_port) = ("rules".to_owned(), name.clone());
                return Err(DataplaneError::Rejected { rules, service_port, source: "refused".into() });
            }
            report.rejected.push(Rejection { service_port: name.clone(), error: "refused".to_owned() });
        }
        *self.applied.lock().unwrap() = applied;
        Ok(report)
    }
}

impl Dataplane for PickyDataplane {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        self.write(table, &changes.previous.keys().cloned().collect())
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        let known: BTreeSet<ServicePortName> = self.applied.lock().unwrap().keys().cloned().collect();
        self.write(table, &known.into_iter().chain(table.entries.keys().cloned()).collect())
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        Ok(false)
    }
}

fn slice_of(name: &str, addresses: &[&str]) -> Change {
    let slice = slice(&format!("shop/{name}-a"), name).port("http", 8080);
    let slice = addresses.iter().fold(slice, |slice, address| slice.pod(pod(address)));
    Change::Desired(TrackerEvent::from_slice(&slice.build(), "node-1").unwrap(), origin())
}

fn service_of(name: &str, address: &str) -> Change {
    let service = service(&format!("shop/{name}")).cluster_ip(address).port("http", 80);
    Change::Desired(TrackerEvent::from_service(&service.build()).unwrap(), origin())
}

/// Starts syncs with a dataplane that refuses an endpoint a number of times.
fn start(style: Style, refusals: usize) -> (PickyDataplane, mpsc::Sender<Vec<Change>>) {
    let dataplane = PickyDataplane {
        style,
        refused: Arc::new(Mutex::new("10.0.0.66")),
        refusals: Arc::new(Mutex::new(refusals)),
        applied: Arc::default(),
        attempts: Arc::default(),
        history: Arc::new(History::new(SystemTime::now(), true)),
    };
    let metrics = MetricsObserver::new(Arc::new(Metrics::new(&[])), Arc::clone(&dataplane.history));
    let sync = SyncLoop::new(
        ObservedTracker::new(Tracker::new(node("node-1")), vec![Box::new(metrics)]),
        vec![FamilySync::new(IpFamily::V4, Box::new(dataplane.clone()), ProxySettings::default())],
        Vec::new(),
        Box::new(FakeConntrack::default()),
        Box::new(Vec::new),
        Box::new(|_| HashSet::new()),
        schedule::LIMITS,
    );
    let (changes, receiver) = mpsc::channel(16);
    tokio::spawn(sync.run(receiver));
    (dataplane, changes)
}

async fn check(style: Style) {
    let (PickyDataplane { refused, applied, attempts, history, .. }, changes) = start(style, usize::MAX);
    // Whether each Service is applied, and whether it is refused.
    let states = || {
        ["cart", "evil", "web"].map(|name| {
            let Applied { is_applied, is_refused, .. } =
                history.applied(&namespaced_name(&format!("shop/{name}")), Some([true, false]));
            (is_applied, is_refused)
        })
    };
    let (accepted, rejected) = ((true, false), (false, true));
    let after = async |time: u64, batch: Vec<Change>| {
        changes.send(batch).await.unwrap();
        tokio::time::sleep(Duration::from_secs(time)).await;
        let applied = applied.lock().unwrap();
        applied
            .iter()
            .map(|(name, endpoints)| (name.service.name().to_owned(), endpoints.join(" ")))
            .collect::<Vec<_>>()
    };
    let rules = |rules: &[(&str, &str)]| {
        rules.iter().map(|(name, endpoints)| ((*name).to_owned(), (*endpoints).to_owned())).collect::<Vec<_>>()
    };

    // One service port is refused from the start, and others are applied.
    let mut first =
        vec![slice_of("evil", &["10.0.0.66"]), slice_of("web", &["10.0.0.1"]), slice_of("cart", &["10.0.0.2"])];
    first.extend([service_of("evil", "10.96.0.1"), service_of("web", "10.96.0.2"), service_of("cart", "10.96.0.3")]);
    first.push(Change::Synced);
    assert_eq!(after(3, first).await, rules(&[("cart", "10.0.0.2"), ("web", "10.0.0.1")]), "{style:?}");
    assert_eq!(states(), [accepted, rejected, accepted], "{style:?}");
    // Another service port is refused after a change: its last rules stay, and others are still updated.
    let changed = vec![slice_of("web", &["10.0.0.66"]), slice_of("cart", &["10.0.0.3"])];
    assert_eq!(after(3, changed).await, rules(&[("cart", "10.0.0.3"), ("web", "10.0.0.1")]), "{style:?}");
    assert_eq!(states(), [accepted, rejected, rejected], "{style:?}");
    // It is retried soon after it was changed.
    let expected = rules(&[("cart", "10.0.0.3"), ("web", "10.0.0.4")]);
    assert_eq!(after(3, vec![slice_of("web", &["10.0.0.4"])]).await, expected, "{style:?}");
    assert_eq!(states(), [accepted, rejected, accepted], "{style:?}");
    // The other service port is retried periodically until it is accepted.
    *attempts.lock().unwrap() = 0;
    assert_eq!(after(3600, vec![]).await, expected, "{style:?}");
    assert!((5..20).contains(&*attempts.lock().unwrap()), "{style:?}: {attempts:?}");
    *refused.lock().unwrap() = "";
    let all = rules(&[("cart", "10.0.0.3"), ("evil", "10.0.0.66"), ("web", "10.0.0.4")]);
    assert_eq!(after(1200, vec![]).await, all, "{style:?}");
    assert_eq!(states(), [accepted; 3], "{style:?}");
    // A removed service port is removed.
    *refused.lock().unwrap() = "10.0.0.66";
    after(3, vec![slice_of("web", &["10.0.0.66"])]).await;
    let deleted = TrackerEvent::ServiceDeleted(namespaced_name("shop/web"));
    let left = after(3, vec![Change::Desired(deleted, origin())]).await;
    assert!(!left.iter().any(|(name, _)| name == "web"), "{style:?}: {left:?}");
}

#[tokio::test(start_paused = true)]
async fn refused_service_port_does_not_delay_others_where_the_mode_reports_it() {
    check(Style::Reports).await;
}

#[tokio::test(start_paused = true)]
async fn refused_service_port_does_not_delay_others_where_the_mode_fails() {
    check(Style::Fails).await;
}

#[tokio::test(start_paused = true)]
async fn service_port_that_is_refused_once_because_of_another_program_is_not_set_aside() {
    let (dataplane, changes) = start(Style::Fails, 0);
    let batch = vec![slice_of("web", &["10.0.0.1"]), service_of("web", "10.96.0.2"), Change::Synced];
    changes.send(batch).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    *dataplane.refusals.lock().unwrap() = 1;
    changes.send(vec![slice_of("web", &["10.0.0.66"])]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(*dataplane.attempts.lock().unwrap(), 1);
    assert_eq!(dataplane.applied.lock().unwrap().values().cloned().collect::<Vec<_>>(), [["10.0.0.66"]]);
}
