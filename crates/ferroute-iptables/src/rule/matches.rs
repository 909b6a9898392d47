use std::{fmt, net::IpAddr, sync::Arc};

use ferroute_core::Protocol;

use super::{Probability, Sense};

/// A match module with its options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// Text for people; every packet matches.
    Comment(Arc<str>),
    /// Ports of a transport protocol (`-m tcp`, `-m udp`, `-m sctp`).
    Transport {
        /// Whose module.
        protocol: Protocol,
        /// Source port.
        source: Option<Sense<PortRange>>,
        /// Destination port.
        destination: Option<Sense<PortRange>>,
    },
    /// Several ports of a transport protocol (`-m multiport`). kube-proxy never writes it.
    Multiport {
        /// Which ports of the packet.
        side: PortSide,
        /// Any of these.
        ports: Sense<PortList>,
    },
    /// State of the packet's connection (`--ctstate`): any of these.
    Conntrack(Sense<CtStates>),
    /// The same as the old module `state` spells it (`--state`).
    State(Sense<CtStates>),
    /// The packet's mark.
    Mark(Sense<MarkMatch>),
    /// How the host sees the packet's addresses.
    AddrType {
        /// The source address's type.
        source: Option<Sense<AddressType>>,
        /// The destination address's type.
        destination: Option<Sense<AddressType>>,
    },
    /// Chance (`--mode random`).
    Statistic(Sense<Probability>),
    /// A list of addresses seen recently.
    Recent(Recent),
    /// Counts the packet under this name; every packet matches.
    Nfacct(Box<str>),
    /// A module that we do not know, or with options that we do not know, as it was written from `-m` on.
    Other(Box<str>),
}

/// Which ports of a packet are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortSide {
    /// The source's (`--sports`).
    Source,
    /// The destination's (`--dports`).
    Destination,
    /// One or the other (`--ports`).
    Either,
}

impl PortSide {
    /// `multiport`'s option for it.
    pub fn option(self) -> &'static str {
        match self {
            Self::Source => "--sports",
            Self::Destination => "--dports",
            Self::Either => "--ports",
        }
    }

    /// Reads `multiport`'s option.
    pub fn from_option(option: &str) -> Option<Self> {
        [Self::Source, Self::Destination, Self::Either].into_iter().find(|side| side.option() == option)
    }
}

/// Some ports and ranges of ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortList(Box<[PortRange]>);

impl PortList {
    /// A list in this order.
    pub fn new(ranges: impl Into<Box<[PortRange]>>) -> Self {
        Self(ranges.into())
    }

    /// Whether `port` is among them.
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(port))
    }
}

impl fmt::Display for PortList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, range) in self.0.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "," })?;
            range.fmt(f)?;
        }
        Ok(())
    }
}

/// Ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The first.
    pub first: u16,
    /// The last; not below the first.
    pub last: u16,
}

impl PortRange {
    /// Every port: a rule that says so says nothing.
    pub const ALL: Self = Self { first: 0, last: u16::MAX };

    /// Just `port`.
    pub fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Whether `port` is among them.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}:{}", self.first, self.last) }
    }
}

/// A packet's mark has `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkMatch {
    /// The bits.
    pub value: u32,
    /// Which bits count.
    pub mask: u32,
}

impl MarkMatch {
    /// All bits of `mark` are set.
    pub fn has(mark: u32) -> Self {
        Self { value: mark, mask: mark }
    }

    /// Whether `mark` matches.
    pub fn matches(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }
}

/// A set of connection states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CtStates(u8);

impl CtStates {
    /// Belongs to no connection that could be.
    pub const INVALID: Self = Self(1);
    /// Starts a connection.
    pub const NEW: Self = Self(1 << 1);
    /// Starts a connection that another one asked for, or is an ICMP error about it.
    pub const RELATED: Self = Self(1 << 2);
    /// Belongs to a connection that saw packets both ways.
    pub const ESTABLISHED: Self = Self(1 << 3);
    /// Is exempt from tracking.
    pub const UNTRACKED: Self = Self(1 << 4);
    /// The connection's source was rewritten.
    pub const SNAT: Self = Self(1 << 5);
    /// The connection's destination was rewritten.
    pub const DNAT: Self = Self(1 << 6);

    /// Every state with its name, in `iptables-save`'s order.
    const NAMES: [(Self, &str); 7] = [
        (Self::INVALID, "INVALID"),
        (Self::NEW, "NEW"),
        (Self::RELATED, "RELATED"),
        (Self::ESTABLISHED, "ESTABLISHED"),
        (Self::UNTRACKED, "UNTRACKED"),
        (Self::SNAT, "SNAT"),
        (Self::DNAT, "DNAT"),
    ];

    /// These and those of `other`.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Has a state in common with `other`.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Reads `NEW,ESTABLISHED`.
    pub fn parse(text: &str) -> Option<Self> {
        text.split(',').try_fold(Self::default(), |states, word| {
            Self::NAMES.iter().find(|(_, name)| *name == word).map(|(state, _)| states.or(*state))
        })
    }

    /// The names of the states in it.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().filter(move |(state, _)| self.intersects(*state)).map(|(_, name)| *name)
    }
}

impl fmt::Display for CtStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, name) in self.names().enumerate() {
            f.write_str(if n == 0 { "" } else { "," })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// How the host's routing sees an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressType {
    /// One host elsewhere.
    Unicast,
    /// The host's own.
    Local,
    /// All of a network.
    Broadcast,
    /// Many hosts.
    Multicast,
    /// The next of several hosts.
    Anycast,
    /// Goes nowhere, silently.
    Blackhole,
    /// Goes nowhere.
    Unreachable,
    /// Must not be used.
    Prohibit,
}

impl AddressType {
    /// Every type.
    const ALL: [Self; 8] = [
        Self::Unicast,
        Self::Local,
        Self::Broadcast,
        Self::Multicast,
        Self::Anycast,
        Self::Blackhole,
        Self::Unreachable,
        Self::Prohibit,
    ];

    /// `iptables`' word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unicast => "UNICAST",
            Self::Local => "LOCAL",
            Self::Broadcast => "BROADCAST",
            Self::Multicast => "MULTICAST",
            Self::Anycast => "ANYCAST",
            Self::Blackhole => "BLACKHOLE",
            Self::Unreachable => "UNREACHABLE",
            Self::Prohibit => "PROHIBIT",
        }
    }

    /// Reads `iptables`' word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// What [`Match::Recent`] does with its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecentAction {
    /// Adds the address; always matches.
    Set,
    /// Matches an address that is in the list.
    Check,
}

/// The `recent` module, as far as kube-proxy uses it: by source address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recent {
    /// What is done.
    pub action: RecentAction,
    /// Only entries at most this many seconds old count.
    pub seconds: Option<u32>,
    /// Older entries are thrown away.
    pub reap: bool,
    /// The list's name.
    pub name: Box<str>,
    /// Which bits of the address count.
    pub mask: IpAddr,
}

impl fmt::Display for AddressType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
