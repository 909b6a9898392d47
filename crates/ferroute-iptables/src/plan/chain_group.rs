//! Chains of modes with few rules, whose number does not depend on the number of Services.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use ferroute_core::{Frontend, IpFamily};

use super::{Jump, udp_frontend};
use crate::{ChainHead, ChainName, Rule, RuleSet, SaveItem, TableName, sink::RuleSink, text::RestoreWriter};

/// A group of chains and the jumps into them from builtin chains.
///
/// It is written as a whole or chain by chain with [`ChainGroup::write_difference`]; rules of other programs in the same
/// tables are not affected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainGroup {
    /// The rules of each chain.
    pub chains: BTreeMap<(TableName, ChainName), Vec<Rule>>,
    /// The jumps. A missing jump is inserted at the start of its builtin chain, in this order, so that later jumps precede
    /// earlier ones.
    pub jumps: Vec<Jump>,
}

/// Rules written by [`ChainGroup::write_difference`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSummary {
    /// Number of rules written in table filter and in all other tables.
    pub rules: GroupCounts,
    /// Number of transactions in the kernel.
    pub transactions: u32,
}

/// Numbers of rules by table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Table filter.
    pub filter: usize,
    /// Table nat.
    pub nat: usize,
}

impl GroupCounts {
    fn add(&mut self, table: TableName, rules: usize) {
        match table {
            TableName::Filter => self.filter += rules,
            _ => self.nat += rules,
        }
    }

    /// The sum.
    pub fn total(self) -> usize {
        self.filter + self.nat
    }
}

impl ChainGroup {
    /// Adds a chain.
    pub fn add(&mut self, table: TableName, chain: ChainName, rules: Vec<Rule>) {
        self.chains.insert((table, chain), rules);
    }

    /// Adds a jump, see [`ChainGroup::jumps`].
    pub fn add_jump(&mut self, table: TableName, from: ChainName, rule: Rule) {
        self.jumps.push(Jump { table, from, rule });
    }

    /// Returns the number of rules, jumps excluded.
    pub fn counts(&self) -> GroupCounts {
        let mut counts = GroupCounts::default();
        self.chains.iter().for_each(|((table, _), rules)| counts.add(*table, rules.len()));
        counts
    }

    /// Returns the UDP frontends in rules of table nat.
    pub fn udp_frontends(&self) -> impl Iterator<Item = Frontend> + '_ {
        let nat = self.chains.iter().filter(|((table, _), _)| *table == TableName::Nat);
        nat.flat_map(|(_, rules)| rules.iter().filter_map(udp_frontend))
    }

    /// Returns the rules as the kernel would have them without rules of other programs.
    pub fn to_rule_set(&self, family: IpFamily) -> RuleSet {
        let mut set = RuleSet::new(family);
        for Jump { table, from, rule } in &self.jumps {
            set.table_mut(*table).chains.entry(*from).or_default().rules.insert(0, rule.clone());
        }
        for ((table, name), rules) in &self.chains {
            set.table_mut(*table).declare(*name, ChainHead::default()).rules.clone_from(rules);
        }
        set.tables.sort_unstable_by_key(|name, _| *name);
        for table in set.tables.values_mut() {
            table.chains.sort_unstable_by_key(|name, _| (!name.is_builtin(), *name));
        }
        set
    }

    /// Reports whether the kernel has all chains and jumps of this group, with exactly these rules, and no outdated jumps.
    pub fn is_in(&self, kernel: &Self) -> bool {
        self.changed_chains(kernel).next().is_none()
            && self.missing_jumps(kernel).next().is_none()
            && self.outdated_jumps(kernel).next().is_none()
    }

    /// Writes the input of `iptables-restore --noflush` that changes `kernel` into this group: chains that differ, and
    /// missing and outdated jumps. Chains that only `kernel` has are kept.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write_difference(&self, kernel: &Self, out: impl Write) -> io::Result<GroupSummary> {
        let mut writer = RestoreWriter::new(out);
        let summary = self.write_difference_to(kernel, &mut writer)?;
        writer.finish()?;
        Ok(summary)
    }

    /// Like [`ChainGroup::write_difference`], to any receiver.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(crate) fn write_difference_to(&self, kernel: &Self, out: &mut dyn RuleSink) -> io::Result<GroupSummary> {
        let mut summary = GroupSummary::default();
        for table in self.tables() {
            let chains: Vec<_> = self.changed_chains(kernel).filter(|((of, _), _)| *of == table).collect();
            let jumps: Vec<_> = self.missing_jumps(kernel).filter(|jump| jump.table == table).collect();
            let mut outdated: BTreeMap<ChainName, Vec<Rule>> = BTreeMap::new();
            for jump in self.outdated_jumps(kernel).filter(|jump| jump.table == table) {
                outdated.entry(jump.from).or_default().push(jump.rule.clone());
            }
            if chains.is_empty() && jumps.is_empty() && outdated.is_empty() {
                continue;
            }
            out.begin(table)?;
            chains.iter().try_for_each(|((_, chain), _)| out.declare(*chain))?;
            for ((_, chain), rules) in &chains {
                rules.iter().try_for_each(|rule| out.append(*chain, rule))?;
                summary.rules.add(table, rules.len());
            }
            jumps.iter().try_for_each(|jump| out.insert(jump.from, &jump.rule))?;
            outdated.iter().try_for_each(|(from, rules)| out.remove(*from, rules))?;
            out.end()?;
        }
        out.commit()?;
        summary.transactions = out.transactions();
        Ok(summary)
    }

    /// Returns the tables with chains or jumps, sorted.
    pub fn tables(&self) -> BTreeSet<TableName> {
        let jumps = self.jumps.iter().map(|jump| jump.table);
        self.chains.keys().map(|(table, _)| *table).chain(jumps).collect()
    }

    fn changed_chains<'a>(
        &'a self,
        kernel: &'a Self,
    ) -> impl Iterator<Item = (&'a (TableName, ChainName), &'a Vec<Rule>)> {
        self.chains.iter().filter(|(key, rules)| kernel.chains.get(*key) != Some(*rules))
    }

    fn missing_jumps<'a>(&'a self, kernel: &'a Self) -> impl Iterator<Item = &'a Jump> {
        self.jumps.iter().filter(|jump| !kernel.jumps.contains(jump))
    }

    /// Jumps of a proxy with other settings into chains of this group, such as those from other addresses of node ports.
    fn outdated_jumps<'a>(&'a self, kernel: &'a Self) -> impl Iterator<Item = &'a Jump> {
        kernel.jumps.iter().filter(|jump| self.is_own(jump) && !self.jumps.contains(jump))
    }

    /// Reports whether a jump leads into this group and has a comment of a proxy. Other programs may jump there, too.
    fn is_own(&self, jump: &Jump) -> bool {
        let is_into_group = jump.rule.next_chain().is_some_and(|chain| self.chains.contains_key(&(jump.table, chain)));
        is_into_group && jump.rule.first_comment().is_some_and(|comment| comment.starts_with(JUMP_COMMENT))
    }
}

/// The first word of the comments of all jumps.
const JUMP_COMMENT: &str = "kubernetes ";

/// Collects the kernel's part of a [`ChainGroup`], with outdated jumps.
#[derive(Debug)]
pub(crate) struct ChainGroupCollector<'a> {
    wanted: &'a ChainGroup,
    kernel: ChainGroup,
}

impl<'a> ChainGroupCollector<'a> {
    /// Creates a collector for the chains and jumps of `wanted`.
    pub(crate) fn new(wanted: &'a ChainGroup) -> Self {
        Self { wanted, kernel: ChainGroup::default() }
    }

    /// Adds a chain or rule of a table.
    pub(crate) fn add(&mut self, table: TableName, item: SaveItem) {
        match item {
            SaveItem::Chain(chain, _) if self.wanted.chains.contains_key(&(table, chain)) => {
                self.kernel.chains.entry((table, chain)).or_default();
            }
            SaveItem::Rule(chain, rule) if self.wanted.chains.contains_key(&(table, chain)) => {
                self.kernel.chains.entry((table, chain)).or_default().push(rule);
            }
            SaveItem::Rule(from, rule) if from.is_builtin() => {
                let jump = Jump { table, from, rule };
                if self.wanted.jumps.contains(&jump) || self.wanted.is_own(&jump) {
                    self.kernel.jumps.push(jump);
                }
            }
            _ => {}
        }
    }

    /// Returns the collected part.
    pub(crate) fn finish(self) -> ChainGroup {
        self.kernel
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SaveParser, SetSide, Target, plan::chains};

    fn group() -> ChainGroup {
        let mut group = ChainGroup::default();
        let masquerade = Rule::new().in_set("KUBE-CLUSTER-IP", [SetSide::Destination; 2]);
        group.add(TableName::Nat, chains::SERVICES, vec![masquerade.then(Target::Jump(chains::MARK_MASQ))]);
        group.add(TableName::Nat, chains::MARK_MASQ, vec![Rule::new().then(Target::or_mark(0x4000))]);
        group.add(TableName::Filter, chains::FORWARD, Vec::new());
        for from in [ChainName::OUTPUT, ChainName::PREROUTING] {
            group.add_jump(TableName::Nat, from, Rule::new().then(Target::Jump(chains::SERVICES)));
        }
        group
    }

    fn read(wanted: &ChainGroup, save: &str) -> ChainGroup {
        let mut parser = SaveParser::new(IpFamily::V4);
        let mut collector = ChainGroupCollector::new(wanted);
        for line in save.lines() {
            let item = parser.line(line).unwrap();
            if let Some((table, item)) = parser.table().zip(item) {
                collector.add(table, item);
            }
        }
        collector.finish()
    }

    fn difference(kernel: &ChainGroup) -> (String, GroupSummary) {
        let mut text = Vec::new();
        let summary = group().write_difference(kernel, &mut text).unwrap();
        (String::from_utf8(text).unwrap(), summary)
    }

    #[test]
    fn a_group_is_written_completely_into_a_kernel_without_it() {
        let (text, summary) = difference(&ChainGroup::default());
        insta::assert_snapshot!(text, @r"
        *filter
        :KUBE-FORWARD - [0:0]
        COMMIT
        *nat
        :KUBE-MARK-MASQ - [0:0]
        :KUBE-SERVICES - [0:0]
        -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
        -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
        -I OUTPUT -j KUBE-SERVICES
        -I PREROUTING -j KUBE-SERVICES
        COMMIT
        ");
        assert_eq!((summary.rules.filter, summary.rules.nat, summary.transactions), (0, 2, 2));
    }

    #[test]
    fn jumps_of_other_settings_are_deleted_and_those_of_other_programs_stay() {
        let save = group().to_rule_set(IpFamily::V4).to_string();
        let jump = "-A OUTPUT -d 192.0.2.1/32 -m comment --comment \"kubernetes service nodeports\" -j KUBE-SERVICES\n";
        let others = "-A OUTPUT -d 192.0.2.1/32 -m comment --comment theirs -j KUBE-SERVICES\n\
                      -A OUTPUT -m comment --comment \"kubernetes firewall\" -j KUBE-FIREWALL\n\
                      -A OUTPUT -d 192.0.2.1/32 -j KUBE-MARK-MASQ\n";
        let nat = save.rfind("COMMIT").unwrap();
        let with = |rules: &str| read(&group(), &format!("{}{rules}{}", &save[..nat], &save[nat..]));
        assert!(group().is_in(&with(others)));
        let kernel = with(&format!("{jump}{others}"));
        assert!(!group().is_in(&kernel));
        assert_eq!(difference(&kernel).0, format!("*nat\n{}COMMIT\n", jump.replace("-A", "-D")));
    }

    #[test]
    fn the_saved_rules_of_a_group_equal_it_beside_rules_of_other_programs() {
        let other =
            group().to_rule_set(IpFamily::V4).to_string().replace("*nat\n", "*nat\n:OTHER - [0:0]\n-A OTHER -j DROP\n");
        let kernel = read(&group(), &other);
        assert!(group().is_in(&kernel));
        assert_eq!(difference(&kernel), (String::new(), GroupSummary::default()));
    }

    #[test]
    fn only_changed_chains_and_missing_jumps_are_written() {
        let saved = "*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n*nat\n:OUTPUT ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n\
                     :KUBE-MARK-MASQ - [0:0]\n-A OUTPUT -j KUBE-SERVICES\n-A KUBE-SERVICES -j KUBE-MARK-MASQ\n\
                     -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n";
        let kernel = read(&group(), saved);
        assert!(!group().is_in(&kernel));
        insta::assert_snapshot!(difference(&kernel).0, @r"
        *nat
        :KUBE-SERVICES - [0:0]
        -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
        -I PREROUTING -j KUBE-SERVICES
        COMMIT
        ");
    }
}
