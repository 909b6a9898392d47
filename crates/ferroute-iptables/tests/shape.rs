//! Properties of the rules of every cluster.

mod common;

use std::collections::BTreeMap;

use common::{
    arbitrary::{environment, family},
    fake_kernel::chains_of,
};
use ferroute_core::{
    HostState, IpFamily, ProxySettings,
    testing::{arbitrary, endpoint, entry, node, port_name, service_port, table},
};
use ferroute_iptables::{ChainName, IptablesContext, RuleSet, TableName, render};
use proptest::prelude::*;

proptest! {
    // Each case is a whole cluster.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_jump_target_exists_and_jumps_have_no_cycles(
        cluster in arbitrary::cluster(), environment in environment(true), family in family(),
    ) {
        let table = cluster.table(family);
        let rules = render(&table, &environment.context(&table));
        for (name, table) in &rules.tables {
            let next: BTreeMap<ChainName, Vec<ChainName>> = table
                .chains
                .iter()
                .map(|(name, chain)| (*name, chain.rules.iter().filter_map(|rule| rule.next_chain()).collect()))
                .collect();
            let mut done = BTreeMap::new();
            for chain in next.keys() {
                prop_assert!(ends(*chain, &next, &mut done), "{name} {chain} leads to a missing chain or a cycle");
            }
        }
    }

    #[test]
    fn every_service_chain_is_reached(
        cluster in arbitrary::cluster(), environment in environment(true), family in family(),
    ) {
        let table = cluster.table(family);
        let rules = render(&table, &environment.context(&table));
        let nat = &rules.tables[&TableName::Nat].chains;
        for chain in nat.keys().filter(|chain| ferroute_iptables::plan::is_service_chain(**chain)) {
            let reached = nat.values().flat_map(|from| &from.rules).any(|rule| rule.next_chain() == Some(*chain));
            prop_assert!(reached, "no rule jumps to {chain}");
        }
    }

    #[test]
    fn planning_is_deterministic_and_printing_is_lossless(
        cluster in arbitrary::cluster(), environment in environment(true), family in family(),
    ) {
        let table = cluster.table(family);
        let context = environment.context(&table);
        let rules = render(&table, &context);
        prop_assert_eq!(&rules, &render(&table, &context));
        let printed = rules.to_string();
        let read = RuleSet::parse_save(family, &printed).unwrap();
        prop_assert_eq!(chains_of(&read), chains_of(&rules));
        prop_assert_eq!(read.to_string(), printed);
    }
}

/// Reports whether every path from `chain` ends. `done` has the visited chains; false means that a path is unfinished.
fn ends(chain: ChainName, next: &BTreeMap<ChainName, Vec<ChainName>>, done: &mut BTreeMap<ChainName, bool>) -> bool {
    if let Some(ends) = done.get(&chain) {
        return *ends;
    }
    done.insert(chain, false);
    let all = next.get(&chain).is_some_and(|targets| targets.iter().all(|target| ends(*target, next, done)));
    done.insert(chain, all);
    all
}

/// Names are validated, but rules must not depend on it: `iptables-restore` executes each line as root.
#[test]
fn name_with_line_breaks_adds_no_line() {
    let lines = |name: &str| {
        let mut service = service_port("10.96.0.1:80");
        service.node_port = std::num::NonZeroU16::new(30080);
        service.load_balancer_vips = vec!["203.0.113.1".parse().unwrap()];
        service.load_balancer_source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
        let served = entry(service.clone(), [endpoint("10.244.0.2:8080")]);
        let unserved = entry(service, []);
        let entries = [(port_name(name), served), (port_name(&format!("{name}-2")), unserved)];
        let table = table(IpFamily::V4, node("node-1"), entries);
        let context = IptablesContext::new(&ProxySettings::default(), &table, &HostState::default());
        render(&table, &context).to_string().lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let sorted = |mut lines: Vec<String>| {
        // Chains are named after hashes of names.
        lines.iter_mut().filter(|line| line.starts_with(":KUBE")).for_each(|line| line.truncate(8));
        lines.sort_unstable();
        lines
    };
    let hostile = "shop/web:http\" -j ACCEPT\n-F KUBE-SERVICES\r\nCOMMIT\u{b}\u{85}\n*raw";
    assert_eq!(sorted(lines(hostile)), sorted(lines("shop/web:http")));
}
