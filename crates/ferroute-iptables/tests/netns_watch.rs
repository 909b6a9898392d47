//! What others do to our rules on a real kernel is noticed and repaired, and noticed for little. Each test has network
//! namespaces of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use common::{
    kernel::chains_of,
    lab::Lab,
    scene::{cluster, settings, synced},
};
use ferroute_core::{
    Dataplane, IpFamily,
    testing::{Edit, slice},
};
use ferroute_iptables::{IptablesDataplane, runner::Backend};

common::lab::with_both_backends!(
    a_flush_by_hand_is_noticed_and_repaired,
    a_single_rule_or_jump_that_goes_or_comes_is_noticed_and_repaired,
);

fn a_flush_by_hand_is_noticed_and_repaired(backend: Backend) {
    let lab = Lab::new(backend);
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = synced(&lab, &table);
    let before = chains_of(&lab.rules(IpFamily::V4));
    for table in ["nat", "filter", "mangle"] {
        lab.iptables(IpFamily::V4, &["-w", "-t", table, "-F"]);
        lab.iptables(IpFamily::V4, &["-w", "-t", table, "-X"]);
    }
    assert!(lab.host.run(|| dataplane.was_disturbed()).unwrap());
    lab.host.run(|| dataplane.resync(&table)).unwrap();
    assert_eq!(chains_of(&lab.rules(IpFamily::V4)), before);
}

fn a_single_rule_or_jump_that_goes_or_comes_is_noticed_and_repaired(backend: Backend) {
    let lab = Lab::new(backend);
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = synced(&lab, &table);
    let before = chains_of(&lab.rules(IpFamily::V4));
    for harm in [
        &["-D", "KUBE-MARK-MASQ", "1"][..],
        &["-F", "KUBE-SERVICES"],
        &["-I", "KUBE-SVC-4LVCYZMTA5CQO6SX", "1", "-j", "RETURN"],
        &["-D", "PREROUTING", "1"],
    ] {
        lab.clock.advance(60);
        assert!(!lab.host.run(|| dataplane.was_disturbed()).unwrap());
        lab.clock.advance(60);
        lab.iptables(IpFamily::V4, &[&["-w", "-t", "nat"], harm].concat());
        assert!(lab.host.run(|| dataplane.was_disturbed()).unwrap(), "{harm:?}");
        let report = lab.host.run(|| dataplane.resync(&table)).unwrap();
        assert!(report.written < report.total / 2, "{harm:?}: {report:?}");
        assert_eq!(chains_of(&lab.rules(IpFamily::V4)), before, "{harm:?}");
    }
}

#[test]
fn what_our_other_family_writes_needs_no_look_and_what_others_write_needs_one() {
    let lab = Lab::new(Backend::NfTables);
    let mut trackers = IpFamily::BOTH.map(|_| cluster().tracker());
    let mut dataplanes = IpFamily::BOTH.map(|family| lab.dataplane(family, &settings()));
    for family in IpFamily::BOTH {
        let table = trackers[family.index()].table(family);
        lab.host.run(|| dataplanes[family.index()].resync(table)).unwrap();
    }
    let looks = |lab: &Lab, dataplanes: &mut [IptablesDataplane; 2]| {
        lab.calls();
        for dataplane in dataplanes.iter_mut() {
            assert!(!lab.host.run(|| dataplane.was_disturbed()).unwrap());
        }
        lab.calls()
    };
    // Each was written before or after the other; that is all known.
    assert_eq!(looks(&lab, &mut dataplanes), [""; 0]);
    for round in 0..4 {
        for family in IpFamily::BOTH {
            let tracker = &mut trackers[family.index()];
            let address = if family == IpFamily::V4 { format!("10.0.9.{round}") } else { format!("fd00::9:{round}") };
            let name = format!("ns1/more-{round}");
            Edit::SetSlice(slice(&name, "web").port("http", 8080).pod(&*address).build()).apply_to(tracker);
            let changes = tracker.update(family);
            assert!(!changes.is_empty());
            lab.host.run(|| dataplanes[family.index()].sync(tracker.table(family), &changes)).unwrap();
        }
        assert_eq!(looks(&lab, &mut dataplanes), [""; 0], "round {round}");
    }

    lab.clock.advance(60);
    lab.iptables(IpFamily::V4, &["-w", "-A", "INPUT", "-j", "ACCEPT"]);
    let looked = looks(&lab, &mut dataplanes);
    assert!(looked.len() == 6 && looked.iter().all(|call| call.contains("-save -t ")), "{looked:?}");
    assert_eq!(looks(&lab, &mut dataplanes), [""; 0], "once is enough");
}

#[test]
fn a_program_that_changes_rules_all_the_time_does_not_keep_us_busy() {
    let lab = Lab::new(Backend::NfTables);
    let mut dataplane = synced(&lab, &cluster().table(IpFamily::V4));
    let mut calls = Vec::new();
    lab.calls();
    for _ in 0..60 {
        lab.iptables(IpFamily::V4, &["-w", "-A", "INPUT", "-j", "ACCEPT"]);
        assert!(!lab.host.run(|| dataplane.was_disturbed()).unwrap());
        lab.clock.advance(1);
        calls.extend(lab.calls());
    }
    let looks = calls.iter().filter(|call| call.contains("-save")).count();
    assert!(looks > 0 && calls.len() <= 60 / 5 * 6, "{calls:?}");
    // A flush is noticed in between all the same.
    lab.iptables(IpFamily::V4, &["-w", "-t", "nat", "-F"]);
    lab.iptables(IpFamily::V4, &["-w", "-t", "nat", "-X"]);
    lab.clock.advance(5);
    assert!(lab.host.run(|| dataplane.was_disturbed()).unwrap());
}
