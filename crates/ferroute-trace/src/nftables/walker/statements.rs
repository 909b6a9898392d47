//! Effects of statements on a packet.

use std::net::{IpAddr, SocketAddr};

use ferroute_nftables::{
    ClassId, Value,
    kernel::MemoryTable,
    model::{
        CmpOp, Data, Element, ElementOp, Field, Foreign, KeyText, Name, NatKind, NatPart, NatTarget, Opaque, Operand,
        Outcome, Property, Source, Statement, Verdict as RuleVerdict,
    },
};

use super::{
    super::{
        changes::{Found, Held},
        conditions::{
            LookupError, MatchResult, NO_CONNECTION, RandomNumber, over_limit, random_range, share_of_random,
        },
        foreign::{Known, Lookup, distinct_data, is_fixed, number_of},
    },
    ChainWalker, StatementResult,
};
use crate::{
    Effect, Hook, PacketState, Verdict, Walker,
    event::negation,
    iptables::{ExtensionResult, TargetResult, nth_address},
    walk::Unknown,
};

impl<'a> ChainWalker<'a> {
    pub(super) fn execute(
        &self,
        statement: &Statement,
        random: RandomNumber,
        effects: &mut Vec<(Effect, Option<String>)>,
        walker: &mut Walker<'a>,
    ) -> StatementResult {
        if let (Some((first, count)), None) = (random_range(statement), random) {
            return StatementResult::Random { first, count };
        }
        let (table, hook) = (self.base.table, walker.hook());
        let packet = &mut walker.packet;
        match statement {
            Statement::Match(condition) => match packet.matches(condition, table, random) {
                MatchResult::Match => StatementResult::Continue,
                MatchResult::Mismatch(reason) => StatementResult::Mismatch(reason),
                MatchResult::Unknown(unknown) => StatementResult::Unknown(unknown),
            },
            Statement::MetaPriorityMap { key, map } => match packet.find(table, map, key, random) {
                Ok(element) => match class_of(&element) {
                    Some(class) => {
                        packet.set_priority(class);
                        StatementResult::Continue
                    }
                    None => invalid_element(map),
                },
                Err(error) => error.into_result(map),
            },
            Statement::MetaPriorityBits(change) => {
                let priority = change.apply(packet.priority);
                match change.kept() {
                    ClassId(0) => packet.set_priority(priority),
                    _ => packet.priority = priority,
                }
                StatementResult::Continue
            }
            Statement::MetaPriorityNone => {
                packet.set_priority(ClassId(0));
                StatementResult::Continue
            }
            Statement::MetaMarkOr(bits) => set_mark(packet, packet.mark | bits, effects),
            Statement::MetaMarkXor(bits) => set_mark(packet, packet.mark ^ bits, effects),
            Statement::MetaMarkSet { mask, xor } => set_mark(packet, packet.mark & mask ^ xor, effects),
            Statement::UpdateSet { key, set, .. } => match over_limit(table, set) {
                Some(reason) => StatementResult::Mismatch(reason),
                None => {
                    packet.change_planned(table, set, key, ElementOp::Update, None);
                    StatementResult::Continue
                }
            },
            Statement::UpdateMap { key, map, .. } => {
                packet.change_planned(table, map, key, ElementOp::Update, Some(Field::MetaPriority));
                StatementResult::Continue
            }
            Statement::DeleteFromMap { key, map } => {
                packet.change_planned(table, map, key, ElementOp::Delete, None);
                StatementResult::Continue
            }
            // Flowtables affect later packets, not this one.
            Statement::FlowAdd(_) | Statement::Log { .. } => StatementResult::Continue,
            Statement::DnatMap { key, map } => match packet.find(table, map, key, random) {
                Ok(element) => dnat_to_element(packet, map, &element, effects),
                Err(LookupError::NotFound(reason)) => StatementResult::Mismatch(reason),
                Err(LookupError::Unknown(_)) => {
                    let key = key.iter().map(|field| Property::Field(*field).into()).collect();
                    let (kind, map) = (NatKind::Destination, map.clone());
                    let foreign = Foreign::Nat {
                        kind,
                        target: NatTarget::Map { key, map, other: None, prefix: false },
                        flags: 0,
                    };
                    self.change(&foreign, random, effects, walker)
                }
            },
            Statement::Dnat { address, port } => {
                let port = port.unwrap_or(packet.destination.port());
                effects.push((packet.dnat(SocketAddr::new(*address, port)), None));
                StatementResult::Verdict(RuleVerdict::Accept)
            }
            Statement::Snat(address) => {
                effects.push((packet.snat(*address), None));
                StatementResult::Verdict(RuleVerdict::Accept)
            }
            Statement::Masquerade { fully_random } => match packet.masquerade(*fully_random, &mut walker.record) {
                Ok(effect) => {
                    effects.push((effect, None));
                    StatementResult::Verdict(RuleVerdict::Accept)
                }
                Err(verdict) => StatementResult::End(verdict),
            },
            Statement::Reject(with) => {
                let with = with.text(packet.family());
                effects.push((Effect::Reject { with: with.clone() }, None));
                StatementResult::End(Verdict::Rejected { with })
            }
            Statement::Notrack => {
                packet.untrack();
                StatementResult::Continue
            }
            Statement::Verdict(RuleVerdict::Drop) => {
                effects.push((Effect::Drop, None));
                StatementResult::End(Verdict::Dropped)
            }
            Statement::Verdict(RuleVerdict::Accept) => {
                effects.push((Effect::Accept, None));
                StatementResult::Verdict(RuleVerdict::Accept)
            }
            Statement::Verdict(RuleVerdict::Continue) => StatementResult::Continue,
            Statement::Verdict(verdict) => StatementResult::Verdict(verdict.clone()),
            Statement::Vmap { key, map } => match packet.find(table, map, key, random) {
                Ok(element) => match &element.data {
                    Some(Data::Verdict(verdict)) => {
                        self.execute(&Statement::Verdict(verdict.clone()), None, effects, walker)
                    }
                    _ => invalid_element(map),
                },
                Err(LookupError::NotFound(reason)) => StatementResult::Mismatch(reason),
                Err(LookupError::Unknown(_)) => {
                    let key = key.iter().map(|field| Property::Field(*field).into()).collect();
                    self.change(&Foreign::Vmap { key, map: map.clone() }, random, effects, walker)
                }
            },
            Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) => {
                if let Some(chance) = share_of_random(foreign) {
                    return StatementResult::Chance(chance);
                }
                match packet.compares(foreign, table, random) {
                    Some(MatchResult::Match) => StatementResult::Continue,
                    Some(MatchResult::Mismatch(reason)) => StatementResult::Mismatch(reason),
                    Some(MatchResult::Unknown(unknown)) => StatementResult::Unknown(unknown),
                    None => self.change(foreign, random, effects, walker),
                }
            }
            Statement::Opaque(Opaque { outcome: Outcome::Iptables, text, .. }) => match packet.matches_module(text) {
                Some(ExtensionResult::Match) => {
                    packet.change_by_text(text);
                    StatementResult::Continue
                }
                Some(ExtensionResult::Chance(chance)) => StatementResult::Chance(chance),
                Some(ExtensionResult::Mismatch(reason)) => StatementResult::Mismatch(reason),
                Some(ExtensionResult::Unknown(unknown)) => StatementResult::Unknown(unknown.of(statement)),
                None => match packet.target_of(text) {
                    Some(target) => match packet.apply_target(&target, hook, random, &mut walker.record) {
                        TargetResult::Continue(effect) => {
                            effects.extend(effect.map(|effect| (effect, None)));
                            StatementResult::Continue
                        }
                        TargetResult::Accept(effect) => {
                            effects.push((effect, None));
                            StatementResult::Verdict(RuleVerdict::Accept)
                        }
                        TargetResult::AcceptIf(unknown, effect) => accept_if(unknown, effect, effects, walker),
                        TargetResult::Choose(count) => StatementResult::Random { first: 0, count },
                        TargetResult::End(effect, verdict) => {
                            effects.extend(effect.map(|effect| (effect, None)));
                            StatementResult::End(verdict)
                        }
                    },
                    None => StatementResult::End(Verdict::Unknown { reason: format!("effect of `{text}`") }),
                },
            },
            Statement::Opaque(Opaque { outcome: Outcome::Nothing, .. }) => StatementResult::Continue,
            Statement::Opaque(Opaque { outcome: Outcome::Zone(zone), .. }) => {
                packet.set_zone(*zone);
                StatementResult::Continue
            }
            Statement::Opaque(Opaque { outcome: Outcome::Socket, text, .. }) => {
                StatementResult::Unknown(Unknown::new(format!("`{text}` finds a socket")))
            }
            Statement::Opaque(Opaque { outcome: Outcome::Condition, text, .. }) => {
                StatementResult::Unknown(Unknown::new(format!("`{text}` matches")).of(statement))
            }
            Statement::Opaque(Opaque { outcome: Outcome::Queue, text, .. }) => {
                let accepts = Unknown::new(format!("the program of `{text}` accepts the packet"));
                accept_if(accepts, Effect::Accept, effects, walker)
            }
            Statement::Opaque(Opaque { outcome: Outcome::Anything, text, .. }) => {
                StatementResult::End(Verdict::Unknown { reason: format!("effect of `{text}`") })
            }
        }
    }

    /// Applies a change that only rules of other programs make.
    fn change(
        &self,
        foreign: &Foreign,
        random: RandomNumber,
        effects: &mut Vec<(Effect, Option<String>)>,
        walker: &mut Walker<'a>,
    ) -> StatementResult {
        let (table, hook) = (self.base.table, walker.hook());
        if let Foreign::Element { op, set, key, data, details, is_condition } = foreign {
            let condition = is_condition.then(|| details.trim());
            return match walker.packet.change_element(table, (*op, set), key, data, condition, random) {
                Err(reason) => StatementResult::Mismatch(reason),
                Ok(()) if *is_condition => {
                    let text = table.foreign_text(foreign, walker.packet.family());
                    StatementResult::Unknown(Unknown::new(format!("`{text}` matches")))
                }
                Ok(()) => StatementResult::Continue,
            };
        }
        let found = match foreign {
            Foreign::Write { property, value: Some(Source::Map { key, map }), .. } => {
                // The map may not contain the key.
                match choose(walker, table, key, map, random) {
                    Ok(element) => Some(element),
                    Err(StatementResult::End(_)) if !property.is_end() => None,
                    Err(result) => return result,
                }
            }
            Foreign::Vmap { key, map }
            | Foreign::SetMarkMap { key, map, .. }
            | Foreign::Nat { target: NatTarget::Map { key, map, .. }, .. } => {
                match choose(walker, table, key, map, random) {
                    Ok(element) => Some(element),
                    Err(result) => return result,
                }
            }
            _ => None,
        };
        let port_of = match foreign {
            Foreign::Nat { target: NatTarget::Map { other: Some(NatPart::PortOf { key, map }), .. }, .. } => {
                match choose(walker, table, key, map, random) {
                    Ok(element) => match value_of(&element) {
                        Some(Value::Port(port)) => Some(port),
                        _ => return invalid_element(map),
                    },
                    Err(result) => return result,
                }
            }
            _ => None,
        };
        let packet = &mut walker.packet;
        match (foreign, found.as_ref().and_then(|element| element.data.as_ref())) {
            (Foreign::Write { property, value, .. }, data) => {
                let value = match (value, data) {
                    (Some(Source::Map { .. }), Some(Data::Values(values))) => values.first().copied(),
                    (Some(Source::Map { .. }), _) | (None, _) => None,
                    (Some(source), _) => packet.stored(table, source, random),
                };
                match packet.write(*property, value) {
                    true => StatementResult::Continue,
                    false => {
                        let reason = format!("effect of `{}`", table.foreign_text(foreign, packet.family()));
                        StatementResult::End(Verdict::Unknown { reason })
                    }
                }
            }
            (Foreign::Vmap { .. }, Some(Data::Verdict(verdict))) => {
                self.execute(&Statement::Verdict(verdict.clone()), None, effects, walker)
            }
            (Foreign::SetMark { from_connection: true, .. }, _) if !packet.has_connection() => {
                StatementResult::Mismatch(NO_CONNECTION.to_owned())
            }
            (Foreign::SetMark { to_connection, from_connection, mask, xor }, _) => {
                let from = if *from_connection { packet.connection_mark } else { packet.mark };
                put_mark(packet, *to_connection, from & mask ^ xor, effects)
            }
            (Foreign::SetMarkNumber { to_connection, number }, _) => {
                match packet.known(*number, random, CmpOp::Eq, 0) {
                    Known::Value(mark) => put_mark(packet, *to_connection, mark as u32, effects),
                    Known::Absent | Known::Unknown => {
                        let reason = format!("effect of `{}`", table.foreign_text(foreign, packet.family()));
                        StatementResult::End(Verdict::Unknown { reason })
                    }
                }
            }
            (Foreign::SetMarkMap { to_connection, .. }, Some(Data::Values(values))) if !values.is_empty() => {
                let mark = values[0].number() as u32;
                put_mark(packet, *to_connection, mark, effects)
            }
            (Foreign::Masquerade { ports, flags }, _) => {
                let is_random = ports.is_some() || *flags != 0;
                match packet.masquerade(is_random, &mut walker.record) {
                    Ok(effect) => {
                        effects.push((effect, None));
                        StatementResult::Verdict(RuleVerdict::Accept)
                    }
                    Err(verdict) => StatementResult::End(verdict),
                }
            }
            (Foreign::Nat { target: NatTarget::Constants { addresses: Some((first, last)), .. }, .. }, _)
                if first != last && random.is_none() =>
            {
                let reason = format!("effect of `{}`", table.foreign_text(foreign, packet.family()));
                StatementResult::End(Verdict::Unknown { reason })
            }
            (Foreign::Nat { kind, target: NatTarget::Constants { addresses, ports }, .. }, _) => {
                let address = addresses.map(|(first, _)| nth_address(first, random.unwrap_or(0)));
                let port = ports.map(|ports| packet.port_in(ports, None));
                translate(packet, *kind, address, port, hook, None, effects)
            }
            (Foreign::Nat { kind, target: NatTarget::Network(net), .. }, _) => {
                let address = mapped(translated(packet, *kind), net.network(), net.broadcast());
                translate(packet, *kind, Some(address), None, hook, None, effects)
            }
            (
                Foreign::Nat { kind, target: NatTarget::Map { map, prefix, other, .. }, .. },
                Some(Data::Values(values)),
            ) => {
                let element = found.as_ref().map(|element| label(map, element));
                let (address, port) = match values.as_slice() {
                    [Value::Address(first), Value::Address(last)] if *prefix => {
                        (Some(mapped(translated(packet, *kind), *first, *last)), None)
                    }
                    [Value::Address(address), Value::Address(_)] => (Some(*address), None),
                    [Value::Address(address), Value::Port(port)] => (Some(*address), Some(*port)),
                    [Value::Address(address)] => (Some(*address), None),
                    [Value::Port(port)] => (None, Some(*port)),
                    _ => return invalid_element(map),
                };
                let (address, port) = match other {
                    None => (address, port),
                    Some(NatPart::Address(address)) => (Some(*address), port),
                    Some(NatPart::Port(port)) => (address, Some(*port)),
                    Some(NatPart::PortOf { .. }) => (address, port_of),
                };
                translate(packet, *kind, address, port, hook, element, effects)
            }
            (other, _) => {
                let reason = format!("effect of `{}`", table.foreign_text(other, packet.family()));
                StatementResult::End(Verdict::Unknown { reason })
            }
        }
    }
}

impl LookupError {
    /// Returns the result of a statement that needs the element.
    fn into_result(self, map: &Name) -> StatementResult {
        match self {
            Self::NotFound(reason) => StatementResult::Mismatch(reason),
            Self::Unknown(_) => StatementResult::End(Verdict::Unknown { reason: format!("element of @{map}") }),
        }
    }
}

fn set_mark(packet: &mut PacketState<'_>, after: u32, effects: &mut Vec<(Effect, Option<String>)>) -> StatementResult {
    let before = std::mem::replace(&mut packet.mark, after);
    effects.push((Effect::Mark { before, after }, None));
    StatementResult::Continue
}

/// Ends the chain if a condition whose result is unknown is true; otherwise drops the packet.
fn accept_if(
    unknown: Unknown,
    effect: Effect,
    effects: &mut Vec<(Effect, Option<String>)>,
    walker: &Walker<'_>,
) -> StatementResult {
    match walker.assumed(&unknown.condition) {
        Some(true) => {
            effects.push((effect, None));
            StatementResult::Verdict(RuleVerdict::Accept)
        }
        Some(false) => {
            effects.push((Effect::Drop, None));
            StatementResult::End(Verdict::Dropped)
        }
        None => StatementResult::Ask(unknown),
    }
}

/// Looks up the element of a map. If several are possible, the branches of the walk try each.
fn choose<'t>(
    walker: &Walker<'_>,
    table: &'t MemoryTable,
    key: &[Operand],
    map: &Name,
    random: RandomNumber,
) -> Result<Held<'t>, StatementResult> {
    let possible = match walker.packet.look_up(table, map, key, random) {
        Lookup::Found(Found { element, condition }) => {
            return match condition.map(|condition| (walker.assumed(&condition), condition)) {
                None | Some((Some(true), _)) => Ok(element),
                Some((Some(false), condition)) => {
                    Err(StatementResult::Mismatch(format!("by assumption, {}", negation(&condition))))
                }
                Some((None, condition)) => Err(StatementResult::Ask(Unknown::new(condition))),
            };
        }
        Lookup::NotFound(reason) | Lookup::Absent(reason) => return Err(StatementResult::Mismatch(reason)),
        Lookup::Possible(possible) => distinct_data(&possible),
        Lookup::Unknown => None,
    };
    let family = walker.packet.family();
    let Some(possible) = possible else {
        let reason = format!("result of {}", table.lookup_text(key, map, family));
        return Err(StatementResult::End(Verdict::Unknown { reason }));
    };
    for (element, data) in possible {
        let condition = format!("`{}` yields {data}", table.lookup_text(key, map, family));
        match walker.assumed(&condition) {
            Some(true) => return Ok(Held::Listed(element)),
            Some(false) => {}
            None => return Err(StatementResult::Ask(Unknown::new(condition))),
        }
    }
    Err(StatementResult::Mismatch("by assumption, no element of the map".to_owned()))
}

/// Returns the number in a statement that is the same whenever it is computed for a packet.
pub(super) fn fixed_number(statement: &Statement) -> Option<Property> {
    let Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) = statement else { return None };
    number_of(foreign).filter(|property| is_fixed(*property))
}

fn put_mark(
    packet: &mut PacketState<'_>,
    to_connection: bool,
    mark: u32,
    effects: &mut Vec<(Effect, Option<String>)>,
) -> StatementResult {
    if !to_connection {
        return set_mark(packet, mark, effects);
    }
    if packet.has_connection() {
        packet.connection_mark = mark;
    }
    StatementResult::Continue
}

/// Returns the address that a translation replaces.
fn translated(packet: &PacketState<'_>, kind: NatKind) -> IpAddr {
    if kind == NatKind::Source { packet.source.ip() } else { packet.destination.ip() }
}

/// Translates the destination or the source. If the address or port is missing, it is kept.
fn translate(
    packet: &mut PacketState<'_>,
    kind: NatKind,
    address: Option<IpAddr>,
    port: Option<u16>,
    hook: Hook,
    element: Option<String>,
    effects: &mut Vec<(Effect, Option<String>)>,
) -> StatementResult {
    let address = match kind {
        NatKind::Redirect => match packet.redirect_address(hook) {
            Some(address) => address,
            // The input interface has no address.
            None => {
                effects.push((Effect::Drop, None));
                return StatementResult::End(Verdict::Dropped);
            }
        },
        kind => address.unwrap_or(translated(packet, kind)),
    };
    let effect = match kind {
        NatKind::Source => packet.snat(address),
        _ => packet.dnat(SocketAddr::new(address, port.unwrap_or(packet.destination.port()))),
    };
    effects.push((effect, element));
    StatementResult::Verdict(RuleVerdict::Accept)
}

/// Returns the address in the network from `first` to `last` with the host part of `address`.
fn mapped(address: IpAddr, first: IpAddr, last: IpAddr) -> IpAddr {
    match (address, first, last) {
        (IpAddr::V4(address), IpAddr::V4(first), IpAddr::V4(last)) => {
            let host = u32::from(first) ^ u32::from(last);
            IpAddr::V4((u32::from(address) & host | u32::from(first) & !host).into())
        }
        (IpAddr::V6(address), IpAddr::V6(first), IpAddr::V6(last)) => {
            let host = u128::from(first) ^ u128::from(last);
            IpAddr::V6((u128::from(address) & host | u128::from(first) & !host).into())
        }
        _ => first,
    }
}

fn dnat_to_element(
    packet: &mut PacketState<'_>,
    map: &Name,
    element: &Element,
    effects: &mut Vec<(Effect, Option<String>)>,
) -> StatementResult {
    let Some(Data::Values(fields)) = &element.data else { return invalid_element(map) };
    let after = match *fields.as_slice() {
        [Value::Address(address), Value::Port(port)] => SocketAddr::new(address, port),
        [Value::Address(address)] => SocketAddr::new(address, packet.destination.port()),
        _ => return invalid_element(map),
    };
    let element = Some(label(map, element));
    effects.push((packet.dnat(after), element));
    StatementResult::Verdict(RuleVerdict::Accept)
}

fn class_of(element: &Element) -> Option<ClassId> {
    match value_of(element)? {
        Value::ClassId(class) => Some(class),
        _ => None,
    }
}

/// Returns the only value that is the data of an element.
fn value_of(element: &Element) -> Option<Value> {
    match &element.data {
        Some(Data::Values(values)) => match values.as_slice() {
            [value] => Some(*value),
            _ => None,
        },
        _ => None,
    }
}

/// Returns an element's key with the name of its map, if the map has one.
fn label(map: &Name, element: &Element) -> String {
    let name = if map.is_anonymous() { String::new() } else { format!("@{map} ") };
    format!("{name}{}", KeyText(&element.key))
}

/// The result for an element of the wrong type. The kernel rejects rules that use a map in this way.
fn invalid_element(map: &Name) -> StatementResult {
    StatementResult::End(Verdict::Unknown { reason: format!("element of @{map}") })
}
