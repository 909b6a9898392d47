//! Properties of packets that only rules of other programs use.

use ferroute_core::IpFamily;

use super::{
    Field, family_name,
    words::{ADDRESS_TYPES, CT_STATES, CT_STATUSES, DSCP, PROTOCOL_NAMES, PROTOCOLS, Words},
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

/// A property with a name and no further meaning here.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Named {
    /// In `nft` syntax.
    pub text: &'static str,
    /// The syntax of its values.
    pub words: Words,
    /// Whether the kernel has the value in the host's byte order.
    pub host_order: bool,
    /// Whether first packets of connections through Services never have the property: an extension header, an option of
    /// IPv4, or another chunk of SCTP.
    pub absent: bool,
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

impl Named {
    /// Returns the protocol of the header that contains the property.
    pub fn protocol(&self) -> Option<u8> {
        protocol_of(self.text.split(' ').next()?)
    }
}

/// Returns the protocol of a header, by its name in `nft` syntax; [`None`] for headers that do not depend on the
/// protocol.
pub(crate) fn protocol_of(header: &str) -> Option<u8> {
    let is_header = PROTOCOL_HEADERS.contains(&header);
    let (number, _) = PROTOCOL_NAMES.iter().find(|(_, name)| is_header && *name == header)?;
    u8::try_from(*number).ok()
}

/// The headers of the names in [`PROTOCOL_NAMES`] that rules match.
const PROTOCOL_HEADERS: [&str; 11] =
    ["ah", "comp", "dccp", "esp", "icmp", "icmpv6", "igmp", "sctp", "tcp", "udp", "udplite"];

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

const fn named(text: &'static str, words: Words) -> Named {
    Named { text, words, host_order: false, absent: false }
}

const fn host(text: &'static str, words: Words) -> Named {
    Named { text, words, host_order: true, absent: false }
}

const fn absent(text: &'static str, words: Words) -> Named {
    Named { text, words, host_order: false, absent: true }
}

const GROUPS: Words = Words::Names(&[(0, "default")]);
const REALMS: Words = Words::Names(&[(0, "\"cosmos\"")]);
const HARDWARE: Words = Words::Names(&[
    (1, "ether"),
    (512, "ppp"),
    (768, "ipip"),
    (769, "ipip6"),
    (772, "loopback"),
    (776, "sit"),
    (778, "ipgre"),
]);
const ETHER_TYPES: Words =
    Words::Names(&[(0x800, "ip"), (0x806, "arp"), (0x86dd, "ip6"), (0x8100, "8021q"), (0x88a8, "8021ad")]);
const ECN: Words = Words::Names(&[(0, "not-ect"), (1, "ect1"), (2, "ect0"), (3, "ce")]);
const DAYS: Words = Words::Names(&[
    (0, "\"Sunday\""),
    (1, "\"Monday\""),
    (2, "\"Tuesday\""),
    (3, "\"Wednesday\""),
    (4, "\"Thursday\""),
    (5, "\"Friday\""),
    (6, "\"Saturday\""),
]);

/// All properties with a name and no further meaning.
static NAMED: &[Named] = &[
    host("meta length", Words::Number),
    host("iifgroup", GROUPS),
    host("oifgroup", GROUPS),
    host("iiftype", HARDWARE),
    host("oiftype", HARDWARE),
    named("meta iifkind", Words::Text),
    named("meta oifkind", Words::Text),
    named("meta ibrname", Words::Text),
    named("meta obrname", Words::Text),
    named("meta sdifname", Words::Text),
    host("meta sdif", Words::Number),
    host("meta nftrace", Words::Number),
    host("meta rtclassid", REALMS),
    host("meta secmark", Words::Number),
    host("meta cpu", Words::Number),
    named("meta random", Words::Number),
    named("meta ipsec", Words::Existence),
    host("meta ibrpvid", Words::Number),
    named("meta ibrvproto", ETHER_TYPES),
    host("meta time", Words::Date),
    host("meta day", DAYS),
    host("meta hour", Words::Hour),
    host("ct secmark", Words::Number),
    host("ct expiration", Words::Duration),
    host("ct label", Words::Label),
    host("ct packets", Words::Number),
    host("ct bytes", Words::Number),
    host("ct avgpkt", Words::Number),
    host("ct original packets", Words::Number),
    host("ct original bytes", Words::Number),
    host("ct original avgpkt", Words::Number),
    host("ct reply packets", Words::Number),
    host("ct reply bytes", Words::Number),
    host("ct reply avgpkt", Words::Number),
    host("ct event", Words::Hexadecimal(8)),
    named("ct id", Words::Number),
    host("rt classid", REALMS),
    named("rt ip nexthop", Words::Ipv4),
    named("rt ip6 nexthop", Words::Ipv6),
    host("rt mtu", Words::Number),
    named("rt ipsec", Words::Existence),
    named("socket transparent", Words::Number),
    host("socket mark", Words::Hexadecimal(8)),
    named("socket wildcard", Words::Number),
    host("socket cgroupv2", Words::Number),
    named("osf name", Words::Text),
    named("ip dscp", DSCP),
    named("ip ecn", ECN),
    named("ip length", Words::Number),
    named("ip id", Words::Number),
    named("ip ttl", Words::Number),
    named("ip checksum", Words::Number),
    named("ip6 dscp", DSCP),
    named("ip6 ecn", ECN),
    named("ip6 flowlabel", Words::Number),
    named("ip6 length", Words::Number),
    named("ip6 hoplimit", Words::Number),
    named("tcp sequence", Words::Number),
    named("tcp ackseq", Words::Number),
    named("tcp doff", Words::Number),
    named("tcp reserved", Words::Number),
    named("tcp window", Words::Number),
    named("tcp checksum", Words::Number),
    named("tcp urgptr", Words::Number),
    named("udp length", Words::Number),
    named("udp checksum", Words::Number),
    named("sctp vtag", Words::Number),
    named("sctp checksum", Words::Number),
    named("icmp type", ICMP_TYPES),
    named("icmp code", Words::Number),
    named("icmpv6 type", ICMPV6_TYPES),
    named("icmpv6 code", Words::Number),
    named("ether saddr", Words::Ether),
    named("ether daddr", Words::Ether),
    named("ether type", ETHER_TYPES),
    named("vlan id", Words::Number),
    named("vlan pcp", Words::Number),
    named("vlan type", ETHER_TYPES),
    named("tcp option maxseg size", Words::Number),
    named("tcp option maxseg", Words::Existence),
    named("tcp option window count", Words::Number),
    named("tcp option window", Words::Existence),
    named("tcp option maxseg length", Words::Number),
    named("tcp option window length", Words::Number),
    named("tcp option sack-perm length", Words::Number),
    named("tcp option sack-perm", Words::Existence),
    named("tcp option sack length", Words::Number),
    named("tcp option sack left", Words::Number),
    named("tcp option sack right", Words::Number),
    named("tcp option sack", Words::Existence),
    named("tcp option timestamp length", Words::Number),
    named("tcp option eol", Words::Existence),
    named("tcp option nop", Words::Existence),
    named("tcp option timestamp tsval", Words::Number),
    named("tcp option timestamp tsecr", Words::Number),
    named("tcp option timestamp", Words::Existence),
    named("tcp option mptcp subtype", Words::Number),
    named("tcp option mptcp", Words::Existence),
    named("tcp option fastopen", Words::Existence),
    named("tcp option md5sig", Words::Existence),
    named("tcp option", Words::Number),
    absent("exthdr frag", Words::Existence),
    absent("exthdr hbh", Words::Existence),
    absent("exthdr rt", Words::Existence),
    absent("exthdr dst", Words::Existence),
    absent("exthdr mh", Words::Existence),
    absent("hbh nexthdr", PROTOCOLS),
    absent("hbh hdrlength", Words::Number),
    absent("dst nexthdr", PROTOCOLS),
    absent("dst hdrlength", Words::Number),
    absent("rt nexthdr", PROTOCOLS),
    absent("rt hdrlength", Words::Number),
    absent("rt type", Words::Number),
    absent("rt seg-left", Words::Number),
    absent("srh last-entry", Words::Number),
    absent("srh flags", Words::Number),
    absent("srh tag", Words::Number),
    absent("frag nexthdr", PROTOCOLS),
    absent("frag reserved", Words::Number),
    absent("frag frag-off", Words::Number),
    absent("frag more-fragments", Words::Number),
    absent("frag reserved2", Words::Number),
    absent("frag id", Words::Number),
    absent("mh nexthdr", PROTOCOLS),
    absent("mh hdrlength", Words::Number),
    absent("mh type", MOBILITY_TYPES),
    absent("mh reserved", Words::Number),
    absent("mh checksum", Words::Number),
    absent("exthdr", Words::Number),
    absent("ip option lsrr", Words::Existence),
    absent("ip option rr", Words::Existence),
    absent("ip option ssrr", Words::Existence),
    absent("ip option ra", Words::Existence),
    absent("ip option ra value", Words::Number),
    absent("ip option", Words::Number),
    named("sctp chunk init", Words::Existence),
    absent("sctp chunk data", Words::Existence),
    absent("sctp chunk abort", Words::Existence),
    absent("sctp chunk shutdown", Words::Existence),
    absent("sctp chunk init-ack", Words::Existence),
    absent("sctp chunk sack", Words::Existence),
    absent("sctp chunk heartbeat", Words::Existence),
    absent("sctp chunk heartbeat-ack", Words::Existence),
    absent("sctp chunk shutdown-ack", Words::Existence),
    absent("sctp chunk error", Words::Existence),
    absent("sctp chunk cookie-echo", Words::Existence),
    absent("sctp chunk cookie-ack", Words::Existence),
    absent("sctp chunk ecne", Words::Existence),
    absent("sctp chunk cwr", Words::Existence),
    absent("sctp chunk shutdown-complete", Words::Existence),
    absent("sctp chunk asconf-ack", Words::Existence),
    absent("sctp chunk forward-tsn", Words::Existence),
    absent("sctp chunk asconf", Words::Existence),
    named("sctp chunk", Words::Number),
    named("ah nexthdr", PROTOCOLS),
    named("ah spi", Words::Number),
    named("ah sequence", Words::Number),
    named("esp spi", Words::Number),
    named("esp sequence", Words::Number),
    named("comp nexthdr", PROTOCOLS),
    named("comp cpi", Words::Number),
    named("igmp type", IGMP_TYPES),
    named("igmp group", Words::Ipv4),
    named("dccp type", DCCP_TYPES),
    host("ipsec in reqid", Words::Number),
    named("ipsec in spi", Words::Number),
    host("ipsec out reqid", Words::Number),
    named("ipsec out spi", Words::Number),
    named("ipsec", Words::Number),
    named("tunnel", Words::Number),
];

const MOBILITY_TYPES: Words = Words::Names(&[
    (0, "binding-refresh-request"),
    (1, "home-test-init"),
    (2, "careof-test-init"),
    (3, "home-test"),
    (4, "careof-test"),
    (5, "binding-update"),
    (6, "binding-acknowledgement"),
    (7, "binding-error"),
    (8, "fast-binding-update"),
    (9, "fast-binding-acknowledgement"),
    (10, "fast-binding-advertisement"),
    (11, "experimental-mobility-header"),
    (12, "home-agent-switch-message"),
]);
const IGMP_TYPES: Words = Words::Names(&[
    (0x11, "membership-query"),
    (0x12, "membership-report-v1"),
    (0x16, "membership-report-v2"),
    (0x17, "leave-group"),
    (0x22, "membership-report-v3"),
]);
const DCCP_TYPES: Words = Words::Names(&[
    (0, "request"),
    (1, "response"),
    (2, "data"),
    (3, "ack"),
    (4, "dataack"),
    (5, "closereq"),
    (6, "close"),
    (7, "reset"),
    (8, "sync"),
    (9, "syncack"),
]);
const ICMP_TYPES: Words = Words::Names(&[
    (0, "echo-reply"),
    (3, "destination-unreachable"),
    (5, "redirect"),
    (8, "echo-request"),
    (11, "time-exceeded"),
    (12, "parameter-problem"),
]);
const ICMPV6_TYPES: Words = Words::Names(&[
    (1, "destination-unreachable"),
    (2, "packet-too-big"),
    (3, "time-exceeded"),
    (4, "parameter-problem"),
    (128, "echo-request"),
    (129, "echo-reply"),
    (130, "mld-listener-query"),
    (133, "nd-router-solicit"),
    (134, "nd-router-advert"),
    (135, "nd-neighbor-solicit"),
    (136, "nd-neighbor-advert"),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (n, one) in NAMED.iter().enumerate() {
            assert!(NAMED[n + 1..].iter().all(|other| other.text != one.text), "{}", one.text);
        }
    }
}
