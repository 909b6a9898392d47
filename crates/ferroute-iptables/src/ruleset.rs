use std::{fmt, str::FromStr};

use ferroute_core::IpFamily;
use indexmap::IndexMap;

use crate::Rule;

/// A table of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableName {
    /// `filter`: accept, drop, reject.
    Filter,
    /// `nat`: address translation; only the first packet of a connection traverses it.
    Nat,
    /// `mangle`: holds only kube-proxy's canary chain.
    Mangle,
    /// `raw`: before connection tracking; not used by kube-proxy.
    Raw,
    /// `security`: mandatory access control; not used by kube-proxy.
    Security,
}

impl TableName {
    /// The tables with chains of the proxy.
    pub const PROXY: [Self; 3] = [Self::Filter, Self::Mangle, Self::Nat];

    /// All tables.
    pub const ALL: [Self; 5] = [Self::Filter, Self::Nat, Self::Mangle, Self::Raw, Self::Security];

    /// The table's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Mangle => "mangle",
            Self::Raw => "raw",
            Self::Security => "security",
        }
    }

    /// Parses a table's name.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.as_str() == word)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of a chain that `iptables` accepts: 1 to 28 bytes, no blank, no `-` or `!` at the start. Ordered as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainName {
    /// The text, padded with zeros.
    bytes: [u8; Self::MAX_LEN],
    /// The length of the text.
    len: u8,
}

/// A text that cannot be the name of a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid chain name {0:?} (want 1 to 28 bytes, no blanks, no '-' or '!' at the start)")]
pub struct InvalidChainName(pub String);

impl ChainName {
    /// The longest name: `XT_EXTENSION_MAXNAMELEN` without the terminating zero.
    pub const MAX_LEN: usize = 28;

    /// Packets to the host itself.
    pub const INPUT: Self = Self::literal("INPUT");
    /// Packets that the host forwards.
    pub const FORWARD: Self = Self::literal("FORWARD");
    /// Packets that the host sends.
    pub const OUTPUT: Self = Self::literal("OUTPUT");
    /// Incoming packets before routing.
    pub const PREROUTING: Self = Self::literal("PREROUTING");
    /// Outgoing packets after routing.
    pub const POSTROUTING: Self = Self::literal("POSTROUTING");

    /// Creates a name.
    ///
    /// # Errors
    /// If `iptables` would reject the name.
    pub fn new(name: &str) -> Result<Self, InvalidChainName> {
        let blank = |byte: u8| byte.is_ascii_whitespace() || byte.is_ascii_control();
        if name.is_empty() || name.len() > Self::MAX_LEN || name.starts_with(['-', '!']) || name.bytes().any(blank) {
            return Err(InvalidChainName(name.to_owned()));
        }
        Ok(Self::literal(name))
    }

    /// Creates a name that is known to be valid.
    ///
    /// # Panics
    /// If the length is not 1 to 28 bytes, which the compiler checks in a constant.
    pub const fn literal(name: &str) -> Self {
        assert!(!name.is_empty() && name.len() <= Self::MAX_LEN, "chain names have 1 to 28 bytes");
        let mut bytes = [0; Self::MAX_LEN];
        let (text, _) = bytes.split_at_mut(name.len());
        text.copy_from_slice(name.as_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "28 at most, see above")]
        Self { bytes, len: name.len() as u8 }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..usize::from(self.len)]).expect("created from text")
    }

    /// Reports whether this is a builtin chain, which the kernel calls itself and which can have a policy.
    pub fn is_builtin(&self) -> bool {
        [Self::INPUT, Self::FORWARD, Self::OUTPUT, Self::PREROUTING, Self::POSTROUTING].contains(self)
    }
}

impl FromStr for ChainName {
    type Err = InvalidChainName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Tables, chains and rules as `iptables-save` (or `ip6tables-save`) prints them.
///
/// Tables and chains keep their order of insertion, so that parsed text prints unchanged. Equality ignores this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    /// The IP family. The text does not contain it, but a few defaults depend on it.
    pub family: IpFamily,
    /// The tables.
    pub tables: IndexMap<TableName, Table>,
}

/// A table: its chains by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The chains.
    pub chains: IndexMap<ChainName, Chain>,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The chain's declaration (`:NAME …`). `None` for a chain that has rules but no declaration, such as `INPUT` in
    /// `iptables-restore --noflush` input that leaves builtin chains alone.
    pub head: Option<ChainHead>,
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

/// The declaration of a chain: `:NAME POLICY [packets:bytes]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHead {
    /// The policy of a builtin chain; `None` in other chains.
    pub policy: Option<Policy>,
    /// Packets and bytes that the policy was applied to.
    pub counters: Counters,
}

/// The policy of a builtin chain: the verdict on packets that reach its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `ACCEPT`.
    Accept,
    /// `DROP`.
    Drop,
}

impl Policy {
    /// The policy as `iptables` spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "ACCEPT",
            Self::Drop => "DROP",
        }
    }
}

/// Packet and byte counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl RuleSet {
    /// Creates a rule set without tables.
    pub fn new(family: IpFamily) -> Self {
        Self { family, tables: IndexMap::new() }
    }

    /// Returns a chain, if it exists.
    pub fn chain(&self, table: TableName, chain: ChainName) -> Option<&Chain> {
        self.tables.get(&table)?.chains.get(&chain)
    }

    /// Returns the rules of a chain; none if it does not exist.
    pub fn rules(&self, table: TableName, chain: ChainName) -> &[Rule] {
        self.chain(table, chain).map_or(&[], |chain| &chain.rules)
    }

    /// Returns a table, creating it if necessary.
    pub fn table_mut(&mut self, table: TableName) -> &mut Table {
        self.tables.entry(table).or_default()
    }
}

impl Table {
    /// Declares a chain, creating it if necessary.
    pub fn declare(&mut self, chain: ChainName, head: ChainHead) -> &mut Chain {
        let chain = self.chains.entry(chain).or_default();
        chain.head = Some(head);
        chain
    }

    /// Appends a rule to a chain, creating the chain if necessary.
    pub fn append(&mut self, chain: ChainName, rule: Rule) {
        self.chains.entry(chain).or_default().rules.push(rule);
    }
}
