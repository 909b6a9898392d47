//! Expressions that change the packet, the connection or a set.

use std::{net::IpAddr, time::Duration};

use super::{super::constants::*, Decoder, Parts, registers::Loaded};
use crate::model::{ClassId, DataType, Field, Name, Outcome, RejectWith, SetData, Statement, Value};

impl Decoder<'_, '_> {
    /// `meta key set value`.
    pub(super) fn set_meta(&mut self, parts: &Parts<'_>) -> Option<()> {
        let loaded = self.registers.at(parts.register(NFTA_META_SREG)?);
        let statement = match (parts.u32(NFTA_META_KEY)?, &loaded) {
            (NFT_META_PRIORITY, Loaded::MapData { key, map, offset: 0 }) => {
                Some(Statement::MetaPriorityMap { key: key.clone(), map: map.clone() })
            }
            (NFT_META_PRIORITY, Loaded::Bitwise { field: Field::MetaPriority, mask, xor }) if mask & xor == 0 => {
                Some(Statement::MetaPriorityBits { mask: ClassId(*mask), bits: ClassId(*xor) })
            }
            (NFT_META_PRIORITY, Loaded::Constant(bytes)) if bytes.iter().all(|byte| *byte == 0) => {
                Some(Statement::MetaPriorityNone)
            }
            (NFT_META_MARK, Loaded::Bitwise { field: Field::MetaMark, mask, xor }) => Some(match (*mask, *xor) {
                (u32::MAX, bits) => Statement::MetaMarkXor(bits),
                (mask, bits) if mask == !bits => Statement::MetaMarkOr(bits),
                (mask, xor) => Statement::MetaMarkSet { mask, xor },
            }),
            (NFT_META_MARK, Loaded::Constant(bytes)) => {
                let xor = u32::from_ne_bytes(bytes.as_slice().try_into().ok()?);
                Some(Statement::MetaMarkSet { mask: 0, xor })
            }
            _ => None,
        };
        match statement {
            Some(statement) => self.push(statement),
            None if parts.u32(NFTA_META_KEY) == Some(NFT_META_MARK) && self.set_mark_from_connection(&loaded) => {}
            None => {
                let outcome = match (parts.u32(NFTA_META_KEY)?, &loaded) {
                    (NFT_META_MARK, _) => Outcome::Anything,
                    // The map may not contain the key.
                    (_, Loaded::MapData { .. }) => Outcome::Condition,
                    _ => Outcome::Nothing,
                };
                self.opaque("meta set".to_owned(), outcome);
            }
        }
        Some(())
    }

    /// Adds, updates or deletes an element.
    pub(super) fn dynset(&mut self, parts: &Parts<'_>) -> Option<()> {
        let name = Name::from(parts.text(NFTA_DYNSET_SET_NAME)?);
        let operation = parts.u32(NFTA_DYNSET_OP)?;
        let key = (self.set)(&name).and_then(|set| Some((set, self.key(parts.register(NFTA_DYNSET_SREG_KEY)?, set)?)));
        let statement = key.and_then(|(set, key)| {
            let data = parts.register(NFTA_DYNSET_SREG_DATA).map(|register| self.registers.at(register));
            // Expressions of the element, such as a limit, can be conditions.
            let has_conditions =
                [NFTA_DYNSET_EXPR, NFTA_DYNSET_EXPRESSIONS].iter().any(|kind| parts.get(*kind).is_some());
            // The kernel lists a missing timeout as 0.
            let timeout =
                parts.get(NFTA_DYNSET_TIMEOUT).and_then(|timeout| timeout.u64_be().ok()).filter(|timeout| *timeout > 0);
            match (operation, data, timeout) {
                _ if has_conditions => None,
                (NFT_DYNSET_OP_UPDATE, Some(Loaded::Field(Field::MetaPriority)), Some(timeout)) => {
                    Some(Statement::UpdateMap { key, map: name.clone(), timeout: Duration::from_millis(timeout) })
                }
                (NFT_DYNSET_OP_DELETE, Some(Loaded::Field(Field::MetaPriority)), None) => {
                    Some(Statement::DeleteFromMap { key, map: name.clone() })
                }
                (NFT_DYNSET_OP_ADD | NFT_DYNSET_OP_UPDATE, None, _) if set.data == SetData::None => {
                    Some(Statement::UpdateSet { key, set: name.clone() })
                }
                _ => None,
            }
        });
        match statement {
            Some(statement) => self.push(statement),
            None => self.opaque(format!("element of @{name}"), Outcome::Condition),
        }
        Some(())
    }

    /// `dnat` and `snat`.
    pub(super) fn nat(&mut self, parts: &Parts<'_>) -> Option<()> {
        if let Some(()) = self.nat_to_port(parts) {
            return Some(());
        }
        let (nat_type, from) = (parts.u32(NFTA_NAT_TYPE)?, parts.register(NFTA_NAT_REG_ADDR_MIN)?);
        let is_range = |first, last| parts.u32(last).is_some_and(|last| parts.u32(first) != Some(last));
        let address = self.registers.at(from);
        let port = parts.register(NFTA_NAT_REG_PROTO_MIN).map(|register| self.registers.at(register));
        let statement = match (nat_type, &address, &port) {
            _ if is_range(NFTA_NAT_REG_ADDR_MIN, NFTA_NAT_REG_ADDR_MAX)
                || is_range(NFTA_NAT_REG_PROTO_MIN, NFTA_NAT_REG_PROTO_MAX) =>
            {
                None
            }
            (NFT_NAT_DNAT, Loaded::MapData { key, map, offset: 0 }, port) => {
                let address_length = DataType::address(self.family).length();
                let fits = match port {
                    None => true,
                    Some(port) => {
                        *port == Loaded::MapData { key: key.clone(), map: map.clone(), offset: address_length }
                    }
                };
                fits.then(|| Statement::DnatMap { key: key.clone(), map: map.clone() })
            }
            (NFT_NAT_DNAT, Loaded::Constant(bytes), None) => {
                Some(Statement::Dnat { address: self.address(bytes)?, port: None })
            }
            (NFT_NAT_DNAT, Loaded::Constant(bytes), Some(Loaded::Constant(port))) => {
                let port = Some(u16::from_be_bytes(port.as_slice().try_into().ok()?));
                Some(Statement::Dnat { address: self.address(bytes)?, port })
            }
            (NFT_NAT_SNAT, Loaded::Constant(bytes), None) => Some(Statement::Snat(self.address(bytes)?)),
            _ => None,
        };
        let name = if nat_type == NFT_NAT_DNAT { "dnat" } else { "snat" };
        match statement {
            Some(statement) => self.push(statement),
            None => self.opaque(name.to_owned(), Outcome::Anything),
        }
        Some(())
    }

    /// `masquerade`. Other flags, which select ports, are ignored.
    pub(super) fn masquerade(&mut self, parts: &Parts<'_>) {
        let fully_random = parts.u32(NFTA_MASQ_FLAGS).is_some_and(|flags| flags & NF_NAT_RANGE_PROTO_RANDOM_FULLY != 0);
        self.push(Statement::Masquerade { fully_random });
    }

    /// `reject`.
    pub(super) fn reject(&mut self, parts: &Parts<'_>) -> Option<()> {
        let port_unreachable = match self.family {
            ferroute_core::IpFamily::V4 => ICMP_PORT_UNREACH,
            ferroute_core::IpFamily::V6 => ICMPV6_PORT_UNREACH,
        };
        let code = parts.get(NFTA_REJECT_ICMP_CODE).map_or(Some(0), |code| code.u8().ok())?;
        self.push(Statement::Reject(match parts.u32(NFTA_REJECT_TYPE)? {
            NFT_REJECT_ICMP_UNREACH if code == port_unreachable => RejectWith::PortUnreachable,
            NFT_REJECT_ICMP_UNREACH => RejectWith::Icmp(code),
            NFT_REJECT_TCP_RST => RejectWith::TcpReset,
            NFT_REJECT_ICMPX_UNREACH => RejectWith::Icmpx(code),
            _ => return None,
        }));
        Some(())
    }

    pub(super) fn address(&self, bytes: &[u8]) -> Option<IpAddr> {
        match self.field_value(Field::Saddr, bytes)? {
            Value::Address(address) => Some(address),
            _ => None,
        }
    }
}
