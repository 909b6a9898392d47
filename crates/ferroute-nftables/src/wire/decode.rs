//! Decoding rules from the kernel's expressions, for rules of any program: the inverse of `expression.rs`.
//!
//! Expressions load properties of a packet into registers, and compare or use them. The decoder tracks the content of
//! each register as a [`Loaded`], and emits a statement when a value is compared or used. What it cannot represent
//! becomes [`Opaque`], with the expressions that lead to it.

mod effects;
mod foreign;
mod registers;

use ferroute_core::IpFamily;
use ferroute_netlink::{Attribute, Attributes};
use ipnet::IpNet;

use self::registers::{Loaded, Registers, Side};
use super::{
    EncodedRule,
    constants::*,
    element::{parse_verdict, values},
    layout::{Register, cmp_op},
    object::nfproto,
};
use crate::model::{
    CmpOp, DataType, Expression, Field, IfName, InterfacePattern, Match, Name, Opaque, Outcome, Printable, Rule, Set,
    SetData, Statement, Value,
};

impl EncodedRule {
    /// Returns the rule as packets of an IP family see it. `set` returns the declaration of a set of the table; `None`
    /// for sets that the model cannot represent.
    ///
    /// A rule that the planner wrote is decoded to the same rule.
    pub fn decode<'a>(&'a self, family: IpFamily, set: &dyn Fn(&Name) -> Option<&'a Set>) -> Rule {
        let mut decoder =
            Decoder { family, set, registers: Registers::new(), pending: Vec::new(), statements: Vec::new() };
        for expression in self.expressions() {
            decoder.pending.push(expression);
            if decoder.decode(expression).is_none() {
                decoder.opaque(Printable(&expression.name).to_string(), outcome_of(&expression.name));
                decoder.registers.clear();
            }
        }
        Rule { statements: decoder.statements, comment: self.comment().cloned() }
    }
}

struct Decoder<'a, 's> {
    family: IpFamily,
    set: &'s dyn Fn(&Name) -> Option<&'a Set>,
    registers: Registers,
    /// Expressions since the last statement.
    pending: Vec<&'a Expression>,
    statements: Vec<Statement>,
}

impl<'a> Decoder<'a, '_> {
    /// Evaluates an expression; `None` if its form is unknown.
    fn decode(&mut self, expression: &'a Expression) -> Option<()> {
        let parts = Parts::read(expression)?;
        match &*expression.name {
            "payload" => self.load(&parts, |decoder| registers::payload(decoder.family, &parts)),
            "meta" if parts.u32(NFTA_META_SREG).is_some() => self.set_meta(&parts),
            "meta" => self.load(&parts, |_| registers::meta(&parts)),
            "ct" if parts.u32(NFTA_CT_KEY) == Some(registers::NFT_CT_MARK) && parts.u32(NFTA_CT_SREG).is_some() => {
                self.set_ct_mark(&parts)
            }
            "redir" => self.redirect(&parts),
            "limit" => self.limit(&parts),
            "ct" if parts.u32(NFTA_CT_SREG).is_some() => {
                // It affects later packets of the connection only.
                self.opaque("ct set".to_owned(), Outcome::Nothing);
                Some(())
            }
            "ct" => self.load(&parts, |_| registers::ct(&parts)),
            "byteorder" => self.byteorder(&parts),
            "flow_offload" => {
                self.push(Statement::FlowAdd(Name::from(parts.text(NFTA_FLOW_TABLE_NAME)?)));
                Some(())
            }
            "fib" => self.load(&parts, |_| registers::fib(&parts)),
            "numgen" => self.load(&parts, |_| registers::numgen(&parts)),
            "hash" => self
                .load_to(&parts, NFTA_HASH_DREG, |decoder| registers::hash(decoder.family, &parts, &decoder.registers)),
            "bitwise" => self.bitwise(&parts),
            "immediate" => self.immediate(&parts),
            "cmp" => self.compare(&parts),
            "range" => self.range(&parts),
            "lookup" => self.lookup(&parts),
            "dynset" => self.dynset(&parts),
            "nat" => self.nat(&parts),
            "masq" => {
                self.masquerade(&parts);
                Some(())
            }
            "reject" => self.reject(&parts),
            "counter" => {
                let count = |kind| parts.get(kind).and_then(|count| count.u64_be().ok()).unwrap_or_default();
                let text =
                    format!("counter packets {} bytes {}", count(NFTA_COUNTER_PACKETS), count(NFTA_COUNTER_BYTES));
                self.opaque(text, Outcome::Nothing);
                Some(())
            }
            "notrack" => {
                self.push(Statement::Notrack);
                Some(())
            }
            _ => None,
        }
    }

    /// Adds a statement for the pending expressions.
    fn push(&mut self, statement: impl Into<Statement>) {
        self.pending.clear();
        self.statements.push(statement.into());
    }

    /// Adds an opaque statement with the pending expressions.
    fn opaque(&mut self, text: String, outcome: Outcome) {
        let expressions = std::mem::take(&mut self.pending).into_iter().cloned().collect();
        self.statements.push(Statement::Opaque(Opaque { expressions, text, outcome }));
    }

    fn condition(&mut self, condition: Option<Match>, text: impl FnOnce() -> String) {
        match condition {
            Some(condition) => self.push(condition),
            None => self.opaque(text(), Outcome::Condition),
        }
    }

    fn load(&mut self, parts: &Parts<'_>, value: impl FnOnce(&Self) -> Option<(Loaded, usize)>) -> Option<()> {
        // The destination register is attribute 1 of all other expressions that load a value.
        self.load_to(parts, NFTA_PAYLOAD_DREG, value)
    }

    fn load_to(
        &mut self,
        parts: &Parts<'_>,
        register: u16,
        value: impl FnOnce(&Self) -> Option<(Loaded, usize)>,
    ) -> Option<()> {
        let to = parts.register(register)?;
        // An unknown value matters only if it is used.
        let unknown = || Loaded::Unknown(Printable(&parts.expression.name).to_string());
        let (loaded, bytes) = value(self).unwrap_or_else(|| (unknown(), 4));
        self.registers.put(to, loaded, bytes);
        Some(())
    }

    fn immediate(&mut self, parts: &Parts<'_>) -> Option<()> {
        let data = parts.get(NFTA_IMMEDIATE_DATA)?;
        if parts.u32(NFTA_IMMEDIATE_DREG)? == NFT_REG_VERDICT {
            let verdict = parse_verdict(data).ok()??;
            self.push(verdict);
            return Some(());
        }
        let bytes = value(data)?.to_vec();
        let length = bytes.len();
        self.registers.put(parts.register(NFTA_IMMEDIATE_DREG)?, Loaded::Constant(bytes), length);
        Some(())
    }

    fn bitwise(&mut self, parts: &Parts<'_>) -> Option<()> {
        let (from, to) = (parts.register(NFTA_BITWISE_SREG)?, parts.register(NFTA_BITWISE_DREG)?);
        // Shifts are other operations than `NFT_BITWISE_BOOL`.
        let is_boolean = parts.u32(NFTA_BITWISE_OP).is_none_or(|operation| operation == NFT_BITWISE_BOOL);
        let (mask, xor) = (value(parts.get(NFTA_BITWISE_MASK)?)?, value(parts.get(NFTA_BITWISE_XOR)?)?);
        let loaded = self.registers.at(from);
        let masked = loaded.masked(mask, xor).filter(|_| is_boolean);
        self.registers.put(to, masked.unwrap_or_else(|| Loaded::Unknown(format!("bits of {loaded}"))), mask.len());
        Some(())
    }

    fn byteorder(&mut self, parts: &Parts<'_>) -> Option<()> {
        let (from, to) = (parts.register(NFTA_BYTEORDER_SREG)?, parts.register(NFTA_BYTEORDER_DREG)?);
        let is_whole = parts.u32(NFTA_BYTEORDER_OP)? == NFT_BYTEORDER_HTON && parts.u32(NFTA_BYTEORDER_SIZE)? == 8;
        let ordered = match self.registers.at(from) {
            Loaded::CtPackets if is_whole => Loaded::OrderedCtPackets,
            other => Loaded::Unknown(format!("{other} in another byte order")),
        };
        self.registers.put(to, ordered, usize::try_from(parts.u32(NFTA_BYTEORDER_LEN)?).ok()?);
        Some(())
    }

    fn compare(&mut self, parts: &Parts<'_>) -> Option<()> {
        let loaded = self.registers.at(parts.register(NFTA_CMP_SREG)?);
        let op = cmp_op_from(parts.u32(NFTA_CMP_OP)?)?;
        let bytes = value(parts.get(NFTA_CMP_DATA)?)?;
        let condition = self.comparison(&loaded, op, bytes);
        if condition.is_none()
            && let Some((foreign, text)) = foreign::comparison(self.family, &loaded, op, bytes)
        {
            self.opaque(text, Outcome::Foreign(foreign));
            return Some(());
        }
        self.condition(condition, || format!("{loaded} compared with {}", hexadecimal(bytes)));
        Some(())
    }

    fn comparison(&self, loaded: &Loaded, op: CmpOp, bytes: &[u8]) -> Option<Match> {
        let eq = match op {
            CmpOp::Eq => Some(true),
            CmpOp::Neq => Some(false),
            _ => None,
        };
        match loaded {
            Loaded::Field(field @ (Field::Saddr | Field::Daddr)) if eq.is_none() => {
                let value = self.field_value(*field, bytes)?;
                Some(Match::Cmp { field: *field, mask: u32::MAX, op, value })
            }
            Loaded::Field(Field::Saddr | Field::Daddr) | Loaded::Part { .. } | Loaded::Network { .. } => {
                loaded.network(bytes).and_then(|(side, net)| Some(in_network(side, net, eq?)))
            }
            Loaded::Field(Field::Iifname) => Some(Match::Iifname { name: interface(bytes)?, eq: eq? }),
            Loaded::Field(Field::Oifname) => {
                let value = match interface(bytes)? {
                    InterfacePattern::Exact(name) => Value::IfName(IfName::new(&name)),
                    InterfacePattern::Prefix(prefix) => Value::IfNamePrefix(IfName::new(&prefix)),
                };
                let field = Field::Oifname;
                eq.map(|_| Match::Cmp { field, mask: u32::MAX, op, value })
            }
            Loaded::Field(Field::FibSaddrType) if eq == Some(true) && bytes == RTN_LOCAL.to_ne_bytes() => {
                Some(Match::FibSaddrLocal)
            }
            Loaded::Field(Field::FibDaddrType) if eq == Some(true) && bytes == RTN_LOCAL.to_ne_bytes() => {
                Some(Match::FibDaddrLocal)
            }
            Loaded::OrderedCtPackets if op == CmpOp::Gt => {
                Some(Match::CtPacketsAbove(u64::from_be_bytes(bytes.try_into().ok()?)))
            }
            Loaded::Family { key } => self.family_match(*key, eq?, bytes),
            Loaded::Bitwise { field, mask, xor: 0 } => {
                let number = u32::from_ne_bytes(bytes.try_into().ok()?);
                Some(match (field, eq?, number, *mask) {
                    (Field::MetaMark, false, 0, bits) => Match::MetaMark(bits),
                    (Field::CtState, false, 0, CT_STATE_NEW) => Match::CtStateNew,
                    (Field::CtStatus, false, 0, IPS_DST_NAT) => Match::CtStatusDnat,
                    (field, ..) => Match::Cmp { field: *field, mask: *mask, op, value: Value::Integer(number) },
                })
            }
            Loaded::Field(field) => {
                let value = self.field_value(*field, bytes)?;
                // The kernel compares bytes, so numbers in the host's byte order have no meaningful order.
                let ordered = !matches!(value, Value::Integer(_) | Value::ClassId(_) | Value::IfName(_));
                (ordered || eq.is_some()).then_some(Match::Cmp { field: *field, mask: u32::MAX, op, value })
            }
            _ => None,
        }
    }

    /// Returns a match of the packet's family; `None` if it is neither IPv4 nor IPv6.
    fn family_match(&self, key: u32, eq: bool, bytes: &[u8]) -> Option<Match> {
        let of = |family| match (key, bytes) {
            (NFT_META_NFPROTO, [number]) => *number == nfproto(family),
            (NFT_META_PROTOCOL, [_, _]) => bytes == registers::ethernet_protocol(family),
            _ => false,
        };
        let family = IpFamily::BOTH.into_iter().find(|family| of(*family))?;
        let other = IpFamily::BOTH.into_iter().find(|other| *other != family)?;
        Some(Match::Nfproto(if eq { family } else { other }))
    }

    fn range(&mut self, parts: &Parts<'_>) -> Option<()> {
        let loaded = self.registers.at(parts.register(NFTA_RANGE_SREG)?);
        let eq = match parts.u32(NFTA_RANGE_OP)? {
            NFT_RANGE_EQ => true,
            NFT_RANGE_NEQ => false,
            _ => return None,
        };
        let (first, last) = (value(parts.get(NFTA_RANGE_FROM_DATA)?)?, value(parts.get(NFTA_RANGE_TO_DATA)?)?);
        let condition = match loaded {
            Loaded::Field(field) if field.data_type(self.family) != DataType::Integer => {
                let ends = self.field_value(field, first).zip(self.field_value(field, last));
                ends.map(|(first, last)| Match::Range { field, first, last, eq })
            }
            _ => None,
        };
        self.condition(condition, || format!("{loaded} in a range"));
        Some(())
    }

    fn lookup(&mut self, parts: &Parts<'_>) -> Option<()> {
        let name = Name::from(parts.text(NFTA_LOOKUP_SET)?);
        let from = parts.register(NFTA_LOOKUP_SREG)?;
        let inverted = parts.u32(NFTA_LOOKUP_FLAGS).is_some_and(|flags| flags & NFT_LOOKUP_F_INV != 0);
        let to = parts.u32(NFTA_LOOKUP_DREG);
        let set = (self.set)(&name);
        let key = set.and_then(|set| self.key(from, set));
        let (Some(set), Some(key)) = (set, key) else {
            // The verdict is unknown, and so is the use of a value.
            let outcome = if to.is_none() { Outcome::Condition } else { Outcome::Anything };
            self.opaque(format!("lookup in @{name}"), outcome);
            return Some(());
        };
        match to {
            None => self.push(Match::InSet { key, set: name, eq: !inverted }),
            Some(NFT_REG_VERDICT) => self.push(Statement::Vmap { key, map: name }),
            Some(_) => {
                let SetData::Values(types) = &set.data else { return None };
                let bytes = types.iter().map(|data_type| data_type.padded_length()).sum();
                self.registers.put(
                    parts.register(NFTA_LOOKUP_DREG)?,
                    Loaded::MapData { key, map: name, offset: 0 },
                    bytes,
                );
            }
        }
        Some(())
    }

    /// Returns the fields in the registers of a set's key.
    fn key(&self, from: Register, set: &Set) -> Option<Vec<Field>> {
        let mut register = from;
        let mut key = Vec::with_capacity(set.key.len());
        for data_type in &set.key {
            let field = self.registers.at(register).field()?;
            if field.data_type(self.family).padded_length() != data_type.padded_length() {
                return None;
            }
            key.push(field);
            register = register.after(data_type.padded_length());
        }
        Some(key)
    }

    fn field_value(&self, field: Field, bytes: &[u8]) -> Option<Value> {
        values::<1>(bytes, &[field.data_type(self.family)])?.first().copied()
    }
}

/// The attributes of an expression.
struct Parts<'a> {
    expression: &'a Expression,
    attributes: Vec<Attribute<'a>>,
}

impl<'a> Parts<'a> {
    fn read(expression: &'a Expression) -> Option<Self> {
        let attributes = Attributes::new(&expression.data).collect::<Result<_, _>>().ok()?;
        Some(Self { expression, attributes })
    }

    fn get(&self, kind: u16) -> Option<&Attribute<'a>> {
        self.attributes.iter().find(|attribute| attribute.kind == kind)
    }

    fn u32(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.u32_be().ok()
    }

    fn text(&self, kind: u16) -> Option<&'a str> {
        self.get(kind)?.text()
    }

    fn register(&self, kind: u16) -> Option<Register> {
        Register::from_number(self.u32(kind)?)
    }
}

/// Returns the bytes of a nested `NFTA_DATA_VALUE`.
fn value<'a>(data: &Attribute<'a>) -> Option<&'a [u8]> {
    let attributes = data.nested().collect::<Result<Vec<_>, _>>().ok()?;
    attributes.iter().find(|attribute| attribute.kind == NFTA_DATA_VALUE).map(|attribute| attribute.payload)
}

fn in_network(side: Side, net: IpNet, eq: bool) -> Match {
    match side {
        Side::Source => Match::Saddr { net, eq },
        Side::Destination => Match::Daddr { net, eq },
    }
}

/// Returns an interface name, which ends with a zero, or a prefix, which does not.
fn interface(bytes: &[u8]) -> Option<InterfacePattern> {
    let (name, is_whole) = match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], true),
        None => (bytes, false),
    };
    let name = str::from_utf8(name).ok()?.into();
    Some(if is_whole { InterfacePattern::Exact(name) } else { InterfacePattern::Prefix(name) })
}

fn cmp_op_from(number: u32) -> Option<CmpOp> {
    use CmpOp::{Eq, Gt, Gte, Lt, Lte, Neq};
    [Eq, Neq, Lt, Lte, Gt, Gte].into_iter().find(|op| cmp_op(*op) == number)
}

/// Returns the possible outcome of an expression that is not decoded.
fn outcome_of(name: &str) -> Outcome {
    match name {
        "log" | "last" | "objref" => Outcome::Nothing,
        "limit" | "quota" | "connlimit" | "match" | "exthdr" | "socket" | "osf" | "rt" | "xfrm" | "tunnel" | "hash"
        | "cmp" | "range" | "bitwise" => Outcome::Condition,
        _ => Outcome::Anything,
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests;
