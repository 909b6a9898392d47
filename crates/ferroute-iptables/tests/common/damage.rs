//! Changes of the proxy's rules by another program, one at a time, as `iptables-save` prints them.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use ferroute_testing::NetNs;
use proptest::{prelude::*, sample::Index};

/// A change of a line that declares or fills one of the proxy's chains, as `iptables-save` prints it. `iptables-restore` may not
/// accept it.
#[derive(Clone, Debug)]
pub(crate) enum Damage {
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

pub(crate) fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => any::<Index>().prop_map(Damage::Delete),
        2 => any::<Index>().prop_map(Damage::Repeat),
        2 => any::<(Index, Index)>().prop_map(|(one, other)| Damage::Exchange(one, other)),
        6 => any::<(Index, [Index; 3])>().prop_map(|(line, words)| Damage::Copy(line, words)),
        2 => (any::<Index>(), prop::sample::select(&RULES)).prop_map(|(line, rule)| Damage::Add(line, rule)),
        1 => Just(Damage::Flush),
    ]
}

/// Returns the lines of a program such as `iptables-nft-save`.
pub(crate) fn saved(netns: &NetNs, program: &str) -> Vec<String> {
    let text = netns.try_command(&format!("{program}-save"), &[]).stdout;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#"));
    // Names of other programs' objects have bytes that are not UTF-8.
    lines.map(|line| line.iter().map(|byte| char::from(*byte)).collect()).collect()
}

/// Reports whether a line is a rule of a chain that belongs to the proxy alone. Another chain also has rules of the
/// kubelet.
pub(crate) fn is_rule_of_own_chain(line: &str) -> bool {
    line.starts_with("-A KUBE-") && !line.starts_with("-A KUBE-FIREWALL ")
}

/// Reports whether a line declares one of the proxy's chains, is in it or jumps to it.
pub(crate) fn is_own(line: &str) -> bool {
    line.contains("KUBE-")
}

impl Damage {
    /// Changes the rules, unless `iptables-restore` rejects the change. Reports whether they were changed.
    ///
    /// The program is one such as `iptables-nft`.
    pub(crate) fn apply(&self, netns: &NetNs, program: &str) -> bool {
        let mut lines = saved(netns, program);
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
        restore(netns, program, &lines)
    }
}

/// Replaces all rules. Reports whether they were accepted.
fn restore(netns: &NetNs, program: &str, lines: &[String]) -> bool {
    let mut command = Command::new(format!("{program}-restore"));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = netns.run(|| command.spawn()).unwrap();
    let bytes: Vec<u8> = lines.join("\n").chars().map(|char| u8::try_from(char).unwrap()).collect();
    // It may exit at the first error.
    _ = child.stdin.take().unwrap().write_all(&bytes);
    child.wait().unwrap().success()
}
