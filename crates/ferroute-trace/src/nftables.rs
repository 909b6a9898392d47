//! nftables rules.
//!
//! In Ferroute's table all state is in maps, so the number of rules that a packet passes is independent of the cluster.
//! The walk forks in one place, at the random number that selects an endpoint. In tables of other programs, it also
//! forks at conditions that cannot be evaluated, and ends at statements with an unknown effect.
//!
//! An endpoint has a separate chain in iptables, and a map element in nftables. In traces, the call stack of a DNAT
//! ends with that element, as `@endpoints 1:2`: the map, and the last field of the key.
//!
//! Session affinity is part of the input: the elements of the table's map `affinity`.
//! [`Packet::remembered`](crate::Packet::remembered) is ignored.

mod changes;
mod conditions;
mod foreign;
mod walker;

use std::borrow::Cow;

use ferroute_nftables::{
    kernel::MemoryTable,
    model::{self, ChainType, ChainWithRules, Policy},
};

use self::walker::ChainWalker;
use crate::{BaseChain, ChainVerdict, Forks, Hook, Walker};

/// A base chain.
#[derive(Clone, Debug)]
pub(crate) struct Base<'a> {
    table: &'a MemoryTable,
    /// The table's name in traces.
    table_name: Cow<'static, str>,
    chain: &'a ChainWithRules,
    base: model::BaseChain,
}

impl<'a> Base<'a> {
    /// Returns the base chains of a table in the order of their creation, without those that have no effect.
    pub(crate) fn chains(table_name: Cow<'static, str>, table: &'a MemoryTable) -> impl Iterator<Item = Self> {
        table.base_chains().filter_map(move |chain| {
            let base = chain.chain.base.filter(|base| !chain.rules.is_empty() || base.policy == Policy::Drop)?;
            Some(Self { table, table_name: table_name.clone(), chain, base })
        })
    }
}

impl BaseChain for Base<'_> {
    fn hook(&self) -> Hook {
        self.base.hook.into()
    }

    fn priority(&self) -> i32 {
        self.base.priority
    }

    fn is_nat(&self) -> bool {
        self.base.kind == ChainType::Nat
    }

    fn table(&self) -> &str {
        &self.table_name
    }

    fn routes_again(&self) -> bool {
        self.base.kind == ChainType::Route
    }

    fn walk<'a>(&'a self, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> ChainVerdict {
        ChainWalker::enter(self, walker).run(walker, forks)
    }
}

impl From<model::Hook> for Hook {
    fn from(hook: model::Hook) -> Self {
        match hook {
            model::Hook::Prerouting => Self::Prerouting,
            model::Hook::Input => Self::Input,
            model::Hook::Forward => Self::Forward,
            model::Hook::Output => Self::Output,
            model::Hook::Postrouting => Self::Postrouting,
        }
    }
}

#[cfg(test)]
mod tests;
