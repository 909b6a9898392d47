//! The content of registers.

use std::{
    collections::BTreeMap,
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
    headers::Headers,
};
use crate::model::{
    ClassId, DataType, End, FibInterface, FibResult, Field, HashInput, Name, NumberSource, Operand, Property, Sender,
    family_name, key_text,
};

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
    /// A property that only rules of other programs use, or a number, in rules of any program, in another byte order or
    /// with a mask.
    Operand {
        /// The property and the mask.
        operand: Operand,
        /// The bits that are flipped afterwards.
        xor: u128,
        /// Whether the register has the value in the host's byte order.
        host_order: bool,
    },
    /// Bytes of a header.
    Payload { base: u32, offset: u32, bytes: usize },
    /// A constant.
    Constant(Vec<u8>),
    /// The data of a map's element, from byte `offset` on.
    MapData { key: Vec<Operand>, map: Name, offset: usize },
    /// Other content, with a description.
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

    /// Clears all registers.
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
            _ => Loaded::Unknown("unknown value".to_owned()),
        }
    }
}

impl Loaded {
    /// Returns the content in `nft` syntax.
    pub(super) fn text(&self, headers: Headers) -> String {
        match self {
            Self::Unknown(name) => name.clone(),
            Self::CtPackets | Self::OrderedCtPackets => "ct packets".to_owned(),
            Self::MapData { key, map, .. } => format!("{} map @{map}", key_text(key, headers.family)),
            Self::Constant(bytes) => super::hexadecimal(bytes),
            Self::Part { side: Side::Source, family, .. } => format!("{} saddr", family_name(*family)),
            Self::Part { side: Side::Destination, family, .. } => format!("{} daddr", family_name(*family)),
            Self::Operand { operand, xor, .. } if *xor != 0 => {
                let words = operand.property.words(headers.family);
                format!("{} ^ {}", operand.text(headers.family), words.text(*xor))
            }
            Self::Bitwise { field, mask, xor } => {
                format!("{} & {mask:#010x} ^ {xor:#010x}", Property::Field(*field).text(headers.family))
            }
            other => {
                other.operand(headers).map_or_else(|| "a value".to_owned(), |operand| operand.text(headers.family))
            }
        }
    }

    /// Returns a property as it is loaded.
    pub(super) fn property(property: Property) -> Self {
        Self::Operand { operand: property.into(), xor: 0, host_order: property.is_in_host_order() }
    }

    /// Returns the result of `& mask ^ xor`, in packets of an IP family and a protocol.
    pub(super) fn masked(&self, mask: &[u8], xor: &[u8], headers: Headers) -> Option<Self> {
        let flips = xor.iter().any(|byte| *byte != 0);
        match self {
            Self::Operand { operand, xor: 0, host_order } => {
                let (mask, xor) = (number(mask, *host_order)?, number(xor, *host_order)?);
                let operand = Operand { mask: operand.mask & mask, ..*operand };
                Some(Self::Operand { operand, xor, host_order: *host_order })
            }
            Self::Payload { base, offset, bytes } if !flips && mask.len() == *bytes => {
                let mask = number(mask, false)?;
                match headers.part(*base, *offset, *bytes, mask) {
                    Some(property) => {
                        let shift = u8::try_from(mask.trailing_zeros()).unwrap_or(0);
                        let operand = Operand { shift, ..property.into() };
                        Some(Self::Operand { operand, xor: 0, host_order: false })
                    }
                    None => match headers.field(*base, *offset, *bytes)?.0 {
                        Self::Operand { operand, host_order, .. } => {
                            Some(Self::Operand { operand: Operand { mask, ..operand }, xor: 0, host_order })
                        }
                        _ => None,
                    },
                }
            }
            // A part of the bytes is written.
            Self::Payload { base, offset, bytes } if mask.len() == *bytes => {
                let operand = Operand { mask: number(mask, false)?, ..headers.bytes(*base, *offset, *bytes)?.into() };
                Some(Self::Operand { operand, xor: number(xor, false)?, host_order: false })
            }
            Self::Field(field @ (Field::Saddr | Field::Daddr)) if !flips => {
                let side = if *field == Field::Saddr { Side::Source } else { Side::Destination };
                let (family, address) = match mask.len() {
                    4 => (IpFamily::V4, IpAddr::from(<[u8; 4]>::try_from(mask).ok()?)),
                    _ => (IpFamily::V6, IpAddr::from(<[u8; 16]>::try_from(mask).ok()?)),
                };
                Some(match ipnet::ip_mask_to_prefix(address) {
                    Ok(prefix) => Self::Network { side, family, prefix },
                    Err(_) => Self::Operand {
                        operand: Operand { mask: number(mask, false)?, ..Property::Field(*field).into() },
                        xor: 0,
                        host_order: false,
                    },
                })
            }
            Self::Field(Field::MetaPriority) if !flips => {
                Some(Self::Field(Field::PriorityBits(ClassId(u32::from_ne_bytes(mask.try_into().ok()?)))))
            }
            Self::Field(field @ (Field::MetaMark | Field::MetaPriority | Field::CtState | Field::CtStatus)) => {
                let number = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
                Some(Self::Bitwise { field: *field, mask: number(mask)?, xor: number(xor)? })
            }
            Self::Field(field) if !flips => {
                let host_order = Property::Field(*field).is_in_host_order();
                let operand = Operand { mask: number(mask, host_order)?, ..Property::Field(*field).into() };
                Some(Self::Operand { operand, xor: 0, host_order })
            }
            _ => None,
        }
    }

    /// Returns a number's property, the bits of it that are flipped, and whether it is in the host's byte order.
    pub(super) fn number(&self) -> Option<(Operand, u128, bool)> {
        Some(match self {
            Self::Operand { operand, xor, host_order } => (*operand, *xor, *host_order),
            Self::Field(field) => (Property::Field(*field).into(), 0, Property::Field(*field).is_in_host_order()),
            Self::Bitwise { field, mask, xor } => {
                let operand = Operand { mask: (*mask).into(), ..Property::Field(*field).into() };
                (operand, (*xor).into(), true)
            }
            _ => return None,
        })
    }

    /// Returns the content with its bytes reversed, if it is a number.
    pub(super) fn reversed(&self) -> Option<Self> {
        let (operand, xor, host_order) = self.number()?;
        Some(Self::Operand { operand, xor, host_order: !host_order })
    }

    /// Returns the field of a key, if planned rules use it.
    pub(super) fn field(&self) -> Option<Field> {
        match self {
            Self::Field(field) => Some(*field),
            Self::Network { side: Side::Source, prefix, .. } => Some(Field::SaddrNetwork(*prefix)),
            _ => None,
        }
    }

    /// Returns the field of a key of any rule.
    pub(super) fn operand(&self, headers: Headers) -> Option<Operand> {
        match self {
            Self::Operand { operand, xor: 0, .. } => Some(*operand),
            Self::Payload { base, offset, bytes } => match headers.field(*base, *offset, *bytes)?.0 {
                Self::Operand { operand, .. } => Some(operand),
                Self::Field(field) => Some(Property::Field(field).into()),
                _ => None,
            },
            Self::Bitwise { field, mask, xor: 0 } => {
                Some(Operand { mask: (*mask).into(), ..Property::Field(*field).into() })
            }
            Self::Network { side, family, prefix } => {
                let field = if *side == Side::Source { Field::Saddr } else { Field::Daddr };
                let mask = match crate::model::netmask(*family, *prefix) {
                    IpAddr::V4(mask) => u32::from(mask).into(),
                    IpAddr::V6(mask) => mask.into(),
                };
                Some(Operand { mask, ..Property::Field(field).into() })
            }
            Self::Family { key: NFT_META_PROTOCOL } => Some(Property::EtherType.into()),
            Self::Family { .. } => Some(Property::Nfproto.into()),
            other => Some(Property::Field(other.field()?).into()),
        }
    }

    /// Returns the network that a comparison with these bytes matches; `None` if the register has no address, or if the
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

/// Returns a number of up to 16 bytes.
pub(in super::super) fn number(bytes: &[u8], host_order: bool) -> Option<u128> {
    let mut all = [0; 16];
    all.get_mut(16_usize.checked_sub(bytes.len())?..)?.copy_from_slice(bytes);
    if host_order && cfg!(target_endian = "little") {
        all[16 - bytes.len()..].reverse();
    }
    Some(u128::from_be_bytes(all))
}

fn family_of(address: &[u8]) -> Option<IpFamily> {
    match address.len() {
        4 => Some(IpFamily::V4),
        16 => Some(IpFamily::V6),
        _ => None,
    }
}

/// Decodes `payload`; returns the content with its length.
pub(super) fn payload(headers: Headers, parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let (base, offset, bytes) = (
        parts.u32(NFTA_PAYLOAD_BASE)?,
        parts.u32(NFTA_PAYLOAD_OFFSET)?,
        usize::try_from(parts.u32(NFTA_PAYLOAD_LEN)?).ok()?,
    );
    let family = headers.family;
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
        _ => match headers.field(base, offset, bytes) {
            Some((loaded @ Loaded::Field(_), _)) => loaded,
            _ => Loaded::Payload { base, offset, bytes },
        },
    };
    Some((loaded, bytes))
}

/// Decodes `meta`.
pub(super) fn meta(parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let key = parts.u32(NFTA_META_KEY)?;
    let property = Loaded::property;
    Some(match key {
        NFT_META_PRIORITY => (Loaded::Field(Field::MetaPriority), 4),
        NFT_META_MARK => (Loaded::Field(Field::MetaMark), 4),
        NFT_META_IIFNAME => (Loaded::Field(Field::Iifname), 16),
        NFT_META_OIFNAME => (Loaded::Field(Field::Oifname), 16),
        NFT_META_L4PROTO => (Loaded::Field(Field::L4proto), 1),
        NFT_META_NFPROTO | NFT_META_PROTOCOL => (Loaded::Family { key }, 2),
        NFT_META_IIF => (property(Property::Interface { output: false }), 4),
        NFT_META_OIF => (property(Property::Interface { output: true }), 4),
        NFT_META_PKTTYPE => (property(Property::PacketType), 1),
        NFT_META_SKUID => (property(Property::Sender(Sender::User)), 4),
        NFT_META_SKGID => (property(Property::Sender(Sender::Group)), 4),
        NFT_META_CGROUP => (property(Property::Sender(Sender::Cgroup)), 4),
        _ => {
            let (_, name, bytes) = META.iter().find(|(number, ..)| *number == key)?;
            (property(Property::named(name)?), *bytes)
        }
    })
}

/// Decodes `ct`.
pub(super) fn ct(parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let direction = parts.get(NFTA_CT_DIRECTION).map(|direction| direction.u8().ok());
    let reply = match direction {
        None => None,
        Some(Some(IP_CT_DIR_ORIGINAL)) => Some(false),
        Some(_) => Some(true),
    };
    let property = Loaded::property;
    let end = |end| reply.map(|reply| property(Property::CtEnd { reply, end }));
    Some(match (parts.u32(NFTA_CT_KEY)?, reply) {
        (NFT_CT_STATE, _) => (Loaded::Field(Field::CtState), 4),
        (NFT_CT_STATUS, _) => (Loaded::Field(Field::CtStatus), 4),
        (NFT_CT_PKTS, None) => (Loaded::CtPackets, 8),
        (NFT_CT_DST_IP, Some(false)) => (Loaded::Field(Field::CtOriginalDaddr), 4),
        (NFT_CT_DST_IP6, Some(false)) => (Loaded::Field(Field::CtOriginalDaddr), 16),
        (NFT_CT_PROTO_DST, Some(false)) => (Loaded::Field(Field::CtOriginalDport), 2),
        (NFT_CT_PROTO_DST, _) => (end(End::Dport)?, 2),
        (NFT_CT_PROTO_SRC, _) => (end(End::Sport)?, 2),
        (NFT_CT_SRC_IP, _) => (end(End::Saddr)?, 4),
        (NFT_CT_SRC_IP6, _) => (end(End::Saddr)?, 16),
        (NFT_CT_DST_IP, _) => (end(End::Daddr)?, 4),
        (NFT_CT_DST_IP6, _) => (end(End::Daddr)?, 16),
        // Of the family of the connection.
        (NFT_CT_SRC, _) => (end(End::Saddr)?, 16),
        (NFT_CT_DST, _) => (end(End::Daddr)?, 16),
        (NFT_CT_MARK, None) => (property(Property::CtMark), 4),
        (NFT_CT_DIRECTION, None) => (property(Property::CtDirection), 1),
        (NFT_CT_ZONE, _) => (property(Property::CtZone), 2),
        (NFT_CT_HELPER, _) => (property(Property::CtHelper), 16),
        (NFT_CT_PROTOCOL, _) => (property(Property::CtProtocol), 1),
        (NFT_CT_L3PROTOCOL, _) => (property(Property::CtFamily), 1),
        (key, reply) => {
            let (_, name, bytes) = CT.iter().find(|(number, ..)| *number == key)?;
            let direction = match reply {
                None => "",
                Some(false) => "original ",
                Some(true) => "reply ",
            };
            (property(Property::named(&format!("ct {direction}{name}"))?), *bytes)
        }
    })
}

/// Decodes `fib`.
pub(super) fn fib(parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let (result, flags) = (parts.u32(NFTA_FIB_RESULT)?, parts.u32(NFTA_FIB_FLAGS)?);
    match (result, flags) {
        (NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_SADDR) => return Some((Loaded::Field(Field::FibSaddrType), 4)),
        (NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR) => return Some((Loaded::Field(Field::FibDaddrType), 4)),
        _ => {}
    }
    let (result, bytes) = match result {
        NFT_FIB_RESULT_OIF if flags & NFTA_FIB_F_PRESENT != 0 => (FibResult::Existence, 1),
        NFT_FIB_RESULT_OIF => (FibResult::Interface, 4),
        NFT_FIB_RESULT_OIFNAME => (FibResult::InterfaceName, 16),
        _ => (FibResult::Type, 4),
    };
    let (source, mark) = (flags & NFTA_FIB_F_SADDR != 0, flags & NFTA_FIB_F_MARK != 0);
    let interface = match (flags & NFTA_FIB_F_IIF != 0, flags & NFTA_FIB_F_OIF != 0) {
        (true, _) => FibInterface::Input,
        (false, true) => FibInterface::Output,
        (false, false) => FibInterface::Any,
    };
    Some((Loaded::property(Property::Fib { source, mark, interface, result }), bytes))
}

/// Decodes `numgen`.
pub(super) fn numgen(parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let (count, kind, first) =
        (parts.u32(NFTA_NG_MODULUS)?, parts.u32(NFTA_NG_TYPE)?, parts.u32(NFTA_NG_OFFSET).unwrap_or_default());
    let loaded = match kind {
        NFT_NG_RANDOM if count > 0 => Loaded::Field(Field::NumgenRandom { count, first }),
        NFT_NG_INCREMENTAL if count > 0 => Loaded::Field(Field::NumgenInc { count, first }),
        _ => Loaded::property(Property::Number { source: NumberSource::Incremental, count: count.max(1), first }),
    };
    Some((loaded, 4))
}

/// Decodes `hash`, given the registers before it.
pub(super) fn hash(family: IpFamily, parts: &Parts<'_>, registers: &Registers) -> Option<(Loaded, usize)> {
    if parts.u32(NFTA_HASH_TYPE).unwrap_or(NFT_HASH_JENKINS) != NFT_HASH_JENKINS {
        return None;
    }
    let (from, length) = (parts.register(NFTA_HASH_SREG)?, usize::try_from(parts.u32(NFTA_HASH_LEN)?).ok()?);
    let address = DataType::address(family).length();
    let port = registers.at(from.after(address));
    let input = match (registers.at(from), length - length.min(address), port) {
        (Loaded::Field(Field::Saddr), 0, _) if length == address => HashInput::Saddr,
        (Loaded::Field(Field::Saddr), 4, Loaded::Field(Field::Sport)) => HashInput::SaddrSport,
        _ => return None,
    };
    // The kernel does not list a seed that it has chosen itself.
    let (count, seed) = (parts.u32(NFTA_HASH_MODULUS)?, parts.u32(NFTA_HASH_SEED)?);
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

/// `enum nft_meta_keys` except for the keys with a meaning in the model, in `nft` syntax, with their lengths.
const META: [(u32, &str, usize); 22] = [
    (0, "meta length", 4),
    (8, "iiftype", 2),
    (9, "oiftype", 2),
    (12, "meta nftrace", 1),
    (13, "meta rtclassid", 4),
    (14, "meta secmark", 4),
    (17, "meta ibrname", 16),
    (18, "meta obrname", 16),
    (20, "meta cpu", 4),
    (21, "iifgroup", 4),
    (22, "oifgroup", 4),
    (24, "meta random", 4),
    (25, "meta ipsec", 1),
    (26, "meta iifkind", 16),
    (27, "meta oifkind", 16),
    (28, "meta ibrpvid", 2),
    (29, "meta ibrvproto", 2),
    (30, "meta time", 8),
    (31, "meta day", 1),
    (32, "meta hour", 4),
    (33, "meta sdif", 4),
    (34, "meta sdifname", 16),
];
/// `enum nft_ct_keys` except for the keys with a meaning in the model, in `nft` syntax, with their lengths.
const CT: [(u32, &str, usize); 8] = [
    (4, "secmark", 4),
    (5, "expiration", 4),
    (NFT_CT_LABELS, "label", 16),
    (14, "packets", 8),
    (15, "bytes", 8),
    (16, "avgpkt", 8),
    (18, "event", 4),
    (23, "id", 4),
];
// `include/uapi/linux/netfilter/nf_tables.h`.
const NFT_META_IIF: u32 = 4;
const NFT_META_OIF: u32 = 5;
const NFT_META_SKUID: u32 = 10;
const NFT_META_SKGID: u32 = 11;
const NFT_META_PKTTYPE: u32 = 19;
const NFT_META_CGROUP: u32 = 23;
const NFT_CT_DIRECTION: u32 = 1;
pub(super) const NFT_CT_MARK: u32 = 3;
pub(super) const NFT_CT_LABELS: u32 = 13;
const NFT_CT_HELPER: u32 = 6;
const NFT_CT_L3PROTOCOL: u32 = 7;
const NFT_CT_SRC: u32 = 8;
const NFT_CT_DST: u32 = 9;
const NFT_CT_PROTOCOL: u32 = 10;
const NFT_CT_PROTO_SRC: u32 = 11;
const NFT_CT_ZONE: u32 = 17;
const NFT_CT_SRC_IP: u32 = 19;
const NFT_CT_SRC_IP6: u32 = 21;
const NFT_FIB_RESULT_OIF: u32 = 1;
const NFT_FIB_RESULT_OIFNAME: u32 = 2;
const NFTA_FIB_F_MARK: u32 = 1 << 2;
const NFTA_FIB_F_IIF: u32 = 1 << 3;
const NFTA_FIB_F_OIF: u32 = 1 << 4;
const NFTA_FIB_F_PRESENT: u32 = 1 << 5;
