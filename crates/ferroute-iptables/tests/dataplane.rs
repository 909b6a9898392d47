//! The programs that the dataplane runs, and its errors when they fail, with fake programs on rules in memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use common::{fake_kernel::chains_of, fake_programs::FakePrograms, netns_host::Clock};
use ferroute_core::{
    Changes, Dataplane, DataplaneError, HostState, IpFamily, ServiceTable, Tracker,
    testing::{Cluster, Edit},
};
use ferroute_host::{GenerationError, RuleGeneration, Sysctls};
use ferroute_iptables::{
    GenerationTracker, HostAccess, IptablesContext, IptablesDataplane, Rule, TableName, Target,
    exec::{CleanupError, CleanupScope, RestoreError, RuleAccess, SaveError, clean_up},
    plan::chains,
    render,
};

const NFT: &str = "iptables v1.8.9 (nf_tables)";
const LEGACY: &str = "iptables v1.8.9 (legacy)";

/// A dataplane with a fake host.
struct Fixture {
    programs: FakePrograms,
    generation: Generation,
    clock: Clock,
    dataplane: IptablesDataplane,
}

impl Fixture {
    fn new(release: &str) -> Self {
        let programs = FakePrograms::new(IpFamily::V4);
        let generation = Generation::default();
        let clock = Clock::default();
        let host = HostAccess {
            addresses: Box::new(Vec::new()),
            counters: None,
            sysctls: Sysctls::with_root("/nonexistent"),
            legacy_shapes: Box::new(|_| Vec::new()),
            now: clock.clone().reader(),
            processor_time: clock.clone().processor_time(),
        };
        let dataplane = IptablesDataplane::new(
            RuleAccess::programs(programs.with_release(release), Arc::new(programs.clone())),
            Default::default(),
            host,
            GenerationTracker::new(Some(Box::new(generation.clone()))),
        );
        Self { programs, generation, clock, dataplane }
    }

    /// Creates a fixture with the rules of a table applied.
    fn synced(release: &str, table: &ServiceTable) -> Self {
        let mut fixture = Self::new(release);
        fixture.dataplane.resync(table).unwrap();
        fixture.generation.commit(3);
        // The fake generation advances only now, so the dataplane's own transactions look external, and it compares.
        assert!(!fixture.dataplane.was_modified_externally().unwrap());
        fixture.programs.calls();
        fixture.clock.advance(60);
        fixture
    }

    fn modified(&mut self) -> (bool, Vec<String>) {
        (self.dataplane.was_modified_externally().unwrap(), self.programs.calls())
    }
}

#[test]
fn the_first_sync_reads_and_writes_and_later_ones_only_write() {
    let mut cluster = Cluster::uniform(3, 2);
    let mut tracker = cluster.tracker();
    let mut fixture = Fixture::new(NFT);
    let report = fixture.dataplane.resync(tracker.table(IpFamily::V4)).unwrap();
    assert_eq!(
        fixture.programs.calls(),
        [
            "/sbin/iptables-save -t filter",
            "/sbin/iptables-save -t mangle",
            "/sbin/iptables-save -t nat",
            "/sbin/iptables-restore -w 5 --noflush --counters",
        ]
    );
    assert_eq!(report.kernel_time.as_millis(), 4 * 7);

    let table = tracker.table(IpFamily::V4).clone();
    let report = fixture.dataplane.sync(&table, &Changes::default()).unwrap();
    assert_eq!((report.full, report.written, report.removed), (false, 0, 0));
    assert_eq!(fixture.programs.calls(), [""; 0], "no difference");

    let changes = remove_an_endpoint(&mut cluster, &mut tracker);
    let report = fixture.dataplane.sync(tracker.table(IpFamily::V4), &changes).unwrap();
    // The Service's chain loses the jump to the endpoint's chain, which is deleted.
    assert_eq!((report.full, report.written, report.removed), (false, 1, 1));
    assert_eq!(fixture.programs.calls(), ["/sbin/iptables-restore -w 5 --noflush --counters"]);
    assert_eq!(report.total, expected(tracker.table(IpFamily::V4)).1);
}

#[test]
fn programs_of_each_version_wait_for_the_lock_in_their_way() {
    let table = Cluster::uniform(1, 1).table(IpFamily::V4);
    for (release, arguments) in [(LEGACY, "-w 5"), ("iptables v1.6.2", "-w 5 -W 100000")] {
        let mut fixture = Fixture::new(release);
        fixture.dataplane.resync(&table).unwrap();
        let calls = fixture.programs.calls();
        assert_eq!(calls.last().unwrap(), &format!("/sbin/iptables-restore {arguments} --noflush --counters"));
    }
}

#[test]
fn the_error_for_a_rejected_line_has_its_text_and_service_port() {
    // Enough endpoints for their rules to have no comments.
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
    for (number, stderr, owner, cause_part) in cases {
        let at = |text: &str| text.replace("$LINE", &number.to_string());
        let mut fixture = Fixture::new(LEGACY);
        fixture.programs.state().restore_fails = Some((1, at(stderr)));
        let error = fixture.dataplane.resync(&table).unwrap_err();
        let cause = error.source().unwrap().to_string();
        assert_eq!(error.to_string(), format!("cannot write IPv4 rules{owner}"), "{cause}");
        assert!(
            cause.starts_with(&format!("/sbin/iptables-restore rejected line {number} of its input, \"")),
            "{cause}"
        );
        assert!(cause.contains(&at(cause_part)), "{cause}");
    }
}

#[test]
fn the_error_for_a_failure_without_a_line_has_the_exit_status() {
    let mut fixture = Fixture::new(LEGACY);
    fixture.programs.state().restore_fails = Some((4, "Another app is currently holding the xtables lock.".to_owned()));
    let error = fixture.dataplane.resync(&Cluster::uniform(1, 1).table(IpFamily::V4)).unwrap_err();
    assert_eq!(
        with_cause(&error),
        "cannot write IPv4 rules: /sbin/iptables-restore failed with exit status: 4: Another app is currently holding \
         the xtables lock."
    );
}

#[test]
fn the_sync_after_a_failure_is_a_full_resync() {
    let mut cluster = Cluster::uniform(3, 2);
    let mut tracker = cluster.tracker();
    let mut fixture = Fixture::synced(NFT, tracker.table(IpFamily::V4));
    let changes = remove_an_endpoint(&mut cluster, &mut tracker);
    fixture.programs.state().restore_fails = Some((1, "iptables-restore: line 2 failed".to_owned()));
    fixture.dataplane.sync(tracker.table(IpFamily::V4), &changes).unwrap_err();
    assert_eq!(fixture.programs.calls().len(), 1);
    assert_eq!(fixture.modified(), (true, vec![]), "the applied rules are unknown");

    let report = fixture.dataplane.sync(tracker.table(IpFamily::V4), &Changes::default()).unwrap();
    assert!(report.full);
    assert_eq!(fixture.programs.calls().len(), 4);
    let kernel = chains_of(&fixture.programs.state().kernel.rules);
    assert_eq!(kernel, expected(tracker.table(IpFamily::V4)).0);
}

#[test]
fn rules_that_cannot_be_read_completely_are_not_overwritten() {
    let table = Cluster::uniform(3, 2).table(IpFamily::V4);
    let mut fixture = Fixture::synced(NFT, &table);
    let incompatible = "iptables-save: table `nat' is incompatible, use 'nft' tool.";
    fixture.programs.state().save_fails = Some((TableName::Nat, 1, incompatible.to_owned()));
    let error = fixture.dataplane.resync(&table).unwrap_err();
    assert_eq!(
        with_cause(&error),
        format!("cannot read IPv4 rules: /sbin/iptables-save -t nat failed with exit status: 1: {incompatible}")
    );
    fixture.programs.state().save_fails = None;

    fixture.programs.state().save_bytes = 100;
    let error = fixture.dataplane.resync(&table).unwrap_err();
    assert_eq!(with_cause(&error), "cannot read IPv4 rules: truncated output of /sbin/iptables-save -t filter");
    assert!(!fixture.programs.calls().iter().any(|call| call.contains("-restore")));
}

#[test]
fn with_an_unchanged_generation_no_program_is_run() {
    let mut fixture = Fixture::synced(NFT, &Cluster::uniform(3, 2).table(IpFamily::V4));
    for _ in 0..5 {
        assert_eq!(fixture.modified(), (false, vec![]));
        fixture.clock.advance(3600);
    }
}

#[test]
fn a_comparison_without_drift_is_not_repeated_for_the_same_generation() {
    let mut fixture = Fixture::synced(NFT, &Cluster::uniform(3, 2).table(IpFamily::V4));
    fixture.generation.commit(1);
    let saves = ["filter", "mangle", "nat"].map(|table| format!("/sbin/iptables-save -t {table}"));
    assert_eq!(fixture.modified(), (false, saves.to_vec()));
    fixture.clock.advance(60);
    assert_eq!(fixture.modified(), (false, vec![]));
}

#[test]
fn between_comparisons_only_canary_chains_are_checked() {
    let mut fixture = Fixture::synced(NFT, &Cluster::uniform(3, 2).table(IpFamily::V4));
    fixture.generation.commit(1);
    assert_eq!(fixture.modified().1.len(), 3);
    fixture.generation.commit(1);
    let lists = ["filter", "mangle", "nat"].map(|table| format!("/sbin/iptables -t {table} -S KUBE-PROXY-CANARY"));
    assert_eq!(fixture.modified(), (false, lists.to_vec()));
    fixture.clock.advance(1);
    assert_eq!(fixture.modified(), (false, vec![]), "both are throttled");
    fixture.clock.advance(5);
    // Both are due, and the comparison takes precedence.
    assert_eq!(fixture.modified().1.len(), 3);

    fixture.generation.commit(1);
    fixture.programs.state().kernel.rules.table_mut(TableName::Nat).chains.shift_remove(&chains::CANARY);
    fixture.programs.state().list_status = Some(4);
    assert!(!fixture.modified().0, "another program holds the lock, so the check is inconclusive");
    fixture.clock.advance(4);
    fixture.programs.state().list_status = None;
    fixture.clock.advance(5);
    assert!(fixture.modified().0);
}

#[test]
fn rules_that_have_become_few_are_compared_without_the_pause_of_many() {
    let mut fixture = Fixture::synced(LEGACY, &Cluster::uniform(100, 2).table(IpFamily::V4));
    let compares = |fixture: &mut Fixture| fixture.modified().1.iter().any(|call| call.contains("-save"));
    assert!(compares(&mut fixture));
    assert!(!compares(&mut fixture), "it has just been done");
    fixture.dataplane.resync(&Cluster::uniform(1, 1).table(IpFamily::V4)).unwrap();
    fixture.programs.calls();
    assert!(compares(&mut fixture));
    assert!(!compares(&mut fixture));
}

#[test]
fn the_legacy_backend_is_compared_periodically() {
    let mut fixture = Fixture::synced(LEGACY, &Cluster::uniform(3, 2).table(IpFamily::V4));
    let mut calls = Vec::new();
    for _ in 0..10 {
        let (modified, made) = fixture.modified();
        assert!(!modified);
        calls.push(made.len());
        fixture.clock.advance(1);
    }
    // A comparison of three tables, then a check of the canary chain in the small one.
    assert_eq!(calls, [3, 1, 0, 0, 0, 3, 1, 0, 0, 0]);
    fixture.clock.advance(60);
    let nat = fixture.programs.state().kernel.rules.table_mut(TableName::Nat).clone();
    fixture
        .programs
        .state()
        .kernel
        .rules
        .table_mut(TableName::Nat)
        .append(chains::MARK_MASQ, Rule::new().then(Target::Accept));
    assert!(fixture.modified().0);
    *fixture.programs.state().kernel.rules.table_mut(TableName::Nat) = nat;
}

#[test]
fn a_cleanup_continues_after_a_failure_and_reports_all_errors() {
    let fixture = Fixture::synced(NFT, &Cluster::uniform(3, 2).table(IpFamily::V4));
    {
        let mut state = fixture.programs.state();
        state.save_fails = Some((TableName::Nat, 1, "no nat today".to_owned()));
        state.restore_fails = Some((1, "iptables-restore: line 999 failed".to_owned()));
    }
    let exec = Arc::new(fixture.programs.clone());
    let errors =
        clean_up(&RuleAccess::programs(fixture.programs.with_release(NFT), exec), CleanupScope::Everything).errors;
    assert!(
        matches!(
            errors.as_slice(),
            [
                CleanupError::Write { table: TableName::Filter, source: RestoreError::Failed { .. } },
                CleanupError::Read { table: TableName::Nat, source: SaveError::Failed { .. } },
            ]
        ),
        "{errors:?}"
    );
    let has = |table| fixture.programs.state().kernel.rules.chain(table, chains::CANARY).is_some();
    assert_eq!(TableName::PROXY.map(has), [true, false, true], "only the table between them is cleaned up");
}

/// Removes an endpoint of one of the Services.
fn remove_an_endpoint(cluster: &mut Cluster, tracker: &mut Tracker) -> Changes {
    let mut slice = cluster.slices[1].clone();
    slice.endpoints.pop();
    let edit = Edit::SetSlice(slice);
    cluster.apply(&edit);
    edit.apply_to(tracker);
    tracker.update(IpFamily::V4)
}

/// Returns the expected chains and the expected number of rules in the report.
fn expected(
    table: &ServiceTable,
) -> (std::collections::BTreeMap<(TableName, ferroute_iptables::ChainName), Vec<Rule>>, usize) {
    let host = HostState { random_fully: true, ..HostState::default() };
    // Sysctls cannot be set here.
    let settings = ferroute_core::ProxySettings { localhost_node_ports: false, ..Default::default() };
    let chains = chains_of(&render(table, &IptablesContext::new(&settings, table, &host)));
    let ours = chains.iter().filter(|((_, chain), _)| !chain.is_builtin());
    let rules = ours.map(|(_, rules)| rules.len()).sum();
    (chains, rules)
}

/// Returns the input of `iptables-restore` in the first resync.
fn first_input(table: &ServiceTable) -> String {
    let host = HostState { random_fully: true, ..HostState::default() };
    let settings = ferroute_core::ProxySettings { localhost_node_ports: false, ..Default::default() };
    let context = IptablesContext::new(&settings, table, &host);
    let mut text = Vec::new();
    let nothing = common::fake_kernel::kernel_chains(IpFamily::V4, "");
    ferroute_iptables::Difference::from_kernel(table, context, nothing).write(table, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Formats an error with its cause.
fn with_cause(error: &DataplaneError) -> String {
    format!("{error}: {}", error.source().unwrap())
}

/// A host without addresses.
/// A generation id that the test advances.
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
