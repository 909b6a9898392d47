//! Comparisons and changes in constructs that only other programs use.

use ferroute_core::IpFamily;

use super::{
    super::constants::*,
    Decoder, NFTA_PAYLOAD_SREG, Parts,
    headers::Headers,
    hexadecimal,
    registers::{self, Loaded, NFT_CT_LABELS, NFT_CT_MARK, number},
};
use crate::model::{
    CmpOp, FibResult, Field, Foreign, Hashed, IfName, NAT_FLAGS, Named, NatKind, NatPart, NatTarget, NumberSource,
    Operand, Outcome, Property, Source, Value, Words, fib_existence, hash_inputs, network,
};

/// Returns the meaning of a comparison; `None` if it is unknown.
pub(super) fn comparison(headers: Headers, loaded: &Loaded, op: CmpOp, bytes: &[u8]) -> Option<Foreign> {
    let (mut operand, flipped, host_order) = operand(headers, loaded)?;
    let mut value = number(bytes, host_order)?;
    let is_ordered = !matches!(op, CmpOp::Eq | CmpOp::Neq);
    if flipped != 0 && is_ordered {
        return None;
    }
    // A value is equal if it is so before bits of both are flipped.
    value ^= flipped;
    // The kernel compares bytes, so numbers in the host's byte order have no meaningful order.
    if is_ordered && host_order && bytes.len() > 1 {
        return None;
    }
    if let (Property::Named(Named { absent: true, .. }), mask @ 1..=MAX_PART) = (operand.property, operand.mask) {
        // A part of a header that packets do not have.
        operand.shift = u8::try_from(mask.trailing_zeros()).unwrap_or(0);
        operand.mask = u128::MAX;
    }
    // `ip dscp` and similar parts, as separate numbers.
    value >>= operand.shift;
    operand.shift = 0;
    let words = operand.property.words(headers.family);
    let length = match words {
        Words::Ipv4 => 4,
        Words::Ipv6 => 16,
        _ => bytes.len(),
    };
    if let Some(missing @ 1..) = length.checked_sub(bytes.len()) {
        // The first bytes of an address.
        value <<= 8 * missing;
        let whole = if length == 4 { u32::MAX.into() } else { u128::MAX };
        operand.mask &= whole << (8 * missing) & whole;
    }
    if words == Words::Text {
        if let Some(name) = interface(operand.property, bytes)? {
            value = name;
        } else if bytes.iter().all(|byte| *byte == 0) && !matches!(operand.property, Property::CtHelper) {
            operand.property = fib_existence(operand.property);
        } else {
            // The beginning of a name, or a complete one.
            let shift = u32::try_from(8 * 16_usize.checked_sub(bytes.len())?).ok()?;
            value = number(bytes, false)?.checked_shl(shift)?;
            operand.mask = u128::MAX.checked_shl(shift)?;
        }
    }
    Some(Foreign::Compare { operand, op, value })
}

/// Returns the meaning of a range; `None` if it is unknown.
pub(super) fn range(headers: Headers, loaded: &Loaded, first: &[u8], last: &[u8], eq: bool) -> Option<Foreign> {
    let (operand, flipped, host_order) = operand(headers, loaded)?;
    let (first, last) = (number(first, host_order)?, number(last, host_order)?);
    (!host_order && flipped == 0).then_some(Foreign::Range { operand, first, last, eq })
}

/// Returns the property in a register, its flipped bits, and whether it is in the host's byte order.
fn operand(headers: Headers, loaded: &Loaded) -> Option<(Operand, u128, bool)> {
    match loaded {
        Loaded::CtPackets => Some((Property::named("ct packets")?.into(), 0, true)),
        Loaded::OrderedCtPackets => Some((Property::named("ct packets")?.into(), 0, false)),
        // A part of an address is compared with a prefix of another length.
        Loaded::Part { .. } => None,
        other => other.number().or_else(|| {
            let operand = other.operand(headers)?;
            Some((operand, 0, operand.property.is_in_host_order()))
        }),
    }
}

/// Returns the name of an interface that is compared by its index, or the digits of the index if only a running kernel
/// has the name. `Some(None)` for index 0, and for other properties.
fn interface(property: Property, bytes: &[u8]) -> Option<Option<u128>> {
    let is_index = matches!(property, Property::Interface { .. } | Property::Fib { result: FibResult::Interface, .. });
    if !is_index {
        return Some(None);
    }
    let index = number(bytes, true)?;
    Some((index != 0).then(|| u128::from_be_bytes(index_name(index).bytes())))
}

/// Returns the name of the interface with an index, as far as it is the same on all hosts.
pub(crate) fn index_name(index: u128) -> IfName {
    if index == LOOPBACK_INDEX { IfName::new("lo") } else { IfName::new(&index.to_string()) }
}

impl Decoder<'_, '_> {
    /// `ct key set value`.
    pub(super) fn set_ct(&mut self, parts: &Parts<'_>) -> Option<()> {
        let loaded = self.registers.at(parts.register(NFTA_CT_SREG)?);
        let key = parts.u32(NFTA_CT_KEY)?;
        if key == NFT_CT_MARK && self.set_mark(true, &loaded) {
            return Some(());
        }
        if key == NFT_CT_LABELS
            && let Some(property) = Property::named("ct label")
        {
            let value = match &loaded {
                Loaded::Constant(bytes) => number(bytes, true),
                _ => None,
            };
            let shown = value
                .map_or_else(|| loaded.text(self.headers()), |value| property.words(self.headers().family).text(value));
            let value = value.map(|value| Source::Constant(Value::Other(value)));
            self.foreign(Foreign::Write { property, value, text: format!("ct label set {shown}") });
            return Some(());
        }
        let names = [(NFT_CT_MARK, "mark"), (17, "zone"), (18, "event"), (6, "helper"), (4, "secmark")];
        let name = names.iter().find(|(number, _)| *number == key).map_or("key", |(_, name)| name);
        let value = self.constant_text(&loaded);
        let outcome = match name {
            "mark" => Outcome::Anything,
            "zone" => Outcome::Zone(value.parse().ok()),
            // Other keys affect only later packets of the connection.
            _ => Outcome::Nothing,
        };
        self.opaque(format!("ct {name} set {value}"), outcome);
        Some(())
    }

    /// Returns a value that is assigned.
    pub(super) fn constant_text(&self, loaded: &Loaded) -> String {
        match loaded {
            Loaded::Constant(bytes) => number(bytes, true).map_or_else(String::new, |number| number.to_string()),
            other => other.text(self.headers()),
        }
    }

    /// Adds `meta mark set` or `ct mark set`; returns `false` if the value is unknown.
    pub(super) fn set_mark(&mut self, to_connection: bool, loaded: &Loaded) -> bool {
        let foreign = match loaded {
            Loaded::MapData { key, map, offset: 0 } => {
                Foreign::SetMarkMap { to_connection, key: key.clone(), map: map.clone() }
            }
            other => {
                let number = || other.operand(self.headers()).filter(|operand| operand.number_range().is_some());
                match (mark_source(other), number()) {
                    (Some((from_connection, mask, xor)), _) => {
                        Foreign::SetMark { to_connection, from_connection, mask, xor }
                    }
                    (None, Some(number)) => Foreign::SetMarkNumber { to_connection, number },
                    (None, None) => return false,
                }
            }
        };
        self.foreign(foreign);
        true
    }

    /// `redirect`.
    pub(super) fn redirect(&mut self, parts: &Parts<'_>) -> Option<()> {
        self.translate(
            NatKind::Redirect,
            parts,
            [None, None],
            [NFTA_REDIR_REG_PROTO_MIN, NFTA_REDIR_REG_PROTO_MAX],
            NFTA_REDIR_FLAGS,
        )
    }

    /// Adds `dnat` and `snat` in forms that planned rules do not have.
    pub(super) fn foreign_nat(&mut self, parts: &Parts<'_>) -> Option<()> {
        let kind = match parts.u32(NFTA_NAT_TYPE)? {
            NFT_NAT_DNAT => NatKind::Destination,
            _ => NatKind::Source,
        };
        let addresses = [Some(NFTA_NAT_REG_ADDR_MIN), Some(NFTA_NAT_REG_ADDR_MAX)];
        self.translate(kind, parts, addresses, [NFTA_NAT_REG_PROTO_MIN, NFTA_NAT_REG_PROTO_MAX], NFTA_NAT_FLAGS)
    }

    fn translate(
        &mut self,
        kind: NatKind,
        parts: &Parts<'_>,
        addresses: [Option<u16>; 2],
        ports: [u16; 2],
        flags: u16,
    ) -> Option<()> {
        let at = |attribute: u16| parts.register(attribute).map(|register| self.registers.at(register));
        let [first, last] = addresses.map(|attribute| attribute.and_then(at));
        let [first_port, last_port] = ports.map(at);
        let flags = parts.u32(flags).unwrap_or(0);
        let (prefix, flags) = (flags & NF_NAT_RANGE_NETMAP != 0, worded_flags(flags));
        if let Some(target) = self.nat_map(prefix, first.as_ref(), first_port.as_ref()) {
            self.foreign(Foreign::Nat { kind, target, flags });
            return Some(());
        }
        let text = self.target_text([&first, &first_port]);
        let address = |loaded: Option<Loaded>| match loaded {
            None => Some(None),
            Some(Loaded::Constant(bytes)) => {
                let length = if self.family == IpFamily::V4 { 4 } else { 16 };
                self.address(bytes.get(..length)?).map(Some)
            }
            Some(_) => None,
        };
        let port = |loaded: Option<Loaded>| match loaded {
            None => Some(None),
            Some(Loaded::Constant(bytes)) => Some(Some(u16::from_be_bytes(*bytes.first_chunk()?))),
            Some(_) => None,
        };
        let constants = (address(first), address(last), port(first_port), port(last_port));
        let (Some(first), Some(last), Some(first_port), Some(last_port)) = constants else {
            self.opaque(format!("{} to {text}", kind.name()), Outcome::Anything);
            return Some(());
        };
        let target = match first.zip(last).filter(|_| prefix) {
            Some((first, last)) => NatTarget::Network(network(first, last)?),
            None => NatTarget::Constants {
                addresses: first.map(|first| (first, last.unwrap_or(first))),
                ports: first_port.map(|first| (first, last_port.unwrap_or(first))),
            },
        };
        self.foreign(Foreign::Nat { kind, target, flags });
        Some(())
    }

    /// Returns a translation to data of a map; `None` for other translations.
    fn nat_map(&self, prefix: bool, address: Option<&Loaded>, port: Option<&Loaded>) -> Option<NatTarget> {
        let (key, map, other) = match (address, port) {
            (Some(Loaded::MapData { key, map, offset: 0 }), None)
            | (None, Some(Loaded::MapData { key, map, offset: 0 })) => (key, map, None),
            // The address and the port are in one element.
            (
                Some(Loaded::MapData { key, map, offset: 0 }),
                Some(Loaded::MapData { key: same, map: also, offset: 1.. }),
            ) if key == same && map == also => (key, map, None),
            (
                Some(Loaded::MapData { key, map, offset: 0 }),
                Some(Loaded::MapData { key: second, map: ports, offset: 0 }),
            ) => (key, map, Some(NatPart::PortOf { key: second.clone(), map: ports.clone() })),
            (Some(Loaded::MapData { key, map, offset: 0 }), Some(Loaded::Constant(port))) => {
                (key, map, Some(NatPart::Port(u16::from_be_bytes(*port.first_chunk()?))))
            }
            (Some(Loaded::Constant(address)), Some(Loaded::MapData { key, map, offset: 0 })) => {
                (key, map, Some(NatPart::Address(self.address(address)?)))
            }
            _ => return None,
        };
        Some(NatTarget::Map { key: key.clone(), map: map.clone(), other, prefix })
    }

    /// Returns the new address and port of a translation.
    fn target_text(&self, [address, port]: [&Option<Loaded>; 2]) -> String {
        let text = |loaded: &Loaded| match loaded {
            Loaded::Constant(bytes) => match (self.address(bytes), bytes.first_chunk()) {
                (Some(address), _) => address.to_string(),
                (None, Some(port)) => u16::from_be_bytes(*port).to_string(),
                (None, None) => hexadecimal(bytes),
            },
            other => other.text(self.headers()),
        };
        let address = address.as_ref().map(text).unwrap_or_default();
        port.as_ref().map_or(address.clone(), |port| format!("{address}:{}", text(port)))
    }

    /// `jhash` and `symhash`.
    pub(super) fn hash(&mut self, parts: &Parts<'_>) -> Option<()> {
        let planned = registers::hash(self.family, parts, &self.registers);
        if planned.is_some() {
            return self.load_to(parts, NFTA_HASH_DREG, planned);
        }
        let (count, first) = (parts.u32(NFTA_HASH_MODULUS)?, parts.u32(NFTA_HASH_OFFSET).unwrap_or(0));
        let source = match parts.u32(NFTA_HASH_TYPE).unwrap_or(0) {
            0 => {
                let end = parts.register(NFTA_HASH_SREG)?.after(usize::try_from(parts.u32(NFTA_HASH_LEN)?).ok()?);
                let mut register = parts.register(NFTA_HASH_SREG)?;
                let mut inputs = Vec::new();
                while register.0 < end.0 {
                    let Some(operand) = self.registers.at(register).operand(self.headers()) else { break };
                    let Some(input) = Hashed::of(operand.property) else { break };
                    inputs.push(input);
                    register = register.after(match input {
                        Hashed::Field(field) => field.data_type(self.family).padded_length(),
                        Hashed::CtMark => 4,
                    });
                }
                NumberSource::Hash(hash_inputs(inputs))
            }
            _ => NumberSource::SymmetricHash,
        };
        let loaded = Loaded::property(Property::Number { source, count: count.max(1), first });
        self.load_to(parts, NFTA_HASH_DREG, Some((loaded, 4)))
    }

    /// Loads a property whose value is unknown.
    pub(super) fn load_named(&mut self, parts: &Parts<'_>) -> Option<()> {
        let key = |attribute| parts.u32(attribute);
        let (name, bytes, register) = match (&*parts.expression.name, key(1), key(2)) {
            ("rt", _, Some(0)) => ("rt classid", 4, 1),
            ("rt", _, Some(1)) => ("rt ip nexthop", 4, 1),
            ("rt", _, Some(2)) => ("rt ip6 nexthop", 16, 1),
            ("rt", _, Some(3)) => ("rt mtu", 2, 1),
            ("rt", _, Some(4)) => ("rt ipsec", 1, 1),
            ("socket", Some(0), _) => ("socket transparent", 1, 2),
            ("socket", Some(1), _) => ("socket mark", 4, 2),
            ("socket", Some(2), _) => ("socket wildcard", 1, 2),
            ("socket", Some(3), _) => ("socket cgroupv2", 8, 2),
            ("osf", ..) => ("osf name", 16, 1),
            ("xfrm", _, Some(key)) => {
                let direction = parts.get(NFTA_XFRM_DIR).and_then(|direction| direction.u8().ok());
                let is_first = parts.u32(NFTA_XFRM_SPNUM).unwrap_or(0) == 0;
                let name = match (key, direction.filter(|_| is_first)) {
                    (NFT_XFRM_KEY_REQID, Some(0)) => "ipsec in reqid",
                    (NFT_XFRM_KEY_REQID, Some(_)) => "ipsec out reqid",
                    (NFT_XFRM_KEY_SPI, Some(0)) => "ipsec in spi",
                    (NFT_XFRM_KEY_SPI, Some(_)) => "ipsec out spi",
                    _ => "ipsec",
                };
                (name, 4, 1)
            }
            ("tunnel", ..) => ("tunnel", 4, 2),
            _ => return None,
        };
        self.load_to(parts, register, Some((Loaded::property(Property::named(name)?), bytes)))
    }

    /// Adds `ip dscp set value` and other changes of a header.
    pub(super) fn set_payload(&mut self, parts: &Parts<'_>) -> Option<()> {
        let headers = self.headers();
        let (base, offset) = (parts.u32(NFTA_PAYLOAD_BASE)?, parts.u32(NFTA_PAYLOAD_OFFSET)?);
        let bytes = usize::try_from(parts.u32(NFTA_PAYLOAD_LEN)?).ok()?;
        let length = parts.u32(NFTA_PAYLOAD_LEN)?;
        let whole = u128::MAX.checked_shr(128_u32.checked_sub(length.checked_mul(8)?)?).unwrap_or(0);
        let written = headers.bytes(base, offset, bytes)?;
        let loaded = self.registers.at(parts.register(NFTA_PAYLOAD_SREG)?);
        let (changed, value) = match &loaded {
            // `nft` writes whole words and keeps the other parts of them.
            Loaded::Operand { operand, xor, .. } if operand.property == written => {
                (!operand.mask & whole | xor, Some(*xor))
            }
            Loaded::Constant(constant) => (whole, number(constant, false)),
            _ => (whole, None),
        };
        // The bytes that change: how many before and after them do not.
        let (before, after) = ((changed.leading_zeros() / 8 + length).checked_sub(16)?, changed.trailing_zeros() / 8);
        let (first, last) = (offset.checked_add(before)?, offset.checked_add(length.checked_sub(after)?)?);
        let (bits, size) = (changed >> (8 * after), usize::try_from(last.checked_sub(first)?).ok()?);
        let (property, shift) = match headers.part(base, first, size, bits) {
            Some(part) => (part, bits.trailing_zeros()),
            None => (headers.load(base, first, size)?.operand(headers)?.property, 0),
        };
        let value = value.map(|value| (value & changed) >> (8 * after + shift));
        let decides = headers.deciding(base).iter().any(|field| first < field.end && field.start < last);
        let name = property.text(headers.family);
        let text = match (value, &loaded) {
            (Some(value), _) => format!("{name} set {}", property.words(headers.family).text(value)),
            (None, Loaded::MapData { .. } | Loaded::Constant(_)) => format!("{name} set"),
            (None, other) => format!("{name} set {}", other.text(headers)),
        };
        if decides && !property.is_end() {
            self.opaque(text, Outcome::Anything);
            return Some(());
        }
        let value = match (value, loaded) {
            (Some(value), _) => Some(Source::Constant(Value::Other(value))),
            (None, Loaded::MapData { key, map, offset: 0 }) => Some(Source::Map { key, map }),
            (None, other) => other.operand(headers).map(|operand| Source::Operand(Box::new(operand))),
        };
        self.foreign(Foreign::Write { property, value, text });
        Some(())
    }

    /// `tproxy`, which ends the rule if there is no socket.
    pub(super) fn tproxy(&mut self, parts: &Parts<'_>) -> Option<()> {
        let at = |attribute| match parts.register(attribute).map(|register| self.registers.at(register)) {
            Some(Loaded::Constant(bytes)) => Some(bytes),
            _ => None,
        };
        let family = match parts.u32(1)? {
            2 => " ip",
            10 => " ip6",
            _ => "",
        };
        let address = at(2).and_then(|bytes| self.address(&bytes));
        let port = at(3).and_then(|bytes| bytes.first_chunk().map(|port| u16::from_be_bytes(*port)));
        let to = match (address, port) {
            (Some(address), Some(port)) => std::net::SocketAddr::new(address, port).to_string(),
            (Some(address), None) => address.to_string(),
            (None, Some(port)) => format!(":{port}"),
            (None, None) => "a socket".to_owned(),
        };
        self.opaque(format!("tproxy{family} to {to}"), Outcome::Socket);
        Some(())
    }
}

/// Returns how a value is computed from the packet's or the connection's mark: which of them, the mask and the flipped
/// bits.
fn mark_source(loaded: &Loaded) -> Option<(bool, u32, u32)> {
    Some(match loaded {
        Loaded::Field(Field::MetaMark) => (false, u32::MAX, 0),
        Loaded::Bitwise { field: Field::MetaMark, mask, xor } => (false, *mask, *xor),
        Loaded::Operand { operand: Operand { property: Property::CtMark, mask, .. }, xor, host_order: true } => {
            let mask = if *mask == u128::MAX { u32::MAX } else { u32::try_from(*mask).ok()? };
            (true, mask, u32::try_from(*xor).ok()?)
        }
        Loaded::Constant(bytes) => (false, 0, u32::try_from(number(bytes, true)?).ok()?),
        _ => return None,
    })
}

/// Returns the flags of a translation that `nft` prints as words.
pub(super) fn worded_flags(flags: u32) -> u32 {
    NAT_FLAGS.iter().fold(0, |worded, (flag, _)| worded | flags & flag)
}

/// The greatest mask of a part of a property.
const MAX_PART: u128 = u128::MAX - 1;
/// The index of `lo` in each network namespace.
const LOOPBACK_INDEX: u128 = 1;
// `include/uapi/linux/netfilter/nf_tables.h`.
const NFTA_REDIR_REG_PROTO_MIN: u16 = 1;
const NFTA_REDIR_REG_PROTO_MAX: u16 = 2;
const NFTA_REDIR_FLAGS: u16 = 3;
const NFTA_XFRM_DIR: u16 = 3;
const NFTA_XFRM_SPNUM: u16 = 4;
const NFT_XFRM_KEY_REQID: u32 = 5;
const NFT_XFRM_KEY_SPI: u32 = 6;
/// `NF_NAT_RANGE_NETMAP`.
const NF_NAT_RANGE_NETMAP: u32 = 1 << 6;
