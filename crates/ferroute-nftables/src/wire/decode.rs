//! Decoding rules from the kernel's expressions, for rules of any program: the inverse of `expression.rs`.
//!
//! Expressions load properties of a packet into registers, and compare or use them. The decoder tracks the content of
//! each register as a [`Loaded`], and emits a statement when a value is compared or used. Constructs that it cannot
//! represent become [`Opaque`], with the expressions that lead to them.

mod effects;
mod foreign;
mod headers;
mod options;
mod parts;
mod registers;
mod statements;

use ferroute_core::IpFamily;
use ferroute_netlink::Attribute;
use ipnet::IpNet;

pub(super) use self::{foreign::index_name, registers::number};
use self::{
    headers::Headers,
    parts::{Parts, hexadecimal, is_continue, value},
    registers::{Loaded, Registers, Side},
};
use super::{
    EncodedRule,
    constants::*,
    element::{parse_verdict, values},
    layout::{Register, cmp_op},
    object::nfproto,
};
use crate::model::{
    CmpOp, DataType, Expression, Field, Foreign, IfName, InterfacePattern, Match, Name, Opaque, Operand, Outcome,
    Printable, Property, Rule, Set, SetData, Statement, Value,
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
                decoder.opaque(format!("unknown {}", Printable(&expression.name)), outcome_of(&expression.name));
                decoder.registers.clear();
            }
        }
        Rule { statements: decoder.statements, comment: self.comment().cloned() }
    }
}

/// Returns the condition, besides the key, under which an element of a set matches, in `nft` syntax: `limit rate
/// 5/second`.
pub(super) fn element_condition(entry: &Attribute<'_>) -> Option<Box<str>> {
    let condition = |attribute: Attribute<'_>| {
        let expression = EncodedRule::parse_expression(&attribute).ok()?;
        match statements::text(&Parts::read(&expression)?)? {
            (text, Outcome::Condition) => Some(text),
            _ => None,
        }
    };
    let mut texts = Vec::new();
    for attribute in entry.nested().flatten() {
        match attribute.kind {
            NFTA_SET_ELEM_EXPR => texts.extend(condition(attribute)),
            NFTA_SET_ELEM_EXPRESSIONS => texts.extend(attribute.nested().flatten().filter_map(condition)),
            _ => {}
        }
    }
    (!texts.is_empty()).then(|| texts.join(" ").into())
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
            "payload" if parts.u32(NFTA_PAYLOAD_SREG).is_some() => self.set_payload(&parts),
            "payload" => self.load(&parts, |decoder| registers::payload(decoder.headers(), &parts)),
            "meta" if parts.u32(NFTA_META_SREG).is_some() => self.set_meta(&parts),
            "meta" => self.load(&parts, |_| registers::meta(&parts)),
            "ct" if parts.u32(NFTA_CT_SREG).is_some() => self.set_ct(&parts),
            "redir" => self.redirect(&parts),
            "tproxy" => self.tproxy(&parts),
            "ct" => self.load(&parts, |_| registers::ct(&parts)),
            "byteorder" => self.byteorder(&parts),
            "flow_offload" => {
                self.push(Statement::FlowAdd(Name::from(parts.text(NFTA_FLOW_TABLE_NAME)?)));
                Some(())
            }
            "fib" => self.load(&parts, |_| registers::fib(&parts)),
            "numgen" => self.load(&parts, |_| registers::numgen(&parts)),
            "hash" => self.hash(&parts),
            "exthdr" => self.exthdr(&parts),
            "rt" | "socket" | "osf" | "xfrm" | "tunnel" => self.load_named(&parts),
            "match" | "target" => {
                self.opaque(String::new(), Outcome::Iptables);
                Some(())
            }
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
            _ => {
                let (text, outcome) = statements::text(&parts)?;
                self.opaque(text, outcome);
                Some(())
            }
        }
    }

    /// Adds a statement for the pending expressions.
    fn push(&mut self, statement: impl Into<Statement>) {
        self.pending.clear();
        let statement = statement.into();
        if let Statement::Match(Match::Nfproto(family)) = statement {
            // The remaining expressions apply to packets of this family.
            self.family = family;
        }
        // `nft` writes a range as two comparisons.
        if let (
            Statement::Match(Match::Cmp { field, mask: u32::MAX, op: CmpOp::Lte, value: last }),
            Some(Statement::Match(previous)),
        ) = (&statement, self.statements.last_mut())
            && let Match::Cmp { field: same, mask: u32::MAX, op: CmpOp::Gte, value: first } = *previous
            && same == *field
        {
            *previous = Match::Range { field: same, first, last: *last, eq: true };
            return;
        }
        self.statements.push(statement);
    }

    /// Returns the headers of the packets that the rule matches.
    fn headers(&self) -> Headers {
        let protocol = self.statements.iter().find_map(|statement| match statement {
            Statement::Match(Match::Cmp {
                field: Field::L4proto,
                op: CmpOp::Eq,
                value: Value::Protocol(number),
                ..
            }) => Some(*number),
            _ => None,
        });
        Headers { family: self.family, protocol }
    }

    /// Adds a construct of other programs' rules.
    fn foreign(&mut self, foreign: Foreign) {
        // `nft` writes a range as two comparisons.
        if let (
            Foreign::Compare { operand, op: CmpOp::Lte, value: last },
            Some(Statement::Opaque(Opaque { outcome: Outcome::Foreign(previous), expressions, .. })),
        ) = (&foreign, self.statements.last_mut())
            && let Foreign::Compare { operand: same, op: CmpOp::Gte, value: first } = previous
            && same == operand
        {
            expressions.extend(std::mem::take(&mut self.pending).into_iter().cloned());
            *previous = Foreign::Range { operand: *operand, first: *first, last: *last, eq: true };
            return;
        }
        self.opaque(String::new(), Outcome::Foreign(foreign));
    }

    /// Adds an opaque statement with the pending expressions.
    fn opaque(&mut self, text: String, outcome: Outcome) {
        let expressions = std::mem::take(&mut self.pending).into_iter().cloned().collect();
        self.statements.push(Statement::Opaque(Opaque { expressions, text, outcome }));
    }

    fn load(&mut self, parts: &Parts<'_>, value: impl FnOnce(&Self) -> Option<(Loaded, usize)>) -> Option<()> {
        // The destination register is attribute 1 of these expressions.
        self.load_to(parts, NFTA_PAYLOAD_DREG, value(self))
    }

    fn load_to(&mut self, parts: &Parts<'_>, register: u16, value: Option<(Loaded, usize)>) -> Option<()> {
        let to = parts.register(register)?;
        // An unknown value matters only if it is used.
        let unknown = || Loaded::Unknown(format!("unknown {}", Printable(&parts.expression.name)));
        let (loaded, bytes) = value.unwrap_or_else(|| (unknown(), 4));
        self.registers.put(to, loaded, bytes);
        Some(())
    }

    fn immediate(&mut self, parts: &Parts<'_>) -> Option<()> {
        let data = parts.get(NFTA_IMMEDIATE_DATA)?;
        if parts.u32(NFTA_IMMEDIATE_DREG)? == NFT_REG_VERDICT {
            if is_continue(data) {
                self.opaque("continue".to_owned(), Outcome::Nothing);
                return Some(());
            }
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
        let length = usize::try_from(parts.u32(NFTA_BITWISE_LEN)?).ok()?;
        let loaded = self.registers.at(from);
        let headers = self.headers();
        let operation = parts.u32(NFTA_BITWISE_OP).unwrap_or(NFT_BITWISE_BOOL);
        let result = match (operation, &loaded) {
            (NFT_BITWISE_BOOL, _) => {
                let (mask, xor) = (value(parts.get(NFTA_BITWISE_MASK)?)?, value(parts.get(NFTA_BITWISE_XOR)?)?);
                loaded.masked(mask, xor, headers)
            }
            // A part of a header, whose value is the number in it: `ip dscp`.
            (
                NFT_BITWISE_RSHIFT,
                Loaded::Operand { operand: Operand { property, mask: u128::MAX, shift: 1.. }, .. },
            ) => Some(Loaded::property(*property)),
            _ => None,
        };
        let unknown = || {
            let (text, bits) = (loaded.text(headers), parts.get(NFTA_BITWISE_DATA).and_then(value));
            let bits = bits.and_then(|bits| number(bits, true));
            Loaded::Unknown(match (operation, bits) {
                (NFT_BITWISE_LSHIFT, Some(bits)) => format!("{text} << {bits}"),
                (NFT_BITWISE_RSHIFT, Some(bits)) => format!("{text} >> {bits}"),
                _ => format!("bits of {text}"),
            })
        };
        self.registers.put(to, result.unwrap_or_else(unknown), length);
        Some(())
    }

    fn byteorder(&mut self, parts: &Parts<'_>) -> Option<()> {
        let (from, to) = (parts.register(NFTA_BYTEORDER_SREG)?, parts.register(NFTA_BYTEORDER_DREG)?);
        let (size, length) = (parts.u32(NFTA_BYTEORDER_SIZE)?, usize::try_from(parts.u32(NFTA_BYTEORDER_LEN)?).ok()?);
        let ordered = match self.registers.at(from) {
            Loaded::CtPackets if parts.u32(NFTA_BYTEORDER_OP)? == NFT_BYTEORDER_HTON && size == 8 => {
                Loaded::OrderedCtPackets
            }
            other => {
                let unknown = || Loaded::Unknown(other.text(self.headers()));
                other.reversed().filter(|_| usize::try_from(size) == Ok(length)).unwrap_or_else(unknown)
            }
        };
        self.registers.put(to, ordered, length);
        Some(())
    }

    fn compare(&mut self, parts: &Parts<'_>) -> Option<()> {
        let loaded = self.registers.at(parts.register(NFTA_CMP_SREG)?);
        let op = cmp_op_from(parts.u32(NFTA_CMP_OP)?)?;
        let bytes = value(parts.get(NFTA_CMP_DATA)?)?;
        let headers = self.headers();
        if let Loaded::Payload { base, offset, bytes: length } = loaded {
            let fields = headers.split(base, offset, length).filter(|_| op == CmpOp::Eq && bytes.len() == length);
            let mut rest = bytes;
            for (offset, length) in fields.unwrap_or_else(|| vec![(offset, length)]) {
                let (part, next) = rest.split_at_checked(length)?;
                self.compare_with(&headers.load(base, offset, length)?, op, part);
                rest = next;
            }
            return Some(());
        }
        self.compare_with(&loaded, op, bytes);
        Some(())
    }

    fn compare_with(&mut self, loaded: &Loaded, op: CmpOp, bytes: &[u8]) {
        if let Some(condition) = self.comparison(loaded, op, bytes) {
            return self.push(condition);
        }
        let headers = self.headers();
        match foreign::comparison(headers, loaded, op, bytes) {
            Some(foreign) => self.foreign(foreign),
            None => {
                let text = format!("{} {} {}", loaded.text(headers), operator(op), hexadecimal(bytes));
                self.opaque(text, Outcome::Condition);
            }
        }
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

    /// Returns a match of the packet's family; `None` for families other than IPv4 and IPv6.
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
        if let Loaded::Field(field) = loaded
            && field.data_type(self.family) != DataType::Integer
            && let Some((first, last)) = self.field_value(field, first).zip(self.field_value(field, last))
        {
            self.push(Match::Range { field, first, last, eq });
            return Some(());
        }
        let headers = self.headers();
        match foreign::range(headers, &loaded, first, last, eq) {
            Some(foreign) => self.foreign(foreign),
            None => {
                let not = if eq { "" } else { "!= " };
                let text = format!("{} {not}{}-{}", loaded.text(headers), hexadecimal(first), hexadecimal(last));
                self.opaque(text, Outcome::Condition);
            }
        }
        Some(())
    }

    fn lookup(&mut self, parts: &Parts<'_>) -> Option<()> {
        let name = Name::from(parts.text(NFTA_LOOKUP_SET)?);
        let from = parts.register(NFTA_LOOKUP_SREG)?;
        let inverted = parts.u32(NFTA_LOOKUP_FLAGS).is_some_and(|flags| flags & NFT_LOOKUP_F_INV != 0);
        let to = parts.u32(NFTA_LOOKUP_DREG);
        let set = (self.set)(&name);
        let operands = set.and_then(|set| self.operands(from, set));
        let (Some(set), Some(operands)) = (set, operands) else {
            // The verdict is unknown, and therefore also the effect of a value.
            let left = self.registers.at(from).text(self.headers());
            let not = if inverted { "!= " } else { "" };
            match to {
                None => self.opaque(format!("{left} {not}@{name}"), Outcome::Condition),
                Some(NFT_REG_VERDICT) => self.opaque(format!("{left} vmap @{name}"), Outcome::Anything),
                Some(_) => {
                    let loaded = Loaded::Unknown(format!("{left} map @{name}"));
                    self.registers.put(parts.register(NFTA_LOOKUP_DREG)?, loaded, 16);
                }
            }
            return Some(());
        };
        match (to, typed_key(&operands, set, self.family)) {
            (None, Some(key)) => self.push(Match::InSet { key, set: name, eq: !inverted }),
            (None, None) => self.foreign(Foreign::Lookup { key: operands, set: name, eq: !inverted }),
            (Some(NFT_REG_VERDICT), Some(key)) => self.push(Statement::Vmap { key, map: name }),
            (Some(NFT_REG_VERDICT), None) => self.foreign(Foreign::Vmap { key: operands, map: name }),
            (Some(_), _) => {
                let SetData::Values(types) = &set.data else { return None };
                let bytes = types.iter().map(|data_type| data_type.padded_length()).sum();
                let loaded = Loaded::MapData { key: operands, map: name, offset: 0 };
                self.registers.put(parts.register(NFTA_LOOKUP_DREG)?, loaded, bytes);
            }
        }
        Some(())
    }

    /// Returns the fields in the registers of a set's key.
    fn operands(&self, from: Register, set: &Set) -> Option<Vec<Operand>> {
        let mut register = from;
        let mut key = Vec::with_capacity(set.key.len());
        for data_type in &set.key {
            key.push(self.registers.at(register).operand(self.headers())?);
            register = register.after(data_type.padded_length());
        }
        Some(key)
    }

    /// Returns the key of a set, if it consists of fields that planned rules use.
    fn key(&self, from: Register, set: &Set) -> Option<Vec<Field>> {
        typed_key(&self.operands(from, set)?, set, self.family)
    }

    fn field_value(&self, field: Field, bytes: &[u8]) -> Option<Value> {
        values::<1>(bytes, &[field.data_type(self.family)])?.first().copied()
    }
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

/// Returns the fields of a key, if planned rules use them, in a set of their types.
fn typed_key(operands: &[Operand], set: &Set, family: IpFamily) -> Option<Vec<Field>> {
    let fields = operands.iter().zip(&set.key).map(|(operand, data_type)| {
        let field = match (operand.property, operand.mask) {
            (Property::Field(field), u128::MAX) => field,
            (Property::Field(Field::Saddr), mask) => Field::SaddrNetwork(prefix_of(mask, family)?),
            _ => return None,
        };
        (field.data_type(family) == *data_type).then_some(field)
    });
    fields.collect()
}

/// Returns the length of a netmask.
fn prefix_of(mask: u128, family: IpFamily) -> Option<u8> {
    let mask = match family {
        IpFamily::V4 => std::net::IpAddr::V4(u32::try_from(mask).ok()?.into()),
        IpFamily::V6 => std::net::IpAddr::V6(mask.into()),
    };
    ipnet::ip_mask_to_prefix(mask).ok()
}

/// Returns the possible outcome of an expression that is not decoded.
fn outcome_of(name: &str) -> Outcome {
    match name {
        "limit" | "quota" | "connlimit" | "match" | "exthdr" | "socket" | "osf" | "rt" | "xfrm" | "tunnel" | "hash"
        | "cmp" | "range" | "bitwise" => Outcome::Condition,
        _ => Outcome::Anything,
    }
}

fn operator(op: CmpOp) -> &'static str {
    match op {
        CmpOp::Eq => "==",
        CmpOp::Neq => "!=",
        CmpOp::Lt => "<",
        CmpOp::Lte => "<=",
        CmpOp::Gt => ">",
        CmpOp::Gte => ">=",
    }
}

// `enum nft_bitwise_ops`, and how many bits are shifted.
const NFT_BITWISE_LSHIFT: u32 = 1;
const NFT_BITWISE_RSHIFT: u32 = 2;
const NFTA_BITWISE_DATA: u16 = 7;
/// `NFTA_PAYLOAD_SREG`.
const NFTA_PAYLOAD_SREG: u16 = 5;

#[cfg(test)]
mod tests;
