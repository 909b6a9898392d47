use ferroute_iptables::{ChainName, TableName};

use crate::Hook;

/// A hook, and which of its tables the packet is in.
#[derive(Clone, Copy)]
pub(super) struct Stage {
    pub(super) hook: Hook,
    /// Position among the hook's tables.
    table: usize,
    /// The packet is exempt from connection tracking.
    pub(super) untracked: bool,
}

impl Stage {
    /// The first table of a packet's first hook.
    pub(super) fn first(hook: Hook) -> Self {
        Self { hook, table: 0, untracked: false }
    }

    /// The first table of another hook.
    pub(super) fn at(self, hook: Hook) -> Self {
        Self { hook, table: 0, ..self }
    }

    /// The table.
    pub(super) fn table(self) -> TableName {
        self.hook.tables()[self.table]
    }

    /// The next table of the hook, if there is one. `looped`: the packet comes back through the loopback interface.
    pub(super) fn next(self, looped: bool) -> Option<Self> {
        let mut next = self;
        while next.table + 1 < self.hook.tables().len() {
            next.table += 1;
            if !next.skips_nat(looped) {
                return Some(next);
            }
        }
        None
    }

    /// A connection's addresses are decided once: its destination where its first packet arrives or is sent, its source
    /// where it leaves or, unless it did so before, where it is delivered. A packet that comes back through the
    /// loopback interface has been sent and has left. What is not tracked has no connection.
    fn skips_nat(self, looped: bool) -> bool {
        self.table() == TableName::Nat && (looped || self.untracked)
    }
}

impl Hook {
    /// The hook's tables, in the kernel's order.
    fn tables(self) -> &'static [TableName] {
        use TableName::{Filter, Mangle, Nat, Raw, Security};
        match self {
            Self::Prerouting => &[Raw, Mangle, Nat],
            Self::Input => &[Mangle, Filter, Security, Nat],
            Self::Forward => &[Mangle, Filter, Security],
            Self::Output => &[Raw, Mangle, Nat, Filter, Security],
            Self::Postrouting => &[Mangle, Nat],
        }
    }

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
