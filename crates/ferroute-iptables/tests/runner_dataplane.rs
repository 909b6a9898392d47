//! Which programs the dataplane runs, when and how, and what it says when they fail. The tools work on rules in memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use common::{fake_tools::FakeTools, kernel::chains_of, lab::Clock};
use ferroute_core::{
    Changes, Dataplane, DataplaneError, IpFamily, ServiceTable, Tracker,
    testing::{Cluster, Edit},
};
use ferroute_host::{AddressError, GenerationError, HostAddresses, RuleGeneration, Sysctls};
use ferroute_iptables::{
    Generations, Host, HostFacts, IptablesDataplane, PlanContext, Rule, TableName, Target, plan::chains, render,
};

const NFT: &str = "iptables v1.8.9 (nf_tables)";
const LEGACY: &str = "iptables v1.8.9 (legacy)";

/// A dataplane with everything around it.
struct Stage {
    programs: FakeTools,
    generation: Generation,
    clock: Clock,
    dataplane: IptablesDataplane,
}

impl Stage {
    fn new(release: &str) -> Self {
        let programs = FakeTools::new(IpFamily::V4);
        let generation = Generation::default();
        let clock = Clock::default();
        let host = Host {
            addresses: Box::new(NoAddresses),
            counters: None,
            sysctls: Sysctls::rooted_at("/nonexistent"),
            now: clock.clone().reader(),
        };
        let dataplane = IptablesDataplane::new(
            programs.tools(release),
            Default::default(),
            Arc::new(programs.clone()),
            host,
            Generations::new(Some(Box::new(generation.clone()))),
        );
        Self { programs, generation, clock, dataplane }
    }

    /// A stage on which the rules for a table are in force.
    fn synced(release: &str, table: &ServiceTable) -> Self {
        let mut stage = Self::new(release);
        stage.dataplane.resync(table).unwrap();
        stage.generation.commit(3);
        // Our own transactions were counted only now, so that they seem to be somebody else's, which takes a look.
        assert!(!stage.dataplane.was_disturbed().unwrap());
        stage.programs.calls();
        stage.clock.advance(60);
        stage
    }

    fn disturbed(&mut self) -> (bool, Vec<String>) {
        (self.dataplane.was_disturbed().unwrap(), self.programs.calls())
    }
}

#[test]
fn the_first_sync_reads_and_writes_and_what_follows_only_writes() {
    let mut cluster = Cluster::uniform(3, 2);
    let mut tracker = cluster.tracker();
    let mut stage = Stage::new(NFT);
    let report = stage.dataplane.resync(tracker.table(IpFamily::V4)).unwrap();
    assert_eq!(
        stage.programs.calls(),
        [
            "/sbin/iptables-save -t filter",
            "/sbin/iptables-save -t mangle",
            "/sbin/iptables-save -t nat",
            "/sbin/iptables-restore -w 5 --noflush --counters",
        ]
    );
    assert_eq!(report.kernel_time.as_millis(), 4 * 7);

    let table = tracker.table(IpFamily::V4).clone();
    let report = stage.dataplane.sync(&table, &Changes::default()).unwrap();
    assert_eq!((report.full, report.written, report.removed), (false, 0, 0));
    assert_eq!(stage.programs.calls(), [""; 0], "nothing differs");

    let changes = remove_an_endpoint(&mut cluster, &mut tracker);
    let report = stage.dataplane.sync(tracker.table(IpFamily::V4), &changes).unwrap();
    // The Service's chain loses the rule that leads to the endpoint, and with it goes the endpoint's chain.
    assert_eq!((report.full, report.written, report.removed), (false, 1, 1));
    assert_eq!(stage.programs.calls(), ["/sbin/iptables-restore -w 5 --noflush --counters"]);
    assert_eq!(report.total, expected(tracker.table(IpFamily::V4)).1);
}

#[test]
fn tools_of_other_ages_wait_for_the_lock_in_their_own_way() {
    let table = Cluster::uniform(1, 1).table(IpFamily::V4);
    for (release, arguments) in [(LEGACY, "-w 5"), ("iptables v1.6.2", "-w 5 -W 100000")] {
        let mut stage = Stage::new(release);
        stage.dataplane.resync(&table).unwrap();
        let calls = stage.programs.calls();
        assert_eq!(calls.last().unwrap(), &format!("/sbin/iptables-restore {arguments} --noflush --counters"));
    }
}

#[test]
fn a_refused_line_is_told_with_its_text_and_its_service() {
    // So many endpoints that their rules have no comments.
    let table = Cluster::uniform(101, 10).table(IpFamily::V4);
    let text = first_input(&table);
    let line = |part: &str| text.lines().position(|line| line.contains(part)).unwrap() + 1;
    let cases = [
        (
            line("-j DNAT --to-destination 10.128.0.100:8080"),
            "iptables-restore: line $LINE failed",
            " of bench/svc-00009:http",
            "-p tcp -m tcp -j DNAT --to-destination 10.128.0.100:8080\": iptables-restore: line $LINE failed",
        ),
        (
            line("bench/svc-00042:http cluster IP"),
            "iptables-restore v1.8.9 (legacy): unknown option \"--x\"\nError occurred at line: $LINE\nTry -h",
            " of bench/svc-00042:http",
            "unknown option \"--x\"; Error occurred at line: $LINE; Try -h",
        ),
        (
            line(":KUBE-SVC-"),
            "iptables-nft-restore v1.8.9 (nf_tables): \nline $LINE: CHAIN_ADD failed (Out of memory): chain X",
            " of bench/svc-00000:http",
            " - [0:0]\": iptables-nft-restore v1.8.9 (nf_tables):; line $LINE: CHAIN_ADD failed",
        ),
        (
            line("-j KUBE-NODEPORTS"),
            "iptables-nft-restore: line $LINE failed: No chain/target/match by that name.",
            "",
            "failed: No chain/target/match by that name.",
        ),
        (line("COMMIT"), "iptables-restore: line $LINE failed", "", "its input, \"COMMIT\": iptables-restore: line"),
    ];
    for (number, complaint, owner, told) in cases {
        let at = |text: &str| text.replace("$LINE", &number.to_string());
        let mut stage = Stage::new(LEGACY);
        stage.programs.state().restore_fails = Some((1, at(complaint)));
        let error = stage.dataplane.resync(&table).unwrap_err();
        let cause = error.source().unwrap().to_string();
        assert_eq!(error.to_string(), format!("cannot write IPv4 rules{owner}"), "{cause}");
        assert!(
            cause.starts_with(&format!("/sbin/iptables-restore refuses line {number} of its input, \"")),
            "{cause}"
        );
        assert!(cause.contains(&at(told)), "{cause}");
    }
}

#[test]
fn a_failure_that_blames_no_line_is_told_with_its_status() {
    let mut stage = Stage::new(LEGACY);
    stage.programs.state().restore_fails = Some((4, "Another app is currently holding the xtables lock.".to_owned()));
    let error = stage.dataplane.resync(&Cluster::uniform(1, 1).table(IpFamily::V4)).unwrap_err();
    assert_eq!(
        told(&error),
        "cannot write IPv4 rules: /sbin/iptables-restore failed with exit status: 4: Another app is currently holding \
         the xtables lock."
    );
}

#[test]
fn after_a_failure_everything_is_read_and_written_at_the_next_call() {
    let mut cluster = Cluster::uniform(3, 2);
    let mut tracker = cluster.tracker();
    let mut stage = Stage::synced(NFT, tracker.table(IpFamily::V4));
    let changes = remove_an_endpoint(&mut cluster, &mut tracker);
    stage.programs.state().restore_fails = Some((1, "iptables-restore: line 2 failed".to_owned()));
    stage.dataplane.sync(tracker.table(IpFamily::V4), &changes).unwrap_err();
    assert_eq!(stage.programs.calls().len(), 1);
    assert_eq!(stage.disturbed(), (true, vec![]), "what is in force is not known");

    let report = stage.dataplane.sync(tracker.table(IpFamily::V4), &Changes::default()).unwrap();
    assert!(report.full);
    assert_eq!(stage.programs.calls().len(), 4);
    let kernel = chains_of(&stage.programs.state().kernel.rules);
    assert_eq!(kernel, expected(tracker.table(IpFamily::V4)).0);
}

#[test]
fn rules_that_cannot_be_read_in_full_are_not_written_over() {
    let table = Cluster::uniform(3, 2).table(IpFamily::V4);
    let mut stage = Stage::synced(NFT, &table);
    let incompatible = "iptables-save: table `nat' is incompatible, use 'nft' tool.";
    stage.programs.state().save_fails = Some((TableName::Nat, 1, incompatible.to_owned()));
    let error = stage.dataplane.resync(&table).unwrap_err();
    assert_eq!(
        told(&error),
        format!("cannot read IPv4 rules: /sbin/iptables-save -t nat failed with exit status: 1: {incompatible}")
    );
    stage.programs.state().save_fails = None;

    stage.programs.state().save_bytes = 100;
    let error = stage.dataplane.resync(&table).unwrap_err();
    assert_eq!(told(&error), "cannot read IPv4 rules: /sbin/iptables-save -t filter has not printed all rules");
    assert!(!stage.programs.calls().iter().any(|call| call.contains("-restore")));
}

#[test]
fn an_unchanged_generation_needs_no_program() {
    let mut stage = Stage::synced(NFT, &Cluster::uniform(3, 2).table(IpFamily::V4));
    for _ in 0..5 {
        assert_eq!(stage.disturbed(), (false, vec![]));
        stage.clock.advance(3600);
    }
}

#[test]
fn a_look_that_found_nothing_is_not_repeated_for_the_same_generation() {
    let mut stage = Stage::synced(NFT, &Cluster::uniform(3, 2).table(IpFamily::V4));
    stage.generation.commit(1);
    let saves = ["filter", "mangle", "nat"].map(|table| format!("/sbin/iptables-save -t {table}"));
    assert_eq!(stage.disturbed(), (false, saves.to_vec()));
    stage.clock.advance(60);
    assert_eq!(stage.disturbed(), (false, vec![]));
}

#[test]
fn between_two_looks_only_the_canaries_are_looked_for() {
    let mut stage = Stage::synced(NFT, &Cluster::uniform(3, 2).table(IpFamily::V4));
    stage.generation.commit(1);
    assert_eq!(stage.disturbed().1.len(), 3);
    stage.generation.commit(1);
    let lists = ["filter", "mangle", "nat"].map(|table| format!("/sbin/iptables -t {table} -S KUBE-PROXY-CANARY"));
    assert_eq!(stage.disturbed(), (false, lists.to_vec()));
    stage.clock.advance(1);
    assert_eq!(stage.disturbed(), (false, vec![]), "too soon for either");
    stage.clock.advance(5);
    // Both were done at the same time, and the look tells more.
    assert_eq!(stage.disturbed().1.len(), 3);

    stage.generation.commit(1);
    stage.programs.state().kernel.rules.table_mut(TableName::Nat).chains.shift_remove(&chains::CANARY);
    stage.programs.state().list_status = Some(4);
    assert!(!stage.disturbed().0, "somebody has the lock; the next time will tell");
    stage.clock.advance(4);
    stage.programs.state().list_status = None;
    stage.clock.advance(5);
    assert!(stage.disturbed().0);
}

#[test]
fn the_old_backend_is_looked_at_from_time_to_time() {
    let mut stage = Stage::synced(LEGACY, &Cluster::uniform(3, 2).table(IpFamily::V4));
    let mut calls = Vec::new();
    for _ in 0..10 {
        let (disturbed, made) = stage.disturbed();
        assert!(!disturbed);
        calls.push(made.len());
        stage.clock.advance(1);
    }
    // A look at three tables, then at the canary of the one that is small.
    assert_eq!(calls, [3, 1, 0, 0, 0, 3, 1, 0, 0, 0]);
    stage.clock.advance(60);
    let nat = stage.programs.state().kernel.rules.table_mut(TableName::Nat).clone();
    stage
        .programs
        .state()
        .kernel
        .rules
        .table_mut(TableName::Nat)
        .append(chains::MARK_MASQ, Rule::new().then(Target::Accept));
    assert!(stage.disturbed().0);
    *stage.programs.state().kernel.rules.table_mut(TableName::Nat) = nat;
}

#[test]
fn a_cleanup_goes_on_after_a_failure_and_tells_all_of_them() {
    let mut stage = Stage::synced(NFT, &Cluster::uniform(3, 2).table(IpFamily::V4));
    {
        let mut state = stage.programs.state();
        state.save_fails = Some((TableName::Nat, 1, "no nat today".to_owned()));
        state.restore_fails = Some((1, "iptables-restore: line 999 failed".to_owned()));
    }
    let error = stage.dataplane.cleanup().unwrap_err();
    assert_eq!(
        told(&error),
        "cannot clean up IPv4 rules: table filter: /sbin/iptables-restore failed with exit status: 1: \
         iptables-restore: line 999 failed; table nat: /sbin/iptables-save -t nat failed with exit status: 1: no nat \
         today"
    );
    let has = |table| stage.programs.state().kernel.rules.chain(table, chains::CANARY).is_some();
    assert_eq!(TableName::OURS.map(has), [true, false, true], "the table between them is clean");
}

/// Takes an endpoint from one of the Services.
fn remove_an_endpoint(cluster: &mut Cluster, tracker: &mut Tracker) -> Changes {
    let mut slice = cluster.slices[1].clone();
    slice.endpoints.pop();
    let edit = Edit::SetSlice(slice);
    cluster.apply(&edit);
    edit.apply_to(tracker);
    tracker.update(IpFamily::V4)
}

/// All chains that should be there, and how many rules the report should count.
fn expected(
    table: &ServiceTable,
) -> (std::collections::BTreeMap<(TableName, ferroute_iptables::ChainName), Vec<Rule>>, usize) {
    let host = HostFacts { random_fully: true, ..HostFacts::default() };
    // Nobody lets us set sysctls here.
    let settings = ferroute_core::ProxySettings { localhost_node_ports: false, ..Default::default() };
    let chains = chains_of(&render(table, &PlanContext::new(&settings, table, &host)));
    let ours = chains.iter().filter(|((_, chain), _)| !chain.is_builtin());
    let rules = ours.map(|(_, rules)| rules.len()).sum();
    (chains, rules)
}

/// What a first resync feeds to `iptables-restore`.
fn first_input(table: &ServiceTable) -> String {
    let host = HostFacts { random_fully: true, ..HostFacts::default() };
    let settings = ferroute_core::ProxySettings { localhost_node_ports: false, ..Default::default() };
    let context = PlanContext::new(&settings, table, &host);
    let mut text = Vec::new();
    let nothing = common::kernel::in_force(IpFamily::V4, "");
    ferroute_iptables::Difference::from_kernel(table, context, nothing).write(table, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// An error with its cause.
fn told(error: &DataplaneError) -> String {
    format!("{error}: {}", error.source().unwrap())
}

/// A host without addresses.
struct NoAddresses;

impl HostAddresses for NoAddresses {
    fn list(&mut self) -> Result<Vec<std::net::IpAddr>, AddressError> {
        Ok(Vec::new())
    }
}

/// A generation that goes on when it is told to.
#[derive(Clone, Default)]
struct Generation(Arc<AtomicU32>);

impl Generation {
    fn commit(&self, transactions: u32) {
        self.0.fetch_add(transactions, Ordering::Relaxed);
    }
}

impl RuleGeneration for Generation {
    fn current(&mut self) -> Result<u32, GenerationError> {
        Ok(self.0.load(Ordering::Relaxed))
    }
}
