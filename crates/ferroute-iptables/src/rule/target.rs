use std::net::IpAddr;

use crate::ChainName;

/// What becomes of a packet that matches a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Goes through another chain and, if nothing is decided there, comes back (`-j CHAIN`).
    Jump(ChainName),
    /// Goes through another chain and then on where this chain was called from (`-g CHAIN`).
    Goto(ChainName),
    /// May pass this table.
    Accept,
    /// Vanishes.
    Drop,
    /// Goes back to the calling chain, or to the policy in a builtin one.
    Return,
    /// Vanishes, and the sender hears of it.
    Reject(RejectWith),
    /// Its mark becomes `(mark & !mask) ^ value`; goes on to the next rule (`--set-xmark`).
    Mark {
        /// Bits to flip after clearing.
        value: u32,
        /// Bits to clear first.
        mask: u32,
    },
    /// Its connection gets the outgoing interface's address as source.
    Masquerade {
        /// Source ports are chosen at random, which avoids a race between connections.
        random_fully: bool,
    },
    /// Its connection gets this source. kube-proxy never writes it.
    Snat {
        /// The address.
        address: IpAddr,
        /// Source ports are chosen at random.
        random_fully: bool,
    },
    /// Its connection gets another destination.
    Dnat {
        /// The new address.
        address: IpAddr,
        /// The new port; `None` keeps it.
        port: Option<u16>,
    },
    /// One that we do not know, as it was written, without `-j`: `LOG --log-prefix "a b"`.
    Other(Box<str>),
}

impl Target {
    /// Sets the bits of `mark` (`--or-mark`).
    pub fn or_mark(mark: u32) -> Self {
        Self::Mark { value: mark, mask: mark }
    }

    /// Flips the bits of `mark` (`--xor-mark`).
    pub fn xor_mark(mark: u32) -> Self {
        Self::Mark { value: mark, mask: 0 }
    }

    /// Keeps only the bits of `mark` (`--and-mark`).
    pub fn and_mark(mark: u32) -> Self {
        Self::Mark { value: 0, mask: !mark }
    }
}

/// What the sender of a rejected packet hears.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RejectWith {
    /// ICMP: port unreachable; IPv4's default.
    IcmpPortUnreachable,
    /// ICMPv6: port unreachable; IPv6's default.
    Icmp6PortUnreachable,
    /// A TCP reset.
    TcpReset,
    /// Another ICMP message, by `iptables`' name for it.
    Other(Box<str>),
}

impl RejectWith {
    /// `iptables`' name for it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::IcmpPortUnreachable => "icmp-port-unreachable",
            Self::Icmp6PortUnreachable => "icmp6-port-unreachable",
            Self::TcpReset => "tcp-reset",
            Self::Other(name) => name,
        }
    }

    /// Reads `iptables`' name for it; every word is some message's name.
    pub fn from_word(word: &str) -> Self {
        [Self::IcmpPortUnreachable, Self::Icmp6PortUnreachable, Self::TcpReset]
            .into_iter()
            .find(|with| with.as_str() == word)
            .unwrap_or_else(|| Self::Other(word.into()))
    }
}
