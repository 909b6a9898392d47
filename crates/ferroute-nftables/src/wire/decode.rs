//! Rules from the kernel's expressions: the opposite of `expression.rs`, for anybody's rules.
//!
//! Expressions load what a packet has into registers, and compare or use what is there. So the decoder keeps what each
//! register holds, as a [`Held`], and makes a statement whenever something is decided or changed. What it does not know
//! becomes [`Opaque`], with the expressions that lead to it.

mod effects;
mod held;

use ferroute_core::IpFamily;
use ferroute_netlink::{Attribute, Attributes};
use ipnet::IpNet;

use self::held::{Held, Registers, Side};
use super::{
    EncodedRule,
    constants::{
        element::{COUNTER_BYTES, COUNTER_PACKETS, VALUE},
        expr::{
            ADDRESS_TYPE_LOCAL, CT_STATE_NEW, CT_STATUS_DNAT, LOOKUP_INVERTED, META_ETHERNET_PROTOCOL, META_FAMILY,
            REGISTER_VERDICT,
        },
    },
    element::{parse_verdict, values},
    layout::{Register, relation_number},
    object::protocol_family,
};
use crate::model::{
    DataType, Expression, Field, Holds, Interface, InterfaceName, Match, Name, Opaque, Outcome, Relation, Rule, Set,
    Statement, Value,
};

impl EncodedRule {
    /// The rule as a typed value, as packets of a family meet it. `set` tells how a set of the table is declared; `None`
    /// for those that cannot be said here.
    ///
    /// What the encoder writes for a rule of the planner comes back as the same rule.
    pub fn decode<'a>(&'a self, family: IpFamily, set: &dyn Fn(&Name) -> Option<&'a Set>) -> Rule {
        let mut decoder =
            Decoder { family, set, registers: Registers::new(), pending: Vec::new(), statements: Vec::new() };
        for expression in self.expressions() {
            decoder.pending.push(expression);
            if decoder.take(expression).is_none() {
                decoder.opaque(expression.name.clone(), outcome_of(&expression.name));
                decoder.registers.forget();
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
    /// Carries out an expression; `None` if it has not the form that we know.
    fn take(&mut self, expression: &'a Expression) -> Option<()> {
        let parts = Parts::read(expression)?;
        match &*expression.name {
            "payload" => self.load(&parts, |decoder| held::payload(decoder.family, &parts)),
            "meta" if parts.u32(META_SOURCE).is_some() => self.set_meta(&parts),
            "meta" => self.load(&parts, |_| held::meta(&parts)),
            "ct" if parts.u32(CT_SOURCE).is_some() => {
                // What later packets of the connection have.
                self.opaque("ct set".to_owned(), Outcome::Nothing);
                Some(())
            }
            "ct" => self.load(&parts, |_| held::connection(&parts)),
            "fib" => self.load(&parts, |_| held::kind(&parts)),
            "numgen" => self.load(&parts, |_| held::number(&parts)),
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
                let text = format!("counter packets {} bytes {}", count(COUNTER_PACKETS), count(COUNTER_BYTES));
                self.opaque(text, Outcome::Nothing);
                Some(())
            }
            "notrack" => {
                self.push(Statement::NoTrack);
                Some(())
            }
            _ => None,
        }
    }

    /// The next statement, made of all that came since the last one.
    fn push(&mut self, statement: impl Into<Statement>) {
        self.pending.clear();
        self.statements.push(statement.into());
    }

    /// The next statement is not known.
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

    fn load(&mut self, parts: &Parts<'_>, what: impl FnOnce(&Self) -> Option<(Held, usize)>) -> Option<()> {
        let to = parts.register(1)?;
        // What is loaded and not known makes no trouble until it is used.
        let (held, bytes) = what(self).unwrap_or_else(|| (Held::Unknown(parts.expression.name.clone()), 4));
        self.registers.put(to, held, bytes);
        Some(())
    }

    fn immediate(&mut self, parts: &Parts<'_>) -> Option<()> {
        let data = parts.get(2)?;
        if parts.u32(1)? == REGISTER_VERDICT {
            let verdict = parse_verdict(data).ok()??;
            self.push(verdict);
            return Some(());
        }
        let bytes = value(data)?.to_vec();
        let length = bytes.len();
        self.registers.put(parts.register(1)?, Held::Constant(bytes), length);
        Some(())
    }

    fn bitwise(&mut self, parts: &Parts<'_>) -> Option<()> {
        let (from, to) = (parts.register(1)?, parts.register(2)?);
        // Shifts are another operation than `NFT_BITWISE_BOOL`.
        let is_boolean = parts.u32(6).is_none_or(|operation| operation == 0);
        let (mask, flip) = (value(parts.get(4)?)?, value(parts.get(5)?)?);
        let held = self.registers.at(from);
        let masked = held.masked(mask, flip).filter(|_| is_boolean);
        self.registers.put(to, masked.unwrap_or_else(|| Held::Unknown(format!("bits of {held}"))), mask.len());
        Some(())
    }

    fn compare(&mut self, parts: &Parts<'_>) -> Option<()> {
        let held = self.registers.at(parts.register(1)?);
        let relation = relation_of(parts.u32(2)?)?;
        let bytes = value(parts.get(3)?)?;
        let condition = self.comparison(&held, relation, bytes);
        self.condition(condition, || format!("{held} compared with {}", hexadecimal(bytes)));
        Some(())
    }

    fn comparison(&self, held: &Held, relation: Relation, bytes: &[u8]) -> Option<Match> {
        let is = match relation {
            Relation::Equal => Some(true),
            Relation::NotEqual => Some(false),
            _ => None,
        };
        match held {
            Held::Field(Field::Source | Field::Destination) | Held::Part { .. } | Held::Network { .. } => {
                held.network(bytes).and_then(|(side, net)| Some(in_network(side, net, is?)))
            }
            Held::Field(Field::InputInterface) => Some(Match::Interface { name: interface(bytes)?, is: is? }),
            Held::Field(Field::OutputInterface) => {
                let value = match interface(bytes)? {
                    InterfaceName::Exact(name) => Value::Interface(Interface::new(&name)),
                    InterfaceName::Prefix(prefix) => Value::Interfaces(Interface::new(&prefix)),
                };
                let field = Field::OutputInterface;
                is.map(|_| Match::Compare { field, mask: u32::MAX, relation, value })
            }
            Held::Field(Field::SourceKind) if is == Some(true) && bytes == ADDRESS_TYPE_LOCAL.to_ne_bytes() => {
                Some(Match::SourceIsLocal)
            }
            Held::Field(Field::DestinationKind) if is == Some(true) && bytes == ADDRESS_TYPE_LOCAL.to_ne_bytes() => {
                Some(Match::DestinationIsLocal)
            }
            Held::Family { key } => self.family_match(*key, is?, bytes),
            Held::Bits { field, keep, flip: 0 } => {
                let number = u32::from_ne_bytes(bytes.try_into().ok()?);
                Some(match (field, is?, number, *keep) {
                    (Field::Mark, false, 0, bits) => Match::Marked(bits),
                    (Field::ConnectionState, false, 0, CT_STATE_NEW) => Match::New,
                    (Field::ConnectionStatus, false, 0, CT_STATUS_DNAT) => Match::Translated,
                    (field, ..) => {
                        Match::Compare { field: *field, mask: *keep, relation, value: Value::Number(number) }
                    }
                })
            }
            Held::Field(field) => {
                let value = self.field_value(*field, bytes)?;
                // Numbers in the host's byte order are no more or less than others byte by byte.
                let ordered = !matches!(value, Value::Number(_) | Value::Class(_) | Value::Interface(_));
                (ordered || is.is_some()).then_some(Match::Compare { field: *field, mask: u32::MAX, relation, value })
            }
            _ => None,
        }
    }

    /// `None` if it is neither of the families.
    fn family_match(&self, key: u32, is: bool, bytes: &[u8]) -> Option<Match> {
        let of = |family| match (key, bytes) {
            (META_FAMILY, [number]) => *number == protocol_family(family),
            (META_ETHERNET_PROTOCOL, [_, _]) => bytes == held::ethernet_protocol(family),
            _ => false,
        };
        let family = IpFamily::BOTH.into_iter().find(|family| of(*family))?;
        let other = IpFamily::BOTH.into_iter().find(|other| *other != family)?;
        Some(Match::Family(if is { family } else { other }))
    }

    fn range(&mut self, parts: &Parts<'_>) -> Option<()> {
        let held = self.registers.at(parts.register(1)?);
        let is = match parts.u32(2)? {
            0 => true,
            1 => false,
            _ => return None,
        };
        let (first, last) = (value(parts.get(3)?)?, value(parts.get(4)?)?);
        let condition = match held {
            Held::Field(field) if field.data_type(self.family) != DataType::Number => {
                let ends = self.field_value(field, first).zip(self.field_value(field, last));
                ends.map(|(first, last)| Match::Within { field, first, last, is })
            }
            _ => None,
        };
        self.condition(condition, || format!("{held} in a range"));
        Some(())
    }

    fn lookup(&mut self, parts: &Parts<'_>) -> Option<()> {
        let name = Name::from(parts.text(1)?);
        let from = parts.register(2)?;
        let inverted = parts.u32(5).is_some_and(|flags| flags & LOOKUP_INVERTED != 0);
        let to = parts.u32(3);
        let set = (self.set)(&name);
        let key = set.and_then(|set| self.key(from, set));
        let (Some(set), Some(key)) = (set, key) else {
            // A verdict from somewhere can be anything, and so can what is done with a value.
            let outcome = if to.is_none() { Outcome::Condition } else { Outcome::Anything };
            self.opaque(format!("lookup in @{name}"), outcome);
            return Some(());
        };
        match to {
            None => self.push(Match::Member { key, set: name, is: !inverted }),
            Some(REGISTER_VERDICT) => self.push(Statement::Dispatch { key, map: name }),
            Some(_) => {
                let Holds::Values(types) = &set.holds else { return None };
                let bytes = types.iter().map(|data_type| data_type.room()).sum();
                self.registers.put(parts.register(3)?, Held::Found { key, map: name, offset: 0 }, bytes);
            }
        }
        Some(())
    }

    /// The fields that are a key of a set, from a register on.
    fn key(&self, from: Register, set: &Set) -> Option<Vec<Field>> {
        let mut register = from;
        let mut key = Vec::with_capacity(set.key.len());
        for data_type in &set.key {
            let Held::Field(field) = self.registers.at(register) else { return None };
            if field.data_type(self.family).room() != data_type.room() {
                return None;
            }
            key.push(field);
            register = register.behind(data_type.room());
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
        self.get(kind)?.str().ok()
    }

    fn register(&self, kind: u16) -> Option<Register> {
        Register::from_number(self.u32(kind)?)
    }
}

/// The bytes of a nested value.
fn value<'a>(data: &Attribute<'a>) -> Option<&'a [u8]> {
    let attributes = data.nested().collect::<Result<Vec<_>, _>>().ok()?;
    attributes.iter().find(|attribute| attribute.kind == VALUE).map(|attribute| attribute.payload)
}

fn in_network(side: Side, net: IpNet, is: bool) -> Match {
    match side {
        Side::Source => Match::Source { net, is },
        Side::Destination => Match::Destination { net, is },
    }
}

/// A whole name has a zero behind it, of a prefix there are only the bytes that matter.
fn interface(bytes: &[u8]) -> Option<InterfaceName> {
    let (name, is_whole) = match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], true),
        None => (bytes, false),
    };
    let name = str::from_utf8(name).ok()?.into();
    Some(if is_whole { InterfaceName::Exact(name) } else { InterfaceName::Prefix(name) })
}

fn relation_of(number: u32) -> Option<Relation> {
    use Relation::{AtLeast, AtMost, Equal, Greater, Less, NotEqual};
    [Equal, NotEqual, Less, AtMost, Greater, AtLeast].into_iter().find(|known| relation_number(*known) == number)
}

/// What can come of an expression that is not known any further.
fn outcome_of(name: &str) -> Outcome {
    match name {
        "log" | "last" | "objref" | "byteorder" => Outcome::Nothing,
        "limit" | "quota" | "connlimit" | "match" | "exthdr" | "socket" | "osf" | "rt" | "xfrm" | "tunnel" | "hash"
        | "cmp" | "range" | "bitwise" => Outcome::Condition,
        _ => Outcome::Anything,
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// `NFTA_META_SREG` and `NFTA_CT_SREG`.
const META_SOURCE: u16 = 3;
const CT_SOURCE: u16 = 4;

#[cfg(test)]
mod tests;
