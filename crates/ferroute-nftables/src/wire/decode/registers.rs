//! The content of registers.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{
    super::{
        constants::*,
        layout::{Register, destination_offset, source_offset},
    },
    Parts,
};
use crate::model::{ClassId, DataType, Field, HashInput, Name, Property};

/// The content of a register.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Loaded {
    /// A field of the packet.
    Field(Field),
    /// The first bytes of an address.
    Part { side: Side, family: IpFamily, bytes: usize },
    /// An address, masked with a prefix length.
    Network { side: Side, family: IpFamily, prefix: u8 },
    /// A number after `& mask ^ xor`.
    Bitwise { field: Field, mask: u32, xor: u32 },
    /// The packet's family, as this `meta` key returns it.
    Family { key: u32 },
    /// The number of packets of the connection.
    CtPackets,
    /// The same with its most significant byte first.
    OrderedCtPackets,
    /// A property that only other programs' rules compare.
    Property(Property),
    /// The same after `& mask`.
    PropertyBits { property: Property, mask: u32 },
    /// The mark of the connection after `& mask ^ xor`.
    CtMarkBits { mask: u32, xor: u32 },
    /// The index of the input or output interface.
    Interface { output: bool },
    /// The source of the connection, as the client sees it.
    OriginalSource { prefix: Option<u8> },
    /// A constant.
    Constant(Vec<u8>),
    /// The data of a map's element, from byte `offset` on.
    MapData { key: Vec<Field>, map: Name, offset: usize },
    /// Anything else, with a description.
    Unknown(String),
}

/// Whether an address is the source or the destination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// The registers by first word, each with the length of its content.
pub(super) struct Registers(BTreeMap<u32, (Loaded, usize)>);

impl Registers {
    pub(super) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Forgets the content of all registers.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn put(&mut self, to: Register, loaded: Loaded, bytes: usize) {
        let end = to.after(bytes).0;
        self.0.retain(|start, (_, old)| *start >= end || Register(*start).after(*old).0 <= to.0);
        self.0.insert(to.0, (loaded, bytes));
    }

    pub(super) fn at(&self, register: Register) -> Loaded {
        if let Some((loaded, _)) = self.0.get(&register.0) {
            return loaded.clone();
        }
        match self.0.range(..register.0).next_back() {
            Some((start, (Loaded::MapData { key, map, .. }, bytes)))
                if Register(*start).after(*bytes).0 > register.0 =>
            {
                let offset = usize::try_from(register.0 - start).unwrap_or(usize::MAX) * 4;
                Loaded::MapData { key: key.clone(), map: map.clone(), offset }
            }
            _ => Loaded::Unknown("a register".to_owned()),
        }
    }
}

impl Loaded {
    /// Returns the result of `& mask ^ xor`.
    pub(super) fn masked(&self, mask: &[u8], xor: &[u8]) -> Option<Self> {
        let flips = xor.iter().any(|byte| *byte != 0);
        match self {
            Self::Property(Property::CtMark) => Some(Self::CtMarkBits { mask: number(mask)?, xor: number(xor)? }),
            Self::Property(property) if !flips => Some(Self::PropertyBits { property: *property, mask: number(mask)? }),
            Self::OriginalSource { prefix: None } if !flips => {
                Some(Self::OriginalSource { prefix: Some(prefix_of(mask)?) })
            }
            Self::Field(field @ (Field::Saddr | Field::Daddr)) if !flips => {
                let side = if *field == Field::Saddr { Side::Source } else { Side::Destination };
                let (family, mask) = match mask.len() {
                    4 => (IpFamily::V4, IpAddr::from(<[u8; 4]>::try_from(mask).ok()?)),
                    _ => (IpFamily::V6, IpAddr::from(<[u8; 16]>::try_from(mask).ok()?)),
                };
                let prefix = ipnet::ip_mask_to_prefix(mask).ok()?;
                Some(Self::Network { side, family, prefix })
            }
            Self::Field(Field::MetaPriority) if !flips => {
                Some(Self::Field(Field::PriorityBits(ClassId(u32::from_ne_bytes(mask.try_into().ok()?)))))
            }
            Self::Field(field @ (Field::MetaMark | Field::MetaPriority | Field::CtState | Field::CtStatus)) => {
                let number = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
                Some(Self::Bitwise { field: *field, mask: number(mask)?, xor: number(xor)? })
            }
            _ => None,
        }
    }

    /// Returns the field of a key.
    pub(super) fn field(&self) -> Option<Field> {
        match self {
            Self::Field(field) => Some(*field),
            Self::Network { side: Side::Source, prefix, .. } => Some(Field::SaddrNetwork(*prefix)),
            _ => None,
        }
    }

    /// Returns the network that a comparison with these bytes matches; `None` if this is not an address, or if the
    /// bytes are not a network of its prefix length.
    pub(super) fn network(&self, with: &[u8]) -> Option<(Side, IpNet)> {
        let (side, family, prefix) = match self {
            Self::Field(Field::Saddr) => (Side::Source, family_of(with)?, with.len() * 8),
            Self::Field(Field::Daddr) => (Side::Destination, family_of(with)?, with.len() * 8),
            Self::Part { side, family, bytes } if with.len() == *bytes => (*side, *family, bytes * 8),
            Self::Network { side, family, prefix } => (*side, *family, usize::from(*prefix)),
            _ => return None,
        };
        let mut octets = [0; 16];
        octets.get_mut(..with.len())?.copy_from_slice(with);
        let address: IpAddr = match family {
            IpFamily::V4 => Ipv4Addr::from(*octets.first_chunk::<4>()?).into(),
            IpFamily::V6 => Ipv6Addr::from(octets).into(),
        };
        let net = IpNet::new(address, u8::try_from(prefix).ok()?).ok()?;
        (net.network() == address).then_some((side, net))
    }
}

/// Returns a number of one, two or four bytes in the host's byte order.
pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    match *bytes {
        [byte] => Some(byte.into()),
        [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
        _ => Some(u32::from_ne_bytes(bytes.try_into().ok()?)),
    }
}

fn prefix_of(mask: &[u8]) -> Option<u8> {
    let mask = match mask.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(mask).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(mask).ok()?),
    };
    ipnet::ip_mask_to_prefix(mask).ok()
}

fn family_of(address: &[u8]) -> Option<IpFamily> {
    match address.len() {
        4 => Some(IpFamily::V4),
        16 => Some(IpFamily::V6),
        _ => None,
    }
}

/// Decodes `payload`; returns the content with its length.
pub(super) fn payload(family: IpFamily, parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let (base, offset, bytes) = (
        parts.u32(NFTA_PAYLOAD_BASE)?,
        parts.u32(NFTA_PAYLOAD_OFFSET)?,
        usize::try_from(parts.u32(NFTA_PAYLOAD_LEN)?).ok()?,
    );
    let address = DataType::address(family).length();
    let of = |side: Side, field| match bytes {
        length if length == address => Loaded::Field(field),
        _ => Loaded::Part { side, family, bytes },
    };
    let loaded = match (base, offset) {
        (NFT_PAYLOAD_NETWORK_HEADER, at) if at == source_offset(family) && bytes <= address => {
            of(Side::Source, Field::Saddr)
        }
        (NFT_PAYLOAD_NETWORK_HEADER, at) if at == destination_offset(family) && bytes <= address => {
            of(Side::Destination, Field::Daddr)
        }
        (NFT_PAYLOAD_NETWORK_HEADER, at) if at == protocol_offset(family) && bytes == 1 => {
            Loaded::Field(Field::L4proto)
        }
        (NFT_PAYLOAD_TRANSPORT_HEADER, TCP_FLAGS_OFFSET) if bytes == 1 => Loaded::Property(Property::TcpFlags),
        (NFT_PAYLOAD_TRANSPORT_HEADER, SOURCE_PORT_OFFSET) if bytes == 2 => Loaded::Field(Field::Sport),
        (NFT_PAYLOAD_TRANSPORT_HEADER, DESTINATION_PORT_OFFSET) if bytes == 2 => Loaded::Field(Field::Dport),
        _ => Loaded::Unknown(format!("{bytes} bytes of the {} header at {offset}", header_name(base))),
    };
    Some((loaded, bytes))
}

/// Decodes `meta`.
pub(super) fn meta(parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let key = parts.u32(NFTA_META_KEY)?;
    Some(match key {
        NFT_META_PRIORITY => (Loaded::Field(Field::MetaPriority), 4),
        NFT_META_MARK => (Loaded::Field(Field::MetaMark), 4),
        NFT_META_IIFNAME => (Loaded::Field(Field::Iifname), 16),
        NFT_META_OIFNAME => (Loaded::Field(Field::Oifname), 16),
        NFT_META_L4PROTO => (Loaded::Field(Field::L4proto), 1),
        NFT_META_NFPROTO | NFT_META_PROTOCOL => (Loaded::Family { key }, 2),
        NFT_META_IIF => (Loaded::Interface { output: false }, 4),
        NFT_META_OIF => (Loaded::Interface { output: true }, 4),
        NFT_META_PKTTYPE => (Loaded::Property(Property::PacketType), 1),
        _ => (Loaded::Unknown(format!("meta {}", name(&META_NAMES, key))), 4),
    })
}

/// Decodes `ct`.
pub(super) fn ct(parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let direction = parts.get(NFTA_CT_DIRECTION).map(|direction| direction.u8().ok());
    Some(match (parts.u32(NFTA_CT_KEY)?, direction) {
        (NFT_CT_STATE, _) => (Loaded::Field(Field::CtState), 4),
        (NFT_CT_STATUS, _) => (Loaded::Field(Field::CtStatus), 4),
        (NFT_CT_PKTS, None) => (Loaded::CtPackets, 8),
        (NFT_CT_DST_IP, Some(Some(IP_CT_DIR_ORIGINAL))) => (Loaded::Field(Field::CtOriginalDaddr), 4),
        (NFT_CT_DST_IP6, Some(Some(IP_CT_DIR_ORIGINAL))) => (Loaded::Field(Field::CtOriginalDaddr), 16),
        (NFT_CT_PROTO_DST, Some(Some(IP_CT_DIR_ORIGINAL))) => (Loaded::Field(Field::CtOriginalDport), 2),
        (NFT_CT_PROTO_SRC, Some(Some(IP_CT_DIR_ORIGINAL))) => (Loaded::Property(Property::CtOriginalSport), 2),
        (NFT_CT_SRC_IP, Some(Some(IP_CT_DIR_ORIGINAL))) => (Loaded::OriginalSource { prefix: None }, 4),
        (NFT_CT_SRC_IP6, Some(Some(IP_CT_DIR_ORIGINAL))) => (Loaded::OriginalSource { prefix: None }, 16),
        (NFT_CT_MARK, None) => (Loaded::Property(Property::CtMark), 4),
        (NFT_CT_DIRECTION, None) => (Loaded::Property(Property::CtDirection), 1),
        (NFT_CT_ZONE, None) => (Loaded::Property(Property::CtZone), 2),
        (key, direction) => {
            let direction = match direction {
                None => "",
                Some(Some(IP_CT_DIR_ORIGINAL)) => "original ",
                Some(_) => "reply ",
            };
            (Loaded::Unknown(format!("ct {direction}{}", name(&CT_NAMES, key))), 4)
        }
    })
}

/// Decodes `fib`.
pub(super) fn fib(parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let loaded = match (parts.u32(NFTA_FIB_RESULT)?, parts.u32(NFTA_FIB_FLAGS)?) {
        (NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_SADDR) => Loaded::Field(Field::FibSaddrType),
        (NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR) => Loaded::Field(Field::FibDaddrType),
        (NFT_FIB_RESULT_OIF, flags)
            if flags & NFTA_FIB_F_PRESENT != 0
                && flags & !(NFTA_FIB_F_PRESENT | NFTA_FIB_F_SADDR | NFTA_FIB_F_DADDR | NFTA_FIB_F_IIF) == 0 =>
        {
            let (source, iif) = (flags & NFTA_FIB_F_SADDR != 0, flags & NFTA_FIB_F_IIF != 0);
            return Some((Loaded::Property(Property::FibRoute { source, iif }), 1));
        }
        (result, flags) => {
            let parts = FIB_FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name);
            let result = match result {
                NFT_FIB_RESULT_OIF => "oif",
                NFT_FIB_RESULT_OIFNAME => "oifname",
                _ => "type",
            };
            Loaded::Unknown(format!("fib {} {result}", parts.collect::<Vec<_>>().join(" . ")))
        }
    };
    Some((loaded, 4))
}

/// Decodes `numgen`.
pub(super) fn numgen(parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let (count, kind, first) =
        (parts.u32(NFTA_NG_MODULUS)?, parts.u32(NFTA_NG_TYPE)?, parts.u32(NFTA_NG_OFFSET).unwrap_or_default());
    let loaded = match kind {
        NFT_NG_RANDOM if count > 0 => Loaded::Field(Field::NumgenRandom { count, first }),
        NFT_NG_INCREMENTAL if count > 0 => Loaded::Field(Field::NumgenInc { count, first }),
        _ => Loaded::Unknown(format!("numgen of kind {kind}")),
    };
    Some((loaded, 4))
}

/// Decodes `hash`, given the registers before it.
pub(super) fn hash(family: IpFamily, parts: &Parts<'_>, registers: &Registers) -> Option<(Loaded, usize)> {
    let unknown = |text: &str| Some((Loaded::Unknown(text.to_owned()), 4));
    if parts.u32(NFTA_HASH_TYPE).unwrap_or(NFT_HASH_JENKINS) != NFT_HASH_JENKINS {
        return unknown("symhash");
    }
    let (from, length) = (parts.register(NFTA_HASH_SREG)?, usize::try_from(parts.u32(NFTA_HASH_LEN)?).ok()?);
    let address = DataType::address(family).length();
    let port = registers.at(from.after(address));
    let input = match (registers.at(from), length - length.min(address), port) {
        (Loaded::Field(Field::Saddr), 0, _) if length == address => HashInput::Saddr,
        (Loaded::Field(Field::Saddr), 4, Loaded::Field(Field::Sport)) => HashInput::SaddrSport,
        _ => return unknown("jhash"),
    };
    let (count, seed) = (parts.u32(NFTA_HASH_MODULUS)?, parts.u32(NFTA_HASH_SEED).unwrap_or_default());
    let first = parts.u32(NFTA_HASH_OFFSET).unwrap_or_default();
    Some((Loaded::Field(Field::Jhash { input, count, seed, first }), 4))
}

/// Returns `ETH_P_IP` or `ETH_P_IPV6` in network byte order.
pub(super) fn ethernet_protocol(family: IpFamily) -> [u8; 2] {
    match family {
        IpFamily::V4 => (libc::ETH_P_IP as u16).to_be_bytes(),
        IpFamily::V6 => (libc::ETH_P_IPV6 as u16).to_be_bytes(),
    }
}

/// Returns the offset of the protocol in `struct iphdr` or `struct ipv6hdr`.
fn protocol_offset(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 9,
        IpFamily::V6 => 6,
    }
}

fn header_name(base: u32) -> &'static str {
    match base {
        NFT_PAYLOAD_NETWORK_HEADER => "network",
        NFT_PAYLOAD_TRANSPORT_HEADER => "transport",
        _ => "link",
    }
}

impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => f.write_str(name),
            Self::Field(_) | Self::Part { .. } | Self::Network { .. } | Self::Bitwise { .. } => f.write_str("a field"),
            Self::Family { .. } => f.write_str("meta nfproto"),
            Self::CtPackets | Self::OrderedCtPackets => f.write_str("ct packets"),
            Self::Property(property) | Self::PropertyBits { property, .. } => f.write_str(&property_text(*property)),
            Self::CtMarkBits { .. } => f.write_str("ct mark"),
            Self::Interface { output } => f.write_str(if *output { "oif" } else { "iif" }),
            Self::OriginalSource { .. } => f.write_str("ct original saddr"),
            Self::Constant(_) => f.write_str("a constant"),
            Self::MapData { map, .. } => write!(f, "@{map}"),
        }
    }
}

/// Returns a property in `nft` syntax.
pub(super) fn property_text(property: Property) -> String {
    match property {
        Property::CtMark => "ct mark".to_owned(),
        Property::TcpFlags => "tcp flags".to_owned(),
        Property::PacketType => "meta pkttype".to_owned(),
        Property::CtDirection => "ct direction".to_owned(),
        Property::CtZone => "ct zone".to_owned(),
        Property::CtOriginalSport => "ct original proto-src".to_owned(),
        Property::FibRoute { source, iif } => {
            format!("fib {}{} oif", if source { "saddr" } else { "daddr" }, if iif { " . iif" } else { "" })
        }
    }
}

/// Returns a name by its number.
fn name(names: &[&'static str], number: u32) -> String {
    let known = usize::try_from(number).ok().and_then(|number| names.get(number));
    known.map_or_else(|| format!("key {number}"), |name| (*name).to_owned())
}

/// `enum nft_meta_keys` in `nft` syntax.
const META_NAMES: [&str; 34] = [
    "length",
    "protocol",
    "priority",
    "mark",
    "iif",
    "oif",
    "iifname",
    "oifname",
    "iiftype",
    "oiftype",
    "skuid",
    "skgid",
    "nftrace",
    "rtclassid",
    "secmark",
    "nfproto",
    "l4proto",
    "ibrname",
    "obrname",
    "pkttype",
    "cpu",
    "iifgroup",
    "oifgroup",
    "cgroup",
    "random",
    "ipsec",
    "iifkind",
    "oifkind",
    "ibrpvid",
    "ibrvproto",
    "time",
    "day",
    "hour",
    "sdif",
];
/// `enum nft_ct_keys` in `nft` syntax.
const CT_NAMES: [&str; 25] = [
    "state",
    "direction",
    "status",
    "mark",
    "secmark",
    "expiration",
    "helper",
    "l3proto",
    "saddr",
    "daddr",
    "protocol",
    "proto-src",
    "proto-dst",
    "label",
    "packets",
    "bytes",
    "avgpkt",
    "zone",
    "event",
    "ip saddr",
    "ip daddr",
    "ip6 saddr",
    "ip6 daddr",
    "timeout",
    "id",
];
const FIB_FLAGS: [(u32, &str); 5] = [
    (NFTA_FIB_F_SADDR, "saddr"),
    (NFTA_FIB_F_DADDR, "daddr"),
    (1 << 2, "mark"),
    (NFTA_FIB_F_IIF, "iif"),
    (1 << 4, "oif"),
];
/// The offset of the flags in a TCP header.
const TCP_FLAGS_OFFSET: u32 = 13;
// `include/uapi/linux/netfilter/nf_tables.h`.
const NFT_META_IIF: u32 = 4;
const NFT_META_OIF: u32 = 5;
const NFT_META_PKTTYPE: u32 = 19;
const NFT_CT_DIRECTION: u32 = 1;
pub(super) const NFT_CT_MARK: u32 = 3;
const NFT_CT_PROTO_SRC: u32 = 11;
const NFT_CT_ZONE: u32 = 17;
const NFT_CT_SRC_IP: u32 = 19;
const NFT_CT_SRC_IP6: u32 = 21;
const NFT_FIB_RESULT_OIF: u32 = 1;
const NFT_FIB_RESULT_OIFNAME: u32 = 2;
const NFTA_FIB_F_IIF: u32 = 1 << 3;
const NFTA_FIB_F_PRESENT: u32 = 1 << 5;
