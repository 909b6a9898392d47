use std::{fmt, net::IpAddr};

use arrayvec::ArrayVec;
use ferroute_core::{IpFamily, Protocol};
use ipnet::IpNet;

use super::name::Printable;

/// What one field of a key or of a datum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataType {
    /// `ipv4_addr`.
    Ipv4Address,
    /// `ipv6_addr`.
    Ipv6Address,
    /// `inet_proto`.
    Protocol,
    /// `inet_service`: a port.
    Port,
    /// `classid`: see [`Class`].
    Class,
    /// Any number of 32 bits, such as a mark. This and what follows are in others' sets only.
    Number,
    /// `ifname`: the name of an interface.
    Interface,
}

/// One field of a key or of a datum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// An address.
    Address(IpAddr),
    /// All addresses of a network; only in sets with intervals.
    Network(IpNet),
    /// An IANA protocol number.
    Protocol(u8),
    /// A port.
    Port(u16),
    /// A class.
    Class(Class),
    /// All ports from one to another; only in sets with intervals.
    Ports(u16, u16),
    /// A number.
    Number(u32),
    /// An interface.
    Interface(Interface),
    /// All interfaces whose names start so; only in sets with intervals.
    Interfaces(Interface),
}

/// The name of an interface, or the beginning of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interface([u8; Interface::LENGTH]);

/// A number of two halves, `major:minor`, printed in hexadecimal.
///
/// nftables has no registers that a rule could leave a number in for the next rule, and no type that a map could hold a
/// plain number in without `nft list` of version 1.0.6 aborting. The packet's priority is such a place, and its type is
/// this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub u32);

/// The fields of a key, in order.
pub type Key = ArrayVec<Value, KEY_FIELDS>;

/// The fields of a datum that is no verdict, in order.
pub type Fields = ArrayVec<Value, DATUM_FIELDS>;

impl DataType {
    /// The type of a family's addresses.
    pub fn address(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::Ipv4Address,
            IpFamily::V6 => Self::Ipv6Address,
        }
    }

    /// Its name in `nft`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipv4Address => "ipv4_addr",
            Self::Ipv6Address => "ipv6_addr",
            Self::Protocol => "inet_proto",
            Self::Port => "inet_service",
            Self::Class => "classid",
            Self::Number => "integer",
            Self::Interface => "ifname",
        }
    }

    /// Bytes of a value.
    pub fn length(self) -> usize {
        match self {
            Self::Ipv4Address | Self::Class | Self::Number => 4,
            Self::Ipv6Address => 16,
            Self::Interface => Interface::LENGTH,
            Self::Protocol => 1,
            Self::Port => 2,
        }
    }

    /// Bytes of a value among others: every field starts in a 32-bit register of its own.
    pub fn room(self) -> usize {
        self.length().next_multiple_of(4)
    }
}

impl Value {
    /// The number of a protocol that Services know.
    pub fn protocol(protocol: Protocol) -> Self {
        Self::Protocol(protocol.number())
    }

    /// The least value that is meant, which is the value itself unless several are.
    pub fn first(self) -> Self {
        match self {
            Self::Network(net) => Self::Address(net.network()),
            Self::Ports(first, _) => Self::Port(first),
            Self::Interfaces(prefix) => Self::Interface(prefix),
            other => other,
        }
    }

    /// The greatest value that is meant.
    pub fn last(self) -> Self {
        match self {
            Self::Network(net) => Self::Address(net.broadcast()),
            Self::Ports(_, last) => Self::Port(last),
            Self::Interfaces(prefix) => Self::Interface(prefix.last()),
            other => other,
        }
    }

    /// Whether `value` is meant, too.
    pub fn contains(self, value: Self) -> bool {
        self.first() <= value.first() && value.last() <= self.last()
    }
}

impl Interface {
    /// Bytes of a name (`IFNAMSIZ`), with at least one zero behind it.
    pub const LENGTH: usize = 16;

    /// A name; what is too long for one is cut off.
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; Self::LENGTH];
        bytes.iter_mut().zip(name.bytes()).take(Self::LENGTH - 1).for_each(|(to, from)| *to = from);
        Self(bytes)
    }

    /// As the kernel has it in registers.
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// As the kernel has it in registers.
    pub const fn bytes(self) -> [u8; Self::LENGTH] {
        self.0
    }

    /// The greatest name that starts so.
    pub(crate) fn last(self) -> Self {
        let length = self.text().len();
        let mut bytes = self.0;
        bytes[length..].fill(u8::MAX);
        Self(bytes)
    }

    /// The name without the zeros behind it.
    pub fn text(&self) -> &[u8] {
        let length = self.0.iter().position(|byte| *byte == 0).unwrap_or(Self::LENGTH);
        &self.0[..length]
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&String::from_utf8_lossy(self.text())).fmt(f)
    }
}

impl Class {
    /// Puts the halves together.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// The half in front of the colon.
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The half behind it.
    pub const fn minor(self) -> u16 {
        self.0 as u16
    }

    /// What all slots of one list have in common: [`Class::OWNER`] is left of it.
    pub const fn owner(self) -> Self {
        Self(self.0 & Self::OWNER.0)
    }

    /// The bits of a slot that tell whose it is. The last one is set in every slot, for `nft` reads no class of which a
    /// half is zero.
    pub const OWNER: Self = Self::new(0xffff, 1);
}

impl From<IpAddr> for Value {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl From<Class> for Value {
    fn from(class: Class) -> Self {
        Self::Class(class)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Class {
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
            Self::Protocol(number) => match [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
                .into_iter()
                .find(|protocol| protocol.number() == *number)
            {
                Some(protocol) => protocol.fmt(f),
                None => number.fmt(f),
            },
            Self::Port(port) => port.fmt(f),
            Self::Class(class) => class.fmt(f),
            Self::Ports(first, last) => write!(f, "{first}-{last}"),
            Self::Number(number) => write!(f, "{number:#010x}"),
            Self::Interface(name) => write!(f, "\"{name}\""),
            Self::Interfaces(prefix) => write!(f, "\"{prefix}*\""),
        }
    }
}

/// No key of ours has more fields, nor of others whom we know.
const KEY_FIELDS: usize = 5;
/// No datum of ours has more fields.
const DATUM_FIELDS: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_one_address_is_printed_as_the_address() {
        let network = |net: &str| Value::Network(net.parse().unwrap()).to_string();
        assert_eq!(network("10.1.0.0/8"), "10.0.0.0/8");
        assert_eq!(network("10.0.0.1/32"), "10.0.0.1");
        assert_eq!(network("fd00::1/128"), "fd00::1");
        assert_eq!(network("::/0"), "::/0");
    }

    #[test]
    fn a_class_is_printed_as_its_two_halves() {
        assert_eq!(Class::new(0x12, 300).to_string(), "12:12c");
        assert_eq!((Class(0x0012_012c).major(), Class(0x0012_012c).minor()), (0x12, 300));
    }
}
