//! What registers hold.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{
    super::{
        constants::expr::{
            CT_STATE, CT_STATUS, DESTINATION_PORT, FIB_ADDRESS_TYPE, FIB_DESTINATION, FIB_SOURCE,
            META_ETHERNET_PROTOCOL, META_FAMILY, META_INPUT_INTERFACE, META_MARK, META_OUTPUT_INTERFACE, META_PRIORITY,
            META_PROTOCOL, NUMGEN_RANDOM, PAYLOAD_NETWORK, PAYLOAD_TRANSPORT, SOURCE_PORT,
        },
        layout::{Register, destination_offset, source_offset},
    },
    Parts,
};
use crate::model::{Class, DataType, Field, Name};

/// What a register holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Held {
    /// A field of the packet.
    Field(Field),
    /// The first bytes of an address.
    Part { side: Side, family: IpFamily, bytes: usize },
    /// An address under a mask.
    Network { side: Side, family: IpFamily, prefix: u8 },
    /// Some bits of a number, and some of them flipped.
    Bits { field: Field, keep: u32, flip: u32 },
    /// The number of the packet's family, of the kind that this key of `meta` gives.
    Family { key: u32 },
    /// A value.
    Constant(Vec<u8>),
    /// What a map says of a key; from the value's start on if `offset` is 0, else from that many bytes on.
    Found { key: Vec<Field>, map: Name, offset: usize },
    /// Something else, which the kernel calls so.
    Unknown(String),
}

/// An end of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// All registers, by their first words.
pub(super) struct Registers(BTreeMap<u32, (Held, usize)>);

impl Registers {
    pub(super) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Nobody knows any more what they hold.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    pub(super) fn put(&mut self, to: Register, held: Held, bytes: usize) {
        let end = to.behind(bytes).0;
        self.0.retain(|start, (_, old)| *start >= end || Register(*start).behind(*old).0 <= to.0);
        self.0.insert(to.0, (held, bytes));
    }

    pub(super) fn at(&self, register: Register) -> Held {
        if let Some((held, _)) = self.0.get(&register.0) {
            return held.clone();
        }
        match self.0.range(..register.0).next_back() {
            Some((start, (Held::Found { key, map, .. }, bytes))) if Register(*start).behind(*bytes).0 > register.0 => {
                let offset = usize::try_from(register.0 - start).unwrap_or(usize::MAX) * 4;
                Held::Found { key: key.clone(), map: map.clone(), offset }
            }
            _ => Held::Unknown("a register".to_owned()),
        }
    }
}

impl Held {
    /// What is left of it under a mask, with bits flipped.
    pub(super) fn masked(&self, mask: &[u8], flip: &[u8]) -> Option<Self> {
        let flips = flip.iter().any(|byte| *byte != 0);
        match self {
            Self::Field(field @ (Field::Source | Field::Destination)) if !flips => {
                let side = if *field == Field::Source { Side::Source } else { Side::Destination };
                let (family, mask) = match mask.len() {
                    4 => (IpFamily::V4, IpAddr::from(<[u8; 4]>::try_from(mask).ok()?)),
                    _ => (IpFamily::V6, IpAddr::from(<[u8; 16]>::try_from(mask).ok()?)),
                };
                match ipnet::ip_mask_to_prefix(mask).ok()? {
                    0 if side == Side::Destination => Some(Self::Field(Field::NoDestination)),
                    prefix => Some(Self::Network { side, family, prefix }),
                }
            }
            Self::Field(field @ (Field::Mark | Field::ConnectionState | Field::ConnectionStatus)) => {
                let number = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
                Some(Self::Bits { field: *field, keep: number(mask)?, flip: number(flip)? })
            }
            Self::Field(Field::Priority) if !flips && mask == Class::OWNER.0.to_ne_bytes() => {
                Some(Self::Field(Field::SlotOwner))
            }
            _ => None,
        }
    }

    /// The network that it is compared with; `None` if it is no address, or the bytes are no network of that length.
    pub(super) fn network(&self, with: &[u8]) -> Option<(Side, IpNet)> {
        let (side, family, prefix) = match self {
            Self::Field(Field::Source) => (Side::Source, family_of(with)?, with.len() * 8),
            Self::Field(Field::Destination) => (Side::Destination, family_of(with)?, with.len() * 8),
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

/// A part of the packet, with its length.
pub(super) fn payload(family: IpFamily, parts: &Parts<'_>) -> Option<(Held, usize)> {
    let (base, offset, bytes) = (parts.u32(2)?, parts.u32(3)?, usize::try_from(parts.u32(4)?).ok()?);
    let address = DataType::address(family).length();
    let of = |side: Side, field| match bytes {
        whole if whole == address => Held::Field(field),
        _ => Held::Part { side, family, bytes },
    };
    let held = match (base, offset) {
        (PAYLOAD_NETWORK, at) if at == source_offset(family) && bytes <= address => of(Side::Source, Field::Source),
        (PAYLOAD_NETWORK, at) if at == destination_offset(family) && bytes <= address => {
            of(Side::Destination, Field::Destination)
        }
        (PAYLOAD_NETWORK, at) if at == protocol_offset(family) && bytes == 1 => Held::Field(Field::Protocol),
        (PAYLOAD_TRANSPORT, SOURCE_PORT) if bytes == 2 => Held::Field(Field::SourcePort),
        (PAYLOAD_TRANSPORT, DESTINATION_PORT) if bytes == 2 => Held::Field(Field::Port),
        _ => Held::Unknown(format!("{bytes} bytes of the {} header at {offset}", header_name(base))),
    };
    Some((held, bytes))
}

/// What `meta` loads, with its length.
pub(super) fn meta(parts: &Parts<'_>) -> Option<(Held, usize)> {
    let key = parts.u32(2)?;
    Some(match key {
        META_PRIORITY => (Held::Field(Field::Priority), 4),
        META_MARK => (Held::Field(Field::Mark), 4),
        META_INPUT_INTERFACE => (Held::Field(Field::InputInterface), 16),
        META_OUTPUT_INTERFACE => (Held::Field(Field::OutputInterface), 16),
        META_PROTOCOL => (Held::Field(Field::Protocol), 1),
        META_FAMILY | META_ETHERNET_PROTOCOL => (Held::Family { key }, 2),
        _ => (Held::Unknown(format!("meta {key}")), 4),
    })
}

/// What is known of the connection, with its length.
pub(super) fn connection(parts: &Parts<'_>) -> Option<(Held, usize)> {
    let held = match parts.u32(2)? {
        CT_STATE => Held::Field(Field::ConnectionState),
        CT_STATUS => Held::Field(Field::ConnectionStatus),
        key => Held::Unknown(format!("ct {key}")),
    };
    Some((held, 4))
}

/// What kind of address an end is, with its length.
pub(super) fn kind(parts: &Parts<'_>) -> Option<(Held, usize)> {
    let held = match (parts.u32(2)?, parts.u32(3)?) {
        (FIB_ADDRESS_TYPE, FIB_SOURCE) => Held::Field(Field::SourceKind),
        (FIB_ADDRESS_TYPE, FIB_DESTINATION) => Held::Field(Field::DestinationKind),
        (result, flags) => Held::Unknown(format!("fib {result} with flags {flags:#x}")),
    };
    Some((held, 4))
}

/// A number that chance chooses, with its length.
pub(super) fn number(parts: &Parts<'_>) -> Option<(Held, usize)> {
    let (count, kind, first) = (parts.u32(2)?, parts.u32(3)?, parts.u32(4).unwrap_or_default());
    let held = match kind {
        NUMGEN_RANDOM if count > 0 => Held::Field(Field::Random { count, first }),
        _ => Held::Unknown(format!("numgen of kind {kind}")),
    };
    Some((held, 4))
}

/// `ETH_P_IP` and `ETH_P_IPV6`, as they are in frames.
pub(super) fn ethernet_protocol(family: IpFamily) -> [u8; 2] {
    match family {
        IpFamily::V4 => [0x08, 0x00],
        IpFamily::V6 => [0x86, 0xdd],
    }
}

/// Where `struct iphdr` and `struct ipv6hdr` have the protocol.
fn protocol_offset(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 9,
        IpFamily::V6 => 6,
    }
}

fn header_name(base: u32) -> &'static str {
    match base {
        PAYLOAD_NETWORK => "network",
        PAYLOAD_TRANSPORT => "transport",
        _ => "link",
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => f.write_str(name),
            other => write!(f, "{other:?}"),
        }
    }
}
