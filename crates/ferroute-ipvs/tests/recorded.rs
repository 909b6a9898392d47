//! Virtual servers, sets, addresses and rules recorded from kube-proxy's ipvs mode equal the planned ones.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "the rules of iptables mode are not compared here")]
#[path = "../../ferroute-iptables/tests/common/records.rs"]
mod records;

use std::{collections::BTreeSet, fmt::Write, fs};

use ferroute_core::{IpFamily, ProxySettings};
use ferroute_iptables::{ChainName, RuleSet, TableName, text::Line};
use ferroute_ipvs::plan::{IpvsContext, IpvsPlan, IpvsSettings};
use records::{Record, numbered, records};

/// Returns the lines of a recorded file.
fn lines(record: &Record, stem: &str) -> BTreeSet<String> {
    let path = record.case.join("expected/ipvs").join(numbered(stem, record.step, "txt"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(str::to_owned).collect()
}

fn plan(record: &Record) -> IpvsPlan {
    let proxy = ProxySettings { localhost_node_ports: false, ..record.settings() };
    let settings = IpvsSettings { proxy, ..IpvsSettings::default() };
    let table = record.table();
    let context = IpvsContext::new(&settings, &table, &record.host());
    IpvsPlan::new(&table, context)
}

/// Returns the lines of a section of the plan's text.
fn section(text: &str, tool: &str) -> BTreeSet<String> {
    let lines = text.lines().skip_while(|line| *line != format!("# {tool}")).skip(1);
    lines.take_while(|line| !line.starts_with("# ")).map(str::to_owned).collect()
}

/// A chain that kube-proxy does not have.
const ACCEPT: &str = "KUBE-IPVS-ACCEPT";

/// Prefix in the rules of sets that kube-proxy does not have; it does not have these rules either.
const OWN_SETS: &str = "--match-set FERROUTE-";

/// Returns the rules of each chain. Recordings have the rules of `KUBE-SERVICES` sorted.
fn comparable(rules: &RuleSet) -> BTreeSet<(TableName, ChainName, Vec<String>)> {
    let chains = rules.tables.iter().flat_map(|(table, contents)| {
        let chains = contents.chains.iter().filter(|(name, _)| name.as_str() != ACCEPT);
        chains.map(move |(name, chain)| {
            let mut lines: Vec<String> = chain.rules.iter().map(|rule| Line(*name, rule).to_string()).collect();
            lines.retain(|line| !line.contains(ACCEPT) && !line.contains(OWN_SETS));
            if name.as_str() == "KUBE-SERVICES" {
                lines.sort();
            }
            (*table, *name, lines)
        })
    });
    chains.collect()
}

fn compare<T: Ord + std::fmt::Debug>(name: &str, planned: &BTreeSet<T>, recorded: &BTreeSet<T>, failures: &mut String) {
    for only in planned.difference(recorded) {
        writeln!(failures, "{name}: only planned: {only:?}").unwrap();
    }
    for only in recorded.difference(planned) {
        writeln!(failures, "{name}: only recorded: {only:?}").unwrap();
    }
}

#[test]
fn every_recorded_cluster_is_planned_as_by_kube_proxy() {
    let (mut failures, mut compared) = (String::new(), 0);
    for record in records() {
        if !record.case.join("expected/ipvs").exists() {
            continue;
        }
        compared += 1;
        let (name, family) = (record.name(), record.family);
        let state = plan(&record);
        let text = state.to_string();
        let is_ours = |line: &String| {
            let is_ipv6 = line.contains('[') || line.contains("KUBE-6-") || line.contains("::");
            is_ipv6 == (family == IpFamily::V6)
        };
        let is_kube_proxys = |line: &String| line.starts_with("add KUBE-");
        let recorded = |stem| lines(&record, stem).into_iter().filter(is_ours).collect();
        compare(&name, &section(&text, "ipvsadm --restore"), &recorded("ipvsadm"), &mut failures);
        let entries = section(&text, "ipset restore").into_iter().filter(is_kube_proxys).collect();
        compare(&name, &entries, &recorded("ipset"), &mut failures);
        let addresses = state.addresses().map(|address| ipnet::IpNet::from(address).to_string()).collect();
        compare(&name, &addresses, &recorded("addresses"), &mut failures);
        let program = if family == IpFamily::V4 { "iptables-save" } else { "ip6tables-save" };
        // The rules of a family without Services were not always complete when they were recorded.
        let path = record.case.join("expected/ipvs").join(numbered(program, record.step, "txt"));
        let Ok(saved) = fs::read_to_string(path) else { continue };
        let saved = RuleSet::parse_save(family, &saved).unwrap();
        compare(&name, &comparable(&state.chains().to_rule_set(family)), &comparable(&saved), &mut failures);
    }
    assert!(compared >= 70, "only {compared} recordings");
    assert!(failures.is_empty(), "{failures}");
}
