//! iptables rules.

mod conditions;
mod foreign;
mod modules;
mod recent;
mod targets;
mod walker;

use ferroute_iptables::{ChainName, Match, Policy, Rule, RuleSet, TableName, Target};

pub use self::foreign::value_and_mask;
use self::walker::ChainWalker;
pub(crate) use self::{
    conditions::ExtensionResult,
    foreign::field_value,
    recent::{changes_by_text, implied},
    targets::{MAX_ADDRESSES, TargetResult, address_count, is_irrelevant, nth_address},
};
use crate::{BaseChain, ChainVerdict, Forks, Hook, Ruleset, Traceable, Walker, ruleset::HOOKS};

impl Traceable for RuleSet {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        ruleset.add_iptables(self);
    }
}

/// A built-in chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base<'a> {
    rules: &'a RuleSet,
    table: TableName,
    hook: Hook,
}

impl<'a> Base<'a> {
    /// Returns the built-in chains of a table, without those that have no effect.
    pub(crate) fn chains(rules: &'a RuleSet, table: TableName) -> impl Iterator<Item = Self> {
        let hooks = HOOKS.into_iter().filter(move |hook| tables(*hook).contains(&table));
        let chains = hooks.map(move |hook| Self { rules, table, hook });
        chains.filter(|chain| !chain.chain_rules().is_empty() || chain.policy() == Policy::Drop)
    }

    fn name(self) -> ChainName {
        match self.hook {
            Hook::Prerouting => ChainName::PREROUTING,
            Hook::Input => ChainName::INPUT,
            Hook::Forward => ChainName::FORWARD,
            Hook::Output => ChainName::OUTPUT,
            Hook::Postrouting => ChainName::POSTROUTING,
        }
    }

    fn chain_rules(self) -> &'a [Rule] {
        self.rules.rules(self.table, self.name())
    }

    /// Reports whether any rule depends on entries of ipsets.
    fn reads_sets(self) -> bool {
        let mut rules =
            self.rules.tables.values().flat_map(|table| table.chains.values()).flat_map(|chain| &chain.rules);
        rules.any(|rule| {
            let is_mapped = matches!(&rule.target, Some(Target::Other(text)) if text.contains("--map-set"));
            is_mapped || rule.matches.iter().any(|module| matches!(module, Match::Set(_)))
        })
    }

    fn policy(self) -> Policy {
        let head = self.rules.chain(self.table, self.name()).and_then(|chain| chain.head);
        head.and_then(|head| head.policy).unwrap_or(Policy::Accept)
    }
}

impl BaseChain for Base<'_> {
    fn hook(&self) -> Hook {
        self.hook
    }

    fn priority(&self) -> i32 {
        priority(self.table, self.hook)
    }

    fn is_nat(&self) -> bool {
        self.table == TableName::Nat
    }

    fn table(&self) -> &str {
        self.table.as_str()
    }

    fn routes_again(&self) -> bool {
        self.table == TableName::Mangle
    }

    fn walk<'a>(&'a self, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> ChainVerdict {
        ChainWalker::enter(*self, walker).run(walker, forks)
    }
}

/// Returns the tables with a chain at a hook.
fn tables(hook: Hook) -> &'static [TableName] {
    use TableName::{Filter, Mangle, Nat, Raw, Security};
    match hook {
        Hook::Prerouting => &[Raw, Mangle, Nat],
        Hook::Input => &[Mangle, Filter, Security, Nat],
        Hook::Forward => &[Mangle, Filter, Security],
        Hook::Output => &[Raw, Mangle, Nat, Filter, Security],
        Hook::Postrouting => &[Mangle, Nat],
    }
}

/// Returns the priority of a table at a hook (`enum nf_ip_hook_priorities`).
pub fn priority(table: TableName, hook: Hook) -> i32 {
    match (table, hook) {
        (TableName::Raw, _) => -300,
        (TableName::Mangle, _) => -150,
        (TableName::Nat, Hook::Input | Hook::Postrouting) => 100,
        (TableName::Nat, _) => -100,
        (TableName::Filter, _) => 0,
        (TableName::Security, _) => 50,
    }
}

/// Returns the text of a rule or module for output. Unreadable options contain a number, which distinguishes rules and
/// has no meaning.
pub(crate) fn shown(text: &str) -> String {
    const MARK: &str = " --undecoded ";
    let mut parts = text.split(MARK);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown += " …";
        shown += part.find(' ').map_or("", |at| &part[at..]);
    }
    shown
}

#[cfg(test)]
mod tests;
