//! Constructs that only other programs use: what they compare and change, in `nft` syntax.

use std::net::IpAddr;

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{
    super::constants::*,
    Decoder, Parts,
    registers::{Loaded, number, property_text},
};
use crate::model::{CmpOp, DataType, Foreign, IfName, Outcome, Property, Value, family_name};

/// Returns the meaning and the text of a comparison; `None` if it is not known.
pub(super) fn comparison(family: IpFamily, loaded: &Loaded, op: CmpOp, bytes: &[u8]) -> Option<(Foreign, String)> {
    let eq = match op {
        CmpOp::Eq => Some(true),
        CmpOp::Neq => Some(false),
        _ => None,
    };
    let not = |eq: bool| if eq { "" } else { "!= " };
    Some(match *loaded {
        Loaded::Interface { output } => {
            let (eq, index) = (eq?, number(bytes)?);
            let name = (index == LOOPBACK_INDEX).then(|| IfName::new("lo"));
            let foreign = Foreign::Interface { output, index, name, eq };
            (foreign, foreign.interface_text())
        }
        Loaded::OriginalSource { prefix } => {
            // As for addresses of packets, only the bytes of the prefix may be compared.
            let (mut octets, length) = ([0; 16], DataType::address(family).length());
            octets.get_mut(..bytes.len())?.copy_from_slice(bytes);
            let address: IpAddr = match family {
                IpFamily::V4 => (*octets.first_chunk::<4>()?).into(),
                IpFamily::V6 => octets.into(),
            };
            let prefix = prefix.map_or_else(|| u8::try_from(bytes.len().min(length) * 8).ok(), Some)?;
            let (eq, net) = (eq?, IpNet::new(address, prefix).ok()?);
            let text = format!("ct original {} saddr {}{}", family_name(family), not(eq), Value::Network(net));
            (Foreign::OriginalSource { net, eq }, text)
        }
        Loaded::Property(property) => compare(property, u32::MAX, op, bytes)?,
        Loaded::PropertyBits { property, mask } => compare(property, mask, op, bytes)?,
        Loaded::CtMarkBits { mask, xor: 0 } => compare(Property::CtMark, mask, op, bytes)?,
        _ => return None,
    })
}

fn compare(property: Property, mask: u32, op: CmpOp, bytes: &[u8]) -> Option<(Foreign, String)> {
    let value = match property {
        Property::CtOriginalSport => u16::from_be_bytes(bytes.try_into().ok()?).into(),
        _ => number(bytes)?,
    };
    // The kernel compares bytes, so numbers in the host's byte order have no meaningful order.
    if !matches!(op, CmpOp::Eq | CmpOp::Neq) && bytes.len() != 1 && property != Property::CtOriginalSport {
        return None;
    }
    let foreign = Foreign::Compare { property, mask, op, value };
    let left = property_text(property);
    if let Property::FibRoute { .. } = property {
        let exists = (value != 0) == (op == CmpOp::Eq);
        return Some((foreign, format!("{left} {}", if exists { "exists" } else { "missing" })));
    }
    let words = |number: u32| match property {
        Property::TcpFlags => flags(&TCP_FLAGS, number),
        Property::PacketType => named(&["host", "broadcast", "multicast", "other"], number),
        Property::CtDirection => named(&["original", "reply"], number),
        Property::CtMark => format!("{number:#010x}"),
        _ => number.to_string(),
    };
    let operator = match op {
        CmpOp::Eq => "==",
        CmpOp::Neq => "!=",
        CmpOp::Lt => "<",
        CmpOp::Lte => "<=",
        CmpOp::Gt => ">",
        CmpOp::Gte => ">=",
    };
    let text = match (mask, op) {
        (u32::MAX, CmpOp::Eq) => format!("{left} {}", words(value)),
        (u32::MAX, _) => format!("{left} {operator} {}", words(value)),
        (mask, CmpOp::Neq) if value == 0 && property == Property::TcpFlags => {
            format!("{left} {}", flags(&TCP_FLAGS, mask).replace(" | ", ","))
        }
        (mask, _) => {
            let mask = if property == Property::TcpFlags { format!("({})", words(mask)) } else { words(mask) };
            format!("{left} & {mask} {operator} {}", words(value))
        }
    };
    Some((foreign, text))
}

/// Joins the names of the bits of a number.
fn flags(names: &[&str], number: u32) -> String {
    let set = names.iter().enumerate().filter(|(bit, _)| number & (1 << bit) != 0).map(|(_, name)| *name);
    let text = set.collect::<Vec<_>>().join(" | ");
    if text.is_empty() { number.to_string() } else { text }
}

fn named(names: &[&str], number: u32) -> String {
    let name = usize::try_from(number).ok().and_then(|number| names.get(number));
    name.map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

impl Foreign {
    /// Returns a comparison of interfaces in `nft` syntax.
    pub(crate) fn interface_text(&self) -> String {
        let Self::Interface { output, index, name, eq } = self else { return String::new() };
        let (side, not) = (if *output { "oif" } else { "iif" }, if *eq { "" } else { "!= " });
        match name {
            Some(name) => format!("{side} {not}\"{name}\""),
            None => format!("{side} {not}{index}"),
        }
    }
}

impl Decoder<'_, '_> {
    /// `ct mark set value`.
    pub(super) fn set_ct_mark(&mut self, parts: &Parts<'_>) -> Option<()> {
        let loaded = self.registers.at(parts.register(NFTA_CT_SREG)?);
        match mark_source(&loaded) {
            Some((from_connection, mask, xor, text)) => {
                let foreign = Foreign::SetMark { to_connection: true, from_connection, mask, xor };
                self.opaque(format!("ct mark set {text}"), Outcome::Foreign(foreign));
            }
            None => self.opaque("ct mark set".to_owned(), Outcome::Anything),
        }
        Some(())
    }

    /// `meta mark set` from the mark of the connection; `false` if it is from something else.
    pub(super) fn set_mark_from_connection(&mut self, loaded: &Loaded) -> bool {
        let Some((true, mask, xor, text)) = mark_source(loaded) else { return false };
        let foreign = Foreign::SetMark { to_connection: false, from_connection: true, mask, xor };
        self.opaque(format!("meta mark set {text}"), Outcome::Foreign(foreign));
        true
    }

    /// `redirect`.
    pub(super) fn redirect(&mut self, parts: &Parts<'_>) -> Option<()> {
        let port = match parts.register(NFTA_REDIR_REG_PROTO_MIN) {
            None => None,
            Some(register) => Some(self.port(register)?),
        };
        let text = port.map_or_else(|| "redirect".to_owned(), |port| format!("redirect to :{port}"));
        self.opaque(text, Outcome::Foreign(Foreign::Redirect(port)));
        Some(())
    }

    /// `dnat` and `snat` to a port, with or without a constant address for `snat`; `None` for others.
    pub(super) fn nat_to_port(&mut self, parts: &Parts<'_>) -> Option<()> {
        let port = self.port(parts.register(NFTA_NAT_REG_PROTO_MIN)?)?;
        let address = parts.register(NFTA_NAT_REG_ADDR_MIN).map(|register| self.registers.at(register));
        let is_one = parts.u32(NFTA_NAT_REG_ADDR_MAX).is_none_or(|last| parts.u32(NFTA_NAT_REG_ADDR_MIN) == Some(last));
        let (foreign, text) = match (parts.u32(NFTA_NAT_TYPE)?, address) {
            (NFT_NAT_DNAT, None) => (Foreign::DnatPort(port), format!("dnat to :{port}")),
            (NFT_NAT_SNAT, None) => (Foreign::Snat(None), format!("snat to :{port}")),
            (NFT_NAT_SNAT, Some(Loaded::Constant(bytes))) if is_one => {
                let length = DataType::address(self.family).length();
                let address = self.address(bytes.get(..length)?)?;
                (Foreign::Snat(Some(address)), format!("snat to {}", std::net::SocketAddr::new(address, port)))
            }
            _ => return None,
        };
        self.opaque(text, Outcome::Foreign(foreign));
        Some(())
    }

    fn port(&self, register: super::Register) -> Option<u16> {
        match self.registers.at(register) {
            Loaded::Constant(bytes) => Some(u16::from_be_bytes(*bytes.first_chunk()?)),
            _ => None,
        }
    }

    /// `limit`.
    pub(super) fn limit(&mut self, parts: &Parts<'_>) -> Option<()> {
        let number = |kind| parts.get(kind).and_then(|value| value.u64_be().ok());
        let (rate, unit) = (number(NFTA_LIMIT_RATE)?, number(NFTA_LIMIT_UNIT)?);
        let unit = match unit {
            1 => "second",
            60 => "minute",
            3_600 => "hour",
            86_400 => "day",
            604_800 => "week",
            _ => return None,
        };
        let over = if parts.u32(NFTA_LIMIT_FLAGS).is_some_and(|flags| flags & 1 != 0) { "over " } else { "" };
        let bytes = if parts.u32(NFTA_LIMIT_TYPE) == Some(1) { " bytes" } else { "" };
        self.opaque(format!("limit rate {over}{rate}{bytes}/{unit}"), Outcome::Condition);
        Some(())
    }
}

/// Returns how a value is computed from the packet's or the connection's mark: which one, mask, flipped bits, and text.
fn mark_source(loaded: &Loaded) -> Option<(bool, u32, u32, String)> {
    let masked = |name: &str, mask: u32, xor: u32| match (mask, xor) {
        (u32::MAX, 0) => name.to_owned(),
        (mask, 0) => format!("{name} & {mask:#010x}"),
        (mask, xor) if mask == !xor => format!("{name} | {xor:#010x}"),
        (u32::MAX, xor) => format!("{name} ^ {xor:#010x}"),
        (mask, xor) => format!("{name} & {mask:#010x} ^ {xor:#010x}"),
    };
    Some(match *loaded {
        Loaded::Field(crate::model::Field::MetaMark) => (false, u32::MAX, 0, "meta mark".to_owned()),
        Loaded::Bitwise { field: crate::model::Field::MetaMark, mask, xor } => {
            (false, mask, xor, masked("meta mark", mask, xor))
        }
        Loaded::Property(Property::CtMark) => (true, u32::MAX, 0, "ct mark".to_owned()),
        Loaded::CtMarkBits { mask, xor } => (true, mask, xor, masked("ct mark", mask, xor)),
        Loaded::Constant(ref bytes) => {
            let value = number(bytes)?;
            (false, 0, value, format!("{value:#010x}"))
        }
        _ => return None,
    })
}

/// The names of TCP flags by bit.
const TCP_FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"];
/// The index of `lo` in each network namespace.
const LOOPBACK_INDEX: u32 = 1;
// `include/uapi/linux/netfilter/nf_tables.h`.
const NFTA_REDIR_REG_PROTO_MIN: u16 = 1;
const NFTA_LIMIT_TYPE: u16 = 4;
const NFTA_LIMIT_FLAGS: u16 = 5;
