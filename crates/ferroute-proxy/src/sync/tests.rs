use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use ferroute_core::{
    Changes, Dataplane, DataplaneError, IpFamily, ServiceTable, SyncReport, Tracker,
    testing::{namespaced_name, node, pod, service, slice},
    tracker::TrackerEvent,
};

use super::*;
use crate::observer::Observer;

/// What the loop did to its surroundings, in order.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    /// Everything since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A kernel that takes everything but what the test refuses.
struct FakeDataplane {
    journal: Journal,
    refusals: Arc<Mutex<VecDeque<&'static str>>>,
    disturbed: Arc<Mutex<bool>>,
}

impl FakeDataplane {
    fn answer(&self) -> Result<SyncReport, DataplaneError> {
        match self.refusals.lock().unwrap().pop_front() {
            None => Ok(SyncReport { written: 1, ..SyncReport::default() }),
            Some(why) => Err(DataplaneError::Write { rules: "rules".to_owned(), source: why.into() }),
        }
    }
}

impl Dataplane for FakeDataplane {
    fn sync(&mut self, _: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        let names: Vec<String> = changes.services.iter().map(ToString::to_string).collect();
        self.journal.write(format!("sync {}", names.join(" ")));
        self.answer()
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        self.journal.write(format!("resync of {} ports", table.entries.len()));
        self.answer()
    }

    fn was_disturbed(&mut self) -> Result<bool, DataplaneError> {
        Ok(std::mem::take(&mut *self.disturbed.lock().unwrap()))
    }
}

/// What another mode has left; the first tries to remove it are in vain.
struct FakeLeftovers {
    journal: Journal,
    in_vain: usize,
}

impl Leftovers for FakeLeftovers {
    fn remove(&mut self, report: &mut Report) {
        self.journal.write("clean up");
        match self.in_vain.checked_sub(1) {
            None => report.removed.push("a table".to_owned()),
            Some(left) => {
                self.in_vain = left;
                report.troubles.push("busy".to_owned());
            }
        }
    }
}

/// Flows of the test's choice, each with its destination and where its answers come from.
struct FakeFlows {
    journal: Journal,
    flows: Vec<(SocketAddr, SocketAddr)>,
}

impl FlowTable for FakeFlows {
    fn remove_udp(
        &mut self,
        _: IpFamily,
        is_stale: &mut dyn FnMut(SocketAddr, SocketAddr) -> bool,
    ) -> anyhow::Result<usize> {
        let before = self.flows.len();
        self.flows.retain(|(destination, answers_from)| {
            let stale = is_stale(*destination, *answers_from);
            if stale {
                self.journal.write(format!("remove flow {destination} by {answers_from}"));
            }
            !stale
        });
        Ok(before - self.flows.len())
    }
}

struct FakeObserver(Journal);

impl Observer for FakeObserver {
    fn taken(&mut self, change: &Change, _before: &Tracker) {
        if let Change::Desired(TrackerEvent::NodeApplied(node), _) = change {
            self.0.write(format!("node {}", node.name));
        }
    }

    fn in_force(&mut self, sync: &InForce<'_>) {
        self.0.write(format!("in force: {} ports", sync.table.entries.len()));
    }
}

/// A running loop with everything around it in the test's hands.
struct Rig {
    changes: mpsc::Sender<Vec<Change>>,
    journal: Journal,
    refusals: Arc<Mutex<VecDeque<&'static str>>>,
    disturbed: Arc<Mutex<bool>>,
}

impl Rig {
    fn start(flows: &[(&str, &str)]) -> Self {
        Self::start_after(flows, 0)
    }

    /// Starts where another mode has left something that cannot be removed so many times.
    fn start_after(flows: &[(&str, &str)], in_vain: usize) -> Self {
        let journal = Journal::default();
        let refusals = Arc::new(Mutex::new(VecDeque::new()));
        let disturbed = Arc::new(Mutex::new(false));
        let dataplane =
            FakeDataplane { journal: journal.clone(), refusals: refusals.clone(), disturbed: disturbed.clone() };
        let predecessor = FakeLeftovers { journal: journal.clone(), in_vain };
        let flows = flows.iter().map(|(to, by)| (to.parse().unwrap(), by.parse().unwrap())).collect();
        let sync = SyncLoop::new(
            Intake::new(Tracker::new(node("node-1")), vec![Box::new(FakeObserver(journal.clone()))]),
            vec![FamilySync::new(IpFamily::V4, Box::new(dataplane))],
            vec![Box::new(predecessor)],
            Box::new(FakeFlows { journal: journal.clone(), flows }),
            Box::new(|| vec![[192, 168, 0, 1].into()]),
            Limits {
                min_interval: Duration::from_secs(1),
                burst: 2,
                first_retry: Duration::from_millis(100),
                longest_retry: Duration::from_secs(30),
            },
        );
        let (changes, receiver) = mpsc::channel(16);
        tokio::spawn(sync.run(receiver));
        Self { changes, journal, refusals, disturbed }
    }

    /// A loop that has brought a first Service into force.
    async fn in_force(flows: &[(&str, &str)]) -> Self {
        let rig = Self::start(flows);
        assert_eq!(
            rig.after(vec![web(), Change::Listed]).await,
            ["resync of 1 ports", "in force: 1 ports", "clean up"]
        );
        rig
    }

    /// Sends changes and tells what follows within half a second.
    async fn after(&self, changes: Vec<Change>) -> Vec<String> {
        self.changes.send(changes).await.unwrap();
        self.within(Duration::from_millis(500)).await
    }

    async fn within(&self, time: Duration) -> Vec<String> {
        tokio::time::sleep(time).await;
        self.journal.take()
    }
}

fn stamp() -> Stamp {
    Stamp { received: std::time::Instant::now(), version: ObjectVersion::default(), trigger: None, written: None }
}

fn web() -> Change {
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
    Change::Desired(TrackerEvent::from_service(&web.build()).unwrap(), stamp())
}

fn dns_with(endpoints: &[&str]) -> Vec<Change> {
    let dns = service("kube-system/dns").cluster_ip("10.96.0.10").udp("dns", 53).node_port(30053);
    let slice = slice("kube-system/dns-a", "dns").udp("dns", 53);
    let slice = endpoints.iter().fold(slice, |slice, address| slice.pod(pod(address)));
    vec![
        Change::Desired(TrackerEvent::from_service(&dns.build()).unwrap(), stamp()),
        Change::Desired(TrackerEvent::from_slice(&slice.build(), "node-1").unwrap(), stamp()),
    ]
}

#[tokio::test(start_paused = true)]
async fn no_rule_is_written_before_everything_is_listed() {
    let rig = Rig::start(&[]);
    assert_eq!(rig.after(vec![web()]).await, [""; 0]);
    assert_eq!(rig.after(vec![Change::Listed]).await, ["resync of 1 ports", "in force: 1 ports", "clean up"]);
}

#[tokio::test(start_paused = true)]
async fn rules_of_another_mode_go_after_ours_are_in_force() {
    let rig = Rig::start(&[]);
    rig.refusals.lock().unwrap().push_back("no memory");
    let journal = rig.after(vec![web(), Change::Listed]).await;
    assert_eq!(journal, ["resync of 1 ports", "resync of 1 ports", "in force: 1 ports", "clean up"]);
}

#[tokio::test(start_paused = true)]
async fn what_another_mode_has_left_is_tried_again_each_hour_until_it_is_gone() {
    let rig = Rig::start_after(&[], 2);
    let journal = rig.after(vec![web(), Change::Listed]).await;
    assert_eq!(journal, ["resync of 1 ports", "in force: 1 ports", "clean up"]);
    assert_eq!(rig.after(dns_with(&["10.0.0.1"])).await, ["sync kube-system/dns", "in force: 2 ports"]);
    let hour = Duration::from_secs(3600);
    let hourly = ["resync of 2 ports", "in force: 2 ports", "clean up"];
    assert_eq!(rig.within(hour).await, hourly);
    assert_eq!(rig.within(hour).await, hourly);
    assert_eq!(rig.within(hour).await, ["resync of 2 ports", "in force: 2 ports"]);
}

#[tokio::test(start_paused = true)]
async fn later_changes_are_written_alone_and_an_undone_one_not_at_all() {
    let rig = Rig::in_force(&[]).await;
    assert_eq!(rig.after(dns_with(&["10.0.0.1"])).await, ["sync kube-system/dns", "in force: 2 ports"]);
    let undone = vec![Change::Desired(TrackerEvent::ServiceDeleted(namespaced_name("shop/web")), stamp()), web()];
    assert_eq!(rig.within(Duration::from_secs(3)).await, [""; 0]);
    assert_eq!(rig.after(undone).await, ["in force: 2 ports"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_sync_is_tried_again_in_full_until_it_succeeds() {
    let rig = Rig::in_force(&[]).await;
    rig.refusals.lock().unwrap().extend(["no memory", "no memory"]);
    let journal = rig.after(dns_with(&["10.0.0.1"])).await;
    assert_eq!(journal, ["sync kube-system/dns"], "the first try");
    let journal = rig.within(Duration::from_secs(60)).await;
    assert_eq!(journal, ["resync of 2 ports", "resync of 2 ports", "in force: 2 ports"]);
}

#[tokio::test(start_paused = true)]
async fn rules_that_somebody_else_changed_are_repaired_within_a_second() {
    let rig = Rig::in_force(&[]).await;
    *rig.disturbed.lock().unwrap() = true;
    assert_eq!(rig.within(Duration::from_secs(1)).await, ["resync of 1 ports", "in force: 1 ports"]);
    assert_eq!(rig.within(Duration::from_secs(60)).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn flows_go_once_the_rules_are_in_force_and_not_before() {
    let rig =
        Rig::start(&[("10.96.0.10:53", "10.0.0.1:53"), ("10.96.0.10:53", "10.0.0.2:53"), ("8.8.8.8:53", "8.8.8.8:53")]);
    let mut all = dns_with(&["10.0.0.1", "10.0.0.2"]);
    all.push(Change::Listed);
    assert_eq!(rig.after(all).await, ["resync of 1 ports", "in force: 1 ports", "clean up"]);
    rig.refusals.lock().unwrap().push_back("no memory");
    assert_eq!(rig.after(dns_with(&["10.0.0.2"])).await[0], "sync kube-system/dns");
    let journal = rig.within(Duration::from_secs(10)).await;
    assert!(journal.contains(&"remove flow 10.96.0.10:53 by 10.0.0.1:53".to_owned()), "{journal:?}");
    assert_eq!(journal.iter().filter(|line| line.starts_with("remove")).count(), 1, "{journal:?}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_host_address_compares_everything_again() {
    let rig = Rig::in_force(&[]).await;
    assert_eq!(rig.after(vec![Change::Host]).await, ["resync of 1 ports", "in force: 1 ports"]);
}
