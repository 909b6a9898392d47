//! The dataplane on a real kernel, with both variants of the tools. Each test has network namespaces of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::collections::BTreeMap;

use common::{kernel::chains_of, lab::Lab, records::records};
use ferroute_core::{
    Changes, Dataplane, IpFamily, ProxySettings, ServiceTable, SyncReport,
    testing::{Cluster, Edit, arbitrary, pod, service, service_name, slice},
};
use ferroute_host::{CounterError, KernelCounters, PacketCounters, Sysctls};
use ferroute_iptables::{
    ChainName, HostFacts, IptablesDataplane, NfacctCounters, PlanContext, Rule, RuleSet, TableName,
    plan::{chains, is_service_chain},
    render,
    runner::Backend,
    text::Line,
};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

/// Makes each test one per backend, called `nft` and `legacy`.
macro_rules! with_both_backends {
    ($(fn $name:ident($backend:ident) $body:block)*) => {$(
        mod $name {
            use super::*;

            fn test($backend: Backend) $body

            #[test]
            fn nft() {
                test(Backend::NfTables);
            }

            #[test]
            fn legacy() {
                test(Backend::Legacy);
            }
        }
    )*};
}

with_both_backends! {
    fn a_first_sync_makes_just_what_is_rendered(backend) {
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

    fn changes_lead_to_the_same_as_writing_anew(backend) {
        // The kernel takes its time; the same holds for many more cases on rules in memory.
        let config = ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() };
        let strategy = (arbitrary::cluster(), vec(arbitrary::edits(1..4), 1..6), prop::sample::select(&IpFamily::BOTH));
        TestRunner::new(config).run(&strategy, |(cluster, edits, family)| {
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
        }).unwrap();
    }

    fn a_flush_by_hand_is_noticed_and_repaired(backend) {
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

    fn a_single_rule_or_jump_that_goes_or_comes_is_noticed_and_repaired(backend) {
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

    fn what_others_have_made_stays(backend) {
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

    fn rules_of_a_kube_proxy_that_ran_before_are_taken_over(backend) {
        let records: Vec<_> = records().into_iter().filter(|record| record.name().contains("nodeport-cluster step 1")).collect();
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

    fn a_cleanup_leaves_no_trace_in_either_family(backend) {
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

    fn a_chain_that_others_use_is_emptied_by_a_cleanup_and_named(backend) {
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

    fn a_refused_rule_is_named_and_everything_is_written_at_the_next_call(backend) {
        let lab = Lab::new(backend);
        let cluster = cluster();
        let mut tracker = cluster.tracker();
        let mut dataplane = lab.dataplane_with(IpFamily::V4, &settings(), |_, host| host.counters = Some(Box::new(Pretended)));
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

    fn the_kubelets_rules_stay_in_the_chain_that_we_share(backend) {
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

    fn a_chain_that_others_use_is_emptied_when_its_service_goes(backend) {
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

    fn node_ports_follow_the_hosts_addresses(backend) {
        let lab = Lab::new(backend);
        let settings = ProxySettings {
            node_port_addresses: ferroute_core::NodePortAddresses::Within(vec!["192.0.2.0/24".parse().unwrap()]),
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

    fn localhost_is_served_only_where_it_can_be_routed(backend) {
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

/// Services of both families that use every kind of chain.
fn cluster() -> Cluster {
    let pods = ["10.0.1.1", "10.0.1.2", "10.0.1.3"];
    Cluster::of_node(arbitrary::NODE)
        .service(service("ns1/web").cluster_ip("10.96.1.1").cluster_ip("fd00:96::1").port("http", 80).node_port(30080))
        .service(
            service("ns1/lb")
                .cluster_ip("10.96.1.2")
                .cluster_ip("fd00:96::2")
                .port("", 443)
                .node_port(30443)
                .load_balancer("198.51.100.1")
                .source_range("192.168.0.0/16")
                .affinity(3600)
                .external_local(),
        )
        .service(service("ns2/dns").cluster_ip("10.96.1.3").cluster_ip("fd00:96::3").udp("dns", 53))
        .service(service("ns2/nobody").cluster_ip("10.96.1.4").cluster_ip("fd00:96::4").port("", 80))
        .slice(pods.iter().fold(slice("ns1/web-a", "web").port("http", 8080), |slice, ip| slice.pod(*ip)))
        .slice(slice("ns1/web-b", "web").port("http", 8080).pod("fd00::1:1").pod("fd00::1:2"))
        .slice(slice("ns1/lb-a", "lb").port("", 8443).pod(pod("10.0.2.1").on(arbitrary::NODE)).pod("10.0.2.2"))
        .slice(slice("ns2/dns-a", "dns").udp("dns", 53).pod("10.0.3.1"))
        .slice(slice("ns2/dns-b", "dns").udp("dns", 53).pod("fd00::3:1"))
}

fn settings() -> ProxySettings {
    ProxySettings::default()
}

/// A dataplane that has written a table's rules.
fn synced(lab: &Lab, table: &ServiceTable) -> IptablesDataplane {
    let mut dataplane = lab.dataplane(table.family, &settings());
    let SyncReport { full, .. } = lab.host.run(|| dataplane.resync(table)).unwrap();
    assert!(full);
    dataplane
}

/// The rules that a table comes to on a host with everything, where nobody else has rules.
fn rendered(table: &ServiceTable) -> BTreeMap<(TableName, ChainName), Vec<Rule>> {
    let host = HostFacts {
        random_fully: true,
        counters: NfacctCounters { invalid_dropped: true, localhost_accepted: true },
        ..HostFacts::default()
    };
    let mut rules = render(table, &PlanContext::new(&settings(), table, &host));
    // The kernel shows these, too.
    for (name, builtin) in [
        (TableName::Filter, &[ChainName::INPUT, ChainName::FORWARD, ChainName::OUTPUT][..]),
        (TableName::Nat, &[ChainName::PREROUTING, ChainName::INPUT, ChainName::OUTPUT, ChainName::POSTROUTING]),
        (TableName::Mangle, &ALL_BUILTIN),
    ] {
        for chain in builtin {
            rules.table_mut(name).chains.entry(*chain).or_default();
        }
    }
    chains_of(&rules)
}

const ALL_BUILTIN: [ChainName; 5] =
    [ChainName::PREROUTING, ChainName::INPUT, ChainName::FORWARD, ChainName::OUTPUT, ChainName::POSTROUTING];

/// What is left of rules without our chains and the jumps into them.
fn without_ours(mut rules: RuleSet) -> RuleSet {
    let fixed = [
        chains::SERVICES,
        chains::EXTERNAL_SERVICES,
        chains::NODE_PORTS,
        chains::POSTROUTING,
        chains::MARK_MASQ,
        chains::FORWARD,
        chains::PROXY_FIREWALL,
        chains::FIREWALL,
        chains::CANARY,
    ];
    let ours = |chain: ChainName| fixed.contains(&chain) || is_service_chain(chain);
    for table in rules.tables.values_mut() {
        table.chains.retain(|name, _| !ours(*name));
        for chain in table.chains.values_mut() {
            chain.rules.retain(|rule| rule.next_chain().is_none_or(|to| !ours(to)));
        }
    }
    rules
}

/// Counters that are not there, though they say so.
struct Pretended;

impl PacketCounters for Pretended {
    fn ensure(&mut self, _: &str) -> Result<(), CounterError> {
        Ok(())
    }

    fn read(&mut self, _: &str) -> Result<Option<ferroute_host::Counter>, CounterError> {
        Ok(None)
    }

    fn remove(&mut self, _: &str) -> Result<(), CounterError> {
        Ok(())
    }
}
