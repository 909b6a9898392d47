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
use crate::model::{ClassId, DataType, Field, Name};

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
        _ => (Loaded::Unknown(format!("meta {key}")), 4),
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
        (key, _) => (Loaded::Unknown(format!("ct {key}")), 4),
    })
}

/// Decodes `fib`.
pub(super) fn fib(parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let loaded = match (parts.u32(NFTA_FIB_RESULT)?, parts.u32(NFTA_FIB_FLAGS)?) {
        (NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_SADDR) => Loaded::Field(Field::FibSaddrType),
        (NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR) => Loaded::Field(Field::FibDaddrType),
        (result, flags) => Loaded::Unknown(format!("fib {result} with flags {flags:#x}")),
    };
    Some((loaded, 4))
}

/// Decodes `numgen`.
pub(super) fn numgen(parts: &Parts<'_>) -> Option<(Loaded, usize)> {
    let (count, kind, first) =
        (parts.u32(NFTA_NG_MODULUS)?, parts.u32(NFTA_NG_TYPE)?, parts.u32(NFTA_NG_OFFSET).unwrap_or_default());
    let loaded = match kind {
        NFT_NG_RANDOM if count > 0 => Loaded::Field(Field::NumgenRandom { count, first }),
        _ => Loaded::Unknown(format!("numgen of kind {kind}")),
    };
    Some((loaded, 4))
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
            other => write!(f, "{other:?}"),
        }
    }
}
