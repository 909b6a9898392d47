use std::{fmt, str::FromStr};

/// One of the kernel's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableName {
    /// `filter`: accept, drop, reject.
    Filter,
    /// `nat`: rewrite addresses; seen by the first packet of each connection only.
    Nat,
    /// `mangle`: kube-proxy has only its canary here.
    Mangle,
    /// `raw`: before connection tracking; never ours.
    Raw,
    /// `security`: for mandatory access control; never ours.
    Security,
}

impl TableName {
    /// The tables that hold chains of ours.
    pub const OURS: [Self; 3] = [Self::Filter, Self::Mangle, Self::Nat];

    /// As the tools spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Mangle => "mangle",
            Self::Raw => "raw",
            Self::Security => "security",
        }
    }

    /// Reads the tools' spelling.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Filter, Self::Nat, Self::Mangle, Self::Raw, Self::Security]
            .into_iter()
            .find(|table| table.as_str() == word)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Name of a chain, as `iptables` allows it: 1 to 28 bytes, no blank, no `-` or `!` at the start. Sorts like its text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainName {
    /// The text, with zeros after it.
    bytes: [u8; Self::MAX_LEN],
    /// How much of `bytes` is text.
    len: u8,
}

/// The text cannot be the name of a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot name a chain (want 1 to 28 bytes, no blanks, no '-' or '!' at the start)")]
pub struct BadChainName(pub String);

impl ChainName {
    /// Bytes that fit into the kernel's field: `XT_EXTENSION_MAXNAMELEN` without the final zero.
    pub const MAX_LEN: usize = 28;

    /// Packets to the host itself.
    pub const INPUT: Self = Self::literal("INPUT");
    /// Packets that pass through the host.
    pub const FORWARD: Self = Self::literal("FORWARD");
    /// Packets that the host sends.
    pub const OUTPUT: Self = Self::literal("OUTPUT");
    /// Packets as they arrive.
    pub const PREROUTING: Self = Self::literal("PREROUTING");
    /// Packets as they leave.
    pub const POSTROUTING: Self = Self::literal("POSTROUTING");

    /// Takes a name.
    ///
    /// # Errors
    /// When `iptables` would not take it.
    pub fn new(name: &str) -> Result<Self, BadChainName> {
        let blank = |byte: u8| byte.is_ascii_whitespace() || byte.is_ascii_control();
        if name.is_empty() || name.len() > Self::MAX_LEN || name.starts_with(['-', '!']) || name.bytes().any(blank) {
            return Err(BadChainName(name.to_owned()));
        }
        Ok(Self::literal(name))
    }

    /// Takes a name that is known to be good; in a constant the compiler checks its length.
    pub(crate) const fn literal(name: &str) -> Self {
        assert!(!name.is_empty() && name.len() <= Self::MAX_LEN, "chain names have 1 to 28 bytes");
        let mut bytes = [0; Self::MAX_LEN];
        let (text, _) = bytes.split_at_mut(name.len());
        text.copy_from_slice(name.as_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "28 at most, see above")]
        Self { bytes, len: name.len() as u8 }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..usize::from(self.len)]).expect("made from text")
    }

    /// The kernel itself sends packets here (in some table), so that the chain always exists and can have a policy.
    pub fn is_builtin(&self) -> bool {
        [Self::INPUT, Self::FORWARD, Self::OUTPUT, Self::PREROUTING, Self::POSTROUTING].contains(self)
    }
}

impl FromStr for ChainName {
    type Err = BadChainName;

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
