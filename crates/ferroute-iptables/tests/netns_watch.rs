//! Modifications of the proxy's rules by other programs on a real kernel are detected at low cost and repaired. Each
//! test has separate network namespaces.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::{
    net::IpAddr,
    process::Command,
    sync::{Arc, Mutex},
};

use common::{
    fake_kernel::chains_of,
    fixtures::{cluster, settings, synced},
    netns_host::{NetnsHost, Way},
};
use ferroute_core::{
    Dataplane, IpFamily, NodePortAddresses, ProxySettings,
    testing::{Edit, slice},
};
use ferroute_host::{AddressError, HostAddresses};
use ferroute_iptables::{IptablesDataplane, exec::Backend};

common::netns_host::with_all_ways!(
    a_flush_is_detected_and_repaired,
    a_modification_of_a_single_rule_or_jump_is_detected_and_repaired,
);

fn a_flush_is_detected_and_repaired(way: Way) {
    let node = NetnsHost::new(way);
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = synced(&node, &table);
    let before = chains_of(&node.rules(IpFamily::V4));
    for table in ["nat", "filter", "mangle"] {
        node.iptables(IpFamily::V4, &["-w", "-t", table, "-F"]);
        node.iptables(IpFamily::V4, &["-w", "-t", table, "-X"]);
    }
    assert!(node.netns.run(|| dataplane.was_modified_externally()).unwrap());
    node.netns.run(|| dataplane.resync(&table)).unwrap();
    assert_eq!(chains_of(&node.rules(IpFamily::V4)), before);
}

fn a_modification_of_a_single_rule_or_jump_is_detected_and_repaired(way: Way) {
    let node = NetnsHost::new(way);
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = synced(&node, &table);
    let before = chains_of(&node.rules(IpFamily::V4));
    for modification in [
        &["-D", "KUBE-MARK-MASQ", "1"][..],
        &["-F", "KUBE-SERVICES"],
        &["-I", "KUBE-SVC-4LVCYZMTA5CQO6SX", "1", "-j", "RETURN"],
        &["-D", "PREROUTING", "1"],
    ] {
        node.clock.advance(60);
        assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
        node.clock.advance(60);
        node.iptables(IpFamily::V4, &[&["-w", "-t", "nat"], modification].concat());
        assert!(node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "{modification:?}");
        let report = node.netns.run(|| dataplane.resync(&table)).unwrap();
        assert!(report.written < report.total / 2, "{modification:?}: {report:?}");
        assert_eq!(chains_of(&node.rules(IpFamily::V4)), before, "{modification:?}");
    }
}

#[test]
fn writes_of_the_other_family_need_no_comparison_and_those_of_other_programs_need_one() {
    let node = NetnsHost::new(Way::Programs(Backend::NfTables));
    let mut trackers = IpFamily::BOTH.map(|_| cluster().tracker());
    let mut dataplanes = IpFamily::BOTH.map(|family| node.dataplane(family, &settings()));
    for family in IpFamily::BOTH {
        let table = trackers[family.index()].table(family);
        node.netns.run(|| dataplanes[family.index()].resync(table)).unwrap();
    }
    let checks = |node: &NetnsHost, dataplanes: &mut [IptablesDataplane; 2]| {
        node.calls();
        for dataplane in dataplanes.iter_mut() {
            assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
        }
        node.calls()
    };
    // Both dataplanes count their own transactions.
    assert_eq!(checks(&node, &mut dataplanes), [""; 0]);
    for round in 0..4 {
        for family in IpFamily::BOTH {
            let tracker = &mut trackers[family.index()];
            let address = if family == IpFamily::V4 { format!("10.0.9.{round}") } else { format!("fd00::9:{round}") };
            let name = format!("ns1/more-{round}");
            Edit::SetSlice(slice(&name, "web").port("http", 8080).pod(&*address).build()).apply_to(tracker);
            let changes = tracker.update(family);
            assert!(!changes.is_empty());
            node.netns.run(|| dataplanes[family.index()].sync(tracker.table(family), &changes)).unwrap();
        }
        assert_eq!(checks(&node, &mut dataplanes), [""; 0], "round {round}");
    }

    node.clock.advance(60);
    node.iptables(IpFamily::V4, &["-w", "-A", "INPUT", "-j", "ACCEPT"]);
    let calls = checks(&node, &mut dataplanes);
    assert!(calls.len() == 6 && calls.iter().all(|call| call.contains("-save -t ")), "{calls:?}");
    assert_eq!(checks(&node, &mut dataplanes), [""; 0], "compared twice");
}

#[test]
fn comparisons_are_throttled_if_another_program_changes_rules_all_the_time() {
    let node = NetnsHost::new(Way::Programs(Backend::NfTables));
    let mut dataplane = synced(&node, &cluster().table(IpFamily::V4));
    let mut calls = Vec::new();
    node.calls();
    for _ in 0..60 {
        node.iptables(IpFamily::V4, &["-w", "-A", "INPUT", "-j", "ACCEPT"]);
        assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
        node.clock.advance(1);
        calls.extend(node.calls());
    }
    let comparisons = calls.iter().filter(|call| call.contains("-save")).count();
    assert!(comparisons > 0 && calls.len() <= 60 / 5 * 6, "{calls:?}");
    // A flush is detected between comparisons nevertheless.
    node.iptables(IpFamily::V4, &["-w", "-t", "nat", "-F"]);
    node.iptables(IpFamily::V4, &["-w", "-t", "nat", "-X"]);
    node.clock.advance(5);
    assert!(node.netns.run(|| dataplane.was_modified_externally()).unwrap());
}

/// A comparison of a large table takes so long that the next one follows a minute later.
#[test]
fn shared_chains_that_lose_rules_are_noticed_between_comparisons() {
    let node = NetnsHost::new(Way::Netlink);
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = synced(&node, &table);
    let before = chains_of(&node.rules(IpFamily::V4));
    for cut in [
        &["nat", "-F", "KUBE-SERVICES"][..],
        &["nat", "-D", "KUBE-SERVICES", "1"],
        &["nat", "-F", "KUBE-MARK-MASQ"],
        &["nat", "-D", "PREROUTING", "1"],
        &["nat", "-F", "KUBE-POSTROUTING"],
        &["filter", "-F", "KUBE-FORWARD"],
        &["filter", "-D", "INPUT", "1"],
    ] {
        // The first check compares, and the clock stands still until the last one.
        node.clock.advance(60);
        node.iptables(IpFamily::V4, &["-w", "-A", "INPUT", "-j", "ACCEPT"]);
        assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
        node.iptables(IpFamily::V4, &["-w", "-A", "INPUT", "-j", "ACCEPT"]);
        assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "other rules are no loss");
        node.iptables(IpFamily::V4, &[&["-w", "-t"], cut].concat());
        assert!(node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "{cut:?}");
        node.netns.run(|| dataplane.resync(&table)).unwrap();
        node.iptables(IpFamily::V4, &["-w", "-D", "INPUT", "-j", "ACCEPT"]);
        node.iptables(IpFamily::V4, &["-w", "-D", "INPUT", "-j", "ACCEPT"]);
        assert_eq!(chains_of(&node.rules(IpFamily::V4)), before, "{cut:?}");
    }
}

/// Comparisons are 5 s apart, but the kernel reports the size of a table without copying it.
#[test]
fn tables_of_another_size_are_compared_within_two_seconds_in_the_legacy_backend() {
    for family in IpFamily::BOTH {
        let node = NetnsHost::new(Way::Programs(Backend::Legacy));
        let table = cluster().table(family);
        let mut dataplane = synced(&node, &table);
        let before = chains_of(&node.rules(family));
        for change in [
            &["nat", "-F", "KUBE-SERVICES"][..],
            &["nat", "-D", "PREROUTING", "1"],
            &["filter", "-F", "KUBE-FORWARD"],
            &["filter", "-I", "KUBE-FORWARD", "1", "-j", "DROP"],
        ] {
            node.clock.advance(60);
            assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "before {change:?}");
            node.iptables(family, &[&["-w", "-t"], change].concat());
            node.clock.advance(2);
            assert!(node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "{change:?}");
            node.netns.run(|| dataplane.resync(&table)).unwrap();
            assert_eq!(chains_of(&node.rules(family)), before, "{change:?}");
        }
        node.clock.advance(60);
        assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
        node.calls();
        for _ in 0..2 {
            node.clock.advance(2);
            assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
        }
        let is_read = node.calls().iter().any(|call| call.contains("-save"));
        assert!(!is_read, "rules are not read without a sign of a change");
    }
}

/// Addresses of a host. Reading them runs a program of another administrator once, if there is one.
struct Interfering(Arc<Mutex<Option<Command>>>);

impl HostAddresses for Interfering {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        if let Some(mut command) = self.0.lock().unwrap().take() {
            assert!(command.status().unwrap().success());
        }
        Ok(vec!["192.0.2.1".parse().unwrap()])
    }
}

#[test]
fn changes_in_the_moment_of_a_sync_are_noticed_within_two_seconds() {
    for way in [Way::Netlink, Way::Programs(Backend::Legacy)] {
        let node = NetnsHost::new(way);
        let mut tracker = cluster().tracker();
        let command = Arc::new(Mutex::new(None));
        let node_port_addresses = NodePortAddresses::Within(vec!["192.0.2.0/24".parse().unwrap()]);
        let settings = ProxySettings { node_port_addresses, ..settings() };
        let mut dataplane = node.dataplane_with(IpFamily::V4, &settings, |_, host| {
            host.addresses = Box::new(Interfering(command.clone()));
        });
        node.netns.run(|| dataplane.resync(tracker.table(IpFamily::V4))).unwrap();
        for (round, chain) in ["KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-NODEPORTS"].into_iter().enumerate() {
            // The next regular comparisons are 5 s away.
            node.clock.advance(60);
            for _ in 0..2 {
                node.iptables(IpFamily::V4, &["-w", "-A", "INPUT", "-j", "ACCEPT"]);
                node.clock.advance(2);
                assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
            }
            let mut flush = Command::new(node.program(IpFamily::V4, ""));
            flush.args(["-w", "-t", "nat", "-F", chain]);
            *command.lock().unwrap() = Some(flush);
            let more = slice(&format!("ns1/more-{round}"), "web").port("http", 8080).pod(&*format!("10.0.9.{round}"));
            Edit::SetSlice(more.build()).apply_to(&mut tracker);
            let changes = tracker.update(IpFamily::V4);
            node.netns.run(|| dataplane.sync(tracker.table(IpFamily::V4), &changes)).unwrap();
            assert!(command.lock().unwrap().is_none());
            node.clock.advance(2);
            assert!(node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "{way:?}: {chain}");
            node.netns.run(|| dataplane.resync(tracker.table(IpFamily::V4))).unwrap();
        }
    }
}
