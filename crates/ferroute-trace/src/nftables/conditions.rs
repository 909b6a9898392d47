use std::{collections::HashSet, net::IpAddr};

use ferroute_iptables::CtStates;
use ferroute_nftables::{
    Value,
    kernel::MemoryTable,
    model::{
        CmpOp, Field, Foreign, HashInput, IfName, Key, KeyText, Match, Name, NatTarget, Opaque, Operand, Outcome,
        Property, Statement, Verdict, Words, fields_text,
    },
};
use ipnet::IpNet;

use super::{
    changes::{Found, Held},
    foreign::{Lookup, kind_number, number_of},
};
use crate::{
    PacketState,
    event::mismatch_text,
    iptables::{ExtensionResult, MAX_ADDRESSES, address_count, changes_by_text, is_irrelevant},
    jhash::jhash,
    walk::Unknown,
};

/// The result of matching a packet against a condition.
#[derive(Debug, PartialEq)]
pub(super) enum MatchResult {
    Match,
    /// The condition does not match, with the expected and the actual value as a sentence.
    Mismatch(String),
    /// The condition cannot be evaluated.
    Unknown(Unknown),
}

/// A failed lookup in a set or map.
pub(super) enum LookupError {
    /// There is no such key; the reason as a sentence.
    NotFound(String),
    /// The lookup cannot be evaluated; "the key is in the map" as a sentence.
    Unknown(String),
}

/// The result of a statement for a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RandomResult {
    /// The condition matches.
    Match,
    /// The condition does not match, or the lookup has no result.
    Mismatch,
    /// The condition cannot be evaluated.
    Unknown,
    /// A result that is specific to this number.
    Other,
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

/// Value of `numgen random` in a statement; `None` if it has not been selected yet.
pub(super) type RandomNumber = Option<u32>;

impl PacketState<'_> {
    /// Matches the packet against a condition.
    pub(super) fn matches(&self, condition: &Match, table: &MemoryTable, random: RandomNumber) -> MatchResult {
        let (source, destination) = (self.source.ip(), self.destination.ip());
        if condition_fields(condition).iter().any(|field| self.lacks(*field)) {
            return self.match_if(false, || NO_CONNECTION.to_owned());
        }
        match condition {
            Match::InSet { key, set, eq } => match self.find_any(table, set, key, random) {
                Ok(found) if *eq => match (over_limit(table, set), found.condition) {
                    (Some(reason), _) => MatchResult::Mismatch(reason),
                    (None, Some(condition)) => MatchResult::Unknown(Unknown::new(condition)),
                    (None, None) => MatchResult::Match,
                },
                Err(LookupError::NotFound(_)) if !*eq => MatchResult::Match,
                Err(LookupError::NotFound(reason)) => MatchResult::Mismatch(reason),
                Err(LookupError::Unknown(condition)) => MatchResult::Unknown(Unknown::new(condition).negated(!*eq)),
                Ok(_) => self.match_if(false, || match self.key(key, random) {
                    Ok(found) => {
                        let operands: Vec<Operand> = key.iter().map(|field| Property::Field(*field).into()).collect();
                        let place =
                            if set.as_str().starts_with("__") { "the list".to_owned() } else { format!("@{set}") };
                        format!("{} is in {place}", fields_text(&found, &operands, self.family()))
                    }
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
            Match::CtPacketsAbove(_) if !self.has_connection() => self.match_if(false, || NO_CONNECTION.to_owned()),
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
                Err(unknown) => {
                    let condition = format!("{unknown} is within {first} to {last}");
                    MatchResult::Unknown(Unknown::new(condition).negated(!*eq))
                }
            },
        }
    }

    fn compare(&self, field: Field, mask: u32, op: CmpOp, wanted: Value, random: RandomNumber) -> MatchResult {
        let words = Property::Field(field).words(self.family());
        let number = |number: u32| match words {
            Words::Hexadecimal(_) | Words::Number => Value::Integer(number).to_string(),
            words => words.text(number.into()),
        };
        let masked = if mask == u32::MAX { String::new() } else { format!(" & {}", number(mask)) };
        let shown = |value: Value| match value {
            Value::Integer(integer) => number(integer),
            value => value.to_string(),
        };
        let unknown = |subject: &str| {
            let relation = match op {
                CmpOp::Eq | CmpOp::Neq => "is",
                CmpOp::Lt => "is less than",
                CmpOp::Lte => "is at most",
                CmpOp::Gt => "is greater than",
                CmpOp::Gte => "is at least",
            };
            let condition = format!("{subject}{masked} {relation} {}", shown(wanted));
            MatchResult::Unknown(Unknown::new(condition).negated(op == CmpOp::Neq))
        };
        let actual = match (field, self.value(field, random)) {
            // The other bits are not set before the first packet has left.
            (Field::CtStatus, _) => Value::Integer(self.status() & mask),
            (_, Ok(Value::Integer(number))) => Value::Integer(number & mask),
            (_, Ok(value)) => value,
            // An address of unknown type is neither local nor multicast.
            (Field::FibSaddrType | Field::FibDaddrType, Err(_)) if [LOCAL, MULTICAST].contains(&wanted) => {
                return self.match_if(op != CmpOp::Eq, || format!("{} is not {}", field_name(field), shown(wanted)));
            }
            (_, Err(subject)) => return unknown(&subject),
        };
        let matches = match op {
            CmpOp::Eq => wanted.contains(actual),
            CmpOp::Neq => !wanted.contains(actual),
            op => op.matches(actual.cmp(&wanted)),
        };
        let name = field_name(field);
        if matches!(words, Words::Flags(_)) {
            let actual = self.value(field, random).unwrap_or(Value::Integer(self.status()));
            return self.match_if(matches, || format!("{name} is {}", shown(actual)));
        }
        let (actual, wanted) = (shown(actual), shown(wanted));
        self.match_if(matches, || match op {
            CmpOp::Eq => format!("{name}{masked} is {actual}, not {wanted}"),
            CmpOp::Neq => format!("{name}{masked} is {actual}, and {wanted} is excluded"),
            CmpOp::Lt | CmpOp::Lte => format!("{name}{masked} is {actual}, which is too great"),
            CmpOp::Gt | CmpOp::Gte => format!("{name}{masked} is {actual}, which is too small"),
        })
    }

    /// Looks up the packet's element in a map. It is unknown whether an element with a condition matches.
    pub(super) fn find<'t>(
        &self,
        table: &'t MemoryTable,
        map: &Name,
        fields: &[Field],
        random: RandomNumber,
    ) -> Result<Held<'t>, LookupError> {
        let found = self.find_any(table, map, fields, random)?;
        found.condition.map_or(Ok(found.element), |condition| Err(LookupError::Unknown(condition)))
    }

    /// Looks up the packet's element in a set or map, regardless of its condition.
    fn find_any<'t>(
        &self,
        table: &'t MemoryTable,
        map: &Name,
        fields: &[Field],
        random: RandomNumber,
    ) -> Result<Found<'t>, LookupError> {
        if fields.iter().any(|field| self.lacks(*field)) {
            return Err(LookupError::NotFound(NO_CONNECTION.to_owned()));
        }
        let key =
            self.key(fields, random).map_err(|unknown| LookupError::Unknown(format!("{unknown} is in @{map}")))?;
        let numbers: Vec<Option<u128>> = key.iter().map(|value| Some(value.number())).collect();
        match self.changed(table, map, &numbers) {
            None => {}
            Some(Lookup::Found(found)) => return Ok(found),
            Some(Lookup::NotFound(reason) | Lookup::Absent(reason)) => return Err(LookupError::NotFound(reason)),
            Some(Lookup::Possible(_) | Lookup::Unknown) => {
                return Err(LookupError::Unknown(format!("{} is in @{map}", KeyText(&key))));
            }
        }
        let found = table.find(map, &key).map(|element| Found::listed(table, map, element));
        found.ok_or_else(|| match table.undecoded(map) {
            0 if self.explain => {
                let operands: Vec<Operand> = fields.iter().map(|field| Property::Field(*field).into()).collect();
                let place = if map.is_anonymous() { "the list".to_owned() } else { format!("@{map}") };
                LookupError::NotFound(format!("{} is not in {place}", fields_text(&key, &operands, self.family())))
            }
            0 => LookupError::NotFound(String::new()),
            _ => LookupError::Unknown(format!("{} is in @{map}", KeyText(&key))),
        })
    }

    /// Returns the result of a statement for a random number, if it is the same for several numbers.
    pub(super) fn random_result(&self, statement: &Statement, table: &MemoryTable, random: u32) -> RandomResult {
        let of = |result: MatchResult| match result {
            MatchResult::Match => RandomResult::Match,
            MatchResult::Mismatch(_) => RandomResult::Mismatch,
            MatchResult::Unknown(_) => RandomResult::Unknown,
        };
        match statement {
            Statement::Match(condition) => of(self.matches(condition, table, Some(random))),
            Statement::MetaPriorityMap { key, map }
            | Statement::DnatMap { key, map }
            | Statement::Vmap { key, map } => match self.key(key, Some(random)) {
                Ok(key) if table.undecoded(map) == 0 && table.find(map, &key).is_none() => RandomResult::Mismatch,
                _ => RandomResult::Other,
            },
            Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) => match foreign {
                Foreign::Vmap { key, map }
                | Foreign::SetMarkMap { key, map, .. }
                | Foreign::Nat { target: NatTarget::Map { key, map, .. }, .. } => {
                    match self.look_up(table, map, key, Some(random)) {
                        Lookup::NotFound(_) | Lookup::Absent(_) => RandomResult::Mismatch,
                        _ => RandomResult::Other,
                    }
                }
                other => self.compares(other, table, Some(random)).map_or(RandomResult::Other, of),
            },
            _ => RandomResult::Other,
        }
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
                Statement::Opaque(Opaque { outcome: Outcome::Foreign(Foreign::Element { set, .. }), .. })
                | Statement::UpdateMap { map: set, .. }
                | Statement::DeleteFromMap { map: set, .. }
                | Statement::UpdateSet { set, .. } => {
                    if table.looks_up(set) {
                        return Relevance::Relevant;
                    }
                }
                Statement::Opaque(Opaque { outcome: Outcome::Foreign(Foreign::Write { property, .. }), .. })
                    if !property.is_end() => {}
                Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) => {
                    match self.compares(foreign, table, None) {
                        Some(MatchResult::Mismatch(reason)) if number_of(foreign).is_none() => {
                            return Relevance::Mismatch(reason);
                        }
                        Some(_) => {}
                        None => return Relevance::Relevant,
                    }
                }
                Statement::Opaque(Opaque { outcome: Outcome::Iptables, text, .. }) => match self.matches_module(text) {
                    Some(ExtensionResult::Mismatch(reason)) => return Relevance::Mismatch(reason),
                    Some(_) if changes_by_text(text) => {
                        return Relevance::Relevant;
                    }
                    Some(_) => {}
                    None if self.target_of(text).is_some_and(|target| is_irrelevant(&target)) => {}
                    None => return Relevance::Relevant,
                },
                Statement::Opaque(Opaque {
                    outcome: Outcome::Nothing | Outcome::Zone(_) | Outcome::Condition | Outcome::Socket,
                    ..
                })
                | Statement::FlowAdd(_)
                | Statement::Log { .. }
                | Statement::Verdict(Verdict::Continue) => {}
                Statement::Verdict(Verdict::Jump(chain)) if !self.has_effect(chain, table, &mut HashSet::new()) => {}
                _ => return Relevance::Relevant,
            }
        }
        Relevance::NoEffect
    }

    /// Reports whether a rule of a chain, or of those that it calls, may affect the packet. `seen` are the chains whose
    /// rules are known.
    fn has_effect<'t>(&self, chain: &'t Name, table: &'t MemoryTable, seen: &mut HashSet<&'t Name>) -> bool {
        // The caller continues after a chain that ends.
        table.chain(chain).is_none_or(|chain| {
            chain.rules.iter().any(|rule| match rule.statements.split_last() {
                Some((Statement::Verdict(Verdict::Return), rest)) => self.affects(rest, table),
                Some((Statement::Verdict(Verdict::Jump(next) | Verdict::Goto(next)), rest)) => {
                    self.affects(rest, table) || seen.insert(next) && self.has_effect(next, table, seen)
                }
                _ => self.affects(&rule.statements, table),
            })
        })
    }

    fn affects(&self, statements: &[Statement], table: &MemoryTable) -> bool {
        // Later rules may read what a rule writes.
        let writes = |statement: &Statement| {
            matches!(statement, Statement::Opaque(Opaque { outcome: Outcome::Foreign(Foreign::Write { .. }), .. }))
        };
        statements.iter().any(writes) || matches!(self.relevance(statements, table), Relevance::Relevant)
    }

    /// Returns the bytes that are hashed, as the kernel loads them.
    fn hashed(&self, input: HashInput) -> Vec<u8> {
        let mut bytes = match self.source.ip() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        if input == HashInput::SaddrSport {
            // A register has four bytes.
            bytes.extend(self.source.port().to_be_bytes());
            bytes.extend([0; 2]);
        }
        bytes
    }

    /// Reports whether a field belongs to a connection and the packet has no connection.
    pub(super) fn lacks(&self, field: Field) -> bool {
        matches!(field, Field::CtStatus | Field::CtOriginalDaddr | Field::CtOriginalDport) && !self.has_connection()
    }

    fn key(&self, fields: &[Field], random: RandomNumber) -> Result<Key, String> {
        let mut key = Key::new();
        for field in fields {
            key.push(self.value(*field, random)?);
        }
        Ok(key)
    }

    /// Returns the value of a field, or the description of an unknown one.
    pub(super) fn value(&self, field: Field, random: RandomNumber) -> Result<Value, String> {
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
            Field::MetaPriority | Field::PriorityBits(_)
                if self.changes.written(Property::Field(Field::MetaPriority)).is_some() =>
            {
                return Err("the packet's priority".to_owned());
            }
            Field::MetaPriority => self.priority.into(),
            Field::PriorityBits(mask) => self.priority.masked(mask).into(),
            Field::MetaMark => Value::Integer(self.mark),
            Field::Iifname => interface(self.in_interface.as_deref()),
            Field::Oifname => interface(self.out_interface.as_deref()),
            Field::CtState if self.connection.intersects(CtStates::UNTRACKED) => Value::Integer(STATE_UNTRACKED),
            Field::CtState if self.has_connection() => Value::Integer(STATE_NEW),
            Field::CtState => Value::Integer(STATE_INVALID),
            Field::CtStatus => Value::Integer(self.status()),
            Field::CtOriginalDaddr => self.tracked.1.ip().into(),
            Field::CtOriginalDport => Value::Port(self.tracked.1.port()),
            Field::FibSaddrType => self.fib_type(self.source.ip())?,
            Field::FibDaddrType => self.fib_type(self.destination.ip())?,
            Field::NumgenRandom { .. } | Field::NumgenInc { .. } => {
                Value::Integer(random.ok_or_else(|| "the random number".to_owned())?)
            }
            Field::Jhash { input, count, seed, first } => {
                Value::Integer(jhash(&self.hashed(input), seed, count).wrapping_add(first))
            }
        })
    }

    /// Returns the `RTN_*` type of an address.
    fn fib_type(&self, address: IpAddr) -> Result<Value, String> {
        match self.address_type(address) {
            Some(kind) => Ok(Value::Integer(kind_number(kind))),
            None => Err(format!("the type of {address}")),
        }
    }

    /// Returns `IPS_CONFIRMED`, `IPS_SRC_NAT` and `IPS_DST_NAT` of the connection's status.
    pub(super) fn status(&self) -> u32 {
        let bit = |state, bit| if self.connection.intersects(state) { bit } else { 0 };
        let confirmed = if self.looped { STATUS_CONFIRMED } else { 0 };
        confirmed | bit(CtStates::SNAT, STATUS_SNAT) | bit(CtStates::DNAT, STATUS_DNAT)
    }

    pub(super) fn match_if(&self, matches: bool, reason: impl FnOnce() -> String) -> MatchResult {
        match matches {
            true => MatchResult::Match,
            false if self.explain => MatchResult::Mismatch(reason()),
            false => MatchResult::Mismatch(String::new()),
        }
    }
}

/// Returns the fields of a condition that are compared.
fn condition_fields(condition: &Match) -> &[Field] {
    match condition {
        Match::InSet { key, .. } => key,
        Match::Cmp { field, .. } | Match::Range { field, .. } => std::slice::from_ref(field),
        _ => &[],
    }
}

/// Returns the range of a random number in a statement, the first number and their count, unless there are too many to try:
/// the number is then unknown.
pub(super) fn random_range(statement: &Statement) -> Option<(u32, u32)> {
    let range = |field: &Field| match field {
        Field::NumgenRandom { first, count } | Field::NumgenInc { first, count } => Some((*first, *count)),
        _ => None,
    };
    let (found, max) = match statement {
        Statement::Match(Match::Cmp { field, .. } | Match::Range { field, .. }) => (range(field), MAX_NUMBERS),
        Statement::Match(Match::InSet { key, .. })
        | Statement::MetaPriorityMap { key, .. }
        | Statement::DnatMap { key, .. }
        | Statement::Vmap { key, .. } => (key.iter().find_map(range), MAX_NUMBERS),
        Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) => match foreign {
            // The kernel selects an address by a hash of the addresses.
            Foreign::Nat { target: NatTarget::Constants { addresses: Some((first, last)), .. }, .. }
                if first != last =>
            {
                (Some((0, address_count(*first, *last)?)), MAX_ADDRESSES)
            }
            other => {
                // Most numbers lead to the same result, except those that are written.
                let is_written = matches!(other, Foreign::SetMarkNumber { .. } | Foreign::Write { .. });
                let max = if is_written { MAX_ADDRESSES } else { MAX_NUMBERS };
                (Operand::from(number_of(other)?).number_range(), max)
            }
        },
        _ => return None,
    };
    found.filter(|(_, count)| *count <= max)
}

/// Maximum number of random numbers that are tried: those of a list with as many endpoints as a service port can have.
const MAX_NUMBERS: u32 = 1 << 16;

/// Returns the share of packets that a comparison with `meta random` matches: iptables' `-m statistic` in `nft` syntax.
pub(super) fn share_of_random(foreign: &Foreign) -> Option<f64> {
    let (Foreign::Compare { operand, .. } | Foreign::Range { operand, .. }) = foreign else { return None };
    let mask = operand.mask & u128::from(u32::MAX);
    if !matches!(operand.property, Property::Named(named) if named.text == "meta random") || mask & (mask + 1) != 0 {
        return None;
    }
    let below = |value: u128| value.min(mask + 1) as f64 / (mask + 1) as f64;
    let within = |first: u128, last: u128| below(last.saturating_add(1)) - below(first.min(last));
    Some(match *foreign {
        Foreign::Compare { op: CmpOp::Eq, value, .. } => within(value, value),
        Foreign::Compare { op: CmpOp::Neq, value, .. } => 1.0 - within(value, value),
        Foreign::Compare { op: CmpOp::Lt, value, .. } => below(value),
        Foreign::Compare { op: CmpOp::Lte, value, .. } => below(value.saturating_add(1)),
        Foreign::Compare { op: CmpOp::Gt, value, .. } => 1.0 - below(value.saturating_add(1)),
        Foreign::Compare { op: CmpOp::Gte, value, .. } => 1.0 - below(value),
        Foreign::Range { first, last, eq: true, .. } => within(first, last),
        Foreign::Range { first, last, eq: false, .. } => 1.0 - within(first, last),
        _ => return None,
    })
}

/// Returns the reason why an existing element of a set does not match: it matches only beyond a limit, and a trace is
/// about a connection within all limits. `None` if the set has no such limit.
pub(super) fn over_limit(table: &MemoryTable, set: &Name) -> Option<String> {
    let limit = table.set(set)?.limit.filter(|limit| limit.is_over())?;
    Some(format!("assuming that the limit of @{set} is not exceeded: {limit}"))
}

fn interface(name: Option<&str>) -> Value {
    Value::IfName(IfName::new(name.unwrap_or_default()))
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
        Field::NumgenInc { .. } => "the counter",
        Field::Jhash { .. } => "the hash",
    }
}

/// Number of packets of the traced connection, including the traced packet.
const FIRST_PACKET: u64 = 1;
/// `RTN_LOCAL`.
const LOCAL: Value = Value::Integer(2);
/// `RTN_MULTICAST`.
const MULTICAST: Value = Value::Integer(5);
/// Reason why conditions on the connection do not match packets without a connection.
pub(super) const NO_CONNECTION: &str = "the packet has no connection";
/// `NF_CT_STATE_INVALID_BIT`.
const STATE_INVALID: u32 = 1;
/// `IPS_CONFIRMED`: the packet has left the host, and returns.
const STATUS_CONFIRMED: u32 = 0x8;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`.
const STATE_NEW: u32 = 8;
/// `NF_CT_STATE_UNTRACKED_BIT`.
const STATE_UNTRACKED: u32 = 64;
/// `IPS_SRC_NAT`.
const STATUS_SNAT: u32 = 0x10;
/// `IPS_DST_NAT`.
const STATUS_DNAT: u32 = 0x20;
