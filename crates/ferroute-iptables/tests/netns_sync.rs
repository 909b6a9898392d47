//! Syncs on a real kernel, with both variants of the tools. Each test has network namespaces of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use common::{
    kernel::chains_of,
    lab::Lab,
    records::records,
    scene::{cluster, rendered, settings},
};
use ferroute_core::{
    Changes, Dataplane, IpFamily, NodePortAddresses, ProxySettings,
    testing::{Edit, arbitrary, service_name},
};
use ferroute_host::{Counter, CounterError, KernelCounters, PacketCounters, Sysctls};
use ferroute_iptables::{NfacctCounters, Rule, TableName, plan::chains, runner::Backend};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

common::lab::with_both_backends!(
    a_first_sync_makes_just_what_is_rendered,
    changes_lead_to_the_same_as_writing_anew,
    rules_of_a_kube_proxy_that_ran_before_are_taken_over,
    a_refused_rule_is_named_and_everything_is_written_at_the_next_call,
    node_ports_follow_the_hosts_addresses,
    localhost_is_served_only_where_it_can_be_routed,
);

fn a_first_sync_makes_just_what_is_rendered(backend: Backend) {
    for family in IpFamily::BOTH {
        let lab = Lab::new(backend);
        let table = cluster().table(family);
        let mut dataplane = lab.dataplane(family, &settings());
        let report = lab.host.run(|| dataplane.resync(&table)).unwrap();
        assert_eq!(chains_of(&lab.rules(family)), rendered(&table));
        assert!(report.full && report.written == report.total && report.removed == 0, "{report:?}");

        let again = lab.host.run(|| dataplane.resync(&table)).unwrap();
        assert_eq!((again.written, again.removed, again.total), (0, 0, report.total));
        lab.calls();
        lab.host.run(|| dataplane.resync(&table)).unwrap();
        let program = lab.program(family, "-save");
        assert_eq!(lab.calls(), ["filter", "mangle", "nat"].map(|table| format!("{program} -t {table}")));
    }
}

fn changes_lead_to_the_same_as_writing_anew(backend: Backend) {
    // The kernel takes its time; the same holds for many more cases on rules in memory.
    let config = ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() };
    let strategy = (arbitrary::cluster(), vec(arbitrary::edits(1..4), 1..6), prop::sample::select(&IpFamily::BOTH));
    TestRunner::new(config)
        .run(&strategy, |(cluster, edits, family)| {
            let lab = Lab::new(backend);
            let mut tracker = cluster.tracker();
            let mut dataplane = lab.dataplane(family, &settings());
            lab.host.run(|| dataplane.resync(tracker.table(family))).unwrap();
            for edits in edits {
                edits.iter().for_each(|edit| edit.apply_to(&mut tracker));
                let changes = tracker.update(family);
                let table = tracker.table(family);
                lab.calls();
                lab.host.run(|| dataplane.sync(table, &changes)).unwrap();
                prop_assert_eq!(chains_of(&lab.rules(family)), rendered(table));
                prop_assert!(lab.calls().iter().all(|call| call.contains("-restore")), "nothing is read");
                prop_assert!(!lab.host.run(|| dataplane.was_disturbed()).unwrap());
                lab.clock.advance(60);
            }
            Ok(())
        })
        .unwrap();
}

fn rules_of_a_kube_proxy_that_ran_before_are_taken_over(backend: Backend) {
    let records: Vec<_> =
        records().into_iter().filter(|record| record.name().contains("nodeport-cluster step 1")).collect();
    assert_eq!(records.len(), 2, "one per family");
    for record in records {
        let lab = Lab::new(backend);
        let mut counters = lab.host.run(KernelCounters::open).unwrap().unwrap();
        for name in [NfacctCounters::INVALID_DROPPED, NfacctCounters::LOCALHOST_ACCEPTED] {
            counters.ensure(name).unwrap();
        }
        lab.restore(record.family, &record.text);
        let table = cluster().table(record.family);
        let mut dataplane = lab.dataplane(record.family, &settings());
        let report = lab.host.run(|| dataplane.resync(&table)).unwrap();
        assert_eq!(chains_of(&lab.rules(record.family)), rendered(&table), "{}", record.name());
        assert!(report.written < report.total, "what was right was left alone: {report:?}");
    }
}

fn a_refused_rule_is_named_and_everything_is_written_at_the_next_call(backend: Backend) {
    let lab = Lab::new(backend);
    let cluster = cluster();
    let mut tracker = cluster.tracker();
    let mut dataplane =
        lab.dataplane_with(IpFamily::V4, &settings(), |_, host| host.counters = Some(Box::new(Pretended)));
    let error = lab.host.run(|| dataplane.resync(tracker.table(IpFamily::V4))).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    let line = match backend {
        // The table goes to the kernel as a whole, which does not say what it does not like about it.
        Backend::Legacy => "\"COMMIT\"",
        Backend::NfTables => "\"-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct",
    };
    assert!(cause.contains("-restore refuses line ") && cause.contains(line), "{error}: {cause}");
    assert_eq!(error.to_string(), "cannot write IPv4 rules");
    assert!(lab.host.run(|| dataplane.was_disturbed()).unwrap(), "nothing is known");

    // A sync after a failure is a resync.
    let mut counters = lab.host.run(KernelCounters::open).unwrap().unwrap();
    for name in [NfacctCounters::INVALID_DROPPED, NfacctCounters::LOCALHOST_ACCEPTED] {
        counters.ensure(name).unwrap();
    }
    Edit::RemoveService(service_name("ns1/web")).apply_to(&mut tracker);
    let changes = tracker.update(IpFamily::V4);
    let report = lab.host.run(|| dataplane.sync(tracker.table(IpFamily::V4), &changes)).unwrap();
    assert!(report.full);
    assert_eq!(chains_of(&lab.rules(IpFamily::V4)), rendered(tracker.table(IpFamily::V4)));
}

fn node_ports_follow_the_hosts_addresses(backend: Backend) {
    let lab = Lab::new(backend);
    let settings = ProxySettings {
        node_port_addresses: NodePortAddresses::Within(vec!["192.0.2.0/24".parse().unwrap()]),
        ..settings()
    };
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = lab.dataplane(IpFamily::V4, &settings);
    lab.host.run(|| dataplane.resync(&table)).unwrap();
    let served = || {
        let rules = lab.rules(IpFamily::V4);
        let to_node_ports = |rule: &&Rule| rule.next_chain() == Some(chains::NODE_PORTS);
        let rules = rules.rules(TableName::Nat, chains::SERVICES).iter().filter(to_node_ports);
        rules.map(|rule| rule.destination.clone().unwrap().value().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(served(), [""; 0]);
    for address in ["192.0.2.7/24", "192.0.2.3/24", "198.51.100.1/24"] {
        lab.host.add_address(address, "lo");
    }
    lab.host.run(|| dataplane.sync(&table, &Changes::default())).unwrap();
    assert_eq!(served(), ["192.0.2.3/32", "192.0.2.7/32"]);
}

fn localhost_is_served_only_where_it_can_be_routed(backend: Backend) {
    let lab = Lab::new(backend);
    let table = cluster().table(IpFamily::V4);
    let route_localnet = || lab.host.run(|| Sysctls::of_kernel().read("net/ipv4/conf/all/route_localnet").unwrap());
    let guarded = || !lab.rules(IpFamily::V4).rules(TableName::Filter, chains::FIREWALL).is_empty();

    let nowhere = Sysctls::rooted_at("/nonexistent");
    let mut dataplane = lab.dataplane_with(IpFamily::V4, &settings(), |_, host| host.sysctls = nowhere);
    lab.host.run(|| dataplane.resync(&table)).unwrap();
    assert_eq!((route_localnet().as_str(), guarded()), ("0", false));

    let mut dataplane = lab.dataplane(IpFamily::V4, &settings());
    lab.host.run(|| dataplane.resync(&table)).unwrap();
    assert_eq!((route_localnet().as_str(), guarded()), ("1", true));
}

#[test]
fn a_lock_that_another_program_holds_is_waited_for() {
    let lab = Lab::new(Backend::Legacy);
    let directory = tempfile::tempdir().unwrap();
    let lock = directory.path().join("xtables.lock");
    let script = directory.path().join("iptables-restore");
    let text = format!("XTABLES_LOCKFILE={} exec iptables-legacy-restore \"$@\"", lock.display());
    common::script::script(&script, &text);
    let mut dataplane = lab.dataplane_with(IpFamily::V4, &settings(), |tools, _| tools.restore = script);
    let held = std::fs::File::create(&lock).unwrap();
    held.lock().unwrap();
    let (told, freed) = std::sync::mpsc::channel();
    let table = cluster().table(IpFamily::V4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(300));
            told.send(()).unwrap();
            drop(held);
        });
        lab.host.run(|| dataplane.resync(&table)).unwrap();
    });
    freed.try_recv().expect("the rules were written only after the lock was free");
    assert_eq!(chains_of(&lab.rules(IpFamily::V4)), rendered(&table));
}

/// Counters that are not there, though they say so.
struct Pretended;

impl PacketCounters for Pretended {
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
