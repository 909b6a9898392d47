//! Incremental changes result in the same rules as writing everything, and write only the differences.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{
    arbitrary::{Environment, environment, family},
    fake_kernel::{FakeKernel, chains_of, declared, kernel_chains},
};
use ferroute_core::{
    Changes, IpFamily, ServiceTable,
    testing::{Cluster, Edit, arbitrary},
};
use ferroute_iptables::{
    ChainName, ChainState, Difference, IptablesContext, KernelChains, Rule, RuleSet, TableName, Target,
    plan::{SharedChain, chains, is_service_chain},
    render,
};
use proptest::{collection::vec, option, prelude::*};

/// Applies all rules to an empty kernel.
fn fresh(table: &ServiceTable, context: &IptablesContext) -> FakeKernel {
    let mut kernel = FakeKernel::new(table.family);
    kernel.restore(&written(&Difference::from_kernel(table, context.clone(), KernelChains::empty()), table));
    kernel
}

fn written(difference: &Difference, table: &ServiceTable) -> Vec<u8> {
    let mut text = Vec::new();
    difference.write(table, &mut text).expect("writing to memory cannot fail");
    text
}

/// Counts the rules of a table, except the jumps in builtin chains.
fn count(rules: &RuleSet, table: TableName) -> usize {
    let own = rules.tables[&table].chains.iter().filter(|(name, _)| !name.is_builtin());
    own.map(|(_, chain)| chain.rules.len()).sum()
}

proptest! {
    // Each case is a whole cluster, or several.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_first_write_creates_the_rendered_rules(
        cluster in arbitrary::cluster(), environment in environment(true), family in family(),
    ) {
        let table = cluster.table(family);
        let context = environment.context(&table);
        let kernel = fresh(&table, &context);
        prop_assert_eq!(kernel.chains(), chains_of(&render(&table, &context)));
    }

    #[test]
    fn nothing_is_written_if_the_kernel_has_all_rules(
        cluster in arbitrary::cluster(), environment in environment(true), family in family(),
    ) {
        let table = cluster.table(family);
        let context = environment.context(&table);
        let saved = fresh(&table, &context).save();
        let difference = Difference::from_kernel(&table, context, kernel_chains(family, &saved));
        prop_assert!(difference.is_empty());
        prop_assert_eq!(written(&difference, &table), b"");
    }

    #[test]
    fn incremental_changes_equal_a_full_write_and_change_nothing_else(
        mut cluster in arbitrary::cluster(),
        edits in vec((arbitrary::edits(1..4), option::weighted(0.2, environment(true))), 1..6),
        mut env in environment(true),
        family in family(),
    ) {
        let mut tracker = cluster.tracker();
        let table = tracker.table(family);
        let mut kernel = fresh(table, &env.context(table));
        let mut state =
            ChainState::new(Difference::from_kernel(table, env.context(table), kernel_chains(family, &kernel.save())));
        for (edits, other) in edits {
            env = other.unwrap_or(env);
            for edit in &edits {
                cluster.apply(edit);
                edit.apply_to(&mut tracker);
            }
            let changes = tracker.update(family);
            let table = tracker.table(family);
            let context = env.context(table);
            let difference = state.difference(table, &context, &changes);
            let mut text = Vec::new();
            difference.write(table, &mut text).expect("writing to memory cannot fail");
            prop_assert_eq!(text.is_empty(), difference.is_empty());

            let before = kernel.chains();
            kernel.restore(&text);
            state.record(difference);
            prop_assert_eq!(state.drift(&kernel_chains(family, &kernel.save())), None);
            let expected = with_firewall_rules(render(table, &context), &before);
            prop_assert_eq!(kernel.chains(), chains_of(&expected));

            let all = before.keys().chain(chains_of(&expected).keys()).copied().collect::<BTreeSet<_>>();
            let changed = all.into_iter().filter(|key| before.get(key) != chains_of(&expected).get(key));
            let is_unmanaged = |chain: ChainName| chain.is_builtin() || chain == chains::FIREWALL;
            let changed: BTreeSet<_> = changed.filter(|(_, chain)| !is_unmanaged(*chain)).collect();
            let declared = declared(family, &text);
            prop_assert!(declared.is_superset(&changed));
            // In rare cases, a port has the same rule in a shared chain as another port that is removed.
            let is_shared = |table, chain| {
                SharedChain::ALL.iter().any(|shared| shared.table() == table && shared.name() == chain)
            };
            let unchanged: Vec<_> = declared.difference(&changed).collect();
            prop_assert!(
                unchanged.iter().all(|(table, chain)| is_shared(*table, *chain)),
                "{unchanged:?} are written needlessly"
            );

            let counts = state.counts();
            prop_assert_eq!(counts.filter, count(&render(table, &context), TableName::Filter));
            prop_assert_eq!(counts.nat, count(&render(table, &context), TableName::Nat));
        }
    }

    #[test]
    fn a_resync_repairs_any_rules_and_keeps_those_of_other_programs(
        here in arbitrary::cluster(), there in arbitrary::cluster(),
        env_here in environment(true), env_there in environment(true),
        modified in vec(any::<prop::sample::Index>(), 0..6), family in family(),
    ) {
        let mut kernel = fresh(&there.table(family), &env_there.context(&there.table(family)));
        let ours: Vec<_> = kernel.chains().into_keys().collect();
        for index in &modified {
            let (table, chain) = index.get(&ours);
            kernel.rules.table_mut(*table).chains[chain].rules.pop();
        }
        let foreign: ChainName = "FOREIGN".parse().unwrap();
        kernel.rules.table_mut(TableName::Nat).declare(foreign, Default::default());
        let to_foreign = Rule::new().comment("not ours").then(Target::Jump(foreign));
        kernel.rules.table_mut(TableName::Nat).append(foreign, Rule::new().then(Target::Accept));
        kernel.rules.table_mut(TableName::Nat).append(ChainName::PREROUTING, to_foreign.clone());
        kernel.rules.table_mut(TableName::Filter).append(chains::FIREWALL, Rule::new().comment("the kubelet's"));
        let before = kernel.chains();

        let table = here.table(family);
        let context = env_here.context(&table);
        let difference = Difference::from_kernel(&table, context.clone(), kernel_chains(family, &kernel.save()));
        kernel.restore(&written(&difference, &table));

        let mut expected = chains_of(&with_firewall_rules(render(&table, &context), &before));
        expected.insert((TableName::Nat, foreign), vec![Rule::new().then(Target::Accept)]);
        let mut got = kernel.chains();
        for ((table, chain), rules) in &mut got {
            if chain.is_builtin() {
                // The position of a repaired jump in its builtin chain depends on the rules before.
                let expected = expected.get_mut(&(*table, *chain)).unwrap();
                if (*table, *chain) == (TableName::Nat, ChainName::PREROUTING) {
                    expected.push(to_foreign.clone());
                }
                expected.sort_by_key(Rule::to_string);
                rules.sort_by_key(Rule::to_string);
            }
        }
        prop_assert_eq!(got, expected);
        let repaired = kernel_chains(family, &kernel.save());
        prop_assert!(Difference::from_kernel(&table, context, repaired).is_empty());
    }
}

/// Adds the rules that `KUBE-FIREWALL` had before: they stay, and only a missing rule of the proxy is appended.
fn with_firewall_rules(mut rules: RuleSet, before: &BTreeMap<(TableName, ChainName), Vec<Rule>>) -> RuleSet {
    let firewall = &mut rules.table_mut(TableName::Filter).chains[&chains::FIREWALL].rules;
    let ours = std::mem::take(firewall);
    firewall.extend(before.get(&(TableName::Filter, chains::FIREWALL)).into_iter().flatten().cloned());
    for rule in ours {
        if !firewall.contains(&rule) {
            firewall.push(rule);
        }
    }
    rules
}

#[test]
fn rules_of_shared_chains_may_have_any_order_before_the_jump_to_node_ports() {
    let table = Cluster::uniform(3, 1).table(IpFamily::V4);
    let env = Environment { settings: Default::default(), host: Default::default(), large_cluster: false };
    let context = env.context(&table);
    let mut kernel = fresh(&table, &context);
    let difference = |kernel: &FakeKernel| {
        let difference = Difference::from_kernel(&table, context.clone(), kernel_chains(IpFamily::V4, &kernel.save()));
        declared(IpFamily::V4, &written(&difference, &table))
    };
    let services = |kernel: &mut FakeKernel, change: fn(&mut Vec<Rule>)| {
        change(&mut kernel.rules.table_mut(TableName::Nat).chains[&chains::SERVICES].rules);
    };
    services(&mut kernel, |rules| rules.swap(0, 2));
    assert_eq!(difference(&kernel), BTreeSet::new());
    let whole = BTreeSet::from([(TableName::Nat, chains::SERVICES)]);
    services(&mut kernel, |rules| rules.swap(2, 3));
    assert_eq!(difference(&kernel), whole, "a rule behind the jump");
    services(&mut kernel, |rules| drop(rules.remove(3)));
    assert_eq!(difference(&kernel), whole, "a missing rule");
    services(&mut kernel, |rules| rules.insert(0, rules[0].clone()));
    assert_eq!(difference(&kernel), whole, "a rule that is there twice");
}

/// Reading all chains of a large table takes seconds, for which no Service would be served.
#[test]
fn shared_chains_are_restored_without_those_of_services() {
    let table = Cluster::uniform(20, 2).table(IpFamily::V4);
    let env = Environment { settings: Default::default(), host: Default::default(), large_cluster: false };
    let context = env.context(&table);
    let state = ChainState::new(Difference::from_kernel(&table, context.clone(), KernelChains::empty()));
    let mut kernel = fresh(&table, &context);
    let before = kernel.chains();
    let is_of_service = |(_, chain): &(TableName, ChainName)| is_service_chain(*chain);
    for key in before.iter().filter(|(key, rules)| !is_of_service(key) && !rules.is_empty()).map(|(key, _)| *key) {
        kernel.rules.table_mut(key.0).chains[&key.1].rules.clear();
        let repair = written(&state.shared_repair(kernel_chains(IpFamily::V4, &kernel.save())), &table);
        assert!(!declared(IpFamily::V4, &repair).iter().any(is_of_service), "{key:?}");
        kernel.restore(&repair);
        assert_eq!(kernel.chains(), before, "{key:?}");
    }
    kernel.rules.table_mut(TableName::Nat).chains.shift_remove(&chains::SERVICES);
    assert!(state.shared_repair(kernel_chains(IpFamily::V4, &kernel.save())).is_empty(), "the table may be empty");
}

#[test]
fn a_change_of_one_service_writes_only_its_chains() {
    let mut cluster = Cluster::uniform(50, 3);
    let mut tracker = cluster.tracker();
    let env = Environment { settings: Default::default(), host: Default::default(), large_cluster: false };
    let context = env.context(tracker.table(IpFamily::V4));
    let everything = Difference::from_kernel(tracker.table(IpFamily::V4), context.clone(), KernelChains::empty());
    let state = ChainState::new(everything);

    let mut slice = cluster.slices[7].clone();
    slice.endpoints.pop();
    let edit = Edit::SetSlice(slice);
    cluster.apply(&edit);
    edit.apply_to(&mut tracker);
    let changes = tracker.update(IpFamily::V4);
    let table = tracker.table(IpFamily::V4);
    let difference = state.difference(table, &context, &changes);
    insta::assert_snapshot!(String::from_utf8(written(&difference, table)).unwrap(), @r#"
    *nat
    :KUBE-SVC-V5ZCM4LPOTMKWGDY - [0:0]
    -A KUBE-SVC-V5ZCM4LPOTMKWGDY -m comment --comment "bench/svc-00007:http -> 10.128.0.22:8080" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-P3PDU7KSTV7FNSBX
    -A KUBE-SVC-V5ZCM4LPOTMKWGDY -m comment --comment "bench/svc-00007:http -> 10.128.0.23:8080" -j KUBE-SEP-YYYMC36D6SSWBJRP
    :KUBE-SEP-YRIIMPMSUA7ANVNX - [0:0]
    -X KUBE-SEP-YRIIMPMSUA7ANVNX
    COMMIT
    "#);
}

#[test]
fn many_chains_are_written_in_small_transactions_that_are_each_valid() {
    let table = Cluster::uniform(600, 4).table(IpFamily::V4);
    let env = Environment { settings: Default::default(), host: Default::default(), large_cluster: false };
    let context = env.context(&table);
    let mut kernel = FakeKernel::new(IpFamily::V4);
    let mut write_in_parts = |difference: &Difference, table: &ServiceTable| {
        let mut text = Vec::new();
        let summary = difference.write_in_parts(table, 2000, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let parts: Vec<&str> = text.split_inclusive("COMMIT\n").collect();
        assert_eq!(parts.len(), summary.transactions as usize);
        for part in parts {
            let chains = declared(IpFamily::V4, part.as_bytes()).len();
            assert!(chains <= 2000, "{chains} chains in one transaction");
            // Panics if a rule jumps to a missing chain, or a chain is deleted that a rule jumps to.
            kernel.restore(part.as_bytes());
        }
        assert_eq!(kernel.chains(), chains_of(&render(table, &context)));
        summary.transactions
    };
    let everything = Difference::from_kernel(&table, context.clone(), KernelChains::empty());
    assert!(write_in_parts(&everything, &table) > 1);

    let state = ChainState::new(everything);
    let empty = Cluster::new("node-1").table(IpFamily::V4);
    let services = table.entries.keys().map(|name| name.service.clone()).collect();
    let nothing = state.difference(&empty, &context, &Changes { services, ..Changes::default() });
    assert!(write_in_parts(&nothing, &empty) > 1);
}

#[test]
fn an_obsolete_chain_that_other_programs_jump_to_is_flushed_but_not_deleted() {
    let table = Cluster::uniform(2, 1).table(IpFamily::V4);
    let env = Environment { settings: Default::default(), host: Default::default(), large_cluster: false };
    let mut kernel = fresh(&table, &env.context(&table));
    let nat = kernel.rules.table_mut(TableName::Nat);
    let used = *nat.chains.keys().find(|chain| chain.as_str().starts_with("KUBE-SVC-")).unwrap();
    let theirs: ChainName = "THEIRS".parse().unwrap();
    nat.declare(theirs, Default::default());
    nat.append(theirs, Rule::new().then(Target::Jump(used)));

    let empty = Cluster::new("node-1").table(IpFamily::V4);
    let context = env.context(&empty);
    let difference = Difference::from_kernel(&empty, context.clone(), kernel_chains(IpFamily::V4, &kernel.save()));
    kernel.restore(&written(&difference, &empty));
    let left = kernel.chains();
    let left: Vec<_> = left.iter().filter(|((_, chain), _)| is_service_chain(*chain)).collect();
    assert_eq!(left, [(&(TableName::Nat, used), &vec![])]);
    let again = Difference::from_kernel(&empty, context, kernel_chains(IpFamily::V4, &kernel.save()));
    assert!(again.is_empty());
}
