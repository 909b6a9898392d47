use ferroute_iptables::{ChainName, Policy, Rule, RuleSet, TableName};

use crate::Hook;

/// A chain that a hook leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base<'a> {
    pub(crate) rules: &'a RuleSet,
    pub(crate) table: TableName,
    pub(crate) hook: Hook,
}

impl<'a> Base<'a> {
    /// A packet can notice it.
    pub(crate) fn matters(self) -> bool {
        !self.chain_rules().is_empty() || self.policy() == Policy::Drop
    }

    pub(super) fn name(self) -> ChainName {
        self.hook.chain()
    }

    pub(super) fn chain_rules(self) -> &'a [Rule] {
        self.rules.rules(self.table, self.name())
    }

    /// What becomes of packets at its end.
    pub(super) fn policy(self) -> Policy {
        let head = self.rules.chain(self.table, self.name()).and_then(|chain| chain.head);
        head.and_then(|head| head.policy).unwrap_or(Policy::Accept)
    }
}

/// The tables that have a chain at a hook.
pub(crate) fn tables(hook: Hook) -> &'static [TableName] {
    use TableName::{Filter, Mangle, Nat, Raw, Security};
    match hook {
        Hook::Prerouting => &[Raw, Mangle, Nat],
        Hook::Input => &[Mangle, Filter, Security, Nat],
        Hook::Forward => &[Mangle, Filter, Security],
        Hook::Output => &[Raw, Mangle, Nat, Filter, Security],
        Hook::Postrouting => &[Mangle, Nat],
    }
}

/// When a table is met at a hook, least first (`enum nf_ip_hook_priorities`).
pub(crate) fn priority(table: TableName, hook: Hook) -> i32 {
    match (table, hook) {
        (TableName::Raw, _) => -300,
        (TableName::Mangle, _) => -150,
        (TableName::Nat, Hook::Input | Hook::Postrouting) => 100,
        (TableName::Nat, _) => -100,
        (TableName::Filter, _) => 0,
        (TableName::Security, _) => 50,
    }
}

impl Hook {
    /// The name of the chains there.
    pub(super) fn chain(self) -> ChainName {
        match self {
            Self::Prerouting => ChainName::PREROUTING,
            Self::Input => ChainName::INPUT,
            Self::Forward => ChainName::FORWARD,
            Self::Output => ChainName::OUTPUT,
            Self::Postrouting => ChainName::POSTROUTING,
        }
    }
}
