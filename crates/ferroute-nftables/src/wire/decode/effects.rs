//! Expressions that change the packet, the connection or a set.

use std::{net::IpAddr, time::Duration};

use ferroute_core::IpFamily;
use ferroute_netlink::Attribute;

use super::{
    super::{EncodedRule, constants::*, element::values, layout::Register},
    Decoder, Parts,
    foreign::worded_flags,
    nfproto,
    registers::Loaded,
    statements,
};
use crate::model::{
    ClassId, DataType, ElementOp, Field, Foreign, Match, Name, Operand, Outcome, Printable, PriorityBits, Property,
    RejectWith, Set, SetData, Source, Statement, Value,
};

impl Decoder<'_, '_> {
    /// `meta key set value`.
    pub(super) fn set_meta(&mut self, parts: &Parts<'_>) -> Option<()> {
        let loaded = self.registers.at(parts.register(NFTA_META_SREG)?);
        let statement = match (parts.u32(NFTA_META_KEY)?, &loaded) {
            (NFT_META_PRIORITY, Loaded::MapData { key, map, offset: 0 }) => {
                self.typed_map_key(key, map).map(|key| Statement::MetaPriorityMap { key, map: map.clone() })
            }
            (NFT_META_PRIORITY, Loaded::Bitwise { field: Field::MetaPriority, mask, xor }) if mask & xor == 0 => {
                Some(Statement::MetaPriorityBits(PriorityBits::new(ClassId(*mask), ClassId(*xor))))
            }
            (NFT_META_PRIORITY, Loaded::Constant(bytes)) if bytes.iter().all(|byte| *byte == 0) => {
                Some(Statement::MetaPriorityNone)
            }
            (NFT_META_PRIORITY, loaded) => {
                let value = self.source(loaded, DataType::ClassId);
                let text = match &value {
                    Some(Source::Constant(value)) => format!("meta priority set {value}"),
                    Some(Source::Map { .. }) => "meta priority set".to_owned(),
                    _ => format!("meta priority set {}", loaded.text(self.headers())),
                };
                self.foreign(Foreign::Write { property: Property::Field(Field::MetaPriority), value, text });
                return Some(());
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
            None if parts.u32(NFTA_META_KEY) == Some(NFT_META_MARK) && self.set_mark(false, &loaded) => {}
            None => {
                let key = parts.u32(NFTA_META_KEY)?;
                let outcome = match (key, &loaded) {
                    (NFT_META_MARK, _) => Outcome::Anything,
                    // The map may not contain the key.
                    (_, Loaded::MapData { .. }) => Outcome::Condition,
                    _ => Outcome::Nothing,
                };
                let names =
                    [(NFT_META_PRIORITY, "priority"), (NFT_META_MARK, "mark"), (12, "nftrace"), (19, "pkttype")];
                let name = names.iter().find(|(number, _)| *number == key).map_or("key", |(_, name)| name);
                self.opaque(format!("meta {name} set {}", self.constant_text(&loaded)), outcome);
            }
        }
        Some(())
    }

    /// Returns the key of a map, if it consists of fields that planned rules use.
    fn typed_map_key(&self, key: &[Operand], map: &Name) -> Option<Vec<Field>> {
        super::typed_key(key, (self.set)(map)?, self.family)
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
                (NFT_DYNSET_OP_ADD | NFT_DYNSET_OP_UPDATE, None, timeout) if set.data == SetData::None => {
                    let timeout = timeout.map(Duration::from_millis);
                    Some(Statement::UpdateSet { key, set: name.clone(), timeout })
                }
                _ => None,
            }
        });
        match statement {
            Some(statement) => self.push(statement),
            None => self.other_dynset(name, operation, parts),
        }
        Some(())
    }

    /// Adds a change of elements in a form that planned rules do not have.
    fn other_dynset(&mut self, name: Name, operation: u32, parts: &Parts<'_>) {
        let op = match operation {
            NFT_DYNSET_OP_ADD => ElementOp::Add,
            NFT_DYNSET_OP_DELETE => ElementOp::Delete,
            _ => ElementOp::Update,
        };
        let set = (self.set)(&name);
        let key = set.and_then(|set| self.operands(parts.register(NFTA_DYNSET_SREG_KEY)?, set)).unwrap_or_default();
        let data = set.and_then(|set| self.stored(parts.register(NFTA_DYNSET_SREG_DATA)?, set)).unwrap_or_default();
        let expressions = element_expressions(parts);
        let details: String = expressions.iter().map(|(text, _)| format!(" {text}")).collect();
        // A limit of the element may be exceeded.
        let is_condition = expressions.iter().any(|(_, is_condition)| *is_condition);
        self.foreign(Foreign::Element { op, set: name, key, data, details, is_condition });
    }

    /// Returns the data that is stored in a map, from the registers starting at this one.
    fn stored(&self, mut register: Register, set: &Set) -> Option<Vec<Source>> {
        let SetData::Values(types) = &set.data else { return None };
        let mut data = Vec::with_capacity(types.len());
        for data_type in types {
            data.push(self.source(&self.registers.at(register), *data_type)?);
            register = register.after(data_type.padded_length());
        }
        Some(data)
    }

    /// Returns where a value of a type comes from.
    fn source(&self, loaded: &Loaded, data_type: DataType) -> Option<Source> {
        match loaded {
            Loaded::Constant(bytes) => {
                let value = values::<1>(bytes, &[data_type])?;
                Some(Source::Constant(*value.first()?))
            }
            Loaded::MapData { key, map, offset: 0 } => Some(Source::Map { key: key.clone(), map: map.clone() }),
            other => Some(Source::Operand(Box::new(other.operand(self.headers())?))),
        }
    }

    /// `dnat` and `snat`.
    pub(super) fn nat(&mut self, parts: &Parts<'_>) -> Option<()> {
        // In tables of both families, it applies to packets of one family.
        let of_family = |family: &IpFamily| parts.u32(NFTA_NAT_FAMILY) == Some(nfproto(*family).into());
        if let Some(family) = IpFamily::BOTH.into_iter().find(of_family).filter(|family| *family != self.family) {
            let loads = std::mem::take(&mut self.pending);
            self.push(Match::Nfproto(family));
            self.pending = loads;
        }
        let (nat_type, from) = (parts.u32(NFTA_NAT_TYPE)?, parts.register(NFTA_NAT_REG_ADDR_MIN));
        let is_range = |first, last| parts.u32(last).is_some_and(|last| parts.u32(first) != Some(last));
        let address = from.map(|from| self.registers.at(from));
        let port = parts.register(NFTA_NAT_REG_PROTO_MIN).map(|register| self.registers.at(register));
        let flags = worded_flags(parts.u32(NFTA_NAT_FLAGS).unwrap_or(0));
        let statement = match (nat_type, &address, &port) {
            _ if flags != 0
                || is_range(NFTA_NAT_REG_ADDR_MIN, NFTA_NAT_REG_ADDR_MAX)
                || is_range(NFTA_NAT_REG_PROTO_MIN, NFTA_NAT_REG_PROTO_MAX) =>
            {
                None
            }
            (NFT_NAT_DNAT, Some(Loaded::MapData { key, map, offset: 0 }), port) => {
                let address_length = DataType::address(self.family).length();
                let fits = match port {
                    None => true,
                    Some(port) => {
                        *port == Loaded::MapData { key: key.clone(), map: map.clone(), offset: address_length }
                    }
                };
                let key = self.typed_map_key(key, map).filter(|_| fits);
                key.map(|key| Statement::DnatMap { key, map: map.clone() })
            }
            (NFT_NAT_DNAT, Some(Loaded::Constant(bytes)), None) => {
                Some(Statement::Dnat { address: self.address(bytes)?, port: None })
            }
            (NFT_NAT_DNAT, Some(Loaded::Constant(bytes)), Some(Loaded::Constant(port))) => {
                let port = Some(u16::from_be_bytes(*port.first_chunk()?));
                Some(Statement::Dnat { address: self.address(bytes)?, port })
            }
            (NFT_NAT_SNAT, Some(Loaded::Constant(bytes)), None) => Some(Statement::Snat(self.address(bytes)?)),
            _ => None,
        };
        match statement {
            Some(statement) => self.push(statement),
            None => return self.foreign_nat(parts),
        }
        Some(())
    }

    /// `masquerade`.
    pub(super) fn masquerade(&mut self, parts: &Parts<'_>) {
        let flags = parts.u32(NFTA_MASQ_FLAGS).unwrap_or(0);
        let port = |kind| {
            let loaded = parts.register(kind).map(|register| self.registers.at(register));
            match loaded {
                Some(Loaded::Constant(bytes)) => bytes.first_chunk().map(|port| u16::from_be_bytes(*port)),
                _ => None,
            }
        };
        let ports = port(NFTA_MASQ_REG_PROTO_MIN).map(|first| (first, port(NFTA_MASQ_REG_PROTO_MAX).unwrap_or(first)));
        // With ports, the kernel also has a flag for them.
        match (ports, worded_flags(flags)) {
            (None, 0) => self.push(Statement::Masquerade { fully_random: false }),
            (None, NF_NAT_RANGE_PROTO_RANDOM_FULLY) => self.push(Statement::Masquerade { fully_random: true }),
            (ports, flags) => self.foreign(Foreign::Masquerade { ports, flags }),
        }
    }

    /// `reject`.
    pub(super) fn reject(&mut self, parts: &Parts<'_>) -> Option<()> {
        let port_unreachable = match self.family {
            IpFamily::V4 => ICMP_PORT_UNREACH,
            IpFamily::V6 => ICMPV6_PORT_UNREACH,
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

/// Returns the expressions of an element, such as a limit, in `nft` syntax, each with a flag that is set for
/// conditions.
fn element_expressions(parts: &Parts<'_>) -> Vec<(String, bool)> {
    let read = |attribute: &Attribute<'_>| {
        let expression = EncodedRule::parse_expression(attribute).ok()?;
        Some(match statements::text(&Parts::read(&expression)?) {
            Some((text, outcome)) => (text, outcome != Outcome::Nothing),
            None => (Printable(&expression.name).to_string(), &*expression.name != "counter"),
        })
    };
    let one = parts.get(NFTA_DYNSET_EXPR).and_then(read);
    let several = parts.get(NFTA_DYNSET_EXPRESSIONS).into_iter().flat_map(|list| list.nested());
    one.into_iter().chain(several.filter_map(|entry| read(&entry.ok()?))).collect()
}

// `include/uapi/linux/netfilter/nf_tables.h`.
const NFTA_MASQ_REG_PROTO_MIN: u16 = 2;
const NFTA_MASQ_REG_PROTO_MAX: u16 = 3;
