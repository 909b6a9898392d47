//! Rules written by netlink compared with those that `iptables-restore` writes for the same plan, as an oracle. Each
//! test has separate network namespaces.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

#[expect(dead_code, reason = "the recorded rules are those of iptables mode")]
#[path = "../../ferroute-iptables/tests/common/records.rs"]
mod records;

#[path = "../../ferroute-iptables/tests/common/damage.rs"]
mod damage;

use std::sync::Arc;

use damage::{damage, is_own, is_rule_of_own_chain, saved};
use ferroute_core::IpFamily;
use ferroute_iptables::{
    GenerationTracker, HostExec, IptablesPrograms,
    exec::{Backend, GroupWriter, RuleAccess, search_path},
    native::NativeRules,
    plan::{ChainGroup, GroupSummary},
};
use ferroute_testing::NetNs;
use ferroute_userspace::{
    PlannedRelay, PortRange, Relay,
    plan::{RelayContext, RelayPlan},
};
use proptest::{prelude::*, test_runner::TestRunner};
use records::{Record, records};

fn chains(record: &Record) -> ChainGroup {
    let table = record.table();
    let mut state = RelayPlan::new(RelayContext::new(&record.settings(), &table, &record.host()));
    let changes = state.listener_changes(&table, None);
    let ports = PlannedRelay::new(PortRange::Any).set(&changes.set).unwrap();
    state.record(&table, &changes, &ports.into_iter().map(Result::ok).collect::<Vec<_>>());
    state.chains(&table)
}

fn by_programs(family: IpFamily) -> RuleAccess {
    let programs = IptablesPrograms::find_backend(family, Backend::NfTables, &HostExec, &search_path()).unwrap();
    RuleAccess::programs(programs, Arc::new(HostExec))
}

fn by_netlink(family: IpFamily) -> RuleAccess {
    RuleAccess::netlink(NativeRules::open(family).unwrap())
}

/// Applies the plans of all recorded cases one after another, so that rules are added, changed and removed.
fn check(family: IpFamily) {
    let ways: [fn(IpFamily) -> RuleAccess; 2] = [by_programs, by_netlink];
    let writer = |node: &NetNs, way: fn(IpFamily) -> RuleAccess| {
        node.run(|| GroupWriter::new(way(family), GenerationTracker::open().unwrap()))
    };
    let mut nodes = ways.map(|way| {
        let node = NetNs::new();
        let writer = writer(&node, way);
        (node, writer)
    });
    let save = if family == IpFamily::V4 { "iptables-nft-save" } else { "ip6tables-nft-save" };
    for record in records().into_iter().filter(|record| record.family == family) {
        let (name, wanted) = (record.name(), chains(&record));
        let saved = nodes.each_mut().map(|(node, writer)| {
            node.run(|| writer.apply(&wanted, false)).unwrap();
            let text = node.command(save, &["-c"]);
            text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
        });
        assert_eq!(saved[0], saved[1], "{name}");
        for ((node, _), other) in nodes.iter().zip([by_netlink, by_programs]) {
            let mut reader = writer(node, other);
            let repaired = node.run(|| reader.apply(&wanted, true)).unwrap().written;
            assert_eq!(repaired, GroupSummary::default(), "{name}");
        }
    }
}

#[test]
fn recorded_ipv4_cases_are_the_same_rules_with_and_without_the_programs() {
    check(IpFamily::V4);
}

#[test]
fn recorded_ipv6_cases_are_the_same_rules_with_and_without_the_programs() {
    check(IpFamily::V6);
}

/// After a process has written its rules, it detects and repairs each single change of them.
#[test]
fn each_single_change_of_the_rules_is_noticed_and_repaired() {
    let config = ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
    let records = records();
    let strategy =
        (prop::sample::select((0..records.len()).collect::<Vec<_>>()), prop::collection::vec(damage(), 4..12));
    TestRunner::new(config)
        .run(&(strategy, any::<bool>()), |((record, damages), is_netlink)| {
            let (node, wanted, family) = (NetNs::new(), chains(&records[record]), records[record].family);
            let open = || {
                let access = if is_netlink { by_netlink(family) } else { by_programs(family) };
                GroupWriter::new(access, GenerationTracker::open().unwrap())
            };
            let program = if family == IpFamily::V4 { "iptables-nft" } else { "ip6tables-nft" };
            // Each rule with its table and its position in its chain, except for jumps, whose position and number do
            // not matter.
            let rules = || {
                let mut table = String::new();
                let rules = saved(&node, program).into_iter().filter_map(|line| {
                    table = line.strip_prefix('*').map_or_else(|| table.clone(), str::to_owned);
                    is_own(&line).then(|| format!("{table} {line}"))
                });
                let (mut rules, mut jumps): (Vec<_>, Vec<_>) =
                    rules.partition(|line| line.split_once(' ').is_some_and(|(_, rule)| is_rule_of_own_chain(rule)));
                rules.sort_by_key(|line| line.split(' ').take(3).map(str::to_owned).collect::<Vec<_>>());
                jumps.sort();
                jumps.dedup();
                (rules, jumps)
            };
            node.run(|| open().apply(&wanted, true)).unwrap();
            let written = rules();
            for damage in damages {
                // Without a comparison before, there is no pause.
                let mut writer = node.run(open);
                node.run(|| writer.apply(&wanted, true)).unwrap();
                if !damage.apply(&node, program) || rules() == written {
                    continue;
                }
                prop_assert!(
                    node.run(|| writer.was_modified_externally()).unwrap(),
                    "{:?} led to {:#?}",
                    damage,
                    rules()
                );
                node.run(|| writer.apply(&wanted, true)).unwrap();
                prop_assert_eq!(rules(), written.clone(), "after {:?}", damage);
            }
            Ok(())
        })
        .unwrap();
}

/// One start leads from the rules of any other configuration, changed by another program, to those that it writes on a
/// host without rules. Rules of other programs stay.
#[test]
fn one_start_leads_from_any_state_to_that_of_a_start_on_an_empty_kernel() {
    let config = ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() };
    let records = records();
    let record = || prop::sample::select((0..records.len()).collect::<Vec<_>>());
    let strategy = (record(), record(), prop::collection::vec(damage(), 0..12), any::<bool>());
    TestRunner::new(config)
        .run(&strategy, |(before, record, damages, is_netlink)| {
            let (wanted, family) = (chains(&records[record]), records[record].family);
            let program = if family == IpFamily::V4 { "iptables-nft" } else { "ip6tables-nft" };
            let start = |node: &NetNs, chains: &ChainGroup| {
                node.run(|| {
                    let access = if is_netlink { by_netlink(family) } else { by_programs(family) };
                    let mut writer = GroupWriter::new(access, GenerationTracker::open().unwrap());
                    writer.apply(chains, true).map(drop).unwrap();
                    writer
                })
            };
            let lines = |node: &NetNs| {
                let mut table = String::new();
                let mut lines: Vec<String> = saved(node, program)
                    .into_iter()
                    .filter(|line| line.starts_with("-A") || line.starts_with('*'))
                    .filter_map(|line| {
                        table = line.strip_prefix('*').map_or_else(|| table.clone(), str::to_owned);
                        line.starts_with("-A").then(|| format!("{table} {line}"))
                    })
                    .collect();
                // The order of chains does not matter, and neither does the place of jumps from builtin chains.
                lines.sort_by_key(|line| line.split(' ').take(3).map(str::to_owned).collect::<Vec<_>>());
                let (own, others): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| is_own(line));
                let (rules, mut jumps): (Vec<_>, Vec<_>) = own
                    .into_iter()
                    .partition(|line| line.split_once(' ').is_some_and(|(_, rule)| is_rule_of_own_chain(rule)));
                jumps.sort();
                jumps.dedup();
                (rules, jumps, others)
            };
            let [node, empty] = [NetNs::new(), NetNs::new()];
            let theirs = "for table in filter nat; do $0 -w -t $table -N $(printf 'B\\374ro'); \
                          $0 -w -t $table -A OUTPUT -m mark --mark 0x77 -j $(printf 'B\\374ro'); done";
            node.command("sh", &["-c", theirs, program]);
            let (_, _, of_others) = lines(&node);
            if records[before].family == family {
                start(&node, &chains(&records[before]));
            } else {
                start(&node, &wanted);
            }
            let accepted: Vec<_> = damages.iter().filter(|damage| damage.apply(&node, program)).collect();
            start(&empty, &wanted);
            let mut writer = start(&node, &wanted);
            let ((rules, jumps, others), (wanted_rules, wanted_jumps, _)) = (lines(&node), lines(&empty));
            prop_assert_eq!((rules, jumps), (wanted_rules, wanted_jumps), "after {:?}", accepted);
            prop_assert_eq!(others, of_others, "others, after {:?}", accepted);
            prop_assert!(!node.run(|| writer.was_modified_externally()).unwrap(), "after {:?}", accepted);
            Ok(())
        })
        .unwrap();
}
