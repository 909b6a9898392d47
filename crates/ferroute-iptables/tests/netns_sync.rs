//! Syncs on a real kernel, with both backends. Each test has separate network namespaces.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use common::{
    fake_kernel::chains_of,
    fixtures::{by_service_port, cluster, rendered, settings},
    netns_host::{NetnsHost, Way},
    records::records,
};
use ferroute_core::{
    Changes, Dataplane, IpFamily, NfacctCounters, NodePortAddresses, ProxySettings,
    testing::{Edit, arbitrary, namespaced_name},
};
use ferroute_host::{Counter, CounterError, KernelCounters, PacketCounters, Sysctls};
use ferroute_iptables::{
    Rule, TableName,
    exec::{Backend, ChainMode, detect_modes, existing_accesses, search_path},
    plan::chains,
};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

common::netns_host::with_all_ways!(
    the_first_sync_creates_the_rendered_rules,
    the_mode_of_the_rules_is_detected,
    incremental_changes_equal_a_full_write,
    rules_of_an_earlier_kube_proxy_are_taken_over,
    the_error_has_the_rejected_rule_and_the_next_sync_is_full,
    node_ports_follow_the_hosts_addresses,
    node_ports_answer_on_localhost_only_if_it_can_be_routed,
);

fn the_first_sync_creates_the_rendered_rules(way: Way) {
    for family in IpFamily::BOTH {
        let node = NetnsHost::new(way);
        let table = cluster().table(family);
        let mut dataplane = node.dataplane(family, &settings());
        let report = node.netns.run(|| dataplane.resync(&table)).unwrap();
        assert_eq!(chains_of(&node.rules(family)), rendered(&table));
        assert!(report.full && report.written == report.total && report.removed == 0, "{report:?}");

        let again = node.netns.run(|| dataplane.resync(&table)).unwrap();
        assert_eq!((again.written, again.removed, again.total), (0, 0, report.total));
        node.calls();
        node.netns.run(|| dataplane.resync(&table)).unwrap();
        let program = node.program(family, "-save");
        match way {
            Way::Programs(_) => {
                assert_eq!(node.calls(), ["filter", "mangle", "nat"].map(|table| format!("{program} -t {table}")));
            }
            Way::Netlink => assert_eq!(node.calls(), [""; 0]),
        }
    }
}

fn the_mode_of_the_rules_is_detected(way: Way) {
    for family in IpFamily::BOTH {
        let node = NetnsHost::new(way);
        let detected = || {
            let accesses = node.netns.run(|| existing_accesses(family, &node.exec(), &search_path()));
            let accesses = accesses.into_iter().map(Result::unwrap);
            let modes = accesses.flat_map(|access| node.netns.run(|| detect_modes(&access)).unwrap());
            modes.collect::<Vec<_>>()
        };
        assert_eq!(detected(), []);
        let mut dataplane = node.dataplane(family, &settings());
        node.netns.run(|| dataplane.resync(&cluster().table(family))).unwrap();
        node.calls();
        assert_eq!(detected(), [ChainMode::Iptables]);
        assert_eq!(node.calls().is_empty(), way.backend() == Backend::NfTables);
    }
}

fn incremental_changes_equal_a_full_write(way: Way) {
    // The kernel is slow; the same property is tested with many more cases on the fake kernel, but only for whole chains.
    let cases = if way == Way::Netlink { 32 } else { 6 };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let strategy = (arbitrary::cluster(), vec(arbitrary::edits(1..4), 1..6), prop::sample::select(&IpFamily::BOTH));
    let comparable = |chains| if way == Way::Netlink { by_service_port(chains) } else { chains };
    TestRunner::new(config)
        .run(&strategy, |(cluster, edits, family)| {
            let node = NetnsHost::new(way);
            let mut tracker = cluster.tracker();
            let mut dataplane = node.dataplane(family, &settings());
            node.netns.run(|| dataplane.resync(tracker.table(family))).unwrap();
            for edits in edits {
                edits.iter().for_each(|edit| edit.apply_to(&mut tracker));
                let changes = tracker.update(family);
                let table = tracker.table(family);
                node.calls();
                node.netns.run(|| dataplane.sync(table, &changes)).unwrap();
                prop_assert_eq!(comparable(chains_of(&node.rules(family))), comparable(rendered(table)));
                prop_assert!(node.calls().iter().all(|call| call.contains("-restore")), "rules are read");
                prop_assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
                node.clock.advance(60);
            }
            Ok(())
        })
        .unwrap();
}

fn rules_of_an_earlier_kube_proxy_are_taken_over(way: Way) {
    let records: Vec<_> =
        records().into_iter().filter(|record| record.name().contains("nodeport-cluster step 1")).collect();
    assert_eq!(records.len(), 2, "one per family");
    for record in records {
        let node = NetnsHost::new(way);
        let mut counters = node.netns.run(KernelCounters::open).unwrap().unwrap();
        for name in [NfacctCounters::INVALID_DROPPED, NfacctCounters::LOCALHOST_ACCEPTED] {
            counters.ensure(name).unwrap();
        }
        node.restore(record.family, &record.text);
        let table = cluster().table(record.family);
        let mut dataplane = node.dataplane(record.family, &settings());
        let report = node.netns.run(|| dataplane.resync(&table)).unwrap();
        assert_eq!(chains_of(&node.rules(record.family)), rendered(&table), "{}", record.name());
        assert!(report.written < report.total, "unchanged chains are not rewritten: {report:?}");
    }
}

fn the_error_has_the_rejected_rule_and_the_next_sync_is_full(way: Way) {
    let node = NetnsHost::new(way);
    let cluster = cluster();
    let mut tracker = cluster.tracker();
    let mut dataplane =
        node.dataplane_with(IpFamily::V4, &settings(), |_, host| host.counters = Some(Box::new(PretendedCounters)));
    let error = node.netns.run(|| dataplane.resync(tracker.table(IpFamily::V4))).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    let parts = match way {
        // The kernel rejects the whole table without a reason.
        Way::Programs(Backend::Legacy) => ["-restore rejected line ", "\"COMMIT\""],
        Way::Programs(Backend::NfTables) => ["-restore rejected line ", RULE],
        Way::Netlink => ["kernel refused ", RULE],
    };
    assert!(parts.iter().all(|part| cause.contains(part)), "{error}: {cause}");
    assert_eq!(error.to_string(), "cannot write IPv4 rules");
    assert!(node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "nothing is known");

    // A sync after a failure is a resync.
    let mut counters = node.netns.run(KernelCounters::open).unwrap().unwrap();
    for name in [NfacctCounters::INVALID_DROPPED, NfacctCounters::LOCALHOST_ACCEPTED] {
        counters.ensure(name).unwrap();
    }
    Edit::RemoveService(namespaced_name("ns1/web")).apply_to(&mut tracker);
    let changes = tracker.update(IpFamily::V4);
    let report = node.netns.run(|| dataplane.sync(tracker.table(IpFamily::V4), &changes)).unwrap();
    assert!(report.full);
    assert_eq!(chains_of(&node.rules(IpFamily::V4)), rendered(tracker.table(IpFamily::V4)));
}

fn node_ports_follow_the_hosts_addresses(way: Way) {
    let node = NetnsHost::new(way);
    let settings = ProxySettings {
        node_port_addresses: NodePortAddresses::Within(vec!["192.0.2.0/24".parse().unwrap()]),
        ..settings()
    };
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = node.dataplane(IpFamily::V4, &settings);
    node.netns.run(|| dataplane.resync(&table)).unwrap();
    let served = || {
        let rules = node.rules(IpFamily::V4);
        let to_node_ports = |rule: &&Rule| rule.next_chain() == Some(chains::NODE_PORTS);
        let rules = rules.rules(TableName::Nat, chains::SERVICES).iter().filter(to_node_ports);
        rules.map(|rule| rule.destination.clone().unwrap().value().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(served(), [""; 0]);
    for address in ["192.0.2.7/24", "192.0.2.3/24", "198.51.100.1/24"] {
        node.netns.add_address(address, "lo");
    }
    node.netns.run(|| dataplane.sync(&table, &Changes::default())).unwrap();
    assert_eq!(served(), ["192.0.2.3/32", "192.0.2.7/32"]);
}

fn node_ports_answer_on_localhost_only_if_it_can_be_routed(way: Way) {
    let node = NetnsHost::new(way);
    let table = cluster().table(IpFamily::V4);
    let route_localnet = || node.netns.run(|| Sysctls::from_kernel().read("net/ipv4/conf/all/route_localnet").unwrap());
    let has_localnet_rule = || !node.rules(IpFamily::V4).rules(TableName::Filter, chains::FIREWALL).is_empty();

    let nowhere = Sysctls::with_root("/nonexistent");
    let mut dataplane = node.dataplane_with(IpFamily::V4, &settings(), |_, host| host.sysctls = nowhere);
    node.netns.run(|| dataplane.resync(&table)).unwrap();
    assert_eq!((route_localnet().as_str(), has_localnet_rule()), ("0", false));

    let mut dataplane = node.dataplane(IpFamily::V4, &settings());
    node.netns.run(|| dataplane.resync(&table)).unwrap();
    assert_eq!((route_localnet().as_str(), has_localnet_rule()), ("1", true));
}

#[test]
fn a_sync_waits_for_the_holder_of_the_lock() {
    let node = NetnsHost::new(Way::Programs(Backend::Legacy));
    let directory = tempfile::tempdir().unwrap();
    let lock = directory.path().join("xtables.lock");
    let script = directory.path().join("iptables-restore");
    let text = format!("XTABLES_LOCKFILE={} exec iptables-legacy-restore \"$@\"", lock.display());
    common::netns_host::script(&script, &text);
    let mut dataplane =
        node.dataplane_with(IpFamily::V4, &settings(), |programs, _| programs.unwrap().restore = script);
    let lock_file = std::fs::File::create(&lock).unwrap();
    lock_file.try_lock().unwrap();
    let (sender, released) = std::sync::mpsc::channel();
    let table = cluster().table(IpFamily::V4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(300));
            sender.send(()).unwrap();
            drop(lock_file);
        });
        node.netns.run(|| dataplane.resync(&table)).unwrap();
    });
    released.try_recv().expect("the rules were written before the lock was released");
    assert_eq!(chains_of(&node.rules(IpFamily::V4)), rendered(&table));
}

/// The start of a rule with a counter.
const RULE: &str = "\"-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct";

/// Counters that are reported as created but do not exist.
struct PretendedCounters;

impl PacketCounters for PretendedCounters {
    fn ensure(&mut self, _: &str) -> Result<(), CounterError> {
        Ok(())
    }

    fn read(&mut self, _: &str) -> Result<Option<Counter>, CounterError> {
        Ok(None)
    }

    fn remove(&mut self, _: &str) -> Result<(), CounterError> {
        Ok(())
    }
}
