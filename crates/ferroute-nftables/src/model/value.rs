use std::{fmt, net::IpAddr};

use arrayvec::ArrayVec;
use ferroute_core::{IpFamily, Protocol};
use ipnet::IpNet;

use super::{name::Printable, words::PROTOCOLS};

/// The type of one field of a key or of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataType {
    /// `ipv4_addr`.
    Ipv4Addr,
    /// `ipv6_addr`.
    Ipv6Addr,
    /// `inet_proto`.
    InetProto,
    /// `inet_service`: a port.
    InetService,
    /// `classid`, see [`ClassId`].
    ClassId,
    /// A 32-bit `integer`: a random number, or a mark in sets of other programs.
    Integer,
    /// `ifname`: the name of an interface; only in sets of other programs.
    IfName,
    /// `iface_index`: an interface; only in sets of other programs.
    IfIndex,
    /// Any other type of up to 16 bytes; only in sets of other programs.
    Other {
        /// The number of bytes.
        length: u8,
        /// Whether the kernel has the value in the host's byte order.
        host_order: bool,
    },
}

/// The value of one field of a key or of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// An address.
    Address(IpAddr),
    /// A network; only in interval sets.
    Network(IpNet),
    /// An IANA protocol number.
    Protocol(u8),
    /// A port.
    Port(u16),
    /// A class id.
    ClassId(ClassId),
    /// An inclusive range of ports; only in interval sets.
    PortRange(u16, u16),
    /// An integer.
    Integer(u32),
    /// An interface.
    IfName(IfName),
    /// All interfaces with this prefix; only in interval sets.
    IfNamePrefix(IfName),
    /// A value of another type, as a number in network byte order.
    Other(u128),
    /// An inclusive range of values of another type; only in interval sets.
    OtherRange(u128, u128),
}

/// An interface name, or a prefix of one, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfName([u8; IfName::LENGTH]);

/// A class id: a 32-bit number of two halves, printed as `major:minor` in hexadecimal.
///
/// nftables has no register that keeps a number from one rule to the next, and `nft list` of version 1.0.6 aborts on
/// maps to plain integers. `meta priority` keeps a number with the packet, and has this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u32);

/// The fields of a key, in order.
pub type Key = ArrayVec<Value, KEY_FIELDS>;

/// The fields of an element's data, in order.
pub type Values = ArrayVec<Value, DATA_FIELDS>;

impl DataType {
    /// Returns the type of a family's addresses.
    pub fn address(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::Ipv4Addr,
            IpFamily::V6 => Self::Ipv6Addr,
        }
    }

    /// Returns the name in `nft` syntax.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipv4Addr => "ipv4_addr",
            Self::Ipv6Addr => "ipv6_addr",
            Self::InetProto => "inet_proto",
            Self::InetService => "inet_service",
            Self::ClassId => "classid",
            Self::Integer => "integer",
            Self::IfName => "ifname",
            Self::IfIndex => "iface_index",
            Self::Other { .. } => "integer",
        }
    }

    /// Returns an expression of this type, for declarations with `typeof`. Ports have a protocol: `nft` 1.0.6 does not
    /// load `th dport` here from its own listing.
    pub(crate) fn example(self, protocol: Option<Protocol>) -> &'static str {
        match self {
            Self::Ipv4Addr => "ip daddr",
            Self::Ipv6Addr => "ip6 daddr",
            Self::InetProto => "meta l4proto",
            Self::InetService => match protocol {
                Some(Protocol::Tcp) => "tcp dport",
                Some(Protocol::Udp) => "udp dport",
                Some(Protocol::Sctp) => "sctp dport",
                None => "th dport",
            },
            Self::ClassId => "meta priority",
            Self::Integer => "numgen random mod 65536",
            Self::IfName => "iifname",
            Self::IfIndex => "iif",
            Self::Other { .. } => "@nh,0,8",
        }
    }

    /// Returns the length of a value in bytes.
    pub fn length(self) -> usize {
        match self {
            Self::Ipv4Addr | Self::ClassId | Self::Integer | Self::IfIndex => 4,
            Self::Ipv6Addr => 16,
            Self::IfName => IfName::LENGTH,
            Self::InetProto => 1,
            Self::InetService => 2,
            Self::Other { length, .. } => length.into(),
        }
    }

    /// Returns the length of a value in a concatenation: every field starts at a 32-bit register.
    pub fn padded_length(self) -> usize {
        self.length().next_multiple_of(4)
    }
}

impl Value {
    /// Returns the protocol number of a Service port's protocol.
    pub fn protocol(protocol: Protocol) -> Self {
        Self::Protocol(protocol.number())
    }

    /// Returns the smallest value of a range or network, and other values unchanged.
    pub fn first(self) -> Self {
        match self {
            Self::Network(net) => Self::Address(net.network()),
            Self::PortRange(first, _) => Self::Port(first),
            Self::IfNamePrefix(prefix) => Self::IfName(prefix),
            Self::OtherRange(first, _) => Self::Other(first),
            other => other,
        }
    }

    /// Returns the largest value of a range or network, and other values unchanged.
    pub fn last(self) -> Self {
        match self {
            Self::Network(net) => Self::Address(net.broadcast()),
            Self::PortRange(_, last) => Self::Port(last),
            Self::IfNamePrefix(prefix) => Self::IfName(prefix.last()),
            Self::OtherRange(_, last) => Self::Other(last),
            other => other,
        }
    }

    /// Returns a single value as a number, in the form of the values of [`Foreign`](super::Foreign).
    pub fn number(self) -> u128 {
        match self.first() {
            Self::Address(IpAddr::V4(address)) => u32::from(address).into(),
            Self::Address(IpAddr::V6(address)) => address.into(),
            Self::Protocol(number) => number.into(),
            Self::Port(port) => port.into(),
            Self::ClassId(ClassId(number)) | Self::Integer(number) => number.into(),
            Self::IfName(name) => u128::from_be_bytes(name.0),
            Self::Other(number) => number,
            // Not the first value of a range.
            Self::Network(_) | Self::PortRange(..) | Self::IfNamePrefix(_) | Self::OtherRange(..) => 0,
        }
    }

    /// Returns another value of the same type; `None` for ranges, and if the type does not have this value.
    pub fn with_number(self, number: u128) -> Option<Self> {
        Some(match self {
            Self::Address(IpAddr::V4(_)) => Self::Address(IpAddr::V4(u32::try_from(number).ok()?.into())),
            Self::Address(IpAddr::V6(_)) => Self::Address(IpAddr::V6(number.into())),
            Self::Protocol(_) => Self::Protocol(u8::try_from(number).ok()?),
            Self::Port(_) => Self::Port(u16::try_from(number).ok()?),
            Self::ClassId(_) => Self::ClassId(ClassId(u32::try_from(number).ok()?)),
            Self::Integer(_) => Self::Integer(u32::try_from(number).ok()?),
            Self::IfName(_) => Self::IfName(IfName(number.to_be_bytes())),
            Self::Other(_) => Self::Other(number),
            Self::Network(_) | Self::PortRange(..) | Self::IfNamePrefix(_) | Self::OtherRange(..) => return None,
        })
    }

    /// Reports whether `value` is within this value, range or network.
    pub fn contains(self, value: Self) -> bool {
        self.first() <= value.first() && value.last() <= self.last()
    }
}

impl IfName {
    /// The length of a name in bytes, including at least one terminating zero (`IFNAMSIZ`).
    pub const LENGTH: usize = 16;

    /// Returns a name, truncated if it is too long.
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; Self::LENGTH];
        bytes.iter_mut().zip(name.bytes()).take(Self::LENGTH - 1).for_each(|(to, from)| *to = from);
        Self(bytes)
    }

    /// Returns the name in this register content.
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Returns the register content.
    pub const fn bytes(self) -> [u8; Self::LENGTH] {
        self.0
    }

    /// Returns the largest name with this prefix.
    pub(crate) fn last(self) -> Self {
        let length = self.text().len();
        let mut bytes = self.0;
        bytes[length..].fill(u8::MAX);
        Self(bytes)
    }

    /// Returns the name without padding.
    pub fn text(&self) -> &[u8] {
        let length = self.0.iter().position(|byte| *byte == 0).unwrap_or(Self::LENGTH);
        &self.0[..length]
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&String::from_utf8_lossy(self.text())).fmt(f)
    }
}

impl ClassId {
    /// Returns the class id `major:minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// Returns the half before the colon.
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Returns the half after the colon.
    pub const fn minor(self) -> u16 {
        self.0 as u16
    }

    /// Returns the bits of a mask.
    pub const fn masked(self, mask: Self) -> Self {
        Self(self.0 & mask.0)
    }
}

impl From<IpAddr> for Value {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl From<ClassId> for Value {
    fn from(class: ClassId) -> Self {
        Self::ClassId(class)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for ClassId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}", self.major(), self.minor())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Network(net) if net.prefix_len() == net.max_prefix_len() => net.addr().fmt(f),
            Self::Network(net) => write!(f, "{}/{}", net.network(), net.prefix_len()),
            Self::Protocol(number) => f.write_str(&PROTOCOLS.text((*number).into())),
            Self::Port(port) => port.fmt(f),
            Self::ClassId(class) => class.fmt(f),
            Self::PortRange(first, last) => write!(f, "{first}-{last}"),
            Self::Integer(number) => write!(f, "{number:#010x}"),
            Self::IfName(name) => write!(f, "\"{name}\""),
            Self::IfNamePrefix(prefix) => write!(f, "\"{prefix}*\""),
            Self::Other(number) => write!(f, "{number:#x}"),
            Self::OtherRange(first, last) => write!(f, "{first:#x}-{last:#x}"),
        }
    }
}

/// Maximum number of fields of a key, in sets of this proxy and of the programs whose tables are decoded.
pub(crate) const KEY_FIELDS: usize = 5;
/// The longest data of this proxy's maps.
const DATA_FIELDS: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_address_network_is_printed_without_prefix_length() {
        let network = |net: &str| Value::Network(net.parse().unwrap()).to_string();
        assert_eq!(network("10.1.0.0/8"), "10.0.0.0/8");
        assert_eq!(network("10.0.0.1/32"), "10.0.0.1");
        assert_eq!(network("fd00::1/128"), "fd00::1");
        assert_eq!(network("::/0"), "::/0");
    }

    #[test]
    fn class_id_is_printed_as_two_hexadecimal_halves() {
        assert_eq!(ClassId::new(0x12, 300).to_string(), "12:12c");
        assert_eq!((ClassId(0x0012_012c).major(), ClassId(0x0012_012c).minor()), (0x12, 300));
    }
}
