mod isolation;
mod owners;
mod unanswered;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use ferroute_core::{
    Changes, Dataplane, DataplaneError, Frontend, IpFamily, Protocol, ProxySettings, ServicePortName, ServiceTable,
    SyncReport, Tracker,
    parse::ObjectVersion,
    testing::{namespaced_name, node, pod, service, slice},
    tracker::TrackerEvent,
};
use ferroute_host::conntrack::Entry;

use super::*;

/// The effects of the loop, in order.
#[derive(Clone, Debug, Default)]
struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    /// Returns everything since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A dataplane that accepts all rules, except for failures that the test schedules.
struct FakeDataplane {
    journal: Journal,
    failures: Arc<Mutex<VecDeque<&'static str>>>,
    modified: Arc<Mutex<bool>>,
    /// UDP frontends that its rules had.
    found: BTreeSet<Frontend>,
}

impl FakeDataplane {
    fn result(&self) -> Result<SyncReport, DataplaneError> {
        match self.failures.lock().unwrap().pop_front() {
            None => Ok(SyncReport { written: 1, udp_frontends_before: self.found.clone(), ..SyncReport::default() }),
            Some(cause) => Err(DataplaneError::Write { rules: "rules".to_owned(), source: cause.into() }),
        }
    }
}

impl Dataplane for FakeDataplane {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        let names: Vec<String> = changes.services.iter().map(ToString::to_string).collect();
        self.journal.write(format!("sync {}", names.join(" ")));
        if self.was_modified_externally()? {
            return self.resync(table).map(|report| SyncReport { repaired: true, ..report });
        }
        self.result()
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        self.journal.write(format!("resync of {} ports", table.entries.len()));
        self.result().map(|report| SyncReport { full: true, ..report })
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        Ok(std::mem::take(&mut *self.modified.lock().unwrap()))
    }

    fn relays(&self) -> HashMap<u16, ServicePortName> {
        let service = namespaced_name("kube-system/dns");
        [(RELAY, ServicePortName { service, port: "dns".into(), protocol: Protocol::Udp })].into()
    }
}

/// A port on which a process relays the flows of a Service.
const RELAY: u16 = 40_000;

/// The port of a process that rules do not lead to.
const DRAINING_RELAY: u16 = 41_000;

/// A destination that the rules of the dataplane had before.
const REPLACED: &str = "10.96.0.11:53";

/// A destination that the leftovers had.
const LEFT: &str = "10.96.0.12:53";

/// An endpoint that only the leftovers have.
const OLD_ENDPOINT: &str = "10.0.0.77:53";

/// Leftovers of another mode; the first removals fail.
#[derive(Debug)]
struct FakeLeftovers {
    journal: Journal,
    failures_left: usize,
    /// The UDP frontends of its rules.
    found: BTreeSet<Frontend>,
    /// An entry that its rules make until they are removed.
    makes: Option<(SocketAddr, SocketAddr)>,
    entries: Entries,
}

type Entries = Arc<Mutex<Vec<(SocketAddr, SocketAddr)>>>;

impl Leftovers for FakeLeftovers {
    fn remove(&mut self, report: &mut RemovalReport) {
        self.journal.write("clean up");
        self.entries.lock().unwrap().extend(self.makes.take());
        match self.failures_left.checked_sub(1) {
            None => {
                report.removed("a table");
                report.udp_frontends.clone_from(&self.found);
            }
            Some(left) => {
                self.failures_left = left;
                report.remains("busy");
            }
        }
    }
}

/// Conntrack entries, each with its original destination and the source of its replies.
#[derive(Default)]
struct FakeConntrack {
    journal: Journal,
    entries: Entries,
    /// Entries without a reply.
    unanswered: Arc<Mutex<Vec<Entry>>>,
}

impl ConntrackTable for FakeConntrack {
    fn delete_udp(
        &mut self,
        _: IpFamily,
        is_stale: &mut dyn FnMut(SocketAddr, SocketAddr) -> bool,
    ) -> anyhow::Result<usize> {
        let mut entries = self.entries.lock().unwrap();
        let before = entries.len();
        entries.retain(|(destination, reply_source)| {
            let stale = is_stale(*destination, *reply_source);
            if stale {
                self.journal.write(format!("delete entry {destination} from {reply_source}"));
            }
            !stale
        });
        Ok(before - entries.len())
    }

    fn delete_unanswered(&mut self, _: IpFamily, is_lost: &mut dyn FnMut(&Entry) -> bool) -> anyhow::Result<usize> {
        let mut unanswered = self.unanswered.lock().unwrap();
        let before = unanswered.len();
        unanswered.retain(|entry| {
            let lost = is_lost(entry);
            if lost {
                self.journal.write(format!("delete unanswered {} to {}", entry.protocol, entry.original_destination));
            }
            !lost
        });
        Ok(before - unanswered.len())
    }
}

struct FakeObserver(Journal);

impl Observer for FakeObserver {
    fn on_change(&mut self, change: &Change, _before: &Tracker) {
        if let Change::Desired(TrackerEvent::NodeApplied(node), _) = change {
            self.0.write(format!("node {}", node.name));
        }
    }

    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        self.0.write(format!("synced {} ports", sync.table.entries.len()));
    }

    fn on_modified(&mut self, _: IpFamily) {
        self.0.write("rules were modified");
    }
}

/// A running sync loop with fakes around it.
struct Rig {
    changes: mpsc::Sender<Vec<Change>>,
    journal: Journal,
    failures: Arc<Mutex<VecDeque<&'static str>>>,
    modified: Arc<Mutex<bool>>,
    entries: Entries,
    unanswered: Arc<Mutex<Vec<Entry>>>,
}

impl Rig {
    fn start(conntrack: &[(&str, &str)]) -> Self {
        Self::with_leftovers(conntrack, 0)
    }

    /// Starts with leftovers of another mode, whose first `failures_left` removals fail.
    fn with_leftovers(conntrack: &[(&str, &str)], failures_left: usize) -> Self {
        let (rig, sync, receiver) = Self::stopped(conntrack, failures_left);
        tokio::spawn(sync.run(receiver));
        rig
    }

    /// Returns a loop that has not been started, and the queue of its changes.
    fn stopped(conntrack: &[(&str, &str)], failures_left: usize) -> (Self, SyncLoop, mpsc::Receiver<Vec<Change>>) {
        let journal = Journal::default();
        let failures = Arc::new(Mutex::new(VecDeque::new()));
        let modified = Arc::new(Mutex::new(false));
        let unanswered = Arc::new(Mutex::new(Vec::new()));
        // Only one test uses this frontend of the rules.
        let found = |destination: &str| -> BTreeSet<Frontend> {
            let listed = conntrack.iter().filter(|(to, _)| *to == destination);
            let sockets = listed.map(|(to, _)| to.parse::<SocketAddr>().unwrap());
            let udp = |to: SocketAddr| Frontend { address: Some(to.ip()), protocol: Protocol::Udp, port: to.port() };
            sockets.map(udp).collect()
        };
        let dataplane = FakeDataplane {
            journal: journal.clone(),
            failures: failures.clone(),
            modified: modified.clone(),
            found: found(REPLACED),
        };
        let parse = |(destination, source): &(&str, &str)| (destination.parse().unwrap(), source.parse().unwrap());
        let entries: Entries = Arc::new(Mutex::new(conntrack.iter().map(parse).collect()));
        let made = |(_, endpoint): &&(SocketAddr, SocketAddr)| *endpoint == OLD_ENDPOINT.parse().unwrap();
        let makes = entries.lock().unwrap().iter().find(made).copied();
        let leftovers = FakeLeftovers {
            journal: journal.clone(),
            failures_left,
            found: found(LEFT),
            makes,
            entries: Arc::clone(&entries),
        };
        let sync = SyncLoop::new(
            ObservedTracker::new(Tracker::new(node("node-1")), vec![Box::new(FakeObserver(journal.clone()))]),
            vec![FamilySync::new(IpFamily::V4, Box::new(dataplane), ProxySettings::default())],
            vec![Box::new(leftovers)],
            Box::new(FakeConntrack {
                journal: journal.clone(),
                entries: Arc::clone(&entries),
                unanswered: unanswered.clone(),
            }),
            Box::new(|| vec![[192, 168, 0, 1].into()]),
            Box::new(|_| HashSet::from([RELAY, DRAINING_RELAY])),
            schedule::LIMITS,
        );
        let (changes, receiver) = mpsc::channel(16);
        (Self { changes, journal, failures, modified, entries, unanswered }, sync, receiver)
    }

    /// Starts a loop and syncs a first Service.
    async fn synced(conntrack: &[(&str, &str)]) -> Self {
        let rig = Self::start(conntrack);
        assert_eq!(rig.after(vec![web(), Change::Synced]).await, ["resync of 1 ports", "synced 1 ports", "clean up"]);
        rig
    }

    /// Sends changes and returns the effects of the following half second.
    async fn after(&self, changes: Vec<Change>) -> Vec<String> {
        self.changes.send(changes).await.unwrap();
        self.within(Duration::from_millis(500)).await
    }

    async fn within(&self, time: Duration) -> Vec<String> {
        tokio::time::sleep(time).await;
        self.journal.take()
    }
}

fn origin() -> ChangeOrigin {
    ChangeOrigin {
        received: std::time::Instant::now(),
        version: ObjectVersion::default(),
        trigger: None,
        written: None,
    }
}

fn web() -> Change {
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
    Change::Desired(TrackerEvent::from_service(&web.build()).unwrap(), origin())
}

fn dns_with(endpoints: &[&str]) -> Vec<Change> {
    let dns = service("kube-system/dns").cluster_ip("10.96.0.10").udp("dns", 53).node_port(30053);
    let slice = slice("kube-system/dns-a", "dns").udp("dns", 53);
    let slice = endpoints.iter().fold(slice, |slice, address| slice.pod(pod(address)));
    vec![
        Change::Desired(TrackerEvent::from_service(&dns.build()).unwrap(), origin()),
        Change::Desired(TrackerEvent::from_slice(&slice.build(), "node-1").unwrap(), origin()),
    ]
}

#[tokio::test(start_paused = true)]
async fn no_rule_is_written_before_initial_lists() {
    let rig = Rig::start(&[]);
    assert_eq!(rig.after(vec![web()]).await, [""; 0]);
    assert_eq!(rig.after(vec![Change::Synced]).await, ["resync of 1 ports", "synced 1 ports", "clean up"]);
}

/// A sender that waits for the queue while a sync takes long has many more changes.
#[tokio::test(start_paused = true)]
async fn changes_that_wait_for_the_queue_during_a_long_sync_are_received_together() {
    for (took, all) in [(Duration::from_secs(1), true), (Duration::ZERO, false)] {
        let (rig, mut sync, mut receiver) = Rig::stopped(&[], 0);
        sync.last_sync_took = took;
        tokio::spawn(async move {
            for number in 0..BATCHES {
                let service = service(&format!("many/{number}")).cluster_ip("10.96.1.1").port("http", 80);
                let event = TrackerEvent::from_service(&service.build()).unwrap();
                if rig.changes.send(vec![Change::Desired(event, origin())]).await.is_err() {
                    return;
                }
            }
            // The queue stays open.
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        // The time stands still while there are batches.
        let received = sync.apply_queued(&mut receiver).await;
        assert_eq!(received == BATCHES, all, "{received} after a sync of {took:?}");
    }
}

/// Far more than the queue holds.
const BATCHES: usize = 1_600;

#[tokio::test(start_paused = true)]
async fn leftovers_are_removed_after_first_successful_sync() {
    let rig = Rig::start(&[]);
    rig.failures.lock().unwrap().push_back("no memory");
    let journal = rig.after(vec![web(), Change::Synced]).await;
    assert_eq!(journal, ["resync of 1 ports", "resync of 1 ports", "synced 1 ports", "clean up"]);
}

#[tokio::test(start_paused = true)]
async fn removal_of_leftovers_is_retried_hourly_until_it_succeeds() {
    let rig = Rig::with_leftovers(&[], 2);
    let journal = rig.after(vec![web(), Change::Synced]).await;
    assert_eq!(journal, ["resync of 1 ports", "synced 1 ports", "clean up"]);
    assert_eq!(rig.after(dns_with(&["10.0.0.1"])).await, ["sync kube-system/dns", "synced 2 ports"]);
    let hour = Duration::from_secs(3600);
    let hourly = ["resync of 2 ports", "synced 2 ports", "clean up"];
    assert_eq!(rig.within(hour).await, hourly);
    // The following sync deletes entries that the rules of the leftovers have created.
    assert_eq!(rig.within(hour).await, [&hourly[..], &["synced 2 ports"]].concat());
    assert_eq!(rig.within(hour).await, ["resync of 2 ports", "synced 2 ports"]);
}

#[tokio::test(start_paused = true)]
async fn only_changes_are_written_and_reverted_changes_are_not() {
    let rig = Rig::synced(&[]).await;
    assert_eq!(rig.after(dns_with(&["10.0.0.1"])).await, ["sync kube-system/dns", "synced 2 ports"]);
    let reverted = vec![Change::Desired(TrackerEvent::ServiceDeleted(namespaced_name("shop/web")), origin()), web()];
    assert_eq!(rig.within(Duration::from_secs(3)).await, [""; 0]);
    assert_eq!(rig.after(reverted).await, ["synced 2 ports"]);
}

#[tokio::test(start_paused = true)]
async fn failed_sync_is_retried_as_full_sync_until_it_succeeds() {
    let rig = Rig::synced(&[]).await;
    rig.failures.lock().unwrap().extend(["no memory", "no memory"]);
    let journal = rig.after(dns_with(&["10.0.0.1"])).await;
    assert_eq!(journal, ["sync kube-system/dns"], "first attempt");
    let journal = rig.within(Duration::from_secs(60)).await;
    assert_eq!(journal, ["resync of 2 ports", "resync of 2 ports", "synced 2 ports"]);
}

#[tokio::test(start_paused = true)]
async fn externally_modified_rules_are_repaired_within_a_second() {
    let rig = Rig::synced(&[]).await;
    *rig.modified.lock().unwrap() = true;
    let expected = ["rules were modified", "resync of 1 ports", "synced 1 ports"];
    assert_eq!(rig.within(Duration::from_secs(1)).await, expected);
    assert_eq!(rig.within(Duration::from_secs(60)).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn modification_that_a_sync_of_changes_repairs_is_reported() {
    let rig = Rig::synced(&[]).await;
    *rig.modified.lock().unwrap() = true;
    let expected = ["sync kube-system/dns", "resync of 2 ports", "rules were modified", "synced 2 ports"];
    assert_eq!(rig.after(dns_with(&[])).await, expected);
    assert_eq!(rig.within(Duration::from_secs(60)).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn stale_conntrack_entries_are_deleted_after_sync_and_not_before() {
    let rig =
        Rig::start(&[("10.96.0.10:53", "10.0.0.1:53"), ("10.96.0.10:53", "10.0.0.2:53"), ("8.8.8.8:53", "8.8.8.8:53")]);
    let mut all = dns_with(&["10.0.0.1", "10.0.0.2"]);
    all.push(Change::Synced);
    assert_eq!(rig.after(all).await, ["resync of 1 ports", "synced 1 ports", "clean up", "synced 1 ports"]);
    rig.failures.lock().unwrap().push_back("no memory");
    let mut journal = rig.after(dns_with(&["10.0.0.2"])).await;
    journal.extend(rig.within(Duration::from_secs(10)).await);
    assert_eq!(journal[0], "sync kube-system/dns");
    assert!(journal.contains(&"delete entry 10.96.0.10:53 from 10.0.0.1:53".to_owned()), "{journal:?}");
    assert_eq!(journal.iter().filter(|line| line.starts_with("delete")).count(), 1, "{journal:?}");
}

/// A packet may be matched against the old rules and become an entry after the deletion.
#[tokio::test(start_paused = true)]
async fn stale_conntrack_entries_that_are_added_late_are_deleted() {
    let rig = Rig::start(&[]);
    let mut all = dns_with(&["10.0.0.1", "10.0.0.2"]);
    all.push(Change::Synced);
    rig.after(all).await;
    let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
    let add = |endpoint| rig.entries.lock().unwrap().push((socket("10.96.0.10:53"), socket(endpoint)));
    let deletion = "delete entry 10.96.0.10:53 from 10.0.0.1:53";
    rig.within(Duration::from_secs(10)).await;
    assert_eq!(rig.after(dns_with(&["10.0.0.2"])).await, ["sync kube-system/dns", "synced 1 ports"]);
    add("10.0.0.1:53");
    add("10.0.0.2:53");
    assert_eq!(rig.within(Duration::from_secs(3)).await, [deletion]);
    add("10.0.0.1:53");
    assert_eq!(rig.within(Duration::from_secs(60)).await, [""; 0], "it is not of the old rules");
    rig.entries.lock().unwrap().clear();
    // Although rules change all the time.
    rig.after(dns_with(&["10.0.0.1", "10.0.0.2"])).await;
    rig.after(dns_with(&["10.0.0.2"])).await;
    add("10.0.0.1:53");
    let mut journal = Vec::new();
    for endpoint in (0..20).map(|number| if number % 2 == 0 { "10.0.0.3" } else { "10.0.0.4" }) {
        journal.extend(rig.after(dns_with(&["10.0.0.2", endpoint])).await);
    }
    assert_eq!(journal.iter().filter(|line| *line == deletion).count(), 1, "{journal:?}");
}

/// Services may be deleted while no proxy runs.
#[tokio::test(start_paused = true)]
async fn flows_to_services_that_only_old_rules_had_are_deleted() {
    let rig = Rig::start(&[(REPLACED, "10.0.0.1:53"), (LEFT, "10.0.0.1:53")]);
    let expected = [
        "resync of 1 ports",
        "delete entry 10.96.0.11:53 from 10.0.0.1:53",
        "synced 1 ports",
        "clean up",
        "delete entry 10.96.0.12:53 from 10.0.0.1:53",
        "synced 1 ports",
    ];
    assert_eq!(rig.after(vec![web(), Change::Synced]).await, expected);
}

/// A client that continues to send gets a new entry of the old rules, until these are removed.
#[tokio::test(start_paused = true)]
async fn flows_that_old_rules_translate_until_they_are_removed_are_deleted_again() {
    let rig = Rig::start(&[("10.96.0.10:53", OLD_ENDPOINT)]);
    let mut all = dns_with(&["10.0.0.1"]);
    all.push(Change::Synced);
    let deletion = format!("delete entry 10.96.0.10:53 from {OLD_ENDPOINT}");
    let expected = ["resync of 1 ports", &deletion, "synced 1 ports", "clean up", &deletion, "synced 1 ports"];
    assert_eq!(rig.after(all).await, expected);
}

/// A process that relays flows deletes their entries itself, without losing responses.
#[tokio::test(start_paused = true)]
async fn flows_through_a_process_are_left_to_it() {
    let rig = Rig::start(&[
        ("10.96.0.10:53", "192.168.0.1:41000"),
        ("10.96.0.10:53", "192.168.0.1:40000"),
        ("192.168.0.1:30053", "192.168.0.1:40000"),
        ("192.168.0.1:40000", "192.168.0.1:40000"),
        ("10.96.0.99:53", "192.168.0.1:40000"),
        ("10.96.0.10:53", "10.0.0.9:40000"),
        ("10.96.0.10:53", "192.168.0.1:42000"),
    ]);
    let mut all = dns_with(&["10.0.0.1"]);
    all.push(Change::Synced);
    let journal = rig.after(all).await;
    let deleted: Vec<_> = journal.iter().filter(|line| line.starts_with("delete")).collect();
    assert_eq!(
        deleted,
        [
            "delete entry 10.96.0.99:53 from 192.168.0.1:40000",
            "delete entry 10.96.0.10:53 from 10.0.0.9:40000",
            "delete entry 10.96.0.10:53 from 192.168.0.1:42000",
        ],
        "those that lead to no process, or through it to a Service without that address"
    );
}

#[tokio::test(start_paused = true)]
async fn changed_host_address_causes_full_sync() {
    let rig = Rig::synced(&[]).await;
    assert_eq!(rig.after(vec![Change::Host]).await, ["resync of 1 ports", "synced 1 ports"]);
}
