//! A start results in the same state for any previous state of the kernel as for an empty kernel, and does not change
//! objects of other programs. A running proxy detects and repairs each single change of its rules.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::collections::BTreeSet;

use common::{
    damage::{Damage, damage, is_own, is_rule_of_own_chain, saved},
    fixtures::settings,
    netns_host::{NetnsHost, Way, with_all_ways},
};
use ferroute_core::{Dataplane, IpFamily, ServiceTable, testing::arbitrary};
use ferroute_iptables::IptablesDataplane;
use proptest::{prelude::*, test_runner::TestRunner};

/// Adds objects of other programs, with names of any bytes and names like the proxy's.
fn add_others(node: &NetnsHost, family: IpFamily) {
    let script = "set -e; name=$(printf 'B\\374ro\\377'); for table in filter nat mangle; do \
                  $0 -w -t $table -N $name; $0 -w -t $table -A $name -m comment --comment $name; \
                  $0 -w -t $table -A OUTPUT -m mark --mark 0x77 -j $name; done; \
                  $0 -w -t nat -N KUBELET-CHAIN; $0 -w -t nat -A KUBELET-CHAIN -j RETURN";
    node.netns.command("sh", &["-c", script, &node.program(family, "")]);
}

fn others(node: &NetnsHost, family: IpFamily) -> Vec<String> {
    // The tables of these objects may have been created for the proxy's rules.
    let is_theirs = |line: &String| (line.starts_with("-A") || line.starts_with(':')) && !is_own(line);
    let is_builtin = |line: &String| line.starts_with(':') && !line.contains(" - ");
    saved(&node.netns, &node.program(family, ""))
        .into_iter()
        .filter(|line| is_theirs(line) && !is_builtin(line))
        .collect()
}

/// The proxy's rules: jumps to chains without their number and position, and the rules of each chain in order.
type Rules = (BTreeSet<String>, Vec<String>);

/// Starts a proxy once.
fn start(node: &NetnsHost, table: &ServiceTable) -> (IptablesDataplane, Rules) {
    let mut dataplane = node.dataplane(table.family, &settings());
    node.netns.run(|| dataplane.resync(table)).unwrap();
    (dataplane, rules(node, table.family))
}

fn rules(node: &NetnsHost, family: IpFamily) -> Rules {
    let (mut jumps, mut chains, mut of_table) = (BTreeSet::new(), Vec::new(), String::new());
    for line in saved(&node.netns, &node.program(family, "")) {
        match line.strip_prefix('*') {
            Some(name) => of_table = name.to_owned(),
            None if is_rule_of_own_chain(&line) || line.starts_with(":KUBE-") => {
                chains.push(format!("{of_table} {line}"));
            }
            None if is_own(&line) => _ = jumps.insert(format!("{of_table} {line}")),
            None => {}
        }
    }
    // The order of tables and chains depends on the backend and on earlier changes. The sort is stable.
    chains.sort_by_key(|line| chain_of(line));
    // The order of rules for different frontends also does not matter; those of node ports come last.
    let last = chains.iter().rfind(|line| line.starts_with("nat -A KUBE-SERVICES ")).cloned();
    chains.sort_by_key(|line| (chain_of(line), is_of_frontend(line).then(|| line.clone())));
    chains.extend(last.filter(|last| last.contains("nodeports")));
    (jumps, chains)
}

fn chain_of(line: &str) -> Vec<String> {
    line.split(' ').take(3).map(str::to_owned).collect()
}

fn is_of_frontend(line: &str) -> bool {
    let chains = ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL"];
    chains.iter().any(|chain| line.contains(&format!(" -A {chain} ")))
}

fn one_start_leads_from_any_state_to_that_of_a_start_on_an_empty_kernel(way: Way) {
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    let strategy = (
        prop::option::weighted(0.8, arbitrary::cluster()),
        arbitrary::cluster(),
        prop::collection::vec(damage(), 0..12),
        prop::sample::select(&IpFamily::BOTH),
    );
    TestRunner::new(config)
        .run(&strategy, |(before, cluster, damages, family)| {
            let table = cluster.table(family);
            let [node, empty] = [NetnsHost::new(way), NetnsHost::new(way)];
            add_others(&node, family);
            let of_others = others(&node, family);
            start(&node, &before.map_or_else(|| table.clone(), |before| before.table(family)));
            let accepted: Vec<&Damage> =
                damages.iter().filter(|damage| damage.apply(&node.netns, &node.program(family, ""))).collect();
            let (_, wanted) = start(&empty, &table);
            let (mut dataplane, found) = start(&node, &table);
            prop_assert_eq!(found, wanted, "after {:?}", accepted);
            prop_assert_eq!(others(&node, family), of_others, "others, after {:?}", accepted);
            let again = node.netns.run(|| dataplane.resync(&table)).unwrap();
            prop_assert_eq!((again.written, again.removed), (0, 0), "after {:?}", accepted);
            Ok(())
        })
        .unwrap();
}

fn a_running_proxy_notices_and_repairs_each_single_change(way: Way) {
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    let damages = prop::collection::vec(damage(), 4..12);
    TestRunner::new(config)
        .run(&(arbitrary::cluster(), damages, prop::sample::select(&IpFamily::BOTH)), |(cluster, damages, family)| {
            let table = cluster.table(family);
            let node = NetnsHost::new(way);
            add_others(&node, family);
            let of_others = others(&node, family);
            let (mut dataplane, wanted) = start(&node, &table);
            for damage in damages {
                if !damage.apply(&node.netns, &node.program(family, "")) || rules(&node, family) == wanted {
                    continue;
                }
                // There are pauses between comparisons.
                node.clock.advance(60);
                let is_noticed = node.netns.run(|| dataplane.was_modified_externally()).unwrap();
                prop_assert!(is_noticed, "{:?} led to {:#?}", damage, rules(&node, family));
                node.netns.run(|| dataplane.resync(&table)).unwrap();
                prop_assert_eq!(rules(&node, family), wanted.clone(), "after {:?}", damage);
                prop_assert_eq!(others(&node, family), of_others.clone(), "others, after {:?}", damage);
            }
            Ok(())
        })
        .unwrap();
}

with_all_ways!(
    one_start_leads_from_any_state_to_that_of_a_start_on_an_empty_kernel,
    a_running_proxy_notices_and_repairs_each_single_change,
);
