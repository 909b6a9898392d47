//! What others have made on a real kernel stays as it is, and of us nothing stays after a cleanup. Each test has network
//! namespaces of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use common::{
    kernel::chains_of,
    lab::Lab,
    scene::{cluster, rendered, settings, synced, without_ours},
};
use ferroute_core::{
    Dataplane, IpFamily,
    testing::{Edit, service_name},
};
use ferroute_host::{KernelCounters, PacketCounters};
use ferroute_iptables::{ChainName, NfacctCounters, TableName, plan::chains, runner::Backend, text::Line};

common::lab::with_both_backends!(
    what_others_have_made_stays,
    the_kubelets_rules_stay_in_the_chain_that_we_share,
    a_chain_that_others_use_is_emptied_when_its_service_goes,
    a_cleanup_leaves_no_trace_in_either_family,
    a_chain_that_others_use_is_emptied_by_a_cleanup_and_named,
);

fn what_others_have_made_stays(backend: Backend) {
    let lab = Lab::new(backend);
    let foreign = FOREIGN.replace("$LOG", "LOG --log-prefix \"it's theirs \"");
    lab.restore(IpFamily::V4, &foreign);
    let theirs = lab.rules(IpFamily::V4);
    let cluster = cluster();
    let mut tracker = cluster.tracker();
    let mut dataplane = lab.dataplane(IpFamily::V4, &settings());
    lab.host.run(|| dataplane.resync(tracker.table(IpFamily::V4))).unwrap();
    assert_eq!(without_ours(lab.rules(IpFamily::V4)), theirs, "after a resync");
    Edit::RemoveService(service_name("ns1/web")).apply_to(&mut tracker);
    let changes = tracker.update(IpFamily::V4);
    lab.host.run(|| dataplane.sync(tracker.table(IpFamily::V4), &changes)).unwrap();
    assert_eq!(without_ours(lab.rules(IpFamily::V4)), theirs, "after a sync");
    lab.host.run(|| dataplane.cleanup()).unwrap();
    let mut left = lab.rules(IpFamily::V4);
    let filter = left.table_mut(TableName::Filter);
    assert!(filter.chains.shift_remove(&chains::FIREWALL).is_some(), "the kubelet's chain stays");
    for chain in [ChainName::INPUT, ChainName::OUTPUT] {
        filter.chains[&chain].rules.retain(|rule| rule.next_chain() != Some(chains::FIREWALL));
    }
    assert_eq!(left, theirs, "after a cleanup");
}

fn the_kubelets_rules_stay_in_the_chain_that_we_share(backend: Backend) {
    let lab = Lab::new(backend);
    let theirs = "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP";
    lab.restore(IpFamily::V4, &format!("*filter\n:KUBE-FIREWALL - [0:0]\n{theirs}\nCOMMIT\n"));
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = synced(&lab, &table);
    let firewall = || lab.rules(IpFamily::V4).rules(TableName::Filter, chains::FIREWALL).to_vec();
    let both = firewall();
    assert_eq!(both.len(), 2);
    assert_eq!(Line(chains::FIREWALL, &both[0]).to_string(), theirs);
    assert_eq!(lab.host.run(|| dataplane.resync(&table)).unwrap().written, 0);

    lab.iptables(IpFamily::V4, &["-w", "-D", "KUBE-FIREWALL", "2"]);
    assert!(lab.host.run(|| dataplane.was_disturbed()).unwrap());
    lab.host.run(|| dataplane.resync(&table)).unwrap();
    assert_eq!(firewall(), both);
}

fn a_chain_that_others_use_is_emptied_when_its_service_goes(backend: Backend) {
    let lab = Lab::new(backend);
    let mut tracker = cluster().tracker();
    let mut dataplane = synced(&lab, tracker.table(IpFamily::V4));
    lab.iptables(IpFamily::V4, &["-w", "-t", "nat", "-N", "THEIRS"]);
    lab.iptables(IpFamily::V4, &["-w", "-t", "nat", "-A", "THEIRS", "-j", "KUBE-SVC-4LVCYZMTA5CQO6SX"]);
    Edit::RemoveService(service_name("ns1/web")).apply_to(&mut tracker);
    let changes = tracker.update(IpFamily::V4);
    let table = tracker.table(IpFamily::V4);
    // From memory the chain is deleted, which fails, and so everything is read.
    lab.host.run(|| dataplane.sync(table, &changes)).unwrap_err();
    lab.host.run(|| dataplane.resync(table)).unwrap();
    let mut left = chains_of(&lab.rules(IpFamily::V4));
    left.remove(&(TableName::Nat, "THEIRS".parse().unwrap())).unwrap();
    let used = left.remove(&(TableName::Nat, "KUBE-SVC-4LVCYZMTA5CQO6SX".parse().unwrap()));
    assert_eq!(used, Some(Vec::new()));
    assert_eq!(left, rendered(table));
}

fn a_cleanup_leaves_no_trace_in_either_family(backend: Backend) {
    let lab = Lab::new(backend);
    // Builtin chains come with the first look at a table of the old backend.
    let before = IpFamily::BOTH.map(|family| {
        lab.iptables(family, &["-w", "-t", "mangle", "-S"]);
        lab.rules(family)
    });
    let mut dataplanes = IpFamily::BOTH.map(|family| lab.dataplane(family, &settings()));
    for (dataplane, family) in dataplanes.iter_mut().zip(IpFamily::BOTH) {
        lab.host.run(|| dataplane.resync(&cluster().table(family))).unwrap();
    }
    // What an older kube-proxy may have left.
    lab.iptables(IpFamily::V4, &["-w", "-t", "nat", "-A", "OUTPUT", "-d", "192.0.2.1", "-j", "KUBE-SERVICES"]);
    lab.iptables(IpFamily::V4, &["-w", "-t", "nat", "-N", "KUBE-SEP-AAAAAAAAAAAAAAAA"]);
    for dataplane in &mut dataplanes {
        lab.host.run(|| dataplane.cleanup()).unwrap();
    }
    let mut counters = lab.host.run(KernelCounters::open).unwrap().unwrap();
    for name in [NfacctCounters::INVALID_DROPPED, NfacctCounters::LOCALHOST_ACCEPTED] {
        assert_eq!(counters.read(name).unwrap(), None, "{name}");
    }
    for (family, before) in IpFamily::BOTH.into_iter().zip(before) {
        let left: Vec<_> = lab.rules(family).tables.values().flat_map(|table| table.chains.clone()).collect();
        let ours = |name: ChainName| name.as_str().starts_with("KUBE-") && name != chains::FIREWALL;
        assert!(left.iter().all(|(name, _)| !ours(*name)), "{left:?}");
        for (name, chain) in left {
            assert!(chain.rules.iter().all(|rule| rule.next_chain().is_none_or(|to| !ours(to))), "{name}");
        }
        assert!(before.tables.len() <= lab.rules(family).tables.len());
    }
    // Nothing is there any more, and that is no error.
    for dataplane in &mut dataplanes {
        lab.host.run(|| dataplane.cleanup()).unwrap();
    }
}

fn a_chain_that_others_use_is_emptied_by_a_cleanup_and_named(backend: Backend) {
    let lab = Lab::new(backend);
    let mut dataplane = synced(&lab, &cluster().table(IpFamily::V4));
    lab.iptables(IpFamily::V4, &["-w", "-t", "nat", "-N", "THEIRS"]);
    lab.iptables(IpFamily::V4, &["-w", "-t", "nat", "-A", "THEIRS", "-j", "KUBE-MARK-MASQ"]);
    let error = lab.host.run(|| dataplane.cleanup()).unwrap_err();
    assert_eq!(error.to_string(), "cannot clean up IPv4 rules");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "chain KUBE-MARK-MASQ of table nat is empty but stays: a rule in THEIRS leads to it");
    let nat = &lab.rules(IpFamily::V4).tables[&TableName::Nat];
    let left: Vec<&str> = nat.chains.keys().map(ChainName::as_str).filter(|name| name.contains("KUBE")).collect();
    assert_eq!(left, ["KUBE-MARK-MASQ"]);
}

#[test]
fn chains_with_names_that_iptables_does_not_know_are_no_obstacle() {
    let lab = Lab::new(Backend::NfTables);
    let strange = "a-chain-with-a-name-that-is-too-long-for-iptables";
    lab.iptables(IpFamily::V4, &["-w", "-t", "nat", "-N", "THEIRS"]);
    for command in ["add chain", "add rule"] {
        let rule = if command == "add rule" { "ip saddr 192.0.2.1 accept" } else { "" };
        lab.host.feed("nft", &["-f", "-"], &format!("{command} ip nat {strange} {rule}\n"));
    }
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = synced(&lab, &table);
    assert_eq!(lab.host.run(|| dataplane.resync(&table)).unwrap().written, 0);
    lab.clock.advance(60);
    assert!(!lab.host.run(|| dataplane.was_disturbed()).unwrap());
    lab.host.run(|| dataplane.cleanup()).unwrap();
    assert!(lab.host.command("nft", &["list", "chain", "ip", "nat", strange]).contains("192.0.2.1"));
    assert!(!lab.host.command("nft", &["list", "table", "ip", "nat"]).contains("KUBE-"));
}

/// Rules of others, some of them close to ours.
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
