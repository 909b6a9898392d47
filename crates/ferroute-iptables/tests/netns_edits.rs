//! Edits of the chains that all Services share, by netlink on a real kernel, whose rules other programs modify as well.
//! Each test has a separate network namespace.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{
    fake_kernel::chains_of,
    fixtures::{by_service_port, cluster, rendered, synced},
    netns_host::{NetnsHost, Way},
};
use ferroute_core::{
    Dataplane, DataplaneError, IpFamily, SyncReport, Tracker,
    testing::{Edit, namespaced_name, service},
};
use ferroute_host::{KernelGeneration, RuleGeneration as _};
use ferroute_iptables::IptablesDataplane;
use ferroute_testing::wait;

/// A node with the rules of [`cluster`].
struct Node {
    host: NetnsHost,
    tracker: Tracker,
    dataplane: IptablesDataplane,
}

impl Node {
    fn new() -> Self {
        let (host, tracker) = (NetnsHost::new(Way::Netlink), cluster().tracker());
        let dataplane = synced(&host, tracker.table(IpFamily::V4));
        Self { host, tracker, dataplane }
    }

    fn sync(&mut self, edit: &Edit) -> Result<SyncReport, DataplaneError> {
        sync(&self.host, &mut self.tracker, &mut self.dataplane, edit)
    }

    /// Lets another program execute a command.
    fn nft(&self, command: &str) {
        self.host.netns.feed("nft", &["-f", "-"], command);
    }

    /// Returns the rules of nat `KUBE-SERVICES` with their handles.
    fn services(&self) -> String {
        self.host.netns.command("nft", &["-a", "list", "chain", "ip", "nat", "KUBE-SERVICES"])
    }

    #[track_caller]
    fn assert_right(&mut self) {
        let rules = chains_of(&self.host.rules(IpFamily::V4));
        assert_eq!(by_service_port(rules), by_service_port(rendered(self.tracker.table(IpFamily::V4))));
        self.host.clock.advance(60);
        assert!(!self.host.netns.run(|| self.dataplane.was_modified_externally()).unwrap());
    }
}

fn sync(
    host: &NetnsHost,
    tracker: &mut Tracker,
    dataplane: &mut IptablesDataplane,
    edit: &Edit,
) -> Result<SyncReport, DataplaneError> {
    edit.apply_to(tracker);
    let changes = tracker.update(IpFamily::V4);
    host.netns.run(|| dataplane.sync(tracker.table(IpFamily::V4), &changes))
}

fn remove_web() -> Edit {
    Edit::RemoveService(namespaced_name("ns1/web"))
}

fn add_service(address: &str) -> Edit {
    Edit::SetService(Box::new(service("ns2/new").cluster_ip(address).port("http", 80).build()))
}

/// Returns the rules with an address.
fn with_address(rules: &str, address: &str) -> Vec<String> {
    rules.lines().filter(|line| line.contains(&format!(" {address} "))).map(|line| line.trim().to_owned()).collect()
}

/// Returns a chain of a service port in table nat.
fn service_chain(node: &Node, prefix: &str) -> String {
    let listed = node.host.netns.command("nft", &["list", "chains", "ip"]);
    listed.split_whitespace().find(|word| word.starts_with(prefix)).unwrap().to_owned()
}

/// Returns the handle of a rule.
fn handle(rule: &str) -> &str {
    rule.rsplit_once("# handle ").unwrap().1
}

#[test]
fn rules_of_other_services_stay_in_shared_chains() {
    let mut node = Node::new();
    let unchanged = ["10.96.1.2", "10.96.1.3", "198.51.100.1"];
    let rules_of = |node: &Node, address: &str| with_address(&node.services(), address);
    let before = unchanged.map(|address| rules_of(&node, address));
    assert!(before.iter().all(|rules| rules.len() == 1));
    let web = rules_of(&node, "10.96.1.1");
    assert_eq!(web.len(), 1);

    let report = node.sync(&remove_web()).unwrap();
    assert_eq!((report.written, report.full), (0, false));
    assert_eq!(unchanged.map(|address| rules_of(&node, address)), before);
    assert_eq!(rules_of(&node, "10.96.1.1"), [""; 0]);
    node.assert_right();

    let mut changed = cluster().services[0].clone();
    changed.spec.external_ips = vec!["192.0.2.9".to_owned()];
    node.sync(&Edit::SetService(Box::new(changed))).unwrap();
    assert_eq!(unchanged.map(|address| rules_of(&node, address)), before);
    assert_eq!([rules_of(&node, "10.96.1.1").len(), rules_of(&node, "192.0.2.9").len()], [1, 1]);
    node.assert_right();
}

#[test]
fn counters_of_other_services_are_kept_in_shared_chains() {
    let mut node = Node::new();
    let saved = |node: &Node| {
        let text = node.host.netns.command("iptables-nft-save", &["-c", "-t", "nat"]);
        text.lines().filter(|line| line.contains("-A KUBE-SERVICES")).map(str::to_owned).collect::<Vec<_>>()
    };
    let counted: Vec<_> = saved(&node).iter().map(|line| line.replace("[0:0]", "[7:420]")).collect();
    let input = format!("*nat\n:KUBE-SERVICES - [0:0]\n{}\nCOMMIT\n", counted.join("\n"));
    node.host.netns.feed("iptables-nft-restore", &["--noflush", "-c"], &input);
    assert_eq!(saved(&node), counted);

    node.sync(&remove_web()).unwrap();
    let others: Vec<_> = counted.into_iter().filter(|line| !line.contains("ns1/web:")).collect();
    assert_eq!(saved(&node), others);
    node.sync(&Edit::SetService(Box::new(cluster().services[0].clone()))).unwrap();
    let (new, rest) = saved(&node).into_iter().partition::<Vec<_>, _>(|line| line.contains("ns1/web:"));
    assert_eq!(rest, others);
    assert!(new.len() == 1 && new[0].starts_with("[0:0] "), "{new:?}");
    node.assert_right();
}

#[test]
fn a_service_that_loses_its_endpoints_is_rejected_by_the_same_transaction() {
    let mut node = Node::new();
    let generation =
        |node: &Node| node.host.netns.run(|| KernelGeneration::open().unwrap().unwrap().current().unwrap());
    let before = generation(&node);
    let report = node.sync(&Edit::RemoveSlice(namespaced_name("ns1/web-a"))).unwrap();
    let written: Vec<_> = report.tables.iter().map(|table| (table.name, table.written > 0)).collect();
    assert_eq!(written, [("filter", true), ("nat", false)], "nat only loses rules");
    assert_eq!(with_address(&node.services(), "10.96.1.1"), [""; 0]);
    assert_eq!(generation(&node), before + 1);
    node.assert_right();
}

#[test]
fn a_rule_that_another_program_has_deleted_already_is_no_error() {
    let mut node = Node::new();
    let web = with_address(&node.services(), "10.96.1.1");
    node.nft(&format!("delete rule ip nat KUBE-SERVICES handle {}\n", handle(&web[0])));
    node.sync(&remove_web()).unwrap();
    node.assert_right();

    // Without any rule of the Service's chain.
    node.nft("flush chain ip filter KUBE-SERVICES\n");
    node.sync(&Edit::RemoveService(namespaced_name("ns2/empty"))).unwrap();
    node.assert_right();
}

#[test]
fn changes_of_shared_chains_by_another_program_are_repaired_by_the_next_sync() {
    let mut node = Node::new();
    for (change, address) in [
        ("flush chain ip nat KUBE-SERVICES\n", "10.96.1.7"),
        ("insert rule ip nat KUBE-SERVICES drop\n", "10.96.1.8"),
        ("insert rule ip filter KUBE-FORWARD drop\n", "10.96.1.9"),
    ] {
        node.nft(change);
        assert!(node.sync(&add_service(address)).unwrap().repaired, "{change}");
        node.assert_right();
    }
    assert!(!node.sync(&add_service("10.96.1.6")).unwrap().repaired);
    // The number of rules stays the same.
    let web = with_address(&node.services(), "10.96.1.1");
    node.nft(&format!("replace rule ip nat KUBE-SERVICES handle {} drop\n", handle(&web[0])));
    assert!(node.sync(&remove_web()).unwrap().repaired);
    node.assert_right();
}

#[test]
fn changes_by_another_program_are_noticed_between_comparisons() {
    let mut node = Node::new();
    let is_modified = |node: &mut Node| node.host.netns.run(|| node.dataplane.was_modified_externally()).unwrap();
    let exchange = |node: &Node| {
        let rules = with_address(&node.services(), "10.96.1.1");
        let handle = handle(&rules[0]);
        format!("replace rule ip nat KUBE-SERVICES handle {handle} drop\n")
    };
    for change in [
        |_: &Node| "flush chain ip nat KUBE-SERVICES\n".to_owned(),
        |_: &Node| "insert rule ip nat KUBE-SERVICES drop\n".to_owned(),
        exchange,
        // Chains of one Service.
        |node: &Node| {
            let listed = node.host.netns.command("nft", &["list", "chains", "ip"]);
            let lists = listed.split_whitespace().filter(|word| word.starts_with("KUBE-SV"));
            let flushed: String = lists.map(|chain| format!("flush chain ip nat {chain}\n")).collect();
            format!("{flushed}delete chain ip nat {}\n", service_chain(node, "KUBE-SEP-"))
        },
        |node: &Node| format!("flush chain ip nat {}\n", service_chain(node, "KUBE-SVC-")),
        |node: &Node| format!("insert rule ip nat {} drop\n", service_chain(node, "KUBE-SEP-")),
        |node: &Node| {
            let chain = service_chain(node, "KUBE-SEP-");
            let rules = node.host.netns.command("nft", &["-a", "list", "chain", "ip", "nat", &chain]);
            let last = rules.lines().rfind(|line| line.contains("masquerade") || line.contains("dnat")).unwrap();
            format!("replace rule ip nat {chain} handle {} drop\n", handle(last))
        },
    ] {
        node.nft("add table inet other\ndelete table inet other\n");
        // The comparison, and the next check without one.
        assert!(!is_modified(&mut node) && !is_modified(&mut node));
        let change = change(&node);
        node.nft(&change);
        assert!(is_modified(&mut node), "{change}");
        node.host.netns.run(|| node.dataplane.resync(node.tracker.table(IpFamily::V4))).unwrap();
        node.assert_right();
    }
}

#[test]
fn a_table_that_another_program_has_deleted_is_written_again() {
    let mut node = Node::new();
    for (table, edit) in [("filter", add_service("10.96.1.9")), ("nat", remove_web())] {
        node.nft(&format!("delete table ip {table}\n"));
        if node.sync(&edit).is_err() {
            let report = node.sync(&add_service("10.96.1.8")).unwrap();
            assert!(report.full);
        }
        node.host.netns.run(|| node.dataplane.resync(node.tracker.table(IpFamily::V4))).unwrap();
        node.assert_right();
    }
}

#[test]
fn syncs_do_not_fail_while_another_program_flushes_a_shared_chain_all_the_time() {
    let mut node = Node::new();
    let (started, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let Node { host, tracker, dataplane } = &mut node;
    let host = &*host;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                host.netns.feed("nft", &["-f", "-"], "flush chain ip filter KUBE-SERVICES\n");
                started.store(true, Ordering::Relaxed);
            }
        });
        wait("the first transaction", || started.load(Ordering::Relaxed).then_some(()));
        let edits = [add_service("10.96.1.8"), add_service("10.96.1.9")];
        let results: Vec<_> = edits.iter().cycle().take(30).map(|edit| sync(host, tracker, dataplane, edit)).collect();
        done.store(true, Ordering::Relaxed);
        let errors: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    });
    node.host.netns.run(|| node.dataplane.resync(node.tracker.table(IpFamily::V4))).unwrap();
    node.assert_right();
}
