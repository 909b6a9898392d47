use std::{fmt, net::IpAddr};

use ferroute_iptables::CtStates;
use ferroute_nftables::{
    Value,
    kernel::MemoryTable,
    model::{CmpOp, Element, Field, IfName, Key, KeyText, Match, Name, Opaque, Outcome, Statement},
};
use ipnet::IpNet;

use crate::{PacketState, host::AddressKind};

/// The result of matching a packet against a condition.
#[derive(Debug, PartialEq)]
pub(super) enum MatchResult {
    Match,
    /// The condition does not match, with the expected and the actual value as a sentence.
    Mismatch(String),
    /// The condition cannot be evaluated; the condition as a sentence.
    Unknown(String),
}

/// A failed lookup in a set or map.
pub(super) enum LookupError {
    /// There is no such key, as a sentence.
    NotFound(String),
    /// The lookup cannot be evaluated; "the key is in the map" as a sentence.
    Unknown(String),
}

/// The relevance of a condition that cannot be evaluated for the effect of its rule.
pub(super) enum Relevance {
    /// The rule may have an effect if the condition matches.
    Relevant,
    /// Another condition of the rule does not match.
    Mismatch(String),
    /// The rule has no effect, whether the condition matches or not.
    NoEffect,
}

/// The value of `numgen random` in a statement; `None` if it has not been selected yet.
pub(super) type RandomNumber = Option<u32>;

impl PacketState<'_> {
    /// Matches the packet against a condition.
    pub(super) fn matches(&self, condition: &Match, table: &MemoryTable, random: RandomNumber) -> MatchResult {
        let (source, destination) = (self.source.ip(), self.destination.ip());
        match condition {
            Match::InSet { key, set, eq } => match self.find(table, set, key, random) {
                Ok(_) if *eq => MatchResult::Match,
                Err(LookupError::NotFound(_)) if !*eq => MatchResult::Match,
                Err(LookupError::NotFound(reason)) => MatchResult::Mismatch(reason),
                Err(LookupError::Unknown(condition)) if *eq => MatchResult::Unknown(condition),
                Err(LookupError::Unknown(condition)) => MatchResult::Unknown(format!("not {condition}")),
                Ok(_) => self.match_if(false, || match self.key(key, random) {
                    Ok(key) => format!("{} is in @{set}", KeyText(&key)),
                    Err(reason) => reason,
                }),
            },
            Match::Saddr { net, eq } => {
                self.match_if(net.contains(&source) == *eq, || mismatch_text("source", source, net, !*eq))
            }
            Match::Daddr { net, eq } => self
                .match_if(net.contains(&destination) == *eq, || mismatch_text("destination", destination, net, !*eq)),
            Match::Iifname { name, eq } => {
                // The kernel gives locally sent packets an empty input interface name.
                let interface = self.in_interface.as_deref().unwrap_or_default();
                let matches = name.matches(interface);
                let interface = self.in_interface.as_deref().unwrap_or("none");
                self.match_if(matches == *eq, || mismatch_text("input interface", interface, name, !*eq))
            }
            Match::FibSaddrLocal => {
                self.match_if(self.is_local(source), || format!("source {source} is no address of the host"))
            }
            Match::FibDaddrLocal => self.match_if(self.is_local(destination), || {
                format!("destination {destination} is no address of the host")
            }),
            Match::CtStateNew => self.match_if(self.connection.intersects(CtStates::NEW), || {
                format!("connection state is {}", self.connection)
            }),
            Match::CtStatusDnat => self.match_if(self.connection.intersects(CtStates::DNAT), || {
                "the destination was not translated".to_owned()
            }),
            Match::CtPacketsAbove(packets) => self.match_if(FIRST_PACKET > *packets, || {
                format!("this is the connection's first packet, not one after {packets}")
            }),
            Match::MetaMark(bits) => {
                let mark = self.mark;
                self.match_if(mark & bits != 0, || format!("mark is {mark:#x}, without {bits:#x}"))
            }
            Match::Nfproto(family) => {
                let actual = self.family();
                self.match_if(actual == *family, || format!("it is an {actual} packet, not {family}"))
            }
            Match::Cmp { field, mask, op, value } => self.compare(*field, *mask, *op, *value, random),
            Match::Range { field, first, last, eq } => match self.value(*field, random) {
                Ok(actual) => self.match_if((*first <= actual && actual <= *last) == *eq, || {
                    mismatch_text(field_name(*field), actual, &format!("{first} to {last}"), !*eq)
                }),
                Err(unknown) => MatchResult::Unknown(format!("{unknown} within {first} to {last}")),
            },
        }
    }

    fn compare(&self, field: Field, mask: u32, op: CmpOp, wanted: Value, random: RandomNumber) -> MatchResult {
        let unknown = |subject: &str| MatchResult::Unknown(format!("{subject} compared with {wanted}"));
        let actual = match (field, self.value(field, random)) {
            // The other bits are not modelled.
            (Field::CtStatus, _) if mask & !STATUS_NAT != 0 => return unknown("the connection's status"),
            (Field::CtStatus, _) => Value::Integer(self.status() & mask),
            (_, Ok(Value::Integer(number))) => Value::Integer(number & mask),
            (_, Ok(value)) => value,
            // An address whose type is not known is neither local nor multicast.
            (Field::FibSaddrType | Field::FibDaddrType, Err(_)) if [LOCAL, MULTICAST].contains(&wanted) => {
                return self.match_if(op != CmpOp::Eq, || format!("{} is not {wanted}", field_name(field)));
            }
            (_, Err(subject)) => return unknown(&subject),
        };
        let matches = match op {
            CmpOp::Eq => wanted.contains(actual),
            CmpOp::Neq => !wanted.contains(actual),
            op => op.matches(actual.cmp(&wanted)),
        };
        let masked = if mask == u32::MAX { String::new() } else { format!(" & {mask:#010x}") };
        let name = field_name(field);
        self.match_if(matches, || match op {
            CmpOp::Eq => format!("{name}{masked} is {actual}, not {wanted}"),
            CmpOp::Neq => format!("{name}{masked} is {actual}, and {wanted} is excluded"),
            CmpOp::Lt | CmpOp::Lte => format!("{name}{masked} is {actual}, which is too great"),
            CmpOp::Gt | CmpOp::Gte => format!("{name}{masked} is {actual}, which is too small"),
        })
    }

    /// Looks up the packet's element in a set or map.
    pub(super) fn find<'t>(
        &self,
        table: &'t MemoryTable,
        map: &Name,
        fields: &[Field],
        random: RandomNumber,
    ) -> Result<&'t Element, LookupError> {
        let key =
            self.key(fields, random).map_err(|unknown| LookupError::Unknown(format!("{unknown} is in @{map}")))?;
        table.find(map, &key).ok_or_else(|| match table.undecoded(map) {
            0 if self.explain => LookupError::NotFound(format!("{} is not in @{map}", KeyText(&key))),
            0 => LookupError::NotFound(String::new()),
            _ => LookupError::Unknown(format!("{} is in @{map}", KeyText(&key))),
        })
    }

    /// Reports whether a statement is a lookup that fails with this random number.
    pub(super) fn misses(&self, statement: &Statement, table: &MemoryTable, random: u32) -> bool {
        let (Statement::MetaPriorityMap { key, map } | Statement::DnatMap { key, map }) = statement else {
            return false;
        };
        let Ok(key) = self.key(key, Some(random)) else { return false };
        table.undecoded(map) == 0 && table.find(map, &key).is_none()
    }

    /// Reports whether a condition that cannot be evaluated matters, given the `rest` of its rule.
    pub(super) fn relevance(&self, rest: &[Statement], table: &MemoryTable) -> Relevance {
        for statement in rest {
            match statement {
                Statement::Match(condition) if random_range(statement).is_none() => {
                    if let MatchResult::Mismatch(reason) = self.matches(condition, table, None) {
                        return Relevance::Mismatch(reason);
                    }
                }
                Statement::Opaque(Opaque { outcome: Outcome::Nothing | Outcome::Condition, .. })
                | Statement::UpdateMap { .. }
                | Statement::DeleteFromMap { .. }
                | Statement::UpdateSet { .. }
                | Statement::FlowAdd(_) => {}
                _ => return Relevance::Relevant,
            }
        }
        Relevance::NoEffect
    }

    fn key(&self, fields: &[Field], random: RandomNumber) -> Result<Key, String> {
        let mut key = Key::new();
        for field in fields {
            key.push(self.value(*field, random)?);
        }
        Ok(key)
    }

    /// Returns the value of a field, or the description of an unknown one.
    fn value(&self, field: Field, random: RandomNumber) -> Result<Value, String> {
        Ok(match field {
            Field::Saddr => self.source.ip().into(),
            Field::Daddr => self.destination.ip().into(),
            Field::SaddrNetwork(length) => {
                let net = IpNet::new(self.source.ip(), length).map_err(|_| "the source's network".to_owned())?;
                net.network().into()
            }
            Field::L4proto => Value::protocol(self.protocol()),
            Field::Dport => Value::Port(self.destination.port()),
            Field::Sport => Value::Port(self.source.port()),
            Field::MetaPriority => self.priority.into(),
            Field::PriorityBits(mask) => self.priority.masked(mask).into(),
            Field::MetaMark => Value::Integer(self.mark),
            Field::Iifname => interface(self.in_interface.as_deref()),
            Field::Oifname => interface(self.out_interface.as_deref()),
            Field::CtState if self.connection.intersects(CtStates::UNTRACKED) => Value::Integer(STATE_UNTRACKED),
            Field::CtState => Value::Integer(STATE_NEW),
            Field::CtStatus => return Err("the connection's status".to_owned()),
            Field::CtOriginalDaddr => return Err("the connection's original destination".to_owned()),
            Field::CtOriginalDport => return Err("the connection's original destination port".to_owned()),
            Field::FibSaddrType => self.fib_type(self.source.ip())?,
            Field::FibDaddrType => self.fib_type(self.destination.ip())?,
            Field::NumgenRandom { first, .. } => Value::Integer(random.unwrap_or(first)),
        })
    }

    /// Returns the `RTN_*` type of an address.
    fn fib_type(&self, address: IpAddr) -> Result<Value, String> {
        match self.address_type(address) {
            Some(AddressKind::Unicast) => Ok(UNICAST),
            Some(AddressKind::Local) => Ok(LOCAL),
            Some(AddressKind::Broadcast) => Ok(BROADCAST),
            Some(AddressKind::Multicast) => Ok(MULTICAST),
            None => Err(format!("the type of {address}")),
        }
    }

    /// Returns `IPS_SRC_NAT` and `IPS_DST_NAT` of the connection's status.
    fn status(&self) -> u32 {
        let bit = |state, bit| if self.connection.intersects(state) { bit } else { 0 };
        bit(CtStates::SNAT, STATUS_SNAT) | bit(CtStates::DNAT, STATUS_DNAT)
    }

    fn match_if(&self, matches: bool, reason: impl FnOnce() -> String) -> MatchResult {
        match matches {
            true => MatchResult::Match,
            false if self.explain => MatchResult::Mismatch(reason()),
            false => MatchResult::Mismatch(String::new()),
        }
    }
}

/// Returns the range of `numgen random` in a statement: the first number and their count.
pub(super) fn random_range(statement: &Statement) -> Option<(u32, u32)> {
    let range = |field: &Field| match field {
        Field::NumgenRandom { first, count } => Some((*first, *count)),
        _ => None,
    };
    match statement {
        Statement::Match(Match::Cmp { field, .. } | Match::Range { field, .. }) => range(field),
        Statement::Match(Match::InSet { key, .. })
        | Statement::MetaPriorityMap { key, .. }
        | Statement::DnatMap { key, .. }
        | Statement::Vmap { key, .. } => key.iter().find_map(range),
        _ => None,
    }
}

fn interface(name: Option<&str>) -> Value {
    Value::IfName(IfName::new(name.unwrap_or_default()))
}

fn mismatch_text(subject: &str, actual: impl fmt::Display, wanted: &impl fmt::Display, negated: bool) -> String {
    if negated {
        format!("{subject} is {actual}, and {wanted} is excluded")
    } else {
        format!("{subject} is {actual}, not {wanted}")
    }
}

fn field_name(field: Field) -> &'static str {
    match field {
        Field::Saddr | Field::SaddrNetwork(_) => "source",
        Field::Daddr => "destination",
        Field::L4proto => "protocol",
        Field::Dport => "destination port",
        Field::Sport => "source port",
        Field::MetaPriority | Field::PriorityBits(_) => "priority",
        Field::MetaMark => "mark",
        Field::Iifname => "input interface",
        Field::Oifname => "output interface",
        Field::CtState => "connection state",
        Field::CtStatus => "connection status",
        Field::CtOriginalDaddr => "original destination",
        Field::CtOriginalDport => "original destination port",
        Field::FibSaddrType => "type of the source",
        Field::FibDaddrType => "type of the destination",
        Field::NumgenRandom { .. } => "the random number",
    }
}

/// The number of packets that a traced connection has had, with the traced one.
const FIRST_PACKET: u64 = 1;
/// `RTN_UNICAST`.
const UNICAST: Value = Value::Integer(1);
/// `RTN_LOCAL`.
const LOCAL: Value = Value::Integer(2);
/// `RTN_BROADCAST`.
const BROADCAST: Value = Value::Integer(3);
/// `RTN_MULTICAST`.
const MULTICAST: Value = Value::Integer(5);
/// `NF_CT_STATE_BIT(IP_CT_NEW)`.
const STATE_NEW: u32 = 8;
/// `NF_CT_STATE_UNTRACKED_BIT`.
const STATE_UNTRACKED: u32 = 64;
/// `IPS_SRC_NAT`.
const STATUS_SNAT: u32 = 0x10;
/// `IPS_DST_NAT`.
const STATUS_DNAT: u32 = 0x20;
const STATUS_NAT: u32 = STATUS_SNAT | STATUS_DNAT;
