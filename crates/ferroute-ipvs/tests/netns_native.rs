//! Rules on ipsets written by netlink compared with those that `iptables-restore` writes for the same plan, as an
//! oracle. Each test has separate network namespaces.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

#[expect(dead_code, reason = "the recorded rules are those of iptables mode")]
#[path = "../../ferroute-iptables/tests/common/records.rs"]
mod records;

use std::sync::Arc;

use ferroute_core::{IpFamily, ProxySettings};
use ferroute_iptables::{
    GenerationTracker, HostExec, IptablesPrograms, Match, Rule, SavedRules, SavedRulesReader, TableName,
    exec::{Backend, GroupWriter, RuleAccess, search_path, snapshot_rules},
    native::NativeRules,
    plan::{ChainGroup, GroupSummary},
};
use ferroute_ipvs::{
    IpSets,
    plan::{IpvsContext, IpvsPlan, IpvsSettings, SetKind},
};
use ferroute_testing::NetNs;
use records::{Record, records};

fn chains(record: &Record) -> ChainGroup {
    let proxy = ProxySettings { localhost_node_ports: false, ..record.settings() };
    let settings = IpvsSettings { proxy, ..IpvsSettings::default() };
    let table = record.table();
    let context = IpvsContext::new(&settings, &table, &record.host());
    IpvsPlan::new(&table, context).chains()
}

/// Reports whether rules match virtual servers, for which most kernels have no module. The tests in a virtual machine
/// compare them.
fn has_virtual_servers(group: &ChainGroup, family: IpFamily) -> bool {
    let rules = group.to_rule_set(family);
    let mut chains = rules.tables.values().flat_map(|table| table.chains.values());
    chains.any(|chain| {
        let mut matches = chain.rules.iter().flat_map(|rule: &Rule| &rule.matches);
        matches.any(|module| matches!(module, Match::Ipvs(_)))
    })
}

fn by_programs(family: IpFamily) -> RuleAccess {
    let programs = IptablesPrograms::find_backend(family, Backend::NfTables, &HostExec, &search_path()).unwrap();
    RuleAccess::programs(programs, Arc::new(HostExec))
}

fn by_netlink(family: IpFamily) -> RuleAccess {
    RuleAccess::netlink(NativeRules::open(family).unwrap())
}

/// Creates a node with all sets of the mode, one after another in this order, so that their numbers differ.
fn node(family: IpFamily, kinds: impl Iterator<Item = SetKind> + Send) -> NetNs {
    let node = NetNs::new();
    node.run(|| {
        let mut sets = IpSets::open().unwrap();
        kinds.for_each(|kind| sets.create(kind, family).unwrap());
    });
    node
}

fn writer(node: &NetNs, family: IpFamily, way: fn(IpFamily) -> RuleAccess) -> GroupWriter {
    node.run(|| GroupWriter::new(way(family), GenerationTracker::open().unwrap()))
}

fn save_program(family: IpFamily) -> &'static str {
    if family == IpFamily::V4 { "iptables-nft-save" } else { "ip6tables-nft-save" }
}

/// Applies the plans of all recorded cases one after another, so that rules are added, changed and removed.
fn check(family: IpFamily) {
    let ways: [fn(IpFamily) -> RuleAccess; 2] = [by_programs, by_netlink];
    let nodes = [node(family, SetKind::ALL.into_iter()), node(family, SetKind::ALL.into_iter().rev())];
    let mut writers = [0, 1].map(|n| writer(&nodes[n], family, ways[n]));
    let mut compared = 0;
    for record in records().into_iter().filter(|record| record.family == family) {
        let (name, wanted) = (record.name(), chains(&record));
        if has_virtual_servers(&wanted, family) {
            continue;
        }
        compared += 1;
        let saved = [0, 1].map(|n| {
            let (node, writer) = (&nodes[n], &mut writers[n]);
            node.run(|| writer.apply(&wanted, false)).unwrap();
            let text = node.command(save_program(family), &["-c"]);
            text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
        });
        assert_eq!(saved[0], saved[1], "{name}");
        for (node, other) in nodes.iter().zip([by_netlink, by_programs]) {
            let mut reader = writer(node, family, other);
            let repaired = node.run(|| reader.apply(&wanted, true)).unwrap().written;
            assert_eq!(repaired, GroupSummary::default(), "{name}");
        }
    }
    assert!(compared > 10);
}

#[test]
fn recorded_ipv4_cases_are_the_same_rules_with_and_without_the_programs() {
    check(IpFamily::V4);
}

#[test]
fn recorded_ipv6_cases_are_the_same_rules_with_and_without_the_programs() {
    check(IpFamily::V6);
}

#[test]
fn rules_on_sets_of_other_programs_are_read_without_the_programs() {
    let node = NetNs::new();
    for name in ["theirs", "others"] {
        node.command("ipset", &["create", name, "hash:ip,port,ip"]);
    }
    node.command("ipset", &["destroy", "theirs"]);
    node.command("ipset", &["create", "third", "hash:net"]);
    let rules = "*filter\n:THEIRS - [0:0]\n\
        -A THEIRS -m set ! --match-set others src,dst,src -m state --state NEW,ESTABLISHED -j DROP\n\
        -A THEIRS -m set --match-set third dst -m state ! --state INVALID -m set --match-set others dst,dst,dst -j RETURN\n\
        -A THEIRS -m set --match-set third src --return-nomatch -j DROP\nCOMMIT\n";
    node.feed("iptables-nft-restore", &["--noflush"], rules);
    let mut text = SavedRulesReader::new(IpFamily::V4);
    node.command("iptables-nft-save", &[]).lines().for_each(|line| text.line(line));
    let without = node.run(|| snapshot_rules(IpFamily::V4, &HostExec, &[])).unwrap();
    let rules = |saved: &SavedRules| saved.rules.rules(TableName::Filter, "THEIRS".parse().unwrap()).to_vec();
    let (with, without) = (rules(&text.finish().unwrap()), rules(&without.backends[0].saved));
    assert_eq!((with.len(), &with[..2]), (3, &without[..2]));
    // An option that no rule of a proxy has.
    assert!(matches!(without[2].matches[..], [Match::Other(_)]));
}

#[test]
fn missing_set_is_reported_with_its_name() {
    let node = NetNs::new();
    let record = records().into_iter().find(|record| record.family == IpFamily::V4).unwrap();
    let wanted = chains(&record);
    let mut writer = writer(&node, IpFamily::V4, by_netlink);
    let error = node.run(|| writer.apply(&wanted, false)).unwrap_err();
    let error = ferroute_core::error_chain(&error);
    assert!(error.contains("ipset KUBE-") && error.contains("does not exist"), "{error}");
}
