//! Properties of packets that only rules of other programs use.

mod named;

use ferroute_core::IpFamily;

pub use self::named::Named;
pub(crate) use self::named::protocol_of;
use self::named::{ETHER_TYPES, NAMED};

use super::{
    Field, family_name,
    words::{ADDRESS_TYPES, CT_STATES, CT_STATUSES, PROTOCOLS, Words},
};

/// A property of a packet that a rule can load. A trace does not have the values of those from [`Property::Named`] on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Property {
    /// A property that planned rules use as well.
    Field(Field),
    /// `ct mark`.
    CtMark,
    /// `tcp flags`.
    TcpFlags,
    /// `meta pkttype` (`PACKET_*`).
    PacketType,
    /// `ct direction` (`IP_CT_DIR_*`).
    CtDirection,
    /// `ct zone`.
    CtZone,
    /// `ct protocol`.
    CtProtocol,
    /// `ct l3proto` (`NFPROTO_*`).
    CtFamily,
    /// `ct original` or `ct reply`, with an address or port.
    CtEnd {
        /// The direction from the server to the client.
        reply: bool,
        /// Which address or port.
        end: End,
    },
    /// `ct helper`: a new connection has none, so that no comparison matches.
    CtHelper,
    /// `iif` or `oif`: the interface itself, here by name.
    Interface {
        /// The output interface.
        output: bool,
    },
    /// `fib`: a route lookup.
    Fib {
        /// For the source, not for the destination.
        source: bool,
        /// With the packet's mark.
        mark: bool,
        /// Only routes of this interface.
        interface: FibInterface,
        /// Returned value.
        result: FibResult,
    },
    /// `meta skuid` and other properties of the socket that sent the packet. Forwarded packets have none, so that no
    /// comparison matches.
    Sender(Sender),
    /// `meta protocol` (`ETH_P_*`), of packets that are IP packets.
    EtherType,
    /// `meta nfproto` (`NFPROTO_*`).
    Nfproto,
    /// `ip version` or `ip6 version`.
    IpVersion,
    /// `ip hdrlength`, of a packet without options.
    IpHeaderLength,
    /// `ip frag-off`: the first packet of a connection is no fragment.
    IpFragment,
    /// A number that differs from packet to packet or from connection to connection.
    Number {
        /// Computation of the number.
        source: NumberSource,
        /// Number of values; at least 1.
        count: u32,
        /// The smallest number.
        first: u32,
    },
    /// Another property with a name.
    Named(&'static Named),
    /// Bits of a header: `@nh,8,16`.
    Payload {
        /// The header.
        base: PayloadBase,
        /// The first bit.
        offset: u32,
        /// The number of bits.
        length: u32,
    },
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// `saddr`.
    Saddr,
    /// `daddr`.
    Daddr,
    /// `proto-src`.
    Sport,
    /// `proto-dst`.
    Dport,
}

/// The interface of the routes that are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FibInterface {
    /// All interfaces.
    Any,
    /// `iif`.
    Input,
    /// `oif`, with [`FibResult::Type`] only.
    Output,
}

/// The result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FibResult {
    /// `oif`, compared with an interface.
    Interface,
    /// `oifname`.
    InterfaceName,
    /// `oif exists`.
    Existence,
    /// `type`.
    Type,
}

/// A property of the sending socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    /// `meta skuid`.
    User,
    /// `meta skgid`.
    Group,
    /// `meta cgroup`.
    Cgroup,
}

/// Computation of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumberSource {
    /// `numgen random`.
    Random,
    /// `numgen inc`.
    Incremental,
    /// `jhash` of these fields.
    Hash([Option<Hashed>; HASH_INPUTS]),
    /// `symhash`.
    SymmetricHash,
}

/// An input of `jhash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hashed {
    /// This field.
    Field(Field),
    /// `ct mark`.
    CtMark,
}

impl Hashed {
    /// Returns the input that a property is, if it can be one.
    pub fn of(property: Property) -> Option<Self> {
        match property {
            Property::Field(field) => Some(Self::Field(field)),
            Property::CtMark => Some(Self::CtMark),
            _ => None,
        }
    }

    /// Returns the property.
    pub fn property(self) -> Property {
        match self {
            Self::Field(field) => Property::Field(field),
            Self::CtMark => Property::CtMark,
        }
    }
}

/// The number of fields of a `jhash` that are distinguished.
pub const HASH_INPUTS: usize = 5;

/// The beginning of an offset in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadBase {
    /// `@ll`: the link-layer header.
    Link,
    /// `@nh`: the network header.
    Network,
    /// `@th`: the transport header.
    Transport,
    /// `@ih`: the payload of the transport protocol.
    Inner,
}

impl Property {
    /// Returns the property in `nft` syntax.
    pub fn text(self, family: IpFamily) -> String {
        let ip = family_name(family);
        match self {
            Self::Field(field) => super::text::field_text(field, family),
            Self::CtMark => "ct mark".to_owned(),
            Self::TcpFlags => "tcp flags".to_owned(),
            Self::PacketType => "meta pkttype".to_owned(),
            Self::CtDirection => "ct direction".to_owned(),
            Self::CtZone => "ct zone".to_owned(),
            Self::CtProtocol => "ct protocol".to_owned(),
            Self::CtFamily => "ct l3proto".to_owned(),
            Self::CtEnd { reply, end } => {
                let direction = if reply { "reply" } else { "original" };
                match end {
                    End::Saddr => format!("ct {direction} {ip} saddr"),
                    End::Daddr => format!("ct {direction} {ip} daddr"),
                    End::Sport => format!("ct {direction} proto-src"),
                    End::Dport => format!("ct {direction} proto-dst"),
                }
            }
            Self::CtHelper => "ct helper".to_owned(),
            Self::Interface { output } => if output { "oif" } else { "iif" }.to_owned(),
            Self::Fib { source, mark, interface, result } => {
                let side = if source { "saddr" } else { "daddr" };
                let mark = if mark { " . mark" } else { "" };
                let interface = match interface {
                    FibInterface::Any => "",
                    FibInterface::Input => " . iif",
                    FibInterface::Output => " . oif",
                };
                let result = match result {
                    FibResult::Interface | FibResult::Existence => "oif",
                    FibResult::InterfaceName => "oifname",
                    FibResult::Type => "type",
                };
                format!("fib {side}{mark}{interface} {result}")
            }
            Self::Sender(Sender::User) => "meta skuid".to_owned(),
            Self::Sender(Sender::Group) => "meta skgid".to_owned(),
            Self::Sender(Sender::Cgroup) => "meta cgroup".to_owned(),
            Self::EtherType => "meta protocol".to_owned(),
            Self::Nfproto => "meta nfproto".to_owned(),
            Self::IpVersion => format!("{ip} version"),
            Self::IpHeaderLength => "ip hdrlength".to_owned(),
            Self::IpFragment => "ip frag-off".to_owned(),
            Self::Number { source, count, first } => {
                let source = match source {
                    NumberSource::Random => "numgen random".to_owned(),
                    NumberSource::Incremental => "numgen inc".to_owned(),
                    NumberSource::SymmetricHash => "symhash".to_owned(),
                    NumberSource::Hash(inputs) => {
                        let inputs = inputs.into_iter().flatten().map(|input| input.property().text(family));
                        format!("jhash {}", inputs.collect::<Vec<_>>().join(" . "))
                    }
                };
                let offset = if first == 0 { String::new() } else { format!(" offset {first}") };
                format!("{source} mod {count}{offset}")
            }
            Self::Named(named) => named.text.to_owned(),
            Self::Payload { base, offset, length } => format!("{},{offset},{length}", base.text()),
        }
    }

    /// Returns the syntax of the property's values.
    pub fn words(self, family: IpFamily) -> Words {
        let address = match family {
            IpFamily::V4 => Words::Ipv4,
            IpFamily::V6 => Words::Ipv6,
        };
        match self {
            Self::Field(field) => match field {
                Field::Saddr | Field::SaddrNetwork(_) | Field::Daddr | Field::CtOriginalDaddr => address,
                Field::L4proto => PROTOCOLS,
                Field::CtState => CT_STATES,
                Field::CtStatus => CT_STATUSES,
                Field::FibSaddrType | Field::FibDaddrType => ADDRESS_TYPES,
                Field::MetaMark => Words::Hexadecimal(8),
                Field::MetaPriority | Field::PriorityBits(_) => Words::ClassId,
                Field::Iifname | Field::Oifname => Words::Text,
                Field::Dport | Field::Sport | Field::CtOriginalDport => Words::Port,
                Field::NumgenRandom { .. } | Field::NumgenInc { .. } | Field::Jhash { .. } => Words::Number,
            },
            Self::CtMark => Words::Hexadecimal(8),
            Self::TcpFlags => Words::Flags(&["fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"]),
            Self::PacketType => Words::Names(&[(0, "host"), (1, "broadcast"), (2, "multicast"), (3, "other")]),
            Self::CtDirection => Words::Names(&[(0, "original"), (1, "reply")]),
            Self::CtProtocol => PROTOCOLS,
            Self::CtFamily | Self::Nfproto => Words::Names(&[(2, "ipv4"), (10, "ipv6")]),
            Self::EtherType => ETHER_TYPES,
            Self::CtEnd { end: End::Saddr | End::Daddr, .. } => address,
            Self::CtEnd { .. } => Words::Port,
            Self::CtHelper | Self::Interface { .. } => Words::Text,
            Self::Fib { result, .. } => match result {
                FibResult::Interface | FibResult::InterfaceName => Words::Text,
                FibResult::Existence => Words::Existence,
                FibResult::Type => ADDRESS_TYPES,
            },
            Self::Named(named) => named.words,
            Self::Payload { length, .. } => Words::Hexadecimal(u8::try_from(length.div_ceil(8) * 2).unwrap_or(u8::MAX)),
            Self::CtZone
            | Self::Sender(_)
            | Self::IpVersion
            | Self::IpHeaderLength
            | Self::IpFragment
            | Self::Number { .. } => Words::Number,
        }
    }

    /// Reports whether this is an address or a port of the packet.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Field(Field::Saddr | Field::Daddr | Field::Sport | Field::Dport))
    }

    /// Reports whether the kernel has the value in the host's byte order.
    pub(crate) fn is_in_host_order(self) -> bool {
        match self {
            Self::Field(field) => matches!(
                field,
                Field::MetaMark
                    | Field::MetaPriority
                    | Field::PriorityBits(_)
                    | Field::CtState
                    | Field::CtStatus
                    | Field::FibSaddrType
                    | Field::FibDaddrType
                    | Field::NumgenRandom { .. }
                    | Field::NumgenInc { .. }
                    | Field::Jhash { .. }
            ),
            Self::CtMark | Self::CtZone | Self::Sender(_) | Self::Number { .. } => true,
            Self::Fib { result, .. } => matches!(result, FibResult::Type | FibResult::Existence),
            Self::Named(named) => named.host_order,
            _ => false,
        }
    }

    /// Returns the property with this fixed text.
    pub(crate) fn named(text: &str) -> Option<Self> {
        NAMED.iter().find(|named| named.text == text).map(Self::Named)
    }
}

impl PayloadBase {
    /// Returns the base in `nft` syntax.
    pub fn text(self) -> &'static str {
        match self {
            Self::Link => "@ll",
            Self::Network => "@nh",
            Self::Transport => "@th",
            Self::Inner => "@ih",
        }
    }
}
