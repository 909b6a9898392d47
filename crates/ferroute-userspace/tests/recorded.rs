//! The listeners and rules of every recorded case. There is no recording of kube-proxy's userspace mode, which is older, so
//! these are snapshots; `conformance/check.py` checks how they treat packets.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "the recorded rules are those of iptables mode")]
#[path = "../../ferroute-iptables/tests/common/records.rs"]
mod records;

use std::{collections::BTreeMap, fmt::Write};

use ferroute_core::IpFamily;
use ferroute_userspace::{
    PlannedRelay, PortRange, Relay, listener_line,
    plan::{RelayContext, RelayPlan},
};
use records::{Record, records};

/// Returns the listeners and rules, without the jumps that are the same in every cluster.
fn plan(record: &Record) -> String {
    let table = record.table();
    let mut state = RelayPlan::new(RelayContext::new(&record.settings(), &table, &record.host()));
    let changes = state.listener_changes(&table, None);
    let ports = PlannedRelay::new(PortRange::Any).set(&changes.set).unwrap();
    state.record(&table, &changes, &ports.into_iter().map(Result::ok).collect::<Vec<_>>());
    let mut text = String::new();
    for (key, spec, port) in state.listeners() {
        text.push_str(&listener_line(key, spec, port.unwrap()));
    }
    let rules = state.chains(&table).to_rule_set(record.family).to_string();
    // Jumps to node ports depend on the addresses that serve them.
    let is_shown = |line: &&str| {
        line.starts_with("-A KUBE-")
            || line.starts_with('*')
            || line.contains("-j KUBE-NODEPORT-HOST")
            || line.contains("-j KUBE-NODEPORT-CONTAINER")
    };
    let lines = rules.lines().filter(is_shown);
    lines.for_each(|line| writeln!(text, "{line}").unwrap());
    text
}

#[test]
fn listeners_and_rules_of_recorded_clusters() {
    let mut cases: BTreeMap<String, String> = BTreeMap::new();
    for record in records() {
        let case = record.case.file_name().unwrap().to_str().unwrap().to_owned();
        let family = if record.family == IpFamily::V4 { "IPv4" } else { "IPv6" };
        let plan = plan(&record);
        write!(cases.entry(case).or_default(), "# step {}, {family}\n{plan}", record.step).unwrap();
    }
    for (case, text) in cases {
        insta::assert_snapshot!(case, text);
    }
}
