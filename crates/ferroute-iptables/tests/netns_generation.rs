//! Transactions that other programs commit between reading rules and writing the difference, on a real kernel. Each
//! test has a separate network namespace.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::{
    collections::VecDeque,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use common::{
    fake_kernel::chains_of,
    fixtures::{cluster, rendered, settings, synced},
    netns_host::{NetnsHost, Way},
};
use ferroute_core::{
    Dataplane, IpFamily,
    testing::{Edit, namespaced_name, slice},
};
use ferroute_host::{GenerationError, KernelGeneration, RuleGeneration};
use ferroute_iptables::{
    ChainName, GenerationTracker, Rule, TableName, Target,
    exec::{GroupWriter, RuleAccess},
    native::NativeRules,
    plan::{ChainGroup, chains},
};
use ferroute_testing::wait;

/// Another program, which commits its next transaction whenever the generation was read. A dataplane reads the
/// generation before it reads rules, before it writes, and afterwards.
#[derive(Clone, Default)]
struct OtherProgram {
    /// The commands for `nft` in each transaction; empty ones are left out.
    transactions: Arc<Mutex<VecDeque<String>>>,
}

impl OtherProgram {
    fn will_commit<T: Into<String>>(&self, transactions: impl IntoIterator<Item = T>) {
        self.transactions.lock().unwrap().extend(transactions.into_iter().map(Into::into));
    }

    /// Lets the other program act in a host's network namespace.
    fn act_on(&self, node: &mut NetnsHost) {
        let kernel = node.netns.run(KernelGeneration::open).unwrap().unwrap();
        let generation = GenerationWithTransactions { kernel, other: self.clone() };
        node.generations = GenerationTracker::new(Some(Box::new(generation)));
    }
}

struct GenerationWithTransactions {
    kernel: KernelGeneration,
    other: OtherProgram,
}

impl RuleGeneration for GenerationWithTransactions {
    fn current(&mut self) -> Result<u32, GenerationError> {
        let generation = self.kernel.current();
        let transaction = self.other.transactions.lock().unwrap().pop_front();
        if let Some(transaction) = transaction.filter(|transaction| !transaction.is_empty()) {
            // This thread is in the network namespace.
            assert!(Command::new("nft").arg(transaction).status().unwrap().success());
        }
        generation
    }
}

#[test]
fn a_chain_that_is_flushed_after_it_was_read_is_written_again() {
    let (mut node, other) = (NetnsHost::new(Way::Netlink), OtherProgram::default());
    other.act_on(&mut node);
    let mut tracker = cluster().tracker();
    let mut dataplane = synced(&node, tracker.table(IpFamily::V4));
    Edit::SetSlice(slice("ns1/more", "web").port("http", 8080).pod("10.0.9.1").build()).apply_to(&mut tracker);
    tracker.update(IpFamily::V4);
    other.will_commit(["", "flush chain ip nat KUBE-MARK-MASQ\n"]);
    let table = tracker.table(IpFamily::V4);
    node.netns.run(|| dataplane.resync(table)).unwrap();
    assert_eq!(chains_of(&node.rules(IpFamily::V4)), rendered(table));
    assert!(!node.netns.run(|| dataplane.was_modified_externally()).unwrap());
}

#[test]
fn a_chain_that_another_program_jumps_to_after_it_was_read_is_not_deleted() {
    let (mut node, other) = (NetnsHost::new(Way::Netlink), OtherProgram::default());
    other.act_on(&mut node);
    let mut tracker = cluster().tracker();
    let mut dataplane = synced(&node, tracker.table(IpFamily::V4));
    Edit::RemoveService(namespaced_name("ns1/web")).apply_to(&mut tracker);
    tracker.update(IpFamily::V4);
    let jump = "add chain ip nat THEIRS\nadd rule ip nat THEIRS counter jump KUBE-SVC-4LVCYZMTA5CQO6SX\n";
    other.will_commit(["", jump]);
    let table = tracker.table(IpFamily::V4);
    node.netns.run(|| dataplane.resync(table)).unwrap();
    let mut left = chains_of(&node.rules(IpFamily::V4));
    assert!(left.remove(&(TableName::Nat, THEIRS)).is_some());
    assert_eq!(left.remove(&(TableName::Nat, "KUBE-SVC-4LVCYZMTA5CQO6SX".parse().unwrap())), Some(Vec::new()));
    assert_eq!(left, rendered(table));
}

#[test]
fn a_program_that_commits_all_the_time_does_not_keep_rules_from_being_written() {
    let (mut node, other) = (NetnsHost::new(Way::Netlink), OtherProgram::default());
    other.act_on(&mut node);
    let table = cluster().table(IpFamily::V4);
    let mut dataplane = node.dataplane(IpFamily::V4, &settings());
    let transaction = "add table ip nat\nadd chain ip nat THEIRS\nadd rule ip nat THEIRS counter return\n";
    other.will_commit([transaction; 100]);
    node.netns.run(|| dataplane.resync(&table)).unwrap();
    let committed = 100 - other.transactions.lock().unwrap().len();
    assert!(committed < 100, "the other program ran out of transactions first");
    let mut rules = chains_of(&node.rules(IpFamily::V4));
    assert_eq!(rules.remove(&(TableName::Nat, THEIRS)).unwrap().len(), committed);
    assert_eq!(rules, rendered(&table));
}

#[test]
fn a_chain_of_a_group_that_is_flushed_after_it_was_read_is_written_again() {
    let (mut node, other) = (NetnsHost::new(Way::Netlink), OtherProgram::default());
    other.act_on(&mut node);
    let mut writer = node.netns.run(|| {
        GroupWriter::new(RuleAccess::netlink(NativeRules::open(IpFamily::V4).unwrap()), node.generations.clone())
    });
    let mut wanted = ChainGroup::default();
    wanted.add(TableName::Nat, chains::MARK_MASQ, vec![Rule::new().then(Target::or_mark(1))]);
    node.netns.run(|| writer.apply(&wanted, true)).unwrap();
    wanted.add(TableName::Nat, chains::SERVICES, vec![Rule::new().then(Target::Jump(chains::MARK_MASQ))]);
    other.will_commit(["", "flush chain ip nat KUBE-MARK-MASQ\n"]);
    node.netns.run(|| writer.apply(&wanted, true)).unwrap();
    let rules = node.rules(IpFamily::V4);
    for ((table, chain), expected) in &wanted.chains {
        assert_eq!(rules.rules(*table, *chain), expected);
    }
}

#[test]
fn a_cleanup_ends_while_another_program_commits_all_the_time() {
    let node = NetnsHost::new(Way::Netlink);
    synced(&node, &cluster().table(IpFamily::V4));
    let (started, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let errors = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let transaction = "add chain ip nat THEIRS\nadd rule ip nat THEIRS counter return\n";
                node.netns.feed("nft", &["-f", "-"], transaction);
                started.store(true, Ordering::Relaxed);
            }
        });
        wait("the first transaction", || started.load(Ordering::Relaxed).then_some(()));
        let errors = node.clean_up(IpFamily::V4);
        done.store(true, Ordering::Relaxed);
        errors
    });
    assert!(errors.is_empty(), "{errors:?}");
    let left = chains_of(&node.rules(IpFamily::V4));
    let ours: Vec<_> = left.keys().filter(|(_, chain)| chain.as_str().starts_with("KUBE-")).collect();
    assert_eq!(ours, [&(TableName::Filter, chains::FIREWALL)]);
}

const THEIRS: ChainName = ChainName::literal("THEIRS");
