//! From any state of the kernel, one start leads to what a start on an empty kernel leads to, and changes nothing of others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Stdio},
};

use common::{
    fixtures::settings,
    netns_host::{NetnsHost, Way, with_all_ways},
};
use ferroute_core::{Dataplane, IpFamily, ServiceTable, testing::arbitrary};
use proptest::{prelude::*, sample::Index, test_runner::TestRunner};

/// A change of a line that declares or fills one of the proxy's chains, as `iptables-save` prints it. `iptables-restore` may not
/// accept it.
#[derive(Clone, Debug)]
enum Damage {
    /// The line is missing.
    Delete(Index),
    /// The line is there twice.
    Repeat(Index),
    /// Two lines are exchanged.
    Exchange(Index, Index),
    /// A word is that of another line.
    Copy(Index, [Index; 3]),
    /// Another rule precedes it.
    Add(Index, &'static str),
    /// All chains are empty.
    Flush,
}

const RULES: [&str; 4] = ["-j DROP", "-j ACCEPT", "-p tcp -m tcp --dport 80 -j RETURN", "-j KUBE-MARK-MASQ"];

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => any::<Index>().prop_map(Damage::Delete),
        2 => any::<Index>().prop_map(Damage::Repeat),
        2 => any::<(Index, Index)>().prop_map(|(one, other)| Damage::Exchange(one, other)),
        6 => any::<(Index, [Index; 3])>().prop_map(|(line, words)| Damage::Copy(line, words)),
        2 => (any::<Index>(), prop::sample::select(&RULES)).prop_map(|(line, rule)| Damage::Add(line, rule)),
        1 => Just(Damage::Flush),
    ]
}

fn saved(node: &NetnsHost, family: IpFamily) -> Vec<String> {
    let text = node.netns.try_command(&node.program(family, "-save"), &[]).stdout;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#"));
    // Names of others have bytes that are not UTF-8.
    lines.map(|line| line.iter().map(|byte| char::from(*byte)).collect()).collect()
}

/// Reports whether a line is a rule of a chain that is the proxy's alone. The kubelet has rules in another one.
fn is_rule_of_own_chain(line: &str) -> bool {
    line.starts_with("-A KUBE-") && !line.starts_with("-A KUBE-FIREWALL ")
}

/// Reports whether a line declares an own chain, is in it or jumps to it.
fn is_own(line: &str) -> bool {
    line.contains("KUBE-")
}

impl Damage {
    /// Changes the rules, or leaves them as they are if `iptables-restore` does not accept the change. Reports whether it did.
    fn apply(&self, node: &NetnsHost, family: IpFamily) -> bool {
        let mut lines = saved(node, family);
        let own: Vec<usize> = (0..lines.len()).filter(|line| is_rule_of_own_chain(&lines[*line])).collect();
        let deletable: Vec<usize> =
            (0..lines.len()).filter(|line| lines[*line].starts_with("-A") && is_own(&lines[*line])).collect();
        if own.is_empty() {
            return false;
        }
        let at = |index: &Index| own[index.index(own.len())];
        match self {
            Self::Delete(line) => drop(lines.remove(deletable[line.index(deletable.len())])),
            Self::Repeat(line) => lines.insert(at(line), lines[at(line)].clone()),
            Self::Exchange(one, other) => lines.swap(at(one), at(other)),
            Self::Copy(line, [to, from, from_line]) => {
                // The chain stays.
                let words = |line: &str| line.split(' ').skip(2).map(str::to_owned).collect::<Vec<_>>();
                let (old, others) = (words(&lines[at(line)]), words(&lines[at(from_line)]));
                let (old, other) = (&old[to.index(old.len())], &others[from.index(others.len())]);
                let line = &mut lines[at(line)];
                let (chain, rule) = line.split_at(line.match_indices(' ').nth(1).unwrap().0);
                *line = format!("{chain}{}", rule.replacen(old.as_str(), other, 1));
            }
            Self::Add(line, rule) => {
                let chain = lines[at(line)].split(' ').nth(1).unwrap().to_owned();
                lines.insert(at(line), format!("-A {chain} {rule}"));
            }
            Self::Flush => lines.retain(|line| !is_rule_of_own_chain(line)),
        }
        restore(node, family, &lines)
    }
}

/// Replaces all rules. Reports whether they were accepted.
fn restore(node: &NetnsHost, family: IpFamily, lines: &[String]) -> bool {
    let mut command = Command::new(node.program(family, "-restore"));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = node.netns.run(|| command.spawn()).unwrap();
    let bytes: Vec<u8> = lines.join("\n").chars().map(|char| u8::try_from(char).unwrap()).collect();
    // It may exit at the first error.
    _ = child.stdin.take().unwrap().write_all(&bytes);
    child.wait().unwrap().success()
}

/// Adds objects of others, with names of any bytes and names like the proxy's.
fn add_others(node: &NetnsHost, family: IpFamily) {
    let script = "set -e; name=$(printf 'B\\374ro\\377'); for table in filter nat mangle; do \
                  $0 -w -t $table -N $name; $0 -w -t $table -A $name -m comment --comment $name; \
                  $0 -w -t $table -A OUTPUT -m mark --mark 0x77 -j $name; done; \
                  $0 -w -t nat -N KUBELET-CHAIN; $0 -w -t nat -A KUBELET-CHAIN -j RETURN";
    node.netns.command("sh", &["-c", script, &node.program(family, "")]);
}

fn others(node: &NetnsHost, family: IpFamily) -> Vec<String> {
    // Their tables may have been created for the proxy's rules.
    let is_theirs = |line: &String| (line.starts_with("-A") || line.starts_with(':')) && !is_own(line);
    let is_builtin = |line: &String| line.starts_with(':') && !line.contains(" - ");
    saved(node, family).into_iter().filter(|line| is_theirs(line) && !is_builtin(line)).collect()
}

/// Starts a proxy once, and returns its rules: those of each chain in order, and jumps to chains without their number and place.
fn start(node: &NetnsHost, table: &ServiceTable) -> (BTreeSet<String>, Vec<String>) {
    let mut dataplane = node.dataplane(table.family, &settings());
    node.netns.run(|| dataplane.resync(table)).unwrap();
    let (mut jumps, mut chains, mut of_table) = (BTreeSet::new(), Vec::new(), String::new());
    for line in saved(node, table.family) {
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
    // So does the order of rules for different frontends; those of node ports come last.
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
            let accepted: Vec<&Damage> = damages.iter().filter(|damage| damage.apply(&node, family)).collect();
            let wanted = start(&empty, &table);
            prop_assert_eq!(start(&node, &table), wanted, "after {:?}", accepted);
            prop_assert_eq!(others(&node, family), of_others, "others, after {:?}", accepted);
            let mut dataplane = node.dataplane(family, &settings());
            let again = node.netns.run(|| dataplane.resync(&table)).unwrap();
            prop_assert_eq!((again.written, again.removed), (0, 0), "after {:?}", accepted);
            Ok(())
        })
        .unwrap();
}

with_all_ways!(one_start_leads_from_any_state_to_that_of_a_start_on_an_empty_kernel);
