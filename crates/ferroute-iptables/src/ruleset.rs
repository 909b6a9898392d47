use ferroute_core::IpFamily;
use indexmap::IndexMap;

use crate::{ChainName, Rule, TableName};

/// Everything that `iptables-save` (or `ip6tables-save`) shows: tables, their chains, their rules.
///
/// Tables and chains keep the order in which they came, so that printing gives back what was read; comparing two sets
/// does not look at this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    /// Whose rules these are. The text itself does not say so, but a few defaults depend on it.
    pub family: IpFamily,
    /// The tables.
    pub tables: IndexMap<TableName, Table>,
}

/// One table: its chains by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The chains.
    pub chains: IndexMap<ChainName, Chain>,
}

/// One chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// What its line (`:NAME …`) said; `None` for a chain that was not declared but has rules, such as `INPUT` in
    /// text that leaves the builtin chains alone.
    pub head: Option<ChainHead>,
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

/// What a chain's line says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHead {
    /// What happens to packets that reach the end; `None` in chains that are not builtin.
    pub policy: Option<Policy>,
    /// What fell to the policy.
    pub counters: Counters,
}

/// What happens to packets at the end of a builtin chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They may pass.
    Accept,
    /// They vanish.
    Drop,
}

impl Policy {
    /// The tools' word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "ACCEPT",
            Self::Drop => "DROP",
        }
    }
}

/// Packets and bytes counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl RuleSet {
    /// No tables at all.
    pub fn new(family: IpFamily) -> Self {
        Self { family, tables: IndexMap::new() }
    }

    /// A chain, if it is there.
    pub fn chain(&self, table: TableName, chain: ChainName) -> Option<&Chain> {
        self.tables.get(&table)?.chains.get(&chain)
    }

    /// The rules of a chain; none if it is not there.
    pub fn rules(&self, table: TableName, chain: ChainName) -> &[Rule] {
        self.chain(table, chain).map_or(&[], |chain| &chain.rules)
    }

    /// A table, made if it is not there.
    pub fn table_mut(&mut self, table: TableName) -> &mut Table {
        self.tables.entry(table).or_default()
    }
}

impl Table {
    /// A chain with a line of its own, made if it is not there.
    pub fn declare(&mut self, chain: ChainName, head: ChainHead) -> &mut Chain {
        let chain = self.chains.entry(chain).or_default();
        chain.head = Some(head);
        chain
    }

    /// Adds a rule at the end of a chain, making the chain if it is not there.
    pub fn append(&mut self, chain: ChainName, rule: Rule) {
        self.chains.entry(chain).or_default().rules.push(rule);
    }
}
