//! Rules written by netlink compared with those that `iptables-restore` writes for the same plan, as an oracle. Each
//! test has separate network namespaces.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use common::{
    fake_kernel::chains_of,
    fixtures::{cluster, rendered, settings, synced},
    netlink_differences::{KNOWN_DIFFERENCES, KnownDifference, compare},
    netlink_dump::dump,
    netns_host::{NetnsHost, Way},
    records::records,
};
use ferroute_core::{
    Dataplane, IpFamily, ProxySettings, ServiceTable, error_chain,
    testing::{Cluster, Edit, arbitrary, namespaced_name, service, slice},
};
use ferroute_iptables::{
    ChainName, HostExec, IptablesPrograms, RuleSet, SavedRulesReader, TableName,
    exec::{Backend, BackendSnapshot, RulesSnapshot, search_path, snapshot_rules},
    native::{Modules, probe},
    plan::is_service_chain,
};
use proptest::{prelude::*, test_runner::TestRunner};

const PROGRAMS: Way = Way::Programs(Backend::NfTables);

/// Returns the output of `iptables-save` for all rules, with counters.
fn saved(node: &NetnsHost, family: IpFamily) -> String {
    let text = node.netns.command(&node.program(family, "-save"), &["-c"]);
    text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

/// Writes the rules of a table in both ways, each in a separate network namespace. Checks that the programs print the
/// same rules, that the kernel lists the same ones except for known differences, and that each way finds no differences
/// in the rules of the other. Returns the reasons of the differences.
fn check(family: IpFamily, table: &ServiceTable, settings: &ProxySettings, name: &str) -> BTreeSet<&'static str> {
    let nodes = [PROGRAMS, Way::Netlink].map(NetnsHost::new);
    for node in &nodes {
        node.netns.add_address("10.77.1.2/24", "lo");
        node.netns.run(|| node.dataplane(family, settings).resync(table)).unwrap();
    }
    let [programs, netlink] = nodes;
    assert_same_text(&saved(&programs, family), &saved(&netlink, family), name);
    let differences = compare(&dump(&programs.netns, family), &dump(&netlink.netns, family), name);
    for (mut node, way) in [(programs, Way::Netlink), (netlink, PROGRAMS)] {
        node.way = way;
        let report = node.netns.run(|| node.dataplane(family, settings).resync(table)).unwrap();
        assert_eq!((report.written, report.removed), (0, 0), "{name}: {way:?} repairs what the other wrote");
    }
    differences
}

#[track_caller]
fn assert_same_text(programs: &str, netlink: &str, name: &str) {
    let different = programs.lines().zip(netlink.lines()).find(|(one, other)| one != other);
    assert_eq!(different, None, "{name}: the programs print another line for their own rules");
    assert_eq!(programs, netlink, "{name}");
}

fn check_records(family: IpFamily) {
    let mut differences = BTreeSet::new();
    for record in records().into_iter().filter(|record| record.family == family) {
        differences.append(&mut check(family, &record.table(), &record.settings(), &record.name()));
    }
    let programs = IptablesPrograms::find_backend(family, Backend::NfTables, &HostExec, &search_path()).unwrap();
    let version = programs.release.version;
    let occurs = |difference: &&KnownDifference| (difference.occurs)(version, family);
    let wanted: BTreeSet<_> = KNOWN_DIFFERENCES.iter().filter(occurs).map(|difference| difference.reason).collect();
    assert!(
        differences.is_superset(&wanted),
        "differences that do not occur must not be known: {differences:?}, want {wanted:?}"
    );
}

#[test]
fn recorded_ipv4_cases_are_the_same_rules_in_both_ways() {
    check_records(IpFamily::V4);
}

#[test]
fn recorded_ipv6_cases_are_the_same_rules_in_both_ways() {
    check_records(IpFamily::V6);
}

#[test]
fn generated_clusters_are_the_same_rules_in_both_ways() {
    // The kernel is slow, and the recorded cases contain every kind of rule.
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    let strategy = (arbitrary::cluster(), prop::sample::select(&IpFamily::BOTH));
    TestRunner::new(config)
        .run(&strategy, |(cluster, family)| {
            check(family, &cluster.table(family), &settings(), "a generated cluster");
            Ok(())
        })
        .unwrap();
}

#[test]
fn rules_of_all_programs_are_the_same_without_the_iptables_programs() {
    for family in IpFamily::BOTH {
        let node = NetnsHost::new(PROGRAMS);
        let address = if family == IpFamily::V4 { "192.0.2.1/32" } else { "2001:db8::1/128" };
        let theirs = format!(
            "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -s {address} -i eth+ -p tcp -m tcp --sport 5:9 ! --dport 80 -j ACCEPT\n\
             COMMIT\n*filter\n:INPUT DROP [0:0]\n:THEIRS - [0:0]\n-A INPUT ! -i lo -m mark ! --mark 0x1/0xff -g THEIRS\n\
             -A THEIRS -p tcp -j REJECT --reject-with tcp-reset\nCOMMIT\n"
        );
        node.restore(family, &theirs);
        node.netns.run(|| node.dataplane(family, &settings()).resync(&cluster().table(family))).unwrap();
        let mut text = SavedRulesReader::new(family);
        node.netns.command(&node.program(family, "-save"), &["-c"]).lines().for_each(|line| text.line(line));
        let mut snapshot = node.netns.run(|| snapshot_rules(family, &HostExec, &[])).unwrap();
        let BackendSnapshot { backend, saved } = snapshot.backends.remove(0);
        assert_eq!((snapshot, backend), (RulesSnapshot::default(), Backend::NfTables));
        assert!(saved.unread.is_empty() && saved.partial.is_empty());
        assert_eq!(saved, text.finish().unwrap());
    }
}

/// Modules that `iptables-nft` writes as expressions of nf_tables, or as structures without a variant.
#[test]
fn rules_of_iptables_in_any_form_are_not_foreign() {
    let same = [
        "-p tcp -m limit --limit 5/min -j ACCEPT",
        "-m limit --limit 3/sec --limit-burst 7 -j DROP",
        "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j RETURN",
        "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j RETURN",
        "-p tcp -m tcp --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE -j RETURN",
        "-j NFLOG --nflog-group 3",
        "-j NFLOG",
        "-m mark ! --mark 0x1/0xff -j ACCEPT",
    ];
    let others = [
        "-m iprange --src-range 10.0.0.1-10.0.0.9 -j ACCEPT",
        "-m pkttype --pkt-type broadcast -j ACCEPT",
        "-m connmark --mark 0x1 -j ACCEPT",
        "-p icmp -m icmp --icmp-type 8 -j ACCEPT",
        "-m hashlimit --hashlimit-upto 5/sec --hashlimit-name a -j ACCEPT",
        "-m length --length 0:100 -j ACCEPT",
        "-p tcp -m tcp --dport 80 --tcp-flags SYN SYN -j ACCEPT",
        "-j LOG --log-prefix a",
        "-p tcp -j TCPMSS --clamp-mss-to-pmtu",
    ];
    let node = NetnsHost::new(PROGRAMS);
    let chains = [":SAME - [0:0]\n", ":OTHERS - [0:0]\n"].concat();
    let rules =
        |chain: &str, rules: &[&str]| rules.iter().map(|rule| format!("-A {chain} {rule}\n")).collect::<String>();
    let text = format!("*filter\n{chains}{}{}COMMIT\n", rules("SAME", &same), rules("OTHERS", &others));
    node.restore(IpFamily::V4, &text);
    let snapshot = node.netns.run(|| snapshot_rules(IpFamily::V4, &HostExec, &[])).unwrap();
    let saved = &snapshot.backends[0].saved;
    assert_eq!(saved.partial, []);
    let read = |chain: &str| saved.rules.rules(TableName::Filter, chain.parse().unwrap());
    let texts: Vec<String> = read("SAME").iter().map(ToString::to_string).collect();
    let wanted = same.map(|rule| rule.replace("FIN,SYN,RST,PSH,ACK,URG", "ALL"));
    assert_eq!(texts, wanted);
    assert_eq!(read("OTHERS").len(), others.len());
}

/// Rules with options of modules that the planner does not use, in chains that accept them.
const FOREIGN_OPTIONS: &[(TableName, &str, &[&str])] = &[
    (
        TableName::Filter,
        "INPUT",
        &[
            "-m physdev --physdev-out vethwe-bridge --physdev-is-bridged -j ACCEPT",
            "-m physdev ! --physdev-in eth+ -j ACCEPT",
            "-m helper --helper ftp -j ACCEPT",
            "-m connlabel ! --label 3 -j ACCEPT",
            "-m hashlimit --hashlimit-above 5/min --hashlimit-burst 7 --hashlimit-mode srcip,dstport --hashlimit-name a -j ACCEPT",
            "-p tcp -m tcpmss --mss 1:500 -j ACCEPT",
            "-m tos --tos 0x10/0x3f -j ACCEPT",
            "-m quota --quota 5000 -j ACCEPT",
            "-p tcp -m string --string \"GET /a b\" --algo bm -j ACCEPT",
            "-m string ! --string \"a\\\"b\\\\c'd\" --algo kmp --from 10 --to 90 --icase -j ACCEPT",
            "-m string --hex-string \"|0d0a78|\" --algo bm --to 90 -j ACCEPT",
            "-m time --timestart 08:00 --timestop 17:05:09 --weekdays Mon,Sun --kerneltz -j ACCEPT",
            "-m time --datestart 2026-01-01 --datestop 2026-02-03T04:05:06 ! --monthdays 1,31 -j ACCEPT",
            "-m time --timestart 23:00 --timestop 01:00 --contiguous ! --weekdays Sat -j ACCEPT",
            "-m connbytes --connbytes 100:200 --connbytes-dir both --connbytes-mode bytes -j ACCEPT",
            "-m connbytes ! --connbytes 3:5 --connbytes-dir reply --connbytes-mode packets -j ACCEPT",
            "-m connbytes --connbytes 10000: --connbytes-dir original --connbytes-mode avgpkt -j ACCEPT",
            "-m policy --dir in --pol none -j ACCEPT",
            "-m policy --dir in --pol ipsec -j ACCEPT",
            "-m policy --dir in --pol ipsec --strict --reqid 5 --mode tunnel --tunnel-src 10.0.0.0/8 \
             --tunnel-dst 192.0.2.1 --proto esp --next ! --spi 0x12 --proto ah -j ACCEPT",
            "-m devgroup --src-group 5 -j ACCEPT",
            "-m devgroup ! --src-group 0x1/0xf -j ACCEPT",
            "-p tcp -m ecn ! --ecn-tcp-cwr --ecn-tcp-ece -j ACCEPT",
            "-m ecn --ecn-ip-ect 2 -j ACCEPT",
            "-m realm --realm 5 -j ACCEPT",
            "-m realm ! --realm 0x1/0xf -j ACCEPT",
            "-m cluster --cluster-total-nodes 2 --cluster-local-node 1 --cluster-hash-seed 0xdeadbeef -j ACCEPT",
            "-m cluster --cluster-total-nodes 4 ! --cluster-local-nodemask 5 --cluster-hash-seed 1 -j ACCEPT",
            "-m cpu ! --cpu 1 -j ACCEPT",
            "-p esp -m esp --espspi 5:6 -j ACCEPT",
            "-p ah -m ah ! --ahspi 5 -j ACCEPT",
            "-p sctp -m sctp --chunk-types any INIT -j ACCEPT",
            "-p sctp -m sctp ! --sport 5:6 --dport 80 --chunk-types all DATA:Be,INIT,ABORT:t,RE_CONFIG,I_DATA:i -j ACCEPT",
            "-p sctp -m sctp --dport 80 ! --chunk-types only INIT_ACK,FORWARD_TSN,ASCONF_ACK -j ACCEPT",
            "-p sctp -m sctp --chunk-types any ALL -j ACCEPT",
            "-p sctp -m sctp --chunk-types all NONE -j ACCEPT",
            "-p dccp -m dccp --dport 80 ! --dccp-types REQUEST,RESPONSE,SYNCACK,INVALID -j ACCEPT",
            "-p dccp -m dccp ! --sport 5:7 ! --dccp-option 5 -j ACCEPT",
            "-p ipcomp -m ipcomp --ipcompspi 5:6 -j ACCEPT",
            "-p ipcomp -m ipcomp ! --ipcompspi 0x5 --compres -j ACCEPT",
            "-j RATEEST --rateest-name a --rateest-interval 250ms --rateest-ewma 0.5s",
            "-j RATEEST --rateest-name b --rateest-interval 1s --rateest-ewma 8s",
            "-m rateest --rateest a --rateest-gt --rateest-bps 100kbit -j ACCEPT",
            "-m rateest --rateest a ! --rateest-lt --rateest-pps 5 -j ACCEPT",
            "-m rateest --rateest a --rateest-delta --rateest-gt --rateest-bps1 1kbit --rateest-bps2 5gbit -j ACCEPT",
            "-m rateest --rateest1 a --rateest-bps --rateest-pps --rateest-lt --rateest2 b -j ACCEPT",
            "-m rateest --rateest-delta --rateest1 a --rateest-pps1 5 ! --rateest-eq --rateest2 b --rateest-pps2 7 -j ACCEPT",
            "-p tcp -m osf --genre Linux --ttl 1 --log 2 -j ACCEPT",
            "-m u32 --u32 \"6&0xFF=1,4:5&&0>>22&0x3C@0>>24=0\" -j ACCEPT",
            "-m u32 ! --u32 \"4&0x3FFF<<2=0\" -j ACCEPT",
            "-m bpf --bytecode \"4,48 0 0 9,21 0 1 6,6 0 0 1,6 0 0 0\" -j ACCEPT",
            "-p tcp -m tcp --dport 80 ! --tcp-option 5 -j ACCEPT",
            "-p icmp -m icmp --icmp-type any -j ACCEPT",
            "-p icmp -m icmp --icmp-type destination-unreachable -j ACCEPT",
            "-p icmp -m icmp --icmp-type fragmentation-needed -j ACCEPT",
            "-p tcp -m connlimit --connlimit-above 5 --connlimit-mask 24 --connlimit-daddr -j ACCEPT",
            "-p tcp -m connlimit --connlimit-upto 0 -j ACCEPT",
            "-m socket --nowildcard -j ACCEPT",
            "-m dscp --dscp-class EF -j ACCEPT",
            "-m length --length 5:6 -j ACCEPT",
            "-m ttl --ttl-gt 5 -j ACCEPT",
            "-j LOG",
            "-j LOG --log-prefix \"a b: \" --log-level 6 --log-uid --log-ip-options",
            "-j NFLOG --nflog-prefix \"a b\" --nflog-group 5",
            "-j NFQUEUE --queue-num 0",
            "-j NFQUEUE --queue-balance 1:3 --queue-bypass --queue-cpu-fanout",
            "-j AUDIT --type drop",
        ],
    ),
    (
        TableName::Mangle,
        "PREROUTING",
        &[
            "-p tcp -j TPROXY --on-port 15006 --on-ip 127.0.0.1 --tproxy-mark 0x1/0xff",
            "-p udp -j TPROXY --on-port 53",
            "-p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1400",
            "-j DSCP --set-dscp 5",
            "-j TOS --set-tos 0x10/0x3f",
            "-j TTL --ttl-inc 5",
            "-j TEE --gateway 192.0.2.1",
            "-j CHECKSUM --checksum-fill",
        ],
    ),
    (TableName::Mangle, "FORWARD", &["-p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu"]),
    (
        TableName::Raw,
        "PREROUTING",
        &["-j CT --notrack", "-j CT --zone 5", "-p tcp -j CT --helper ftp", "-j CT --zone-orig mark"],
    ),
    (TableName::Filter, "FORWARD", &["-p tcp -j SYNPROXY --sack-perm --timestamp --wscale 7 --mss 1460"]),
];

/// Splits the arguments of a program as a shell does.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut quoted, mut word) = (Vec::new(), false, String::new());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => quoted = !quoted,
            '\\' => word.extend(chars.next()),
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn options_of_modules_are_read_as_iptables_prints_them() {
    let node = NetnsHost::new(PROGRAMS);
    let (mut read, mut different) = (0, Vec::new());
    for (table, chain, rules) in FOREIGN_OPTIONS {
        for rule in *rules {
            let arguments = words(&format!("-t {} -A {chain} {rule}", table.as_str()));
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            // The kernel may lack a module.
            if !node.netns.try_command("iptables-nft", &arguments).status.success() {
                continue;
            }
            read += 1;
            let saved = node.netns.command("iptables-nft-save", &["-t", table.as_str()]);
            let wanted = saved.lines().rfind(|line| line.starts_with("-A ")).unwrap();
            let snapshot = node.netns.run(|| snapshot_rules(IpFamily::V4, &HostExec, &[])).unwrap();
            let rules = snapshot.backends[0].saved.rules.rules(*table, chain.parse().unwrap());
            different.extend(
                Some(format!("-A {chain} {}", rules.last().unwrap()))
                    .filter(|read| read != wanted)
                    .map(|read| [read, wanted.to_owned()]),
            );
        }
    }
    assert!(different.is_empty(), "{different:#?}");
    assert!(read > 30, "{read}");
}

/// The rules of `iptables` are read despite any other rules in the table, and the table is marked as partial.
#[test]
fn rules_beside_those_of_nft_are_read() {
    let theirs = "*T\n:THEIRS - [0:0]\n-A THEIRS -s ADDRESS -m comment --comment \"it's theirs\" -j RETURN\nCOMMIT\n";
    let foreign = |table: TableName| {
        let base = match table {
            TableName::Nat => "chain own { type nat hook prerouting priority -90; accept; };",
            _ => "chain own { type filter hook prerouting priority -90; accept; };",
        };
        [
            "add rule FAMILY T THEIRS meta mark { 1, 2 } counter accept".to_owned(),
            "add rule FAMILY T THEIRS ct state new limit rate 5/second accept".to_owned(),
            "add rule FAMILY T THEIRS tcp dport vmap { 80 : accept, 81 : return }".to_owned(),
            "add set FAMILY T blocked { type inet_service; }; add rule FAMILY T THEIRS th dport @blocked drop"
                .to_owned(),
            "add chain FAMILY T a-name-that-is-too-long-for-iptables".to_owned(),
            format!("table FAMILY T {{ {base} }}"),
        ]
    };
    for family in IpFamily::BOTH {
        let (nft_family, address) = match family {
            IpFamily::V4 => ("ip", "192.0.2.1/32"),
            IpFamily::V6 => ("ip6", "2001:db8::1/128"),
        };
        for table in TableName::ALL {
            for foreign in foreign(table) {
                let fill = |text: &str| {
                    let text = text.replace("FAMILY T", &format!("{nft_family} {table}"));
                    text.replace("*T", &format!("*{table}")).replace("ADDRESS", address)
                };
                let (theirs, foreign) = (fill(theirs), fill(&foreign));
                let node = NetnsHost::new(PROGRAMS);
                node.restore(family, &theirs);
                let read = || {
                    let snapshot = node.netns.run(|| snapshot_rules(family, &HostExec, &[])).unwrap();
                    let [BackendSnapshot { saved, .. }] = &snapshot.backends[..] else { panic!("{snapshot:?}") };
                    let chain = saved.rules.rules(table, "THEIRS".parse().unwrap());
                    (chain.first().cloned(), saved.partial.clone())
                };
                let before = read();
                assert_eq!((before.0.is_some(), &*before.1), (true, &[][..]), "{table}");
                node.netns.feed("nft", &["-f", "-"], &foreign);
                assert_eq!(read(), (before.0, vec![table]), "{foreign}");
            }
        }
    }
}

/// Tables with many chains are read by the names of the expected chains.
#[test]
fn what_other_programs_change_in_large_tables_is_found() {
    const IN_USE: &str = "KUBE-SVC-INUSEAAAAAAAAAAA";
    let node = NetnsHost::new(Way::Netlink);
    let table = large_cluster().table(IpFamily::V4);
    let mut dataplane = synced(&node, &table);
    let others = |rules: &RuleSet| {
        let mut chains = chains_of(rules);
        chains.retain(|(_, chain), _| !chain.as_str().starts_with("KUBE-") || chain.as_str() == IN_USE);
        chains
    };
    let theirs = format!(
        "*nat\n:THEIRS - [0:0]\n:EMPTY - [0:0]\n:{IN_USE} - [0:0]\n:KUBE-SVC-STALEAAAAAAAAAAA - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
         -A THEIRS -j {IN_USE}\n-A {IN_USE} -j RETURN\n-A PREROUTING -j THEIRS\nCOMMIT\n\
         *mangle\n:THEIRS - [0:0]\n-A THEIRS -j RETURN\nCOMMIT\n*raw\n:THEIRS - [0:0]\nCOMMIT\n"
    );
    let planned = rendered(&table);
    let first_service = planned.keys().map(|(_, chain)| *chain).find(|chain| is_service_chain(*chain)).unwrap();
    for restarts in [false, true] {
        node.restore(IpFamily::V4, &theirs);
        node.restore(IpFamily::V4, &format!("*nat\n:{first_service} - [0:0]\nCOMMIT\n"));
        node.iptables(IpFamily::V4, &["-w", "-t", "mangle", "-X", "KUBE-PROXY-CANARY"]);
        let before = others(&node.rules(IpFamily::V4));
        if restarts {
            dataplane = node.dataplane(IpFamily::V4, &settings());
        }
        let report = node.netns.run(|| dataplane.resync(&table)).unwrap();
        assert_eq!(report.removed, 1, "the stale chain");
        let after = node.rules(IpFamily::V4);
        let mut wanted = before;
        wanted.insert((TableName::Nat, IN_USE.parse().unwrap()), Vec::new());
        assert_eq!(others(&after), wanted);
        let mut ours = chains_of(&after);
        ours.retain(|chain, _| planned.contains_key(chain) && !chain.1.is_builtin());
        assert_eq!(ours.len(), planned.keys().filter(|(_, chain)| !chain.is_builtin()).count());
        assert!(ours.iter().all(|(chain, rules)| planned[chain] == *rules));
        let report = node.netns.run(|| dataplane.resync(&table)).unwrap();
        assert_eq!((report.written, report.removed), (0, 0), "nothing to repair");
    }
}

/// Returns a cluster with more chains than are listed at once.
fn large_cluster() -> Cluster {
    (0..500).fold(Cluster::new(arbitrary::NODE), |cluster, i| {
        let (high, low) = (i / 250, i % 250 + 1);
        let name = format!("ns1/svc-{i}");
        let service = service(&name).cluster_ip(&format!("10.96.{high}.{low}")).port("http", 80);
        let slice = slice(&format!("{name}-a"), &format!("svc-{i}")).port("http", 8080);
        let slice = (0..10).fold(slice, |slice, pod| slice.pod(&*format!("10.{}.{high}.{low}", 100 + pod)));
        cluster.service(service).slice(slice)
    })
}

/// A change by netlink does not reset counters of other chains.
#[test]
fn counters_of_unchanged_chains_are_kept() {
    let node = NetnsHost::new(Way::Netlink);
    let cluster = cluster();
    let mut tracker = cluster.tracker();
    let mut dataplane = node.dataplane(IpFamily::V4, &settings());
    node.netns.run(|| dataplane.resync(tracker.table(IpFamily::V4))).unwrap();
    let rule = "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000";
    node.netns.feed(
        "iptables-nft-restore",
        &["--noflush", "-c"],
        &format!("*nat\n:KUBE-MARK-MASQ - [0:0]\n[7:420] {rule}\nCOMMIT\n"),
    );
    let counted = format!("[7:420] {rule}");
    assert!(saved(&node, IpFamily::V4).contains(&counted));
    Edit::RemoveService(namespaced_name("ns1/web")).apply_to(&mut tracker);
    let changes = tracker.update(IpFamily::V4);
    node.netns.run(|| dataplane.sync(tracker.table(IpFamily::V4), &changes)).unwrap();
    node.netns.run(|| dataplane.resync(tracker.table(IpFamily::V4))).unwrap();
    assert!(saved(&node, IpFamily::V4).contains(&counted));
}

/// `iptables` shows dormant tables and chains without a hook as if packets traversed them.
#[test]
fn chains_that_packets_do_not_traverse_are_restored() {
    REPAIRING.into_iter().for_each(restores_chains_that_packets_do_not_traverse);
}

fn restores_chains_that_packets_do_not_traverse(way: Way) {
    let family = IpFamily::V4;
    let table = cluster().table(family);
    for change in [
        "add table ip nat { flags dormant; }",
        "add table ip filter { flags dormant; }",
        "flush chain ip nat PREROUTING\ndelete chain ip nat PREROUTING\nadd chain ip nat PREROUTING",
        "flush chain ip nat OUTPUT\ndelete chain ip nat OUTPUT\nadd chain ip nat OUTPUT",
        "flush chain ip filter OUTPUT\ndelete chain ip filter OUTPUT
         add chain ip filter OUTPUT { type filter hook input priority 0; }",
    ] {
        let node = NetnsHost::new(way);
        let mut dataplane = synced(&node, &table);
        // Without the handles, which a replaced chain does not keep.
        let traversed = || {
            let listed = node.netns.command("nft", &["list", "ruleset"]);
            let is_relevant = |line: &&str| line.contains("hook") || line.contains("flags") || line.contains("chain");
            listed.lines().filter(is_relevant).map(|line| line.trim().to_owned()).collect::<BTreeSet<_>>()
        };
        let (rules, before) = (node.rules(family), traversed());
        node.netns.feed("nft", &["-f", "-"], change);
        let changed = traversed();
        node.netns.run(|| probe(family, Modules::Common)).unwrap();
        assert_eq!(traversed(), changed, "a probe, as of doctor, repairs nothing: {change}");
        assert!(node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "{change}");
        node.netns.run(|| dataplane.resync(&table)).unwrap();
        assert_eq!(traversed(), before, "{change}");
        assert!(chains_of(&node.rules(family)) == chains_of(&rules), "{change}");
        assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "{change}");
        let mut restarted = node.dataplane(family, &settings());
        assert_eq!(node.netns.run(|| restarted.resync(&table)).unwrap().written, 0, "{change}");
    }
}

/// No rule can jump to a base chain, and it has a policy.
#[test]
fn own_chains_that_another_program_made_base_chains_are_replaced() {
    REPAIRING.into_iter().for_each(replaces_own_chains_that_another_program_made_base_chains);
}

fn replaces_own_chains_that_another_program_made_base_chains(way: Way) {
    let family = IpFamily::V4;
    let table = cluster().table(family);
    for change in [
        "add table ip nat; add chain ip nat KUBE-SERVICES { type nat hook prerouting priority -100; };
         add rule ip nat KUBE-SERVICES counter drop",
        "add table ip nat; add chain ip nat KUBE-NODEPORTS { type nat hook prerouting priority -100; }",
        "add table ip filter; add chain ip filter KUBE-FORWARD { type filter hook forward priority 0; policy drop; }",
    ] {
        let node = NetnsHost::new(way);
        node.netns.feed("nft", &["-f", "-"], change);
        let mut dataplane = synced(&node, &table);
        let expected = NetnsHost::new(way);
        synced(&expected, &table);
        assert!(chains_of(&node.rules(family)) == chains_of(&expected.rules(family)), "{change}");
        let hooked = node.netns.command("nft", &["list", "ruleset"]);
        let own: Vec<&str> =
            hooked.split("chain ").filter(|it| it.starts_with("KUBE") && it.contains("hook")).collect();
        assert_eq!(own, [""; 0], "{change}");
        assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "{change}");
    }
}

/// In a table with so many chains, those of Services are read by their names, and without a look at their hooks.
#[test]
fn chain_of_a_service_that_another_program_made_a_base_chain_is_replaced_in_a_large_table() {
    let table = cluster().table(IpFamily::V4);
    let others: String = (0..5100).map(|number| format!("add chain ip nat other-{number}\n")).collect();
    let node = NetnsHost::new(Way::Netlink);
    let expected = chains_of(&{
        synced(&node, &table);
        node.rules(IpFamily::V4)
    });
    let of_kind =
        |prefix| expected.keys().map(|(_, name)| name.as_str()).find(|name| name.starts_with(prefix)).unwrap();
    for chain in ["KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-"].map(of_kind) {
        let node = NetnsHost::new(Way::Netlink);
        let script = format!(
            "add table ip nat\n{others}\
             add chain ip nat {chain} {{ type nat hook prerouting priority -100; policy drop; }}\n\
             add rule ip nat {chain} counter drop\n"
        );
        node.netns.feed("nft", &["-f", "-"], &script);
        let mut dataplane = synced(&node, &table);
        let mut found = chains_of(&node.rules(IpFamily::V4));
        found.retain(|(_, name), _| !name.as_str().starts_with("other-"));
        assert!(found == expected, "{chain}");
        assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap(), "{chain}");
    }
}

/// The programs cannot write to a builtin chain without a hook, which stays because it has rules of another program.
#[test]
fn chains_that_the_programs_cannot_write_to_cost_no_other_rules() {
    let family = IpFamily::V4;
    let node = NetnsHost::new(PROGRAMS);
    let theirs =
        "add table ip nat; add chain ip nat PREROUTING; add rule ip nat PREROUTING ip daddr 192.0.2.1 counter drop";
    node.netns.feed("nft", &["-f", "-"], theirs);
    let mut tracker = cluster().tracker();
    let mut dataplane = node.dataplane(family, &settings());
    for _ in 0..2 {
        let error = node.netns.run(|| dataplane.resync(tracker.table(family))).unwrap_err();
        assert_eq!(
            error_chain(&error),
            "cannot write IPv4 rules: another program created chain PREROUTING of table nat without a hook, and it cannot be \
             replaced: it has rules or callers of another program; run `nft 'flush chain ip nat PREROUTING; delete chain ip \
             nat PREROUTING'`"
        );
        let theirs = |(table, chain): &(_, ChainName)| (*table, *chain) == (TableName::Nat, ChainName::PREROUTING);
        let mut expected = rendered(tracker.table(family));
        let mut written = chains_of(&node.rules(family));
        expected.retain(|chain, _| !theirs(chain));
        written.retain(|chain, _| !theirs(chain));
        assert!(written == expected);
        Edit::RemoveService(namespaced_name("ns1/web")).apply_to(&mut tracker);
        tracker.update(family);
    }
    node.netns.feed("nft", &["-f", "-"], "flush chain ip nat PREROUTING; delete chain ip nat PREROUTING");
    node.netns.run(|| dataplane.resync(tracker.table(family))).unwrap();
    assert_eq!(chains_of(&node.rules(family)), rendered(tracker.table(family)));
    assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
}

/// A chain of another program's rules is not replaced, and its rules are not repeated.
#[test]
fn chains_of_other_programs_that_packets_do_not_traverse_stay() {
    let family = IpFamily::V4;
    let node = NetnsHost::new(Way::Netlink);
    let theirs = "add table ip nat
        add chain ip nat PREROUTING
        add rule ip nat PREROUTING ip daddr 192.0.2.1 counter drop
        add chain ip nat KUBE-POSTROUTING
        add chain ip nat OUTPUT
        add rule ip nat OUTPUT jump KUBE-POSTROUTING";
    node.netns.feed("nft", &["-f", "-"], theirs);
    let table = cluster().table(family);
    let mut dataplane = synced(&node, &table);
    let rules = node.rules(family);
    assert_eq!(node.netns.run(|| dataplane.resync(&table)).unwrap().written, 0);
    node.iptables(family, &["-w", "-t", "nat", "-N", "THEIRS"]);
    assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
    node.iptables(family, &["-w", "-t", "nat", "-X", "THEIRS"]);
    assert!(chains_of(&node.rules(family)) == chains_of(&rules));
    for (chain, rule) in [("PREROUTING", "192.0.2.1"), ("OUTPUT", "jump KUBE-POSTROUTING")] {
        let listed = node.netns.command("nft", &["list", "chain", "ip", "nat", chain]);
        assert!(listed.contains(rule) && !listed.contains("hook"), "{listed}");
    }
}

/// The kernel deletes no chain to which a verdict map refers, and does not name the map.
#[test]
fn verdict_maps_of_other_programs_do_not_keep_changes_from_the_kernel() {
    let family = IpFamily::V4;
    let node = NetnsHost::new(Way::Netlink);
    let mut tracker = cluster().tracker();
    let mut dataplane = node.dataplane(family, &settings());
    node.netns.run(|| dataplane.resync(tracker.table(family))).unwrap();
    let chains: Vec<_> = rendered(tracker.table(family)).into_keys().collect();
    let endpoints: Vec<_> = chains.iter().filter(|(_, chain)| chain.as_str().starts_with("KUBE-SEP-")).collect();
    let element = |(n, (_, chain)): (usize, &&(TableName, _))| format!("192.0.2.{n} : goto {chain}");
    let elements = endpoints.iter().enumerate().map(element).collect::<Vec<_>>().join(", ");
    let map = format!("add map ip nat theirs {{ type ipv4_addr : verdict; elements = {{ {elements} }}; }}");
    node.netns.feed("nft", &["-f", "-"], &map);
    Edit::RemoveService(namespaced_name("ns1/web")).apply_to(&mut tracker);
    let changes = tracker.update(family);
    node.netns.run(|| dataplane.sync(tracker.table(family), &changes)).unwrap();
    let planned = rendered(tracker.table(family));
    let unused: Vec<_> = endpoints.into_iter().filter(|chain| !planned.contains_key(chain)).collect();
    assert!(!unused.is_empty());
    // A start finds the chains as well.
    for mut dataplane in [dataplane, node.dataplane(family, &settings())] {
        let rules = node.rules(family);
        assert!(unused.iter().all(|(table, chain)| rules.rules(*table, *chain).is_empty()));
        node.netns.run(|| dataplane.resync(tracker.table(family))).unwrap();
    }
    node.netns.command("nft", &["delete", "map", "ip", "nat", "theirs"]);
    node.netns.run(|| node.dataplane(family, &settings()).resync(tracker.table(family))).unwrap();
    assert_eq!(chains_of(&node.rules(family)), planned);
}

/// Neither another program that changes rules continuously nor the proxy loses rules.
#[test]
fn another_writer_at_the_same_time_loses_nothing_and_neither_does_the_proxy() {
    let node = NetnsHost::new(Way::Netlink);
    let mut tracker = cluster().tracker();
    let mut dataplane = node.dataplane(IpFamily::V4, &settings());
    node.iptables(IpFamily::V4, &["-w", "-t", "nat", "-N", "THEIRS"]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            // Several processes, as of a network plugin and a firewall.
            for port in 1..=20 {
                let port = port.to_string();
                let rule = ["-p", "tcp", "--dport", &port, "-j", "RETURN"];
                node.iptables(IpFamily::V4, &[&["-w", "-t", "nat", "-A", "THEIRS"], &rule[..]].concat());
                node.restore(IpFamily::V4, "*mangle\n:THEIRS - [0:0]\n-A THEIRS -j RETURN\nCOMMIT\n");
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut round = 0;
        while !done.load(Ordering::Relaxed) && !theirs.is_finished() {
            round += 1;
            let pods = (0..round % 5).fold(slice("ns1/more", "web").port("http", 8080), |slice, pod| {
                slice.pod(&*format!("10.0.9.{}", pod + 1))
            });
            Edit::SetSlice(pods.build()).apply_to(&mut tracker);
            let changes = tracker.update(IpFamily::V4);
            let table = tracker.table(IpFamily::V4);
            node.netns.run(|| dataplane.sync(table, &changes)).unwrap();
            if round % 10 == 0 {
                node.netns.run(|| dataplane.resync(table)).unwrap();
            }
        }
    });
    let rules = node.rules(IpFamily::V4);
    assert_eq!(rules.rules(TableName::Nat, "THEIRS".parse().unwrap()).len(), 20);
    assert_eq!(rules.rules(TableName::Mangle, "THEIRS".parse().unwrap()).len(), 1);
    let ours = |rules: RuleSet| {
        let mut chains = chains_of(&rules);
        chains.retain(|(_, chain), _| chain.as_str() != "THEIRS");
        chains
    };
    assert_eq!(ours(rules), rendered(tracker.table(IpFamily::V4)));
}

/// The ways to write rules that repair tables and chains of nf_tables.
const REPAIRING: [Way; 2] = [Way::Netlink, PROGRAMS];
