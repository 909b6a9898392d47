//! Changes written chain by chain lead to the same rules as writing everything anew, and nothing else is written.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{
    arbitrary::{Surroundings, family, surroundings},
    kernel::{Kernel, chains_of, declared, in_force},
};
use ferroute_core::{
    Changes, IpFamily, ServiceTable,
    testing::{Cluster, Edit, arbitrary},
};
use ferroute_iptables::{
    ChainName, Difference, InForce, Ledger, PlanContext, Rule, RuleSet, TableName, Target,
    plan::{Dispatch, chains, is_service_chain},
    render,
};
use proptest::{collection::vec, option, prelude::*};

/// Writes what differs from nothing.
fn fresh(table: &ServiceTable, context: &PlanContext) -> Kernel {
    let mut kernel = Kernel::new(table.family);
    kernel.restore(&written(&Difference::from_kernel(table, context.clone(), InForce::nothing()), table));
    kernel
}

fn written(difference: &Difference, table: &ServiceTable) -> Vec<u8> {
    let mut text = Vec::new();
    difference.write(table, &mut text).expect("memory takes all text");
    text
}

/// Rules that the counts are about: all but the jumps in builtin chains.
fn count(rules: &RuleSet, table: TableName) -> usize {
    let own = rules.tables[&table].chains.iter().filter(|(name, _)| !name.is_builtin());
    own.map(|(_, chain)| chain.rules.len()).sum()
}

proptest! {
    // Each case is a whole cluster, or several.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_first_write_makes_what_is_rendered(
        cluster in arbitrary::cluster(), surroundings in surroundings(true), family in family(),
    ) {
        let table = cluster.table(family);
        let context = surroundings.context(&table);
        let kernel = fresh(&table, &context);
        prop_assert_eq!(kernel.chains(), chains_of(&render(&table, &context)));
    }

    #[test]
    fn nothing_is_written_where_everything_is_in_force(
        cluster in arbitrary::cluster(), surroundings in surroundings(true), family in family(),
    ) {
        let table = cluster.table(family);
        let context = surroundings.context(&table);
        let saved = fresh(&table, &context).save();
        let difference = Difference::from_kernel(&table, context, in_force(family, &saved));
        prop_assert!(difference.is_empty());
        prop_assert_eq!(written(&difference, &table), b"");
    }

    #[test]
    fn changes_lead_to_the_same_as_writing_anew_and_touch_nothing_else(
        mut cluster in arbitrary::cluster(),
        edits in vec((arbitrary::edits(1..4), option::weighted(0.2, surroundings(true))), 1..6),
        mut around in surroundings(true),
        family in family(),
    ) {
        let mut tracker = cluster.tracker();
        let table = tracker.table(family);
        let mut kernel = fresh(table, &around.context(table));
        let mut ledger =
            Ledger::new(Difference::from_kernel(table, around.context(table), in_force(family, &kernel.save())));
        for (edits, other) in edits {
            around = other.unwrap_or(around);
            for edit in &edits {
                cluster.apply(edit);
                edit.apply_to(&mut tracker);
            }
            let changes = tracker.update(family);
            let table = tracker.table(family);
            let context = around.context(table);
            let difference = ledger.difference(table, &context, &changes);
            let mut text = Vec::new();
            let sum = difference.write(table, &mut text).expect("memory takes all text");
            prop_assert_eq!(text.is_empty(), difference.is_empty());

            let before = kernel.chains();
            kernel.restore(&text);
            ledger.note(difference, &sum);
            prop_assert_eq!(ledger.damage(&in_force(family, &kernel.save())), None);
            let wanted = with_left_over(render(table, &context), &before);
            prop_assert_eq!(kernel.chains(), chains_of(&wanted));

            let all = before.keys().chain(chains_of(&wanted).keys()).copied().collect::<BTreeSet<_>>();
            let changed = all.into_iter().filter(|key| before.get(key) != chains_of(&wanted).get(key));
            let is_others = |chain: ChainName| chain.is_builtin() || chain == chains::FIREWALL;
            let changed: BTreeSet<_> = changed.filter(|(_, chain)| !is_others(*chain)).collect();
            let declared = declared(family, &text);
            prop_assert!(declared.is_superset(&changed));
            // Rarely, one port takes a rule in a shared chain over from another that goes.
            let shared = |table, chain| Dispatch::ALL.iter().any(|d| d.table() == table && d.chain() == chain);
            let more: Vec<_> = declared.difference(&changed).collect();
            prop_assert!(more.iter().all(|(table, chain)| shared(*table, *chain)), "{more:?} are written needlessly");

            let tally = ledger.tally();
            prop_assert_eq!(tally.rules.filter, count(&render(table, &context), TableName::Filter));
            prop_assert_eq!(tally.rules.nat, count(&render(table, &context), TableName::Nat));
        }
    }

    #[test]
    fn a_resync_repairs_whatever_is_there_and_leaves_foreign_rules_alone(
        here in arbitrary::cluster(), there in arbitrary::cluster(),
        around_here in surroundings(true), around_there in surroundings(true),
        damage in vec(any::<prop::sample::Index>(), 0..6), family in family(),
    ) {
        let mut kernel = fresh(&there.table(family), &around_there.context(&there.table(family)));
        let ours: Vec<_> = kernel.chains().into_keys().collect();
        for index in &damage {
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
        let context = around_here.context(&table);
        let difference = Difference::from_kernel(&table, context.clone(), in_force(family, &kernel.save()));
        kernel.restore(&written(&difference, &table));

        let mut wanted = chains_of(&with_left_over(render(&table, &context), &before));
        wanted.insert((TableName::Nat, foreign), vec![Rule::new().then(Target::Accept)]);
        let mut got = kernel.chains();
        for ((table, chain), rules) in &mut got {
            if chain.is_builtin() {
                // Where in a builtin chain a jump was put back depends on what was there.
                let wanted = wanted.get_mut(&(*table, *chain)).unwrap();
                if (*table, *chain) == (TableName::Nat, ChainName::PREROUTING) {
                    wanted.push(to_foreign.clone());
                }
                wanted.sort_by_key(Rule::to_string);
                rules.sort_by_key(Rule::to_string);
            }
        }
        prop_assert_eq!(got, wanted);
        let again = in_force(family, &kernel.save());
        prop_assert!(Difference::from_kernel(&table, context, again).is_empty());
    }
}

/// `KUBE-FIREWALL` keeps what is in it; only a rule of ours that is missing comes to it.
fn with_left_over(mut rules: RuleSet, before: &BTreeMap<(TableName, ChainName), Vec<Rule>>) -> RuleSet {
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
fn a_change_that_concerns_one_service_names_only_its_chains() {
    let mut cluster = Cluster::uniform(50, 3);
    let mut tracker = cluster.tracker();
    let around = Surroundings { settings: Default::default(), host: Default::default(), large_cluster: false };
    let context = around.context(tracker.table(IpFamily::V4));
    let everything = Difference::from_kernel(tracker.table(IpFamily::V4), context.clone(), InForce::nothing());
    let ledger = Ledger::new(everything);

    let mut slice = cluster.slices[7].clone();
    slice.endpoints.pop();
    let edit = Edit::SetSlice(slice);
    cluster.apply(&edit);
    edit.apply_to(&mut tracker);
    let changes = tracker.update(IpFamily::V4);
    let table = tracker.table(IpFamily::V4);
    let difference = ledger.difference(table, &context, &changes);
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
fn many_chains_are_written_in_transactions_of_few_that_each_can_stand_alone() {
    let table = Cluster::uniform(600, 4).table(IpFamily::V4);
    let around = Surroundings { settings: Default::default(), host: Default::default(), large_cluster: false };
    let context = around.context(&table);
    let mut kernel = Kernel::new(IpFamily::V4);
    let mut write_in_parts = |difference: &Difference, table: &ServiceTable| {
        let mut text = Vec::new();
        let sum = difference.write_in_parts(table, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let parts: Vec<&str> = text.split_inclusive("COMMIT\n").collect();
        assert_eq!(parts.len(), sum.transactions as usize);
        for part in parts {
            let chains = declared(IpFamily::V4, part.as_bytes()).len();
            assert!(chains <= 2000, "{chains} chains in one transaction");
            // Panics where a rule leads to a chain that is not there, or a chain goes that a rule leads to.
            kernel.restore(part.as_bytes());
        }
        assert_eq!(kernel.chains(), chains_of(&render(table, &context)));
        sum.transactions
    };
    let everything = Difference::from_kernel(&table, context.clone(), InForce::nothing());
    assert!(write_in_parts(&everything, &table) > 1);

    let ledger = Ledger::new(everything);
    let empty = Cluster::of_node("node-1").table(IpFamily::V4);
    let services = table.entries.keys().map(|name| name.service.clone()).collect();
    let nothing = ledger.difference(&empty, &context, &Changes { services, ..Changes::default() });
    assert!(write_in_parts(&nothing, &empty) > 1);
}

#[test]
fn a_chain_that_is_wanted_no_more_but_used_by_others_is_emptied_and_stays() {
    let table = Cluster::uniform(2, 1).table(IpFamily::V4);
    let around = Surroundings { settings: Default::default(), host: Default::default(), large_cluster: false };
    let mut kernel = fresh(&table, &around.context(&table));
    let nat = kernel.rules.table_mut(TableName::Nat);
    let used = *nat.chains.keys().find(|chain| chain.as_str().starts_with("KUBE-SVC-")).unwrap();
    let theirs: ChainName = "THEIRS".parse().unwrap();
    nat.declare(theirs, Default::default());
    nat.append(theirs, Rule::new().then(Target::Jump(used)));

    let empty = Cluster::of_node("node-1").table(IpFamily::V4);
    let context = around.context(&empty);
    let difference = Difference::from_kernel(&empty, context.clone(), in_force(IpFamily::V4, &kernel.save()));
    kernel.restore(&written(&difference, &empty));
    let left = kernel.chains();
    let left: Vec<_> = left.iter().filter(|((_, chain), _)| is_service_chain(*chain)).collect();
    assert_eq!(left, [(&(TableName::Nat, used), &vec![])]);
    let again = Difference::from_kernel(&empty, context, in_force(IpFamily::V4, &kernel.save()));
    assert!(again.is_empty());
}
