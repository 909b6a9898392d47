use std::{fmt, net::IpAddr, sync::Arc};

use ferroute_core::Protocol;

use super::Sense;

/// A match module with its options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// A comment; matches every packet.
    Comment(Arc<str>),
    /// Ports of a transport protocol (`-m tcp`, `-m udp`, `-m sctp`).
    Transport {
        /// The protocol.
        protocol: Protocol,
        /// Source port.
        source: Option<Sense<PortRange>>,
        /// Destination port.
        destination: Option<Sense<PortRange>>,
    },
    /// Several ports of a transport protocol (`-m multiport`). Not written by kube-proxy.
    Multiport {
        /// Which of the packet's ports are compared.
        side: PortSide,
        /// The accepted ports.
        ports: Sense<PortList>,
    },
    /// Any of these connection tracking states (`--ctstate`).
    Conntrack(Sense<CtStates>),
    /// The same in the older module `state` (`--state`).
    State(Sense<CtStates>),
    /// The packet's mark.
    Mark(Sense<MarkMatch>),
    /// The types of the packet's addresses in the host's routing.
    AddrType {
        /// The source address's type.
        source: Option<Sense<AddressType>>,
        /// The destination address's type.
        destination: Option<Sense<AddressType>>,
    },
    /// Matches at random (`--mode random`).
    Statistic(Sense<Probability>),
    /// A list of recently seen addresses.
    Recent(Recent),
    /// Counts the packet in the nfacct counter of this name; matches every packet.
    Nfacct(Box<str>),
    /// The packet's addresses and ports are in an ipset (`--match-set`).
    Set(Sense<SetMatch>),
    /// The packet arrived through a port of a bridge (`--physdev-is-in`).
    PhysdevIsIn(Sense<()>),
    /// The packet belongs to a connection of this virtual server (`-m ipvs`).
    Ipvs(VirtualServerMatch),
    /// An unsupported module, or one with unsupported options, verbatim from `-m` on.
    Other(Box<str>),
}

/// A match on the members of an ipset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetMatch {
    /// The name of the set.
    pub name: Box<str>,
    /// The sides of the packet that each dimension of the set's members is compared with.
    pub sides: Box<[SetSide]>,
}

/// The side of a packet that one dimension of an ipset's members is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetSide {
    /// The source address or port (`src`).
    Source,
    /// The destination address or port (`dst`).
    Destination,
}

impl SetMatch {
    /// Parses the arguments of `--match-set`: the name, and sides such as `dst,dst,src`.
    pub fn parse(name: &str, sides: &str) -> Option<Self> {
        let sides = sides.split(',').map(|side| match side {
            "src" => Some(SetSide::Source),
            "dst" => Some(SetSide::Destination),
            _ => None,
        });
        Some(Self { name: name.into(), sides: sides.collect::<Option<_>>()? })
    }
}

impl fmt::Display for SetMatch {
    /// `KUBE-CLUSTER-IP dst,dst`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (n, side) in self.sides.iter().enumerate() {
            f.write_str(if n == 0 { " " } else { "," })?;
            f.write_str(match side {
                SetSide::Source => "src",
                SetSide::Destination => "dst",
            })?;
        }
        Ok(())
    }
}

/// A match on the virtual server of the packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VirtualServerMatch {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// The side of a packet whose port `multiport` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortSide {
    /// The source port (`--sports`).
    Source,
    /// The destination port (`--dports`).
    Destination,
    /// Either port (`--ports`).
    Either,
}

impl PortSide {
    /// The option of `multiport`.
    pub fn option(self) -> &'static str {
        match self {
            Self::Source => "--sports",
            Self::Destination => "--dports",
            Self::Either => "--ports",
        }
    }

    /// Parses the option of `multiport`.
    pub fn from_option(option: &str) -> Option<Self> {
        [Self::Source, Self::Destination, Self::Either].into_iter().find(|side| side.option() == option)
    }
}

/// A list of ports and port ranges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortList(Box<[PortRange]>);

impl PortList {
    /// Creates a list in this order.
    pub fn new(ranges: impl Into<Box<[PortRange]>>) -> Self {
        Self(ranges.into())
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> &[PortRange] {
        &self.0
    }

    /// Reports whether the list contains `port`.
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

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port; not below the first.
    pub last: u16,
}

impl PortRange {
    /// Every port, which is no condition.
    pub const ALL: Self = Self { first: 0, last: u16::MAX };

    /// The range of one port.
    pub fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Reports whether the range contains `port`.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}:{}", self.first, self.last) }
    }
}

/// A match on the bits of a packet's mark that `mask` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkMatch {
    /// The expected bits.
    pub value: u32,
    /// The compared bits.
    pub mask: u32,
}

impl MarkMatch {
    /// Matches if all bits of `mark` are set.
    pub fn has(mark: u32) -> Self {
        Self { value: mark, mask: mark }
    }

    /// Reports whether `mark` matches.
    pub fn matches(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }
}

/// A set of connection tracking states (`ct state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CtStates(u8);

impl CtStates {
    /// The packet cannot be associated with a connection.
    pub const INVALID: Self = Self(1);
    /// The packet starts a connection.
    pub const NEW: Self = Self(1 << 1);
    /// The packet starts a connection expected by another one, or is an ICMP error about it.
    pub const RELATED: Self = Self(1 << 2);
    /// The packet belongs to a connection with packets in both directions.
    pub const ESTABLISHED: Self = Self(1 << 3);
    /// The packet is exempt from connection tracking.
    pub const UNTRACKED: Self = Self(1 << 4);
    /// The connection's source is translated.
    pub const SNAT: Self = Self(1 << 5);
    /// The connection's destination is translated.
    pub const DNAT: Self = Self(1 << 6);

    /// Every state with its bit in the kernel's module `conntrack`.
    pub(crate) const KERNEL_BITS: [(Self, u16); 7] = [
        (Self::INVALID, 1 << 0),
        (Self::ESTABLISHED, 1 << 1),
        (Self::RELATED, 1 << 2),
        (Self::NEW, 1 << 3),
        (Self::SNAT, 1 << 6),
        (Self::DNAT, 1 << 7),
        (Self::UNTRACKED, 1 << 8),
    ];

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

    /// The union of both sets.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Reports whether the sets have a state in common.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Parses `NEW,ESTABLISHED`.
    pub fn parse(text: &str) -> Option<Self> {
        text.split(',').try_fold(Self::default(), |states, word| {
            Self::NAMES.iter().find(|(_, name)| *name == word).map(|(state, _)| states.or(*state))
        })
    }

    /// The names of the states in the set.
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

/// The type of an address in the host's routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressType {
    /// An address of another host.
    Unicast,
    /// An address of this host.
    Local,
    /// A broadcast address.
    Broadcast,
    /// A multicast address.
    Multicast,
    /// An anycast address.
    Anycast,
    /// Packets are dropped silently.
    Blackhole,
    /// Packets are rejected as unreachable.
    Unreachable,
    /// Packets are rejected as prohibited.
    Prohibit,
}

impl AddressType {
    /// Every type with its number in the kernel (`RTN_*` of `include/uapi/linux/rtnetlink.h`).
    pub(crate) const KERNEL_NUMBERS: [(Self, u8); 8] = [
        (Self::Unicast, 1),
        (Self::Local, 2),
        (Self::Broadcast, 3),
        (Self::Anycast, 4),
        (Self::Multicast, 5),
        (Self::Blackhole, 6),
        (Self::Unreachable, 7),
        (Self::Prohibit, 8),
    ];

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

    /// The type as `iptables` spells it.
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

    /// Parses `iptables`' spelling.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// The operation of [`Match::Recent`] on its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecentAction {
    /// Adds the address to the list; matches every packet.
    Set,
    /// Matches addresses in the list.
    Check,
}

/// The `recent` module on source addresses, as far as kube-proxy uses it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recent {
    /// The operation.
    pub action: RecentAction,
    /// Ignores entries older than this many seconds.
    pub seconds: Option<u32>,
    /// Deletes older entries.
    pub reap: bool,
    /// The name of the list.
    pub name: Box<str>,
    /// The compared bits of the address.
    pub mask: IpAddr,
}

impl fmt::Display for AddressType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A probability as the kernel stores it: a fixed-point number with 31 fractional bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probability(u32);

impl Probability {
    /// The kernel's representation of 1.
    const ONE: u32 = 1 << 31;

    /// The probability 1/`n` with kube-proxy's rounding: it writes ten decimals, which `iptables` rounds to 31 bits.
    pub fn one_in(n: usize) -> Self {
        // Ten decimals of a number below 1 are an integer below 2^53, so the conversion is exact where it has to be.
        #[expect(clippy::cast_precision_loss, reason = "no Service has 2^53 endpoints")]
        let decimals = (1e10 / n.max(1) as f64).round_ties_even();
        Self::from_fraction(decimals / 1e10)
    }

    /// Parses a decimal number from 0 to 1, as `iptables` does.
    pub fn parse(text: &str) -> Option<Self> {
        let fraction = text.parse().ok().filter(|value| (0.0..=1.0).contains(value))?;
        Some(Self::from_fraction(fraction))
    }

    /// The numerator; the denominator is 2^31.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Creates a probability from the kernel's number; `None` if it exceeds 1.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits <= Self::ONE).then_some(Self(bits))
    }

    /// The probability as a number from 0 to 1.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Self::ONE)
    }

    /// Rounds a number from 0 to 1.
    fn from_fraction(fraction: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^31, and whole")]
        Self((fraction * f64::from(Self::ONE)).round() as u32)
    }
}

impl fmt::Display for Probability {
    /// Eleven decimals, as `iptables-save` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 10^11 / 2^31 = 5^11 / 2^20, and 5^11 · 2^31 fits into 64 bits. Rounds half to even, as in C.
        let scaled = u64::from(self.0) * 5_u64.pow(11);
        let (floor, rest, half) = (scaled >> 20, scaled & ((1 << 20) - 1), 1 << 19);
        let up = rest > half || (rest == half && floor & 1 == 1);
        let decimals = floor + u64::from(up);
        write!(f, "{}.{:011}", decimals / 10_u64.pow(11), decimals % 10_u64.pow(11))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_n_prints_as_iptables_save_prints_kube_proxys_rules() {
        let printed = [1, 2, 3, 4, 7].map(|n| Probability::one_in(n).to_string());
        assert_eq!(printed, ["1.00000000000", "0.50000000000", "0.33333333349", "0.25000000000", "0.14285714272"]);
    }

    #[test]
    fn printing_agrees_with_exact_float_formatting() {
        for n in 1..5000 {
            let probability = Probability::one_in(n);
            assert_eq!(probability.to_string(), format!("{:.11}", probability.as_f64()));
            assert_eq!(Probability::parse(&probability.to_string()), Some(probability));
            assert_eq!(Probability::parse(&format!("{:.10}", 1.0 / n as f64)), Some(probability), "1/{n}");
        }
    }

    #[test]
    fn numbers_outside_of_0_to_1_are_rejected() {
        for text in ["", "-0.1", "1.1", "NaN", "inf", "half"] {
            assert_eq!(Probability::parse(text), None, "{text}");
        }
    }
}
