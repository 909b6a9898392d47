//! Rules of other programs on a real kernel stay unchanged, and a cleanup removes all of the proxy's. Each test has
//! separate network namespaces.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use common::{
    fake_kernel::chains_of,
    fixtures::{cluster, rendered, settings, synced, without_ours},
    netns_host::{NetnsHost, Way},
};
use ferroute_core::{
    Dataplane, IpFamily, NfacctCounters,
    testing::{Edit, namespaced_name},
};
use ferroute_host::{KernelCounters, PacketCounters};
use ferroute_iptables::{
    ChainName, TableName,
    exec::{Backend, CleanupError, remove_counters},
    plan::chains,
    text::Line,
};
use ferroute_testing::wait;

common::netns_host::with_all_ways!(
    rules_of_other_programs_stay_unchanged,
    the_kubelets_rules_in_kube_firewall_stay,
    rules_of_other_programs_with_odd_names_do_not_stop_syncs,
    a_chain_that_another_program_jumps_to_is_flushed_when_its_service_is_removed,
    a_cleanup_removes_the_rules_of_both_families,
    a_chain_that_another_program_jumps_to_is_flushed_and_reported_by_a_cleanup,
);

fn rules_of_other_programs_stay_unchanged(way: Way) {
    let node = NetnsHost::new(way);
    let foreign = FOREIGN.replace("$LOG", "LOG --log-prefix \"it's theirs \"");
    node.restore(IpFamily::V4, &foreign);
    let theirs = node.rules(IpFamily::V4);
    let cluster = cluster();
    let mut tracker = cluster.tracker();
    let mut dataplane = node.dataplane(IpFamily::V4, &settings());
    node.netns.run(|| dataplane.resync(tracker.table(IpFamily::V4))).unwrap();
    assert_eq!(without_ours(node.rules(IpFamily::V4)), theirs, "after a resync");
    Edit::RemoveService(namespaced_name("ns1/web")).apply_to(&mut tracker);
    let changes = tracker.update(IpFamily::V4);
    node.netns.run(|| dataplane.sync(tracker.table(IpFamily::V4), &changes)).unwrap();
    assert_eq!(without_ours(node.rules(IpFamily::V4)), theirs, "after a sync");
    assert!(node.clean_up(IpFamily::V4).is_empty());
    let mut left = node.rules(IpFamily::V4);
    let filter = left.table_mut(TableName::Filter);
    assert!(filter.chains.shift_remove(&chains::FIREWALL).is_some(), "the kubelet's chain stays");
    for chain in [ChainName::INPUT, ChainName::OUTPUT] {
        filter.chains[&chain].rules.retain(|rule| rule.next_chain() != Some(chains::FIREWALL));
    }
    assert_eq!(left, theirs, "after a cleanup");
}

/// `iptables-save` prints names as they are.
fn rules_of_other_programs_with_odd_names_do_not_stop_syncs(way: Way) {
    let node = NetnsHost::new(way);
    let family = IpFamily::V4;
    for arguments in [
        &["-A", "INPUT", "-i", "e\"", "-j", "ACCEPT"][..],
        &["-A", "INPUT", "-i", "a\"b", "-m", "comment", "--comment", "c d", "-j", "ACCEPT"],
        &["-A", "INPUT", "-m", "recent", "--name", "a\nb", "--set", "-j", "ACCEPT"],
        &["-A", "INPUT", "-m", "recent", "--name", "\nCOMMI", "--set", "-j", "ACCEPT"],
        &["-N", "B\"ro"],
        &["-A", "B\"ro", "-j", "ACCEPT"],
        &["-A", "INPUT", "-j", "B\"ro"],
    ] {
        let arguments: Vec<&str> = ["-w"].iter().chain(arguments).copied().collect();
        node.iptables(family, &arguments);
    }
    let table = cluster().table(family);
    let mut dataplane = synced(&node, &table);
    assert_eq!(node.netns.run(|| dataplane.resync(&table)).unwrap().written, 0);
    let mut restarted = node.dataplane(family, &settings());
    assert_eq!(node.netns.run(|| restarted.resync(&table)).unwrap().written, 0);
}

fn the_kubelets_rules_in_kube_firewall_stay(way: Way) {
    let node = NetnsHost::new(way);
    let theirs = "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP";
    node.restore(IpFamily::V4, &format!("*filter\n:KUBE-FIREWALL - [0:0]\n{theirs}\nCOMMIT\n"));
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = synced(&node, &table);
    let firewall = || node.rules(IpFamily::V4).rules(TableName::Filter, chains::FIREWALL).to_vec();
    let both = firewall();
    assert_eq!(both.len(), 2);
    assert_eq!(Line(chains::FIREWALL, &both[0]).to_string(), theirs);
    assert_eq!(node.netns.run(|| dataplane.resync(&table)).unwrap().written, 0);

    node.iptables(IpFamily::V4, &["-w", "-D", "KUBE-FIREWALL", "2"]);
    assert!(node.netns.run(|| dataplane.was_modified_externally()).unwrap());
    node.netns.run(|| dataplane.resync(&table)).unwrap();
    assert_eq!(firewall(), both);
}

fn a_chain_that_another_program_jumps_to_is_flushed_when_its_service_is_removed(way: Way) {
    let node = NetnsHost::new(way);
    let mut tracker = cluster().tracker();
    let mut dataplane = synced(&node, tracker.table(IpFamily::V4));
    node.iptables(IpFamily::V4, &["-w", "-t", "nat", "-N", "THEIRS"]);
    node.iptables(IpFamily::V4, &["-w", "-t", "nat", "-A", "THEIRS", "-j", "KUBE-SVC-4LVCYZMTA5CQO6SX"]);
    Edit::RemoveService(namespaced_name("ns1/web")).apply_to(&mut tracker);
    let changes = tracker.update(IpFamily::V4);
    let table = tracker.table(IpFamily::V4);
    // An incremental sync tries to delete the chain, which the kernel refuses. Only its answer by netlink names the chain,
    // so that the sync can leave it; the programs need a resync.
    let synced = node.netns.run(|| dataplane.sync(table, &changes));
    assert_eq!(synced.is_ok(), way == Way::Netlink, "{synced:?}");
    node.netns.run(|| dataplane.resync(table)).unwrap();
    let mut left = chains_of(&node.rules(IpFamily::V4));
    left.remove(&(TableName::Nat, "THEIRS".parse().unwrap())).unwrap();
    let used = left.remove(&(TableName::Nat, "KUBE-SVC-4LVCYZMTA5CQO6SX".parse().unwrap()));
    assert_eq!(used, Some(Vec::new()));
    assert_eq!(left, rendered(table));
}

fn a_cleanup_removes_the_rules_of_both_families(way: Way) {
    let node = NetnsHost::new(way);
    // The legacy programs create a table with its builtin chains when they first access it.
    let before = IpFamily::BOTH.map(|family| {
        node.iptables(family, &["-w", "-t", "mangle", "-S"]);
        node.rules(family)
    });
    let mut dataplanes = IpFamily::BOTH.map(|family| node.dataplane(family, &settings()));
    for (dataplane, family) in dataplanes.iter_mut().zip(IpFamily::BOTH) {
        node.netns.run(|| dataplane.resync(&cluster().table(family))).unwrap();
    }
    // Leftovers of an older kube-proxy.
    node.iptables(IpFamily::V4, &["-w", "-t", "nat", "-A", "OUTPUT", "-d", "192.0.2.1", "-j", "KUBE-SERVICES"]);
    node.iptables(IpFamily::V4, &["-w", "-t", "nat", "-N", "KUBE-SEP-AAAAAAAAAAAAAAAA"]);
    for family in IpFamily::BOTH {
        assert!(node.clean_up(family).is_empty());
    }
    let mut counters = node.netns.run(KernelCounters::open).unwrap().unwrap();
    // The kernel releases the counters shortly after their last rule is deleted.
    wait("the end of counters", || {
        let _ = remove_counters(&mut counters);
        let names = [NfacctCounters::INVALID_DROPPED, NfacctCounters::LOCALHOST_ACCEPTED];
        names.iter().all(|name| counters.read(name).unwrap().is_none()).then_some(())
    });
    for (family, before) in IpFamily::BOTH.into_iter().zip(before) {
        let left: Vec<_> = node.rules(family).tables.values().flat_map(|table| table.chains.clone()).collect();
        let ours = |name: ChainName| name.as_str().starts_with("KUBE-") && name != chains::FIREWALL;
        assert!(left.iter().all(|(name, _)| !ours(*name)), "{left:?}");
        for (name, chain) in left {
            assert!(chain.rules.iter().all(|rule| rule.next_chain().is_none_or(|to| !ours(to))), "{name}");
        }
        assert!(before.tables.len() <= node.rules(family).tables.len());
    }
    // Cleaning up without rules is not an error.
    for family in IpFamily::BOTH {
        assert!(node.clean_up(family).is_empty());
    }
}

fn a_chain_that_another_program_jumps_to_is_flushed_and_reported_by_a_cleanup(way: Way) {
    let node = NetnsHost::new(way);
    synced(&node, &cluster().table(IpFamily::V4));
    node.iptables(IpFamily::V4, &["-w", "-t", "nat", "-N", "THEIRS"]);
    node.iptables(IpFamily::V4, &["-w", "-t", "nat", "-A", "THEIRS", "-j", "KUBE-MARK-MASQ"]);
    let errors = node.clean_up(IpFamily::V4);
    let [CleanupError::InUse { table: TableName::Nat, chain, from }] = errors.as_slice() else { panic!("{errors:?}") };
    assert_eq!((chain.as_str(), from.as_str()), ("KUBE-MARK-MASQ", "THEIRS"));
    let nat = &node.rules(IpFamily::V4).tables[&TableName::Nat];
    let left: Vec<&str> = nat.chains.keys().map(ChainName::as_str).filter(|name| name.contains("KUBE")).collect();
    assert_eq!(left, ["KUBE-MARK-MASQ"]);
}

#[test]
fn chains_with_names_invalid_in_iptables_are_ignored() {
    let node = NetnsHost::new(Way::Programs(Backend::NfTables));
    let strange = "a-chain-with-a-name-that-is-too-long-for-iptables";
    node.iptables(IpFamily::V4, &["-w", "-t", "nat", "-N", "THEIRS"]);
    for command in ["add chain", "add rule"] {
        let rule = if command == "add rule" { "ip saddr 192.0.2.1 accept" } else { "" };
        node.netns.feed("nft", &["-f", "-"], &format!("{command} ip nat {strange} {rule}\n"));
    }
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = synced(&node, &table);
    assert_eq!(node.netns.run(|| dataplane.resync(&table)).unwrap().written, 0);
    node.clock.advance(60);
    assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
    assert!(node.clean_up(IpFamily::V4).is_empty());
    assert!(node.netns.command("nft", &["list", "chain", "ip", "nat", strange]).contains("192.0.2.1"));
    assert!(!node.netns.command("nft", &["list", "table", "ip", "nat"]).contains("KUBE-"));
}

/// Rules of other programs, some of them similar to the proxy's.
const FOREIGN: &str = "\
*filter
:KUBE-KUBELET-CANARY - [0:0]
:cali-FORWARD - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j cali-FORWARD
-A cali-FORWARD -m mark --mark 0x10000/0x10000 -j $LOG
-A OUTPUT -d 192.0.2.1/32 -j DROP
COMMIT
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A PREROUTING -m mark --mark 0x1 -j ACCEPT
COMMIT
*nat
:CNI-DN-0123456789abcdef01234 - [0:0]
:KUBE-MARK-DROP - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-DN-0123456789abcdef01234
-A CNI-DN-0123456789abcdef01234 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 192.0.2.9:80
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A POSTROUTING ! -o lo -p udp -m udp --sport 5:9 -j MASQUERADE --random
COMMIT
";
