use std::ops::{AddAssign, SubAssign};

use crate::TableName;

/// How many rules there are of ours, not counting jumps from builtin chains: what kube-proxy counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// In table filter.
    pub filter: usize,
    /// In table nat.
    pub nat: usize,
}

/// Numbers that people want to see of a set of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Rules.
    pub rules: RuleCounts,
    /// Service ports whose traffic to the cluster IP is dropped on this node for want of local endpoints.
    pub no_local_internal: usize,
    /// The same for traffic from outside.
    pub no_local_external: usize,
}

impl RuleCounts {
    /// In both tables.
    pub fn total(self) -> usize {
        self.filter + self.nat
    }

    /// The count of a table that has rules of ours; what is in others counts as nat's, which has most.
    pub(super) fn of_mut(&mut self, table: TableName) -> &mut usize {
        match table {
            TableName::Filter => &mut self.filter,
            _ => &mut self.nat,
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        let Self { rules, no_local_internal, no_local_external } = other;
        self.rules.filter += rules.filter;
        self.rules.nat += rules.nat;
        self.no_local_internal += no_local_internal;
        self.no_local_external += no_local_external;
    }
}

impl SubAssign for Tally {
    fn sub_assign(&mut self, other: Self) {
        let Self { rules, no_local_internal, no_local_external } = other;
        self.rules.filter -= rules.filter;
        self.rules.nat -= rules.nat;
        self.no_local_internal -= no_local_internal;
        self.no_local_external -= no_local_external;
    }
}
