use std::net::{IpAddr, SocketAddr};

use ferroute_nftables::{
    ClassId, Value,
    kernel::MemoryTable,
    model::{
        ChainWithRules, Data, Element, Foreign, KeyText, Name, NatKind, Opaque, Operand, Outcome, Policy, Property,
        Rule, Statement, Verdict as RuleVerdict, key_text,
    },
};

use super::{
    Base,
    conditions::{
        LookupError, MatchResult, NO_CONNECTION, RandomNumber, RandomResult, Relevance, over_limit, random_range,
    },
    foreign::{Lookup, choice, distinct_data, is_fixed, number_of},
};
use crate::{
    ChainVerdict, Effect, Event, Forks, Hook, PacketState, Verdict, Walker,
    iptables::{ExtensionResult, TargetResult, nth_address, shown},
    walk::Unknown,
};

/// The position in a base chain and the chains that it calls.
#[derive(Clone)]
pub(super) struct ChainWalker<'a> {
    base: &'a Base<'a>,
    /// The call stack, the base chain first.
    stack: Vec<Frame<'a>>,
    /// The rule that is partly evaluated.
    current: Option<CurrentRule<'a>>,
}

/// A chain on the call stack.
#[derive(Clone)]
struct Frame<'a> {
    chain: &'a ChainWithRules,
    /// The index of the next rule.
    next: usize,
    /// Entered by a goto: at its end, evaluation also leaves the chain with the goto.
    goto: bool,
}

/// A rule under evaluation.
#[derive(Clone)]
struct CurrentRule<'a> {
    rule: &'a Rule,
    /// The index of the next statement.
    next: usize,
    /// The random number for the next statement.
    random: RandomNumber,
    /// The probability of the random numbers in this rule.
    chance: Option<f64>,
    /// The effects so far, each with the map element that it comes from.
    effects: Vec<(Effect, Option<String>)>,
}

/// The result of a statement.
enum StatementResult {
    /// Continue with the next statement.
    Continue,
    /// A condition does not match: continue with the next rule.
    Mismatch(String),
    /// A condition cannot be evaluated.
    Unknown(Unknown),
    /// The statement needs a random number from this range.
    Random { first: u32, count: u32 },
    /// The statement needs the answer to a condition that cannot be evaluated.
    Ask(Unknown),
    /// The condition matches with this probability.
    Chance(f64),
    /// The rule ends with a verdict.
    Verdict(RuleVerdict),
    /// The walk ends.
    End(Verdict),
}

/// The continuation after a rule.
enum Next {
    Rule,
    Chain(ChainVerdict),
}

impl<'a> ChainWalker<'a> {
    /// Enters a base chain.
    pub(super) fn enter(base: &'a Base<'a>, walker: &mut Walker<'a>) -> Self {
        if !base.chain.rules.is_empty() {
            let hook = walker.hook();
            let chain = || base.chain.chain.name.to_string();
            walker.record(|| Event::Hook { hook, table: base.table_name.clone(), chain: chain() });
        }
        Self { base, stack: vec![Frame { chain: base.chain, next: 0, goto: false }], current: None }
    }

    /// Evaluates the rest of the base chain.
    pub(super) fn run(mut self, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> ChainVerdict {
        loop {
            let next = match self.current.take().or_else(|| self.next_rule()) {
                Some(rule) => self.evaluate(rule, walker, forks),
                None => self.leave_chain(walker),
            };
            if let Next::Chain(verdict) = next {
                return verdict;
            }
        }
    }

    fn next_rule(&mut self) -> Option<CurrentRule<'a>> {
        let frame = self.stack.last_mut()?;
        let rule = frame.chain.rules.get(frame.next)?;
        frame.next += 1;
        Some(CurrentRule { rule, next: 0, random: None, chance: None, effects: Vec::new() })
    }

    fn evaluate(&mut self, mut current: CurrentRule<'a>, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> Next {
        while let Some(statement) = current.rule.statements.get(current.next) {
            match self.execute(statement, current.random, &mut current.effects, walker) {
                StatementResult::Continue => {
                    current.random = None;
                    current.next += 1;
                }
                StatementResult::Random { first, count } => {
                    let fixed = fixed_number(statement);
                    if let Some(number) = fixed.and_then(|property| walker.number(property)) {
                        current.random = Some(number);
                        continue;
                    }
                    let mut choices = self.choices(&current, first, count, walker);
                    let Some((random, chance)) = choices.pop() else { continue };
                    for (random, chance) in choices {
                        let (mut rest, mut other) = (self.clone(), walker.clone());
                        other.multiply_share(chance);
                        if let Some(property) = fixed {
                            other.remember_number(property, random);
                        }
                        rest.current =
                            Some(CurrentRule { random: Some(random), chance: Some(chance), ..current.clone() });
                        forks.push(other, move |walker, forks| rest.run(walker, forks));
                    }
                    if chance < 1.0 {
                        walker.multiply_share(chance);
                        current.chance = Some(chance);
                    }
                    if let Some(property) = fixed {
                        walker.remember_number(property, random);
                    }
                    current.random = Some(random);
                }
                // The statement is evaluated again, and then knows the answer.
                StatementResult::Ask(unknown) => {
                    let (mut rest, mut other) = (self.clone(), walker.clone());
                    rest.current = Some(current.clone());
                    other.assume_match(&unknown, false);
                    forks.push(other, move |walker, forks| rest.run(walker, forks));
                    walker.assume_match(&unknown, true);
                }
                StatementResult::Chance(chance) => {
                    let mut other = walker.clone();
                    other.multiply_share(1.0 - chance);
                    self.record_rule(&mut other, current.clone(), Some("chance decides otherwise".to_owned()));
                    let rest = self.clone();
                    forks.push(other, move |walker, forks| rest.run(walker, forks));
                    walker.multiply_share(chance);
                    current.chance = Some(chance);
                    current.next += 1;
                }
                StatementResult::Unknown(unknown) if walker.decide(&unknown) == Some(true) => {
                    current.random = None;
                    current.next += 1;
                }
                StatementResult::Unknown(unknown) if walker.decide(&unknown) == Some(false) => {
                    self.record_rule(walker, current, Some(format!("by assumption, {}", unknown.opposite())));
                    return Next::Rule;
                }
                StatementResult::Unknown(unknown) => {
                    let rest = &current.rule.statements[current.next + 1..];
                    match walker.packet.relevance(rest, self.base.table) {
                        Relevance::Relevant => {}
                        Relevance::Mismatch(reason) => {
                            self.record_rule(walker, current, Some(reason));
                            return Next::Rule;
                        }
                        Relevance::NoEffect => {
                            let reason = format!("unknown whether {unknown}, but the rule has no effect");
                            self.record_rule(walker, current, Some(reason));
                            return Next::Rule;
                        }
                    }
                    let mut other = walker.clone();
                    self.record_rule(
                        &mut other,
                        current.clone(),
                        Some(format!("assuming that {}", unknown.opposite())),
                    );
                    other.assume_match(&unknown, false);
                    let rest = self.clone();
                    forks.push(other, move |walker, forks| rest.run(walker, forks));
                    walker.assume_match(&unknown, true);
                    current.random = None;
                    current.next += 1;
                }
                StatementResult::Mismatch(reason) => {
                    self.record_rule(walker, current, Some(reason));
                    return Next::Rule;
                }
                StatementResult::Verdict(verdict) => {
                    self.record_rule(walker, current, None);
                    return self.apply(&verdict, walker);
                }
                StatementResult::End(verdict) => {
                    self.record_rule(walker, current, None);
                    return Next::Chain(ChainVerdict::End(verdict));
                }
            }
        }
        self.record_rule(walker, current, None);
        Next::Rule
    }

    /// Returns the random numbers to try for the next statement, each with its probability. One stands for all whose lookup
    /// fails; none, if the next rule is the same and draws again.
    fn choices(&self, current: &CurrentRule<'_>, first: u32, count: u32, walker: &Walker<'a>) -> Vec<(u32, f64)> {
        let numbers = (0..count).rev().map(|n| first.wrapping_add(n));
        let Some(statement) = current.rule.statements.get(current.next) else { return Vec::new() };
        let (mut missing, mut matching, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for number in numbers {
            match walker.packet.random_result(statement, self.base.table, number) {
                RandomResult::Mismatch => missing.push(number),
                RandomResult::Match => matching.push(number),
                RandomResult::Other => others.push(number),
            }
        }
        let next = self.stack.last().and_then(|frame| frame.chain.rules.get(frame.next));
        let is_found = !others.is_empty() || !matching.is_empty();
        let draws_again = is_found && next.is_some_and(|next| next.statements == current.rule.statements);
        let found = matching.len() + others.len();
        let drawn = if draws_again { found } else { found + missing.len() };
        let chance = |numbers: usize| numbers as f64 / drawn as f64;
        let one_of = |numbers: &[u32]| numbers.last().map(|number| (*number, chance(numbers.len())));
        let missing = one_of(&missing).filter(|_| !draws_again);
        let found = one_of(&matching).into_iter().chain(others.into_iter().map(|number| (number, chance(1))));
        missing.into_iter().chain(found).collect()
    }

    fn execute(
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
                Ok(element) => match class_of(element) {
                    Some(class) => {
                        packet.priority = class;
                        StatementResult::Continue
                    }
                    None => invalid_element(map),
                },
                Err(error) => error.into_result(map),
            },
            Statement::MetaPriorityBits { mask, bits } => {
                packet.priority = ClassId(packet.priority.masked(*mask).0 | bits.0);
                StatementResult::Continue
            }
            Statement::MetaPriorityNone => {
                packet.priority = ClassId(0);
                StatementResult::Continue
            }
            Statement::MetaMarkOr(bits) => set_mark(packet, packet.mark | bits, effects),
            Statement::MetaMarkXor(bits) => set_mark(packet, packet.mark ^ bits, effects),
            Statement::MetaMarkSet { mask, xor } => set_mark(packet, packet.mark & mask ^ xor, effects),
            // Updates of maps and sets affect the client's next connection, and flowtables later packets, not this one.
            Statement::UpdateSet { set, .. } => {
                over_limit(table, set).map_or(StatementResult::Continue, StatementResult::Mismatch)
            }
            Statement::UpdateMap { .. }
            | Statement::DeleteFromMap { .. }
            | Statement::FlowAdd(_)
            | Statement::Log { .. } => StatementResult::Continue,
            Statement::DnatMap { key, map } => match packet.find(table, map, key, random) {
                Ok(element) => dnat_to_element(packet, map, element, effects),
                Err(error) => error.into_result(map),
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
                Ok(Element { data: Some(Data::Verdict(verdict)), .. }) => {
                    self.execute(&Statement::Verdict(verdict.clone()), None, effects, walker)
                }
                Ok(_) => invalid_element(map),
                Err(LookupError::NotFound(reason)) => StatementResult::Mismatch(reason),
                Err(LookupError::Unknown(_)) => {
                    let key = key.iter().map(|field| Property::Field(*field).into()).collect();
                    self.change(&Foreign::Vmap { key, map: map.clone() }, random, effects, walker)
                }
            },
            Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) => {
                match packet.compares(foreign, table, random) {
                    Some(MatchResult::Match) => StatementResult::Continue,
                    Some(MatchResult::Mismatch(reason)) => StatementResult::Mismatch(reason),
                    Some(MatchResult::Unknown(unknown)) => StatementResult::Unknown(unknown),
                    None => self.change(foreign, random, effects, walker),
                }
            }
            Statement::Opaque(Opaque { outcome: Outcome::Iptables, text, .. }) => match packet.matches_module(text) {
                Some(ExtensionResult::Match) => StatementResult::Continue,
                Some(ExtensionResult::Chance(chance)) => StatementResult::Chance(chance),
                Some(ExtensionResult::Mismatch(reason)) => StatementResult::Mismatch(reason),
                Some(ExtensionResult::Unknown(unknown)) => StatementResult::Unknown(unknown),
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
            Statement::Opaque(Opaque { outcome: Outcome::Condition, text, .. }) => {
                StatementResult::Unknown(Unknown::new(format!("`{text}` matches")))
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
        let data = match foreign {
            Foreign::Vmap { key, map } | Foreign::SetMarkMap { key, map, .. } | Foreign::NatMap { key, map, .. } => {
                match choose(walker, table, key, map, random) {
                    Ok(element) => Some(element),
                    Err(result) => return result,
                }
            }
            _ => None,
        };
        let packet = &mut walker.packet;
        match (foreign, data.and_then(|element| element.data.as_ref())) {
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
            (Foreign::Nat { addresses: Some((first, last)), .. }, _) if first != last && random.is_none() => {
                let reason = format!("effect of `{}`", table.foreign_text(foreign, packet.family()));
                StatementResult::End(Verdict::Unknown { reason })
            }
            (Foreign::Nat { kind, addresses, ports }, _) => {
                let address = addresses.map(|(first, _)| nth_address(first, random.unwrap_or(0)));
                let port = ports.map(|ports| packet.port_in(ports, None));
                translate(packet, *kind, address, port, hook, None, effects)
            }
            (Foreign::NatPrefix { kind, net }, _) => {
                let address = mapped(translated(packet, *kind), net.network(), net.broadcast());
                translate(packet, *kind, Some(address), None, hook, None, effects)
            }
            (Foreign::NatMap { kind, map, prefix, .. }, Some(Data::Values(values))) => {
                let element = data.map(|element| format!("@{map} {}", KeyText(&element.key)));
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
                translate(packet, *kind, address, port, hook, element, effects)
            }
            (other, _) => {
                let reason = format!("effect of `{}`", table.foreign_text(other, packet.family()));
                StatementResult::End(Verdict::Unknown { reason })
            }
        }
    }

    fn apply(&mut self, verdict: &RuleVerdict, walker: &mut Walker<'a>) -> Next {
        match verdict {
            RuleVerdict::Accept => Next::Chain(ChainVerdict::Continue),
            RuleVerdict::Drop => Next::Chain(ChainVerdict::End(Verdict::Dropped)),
            RuleVerdict::Return => self.leave_chain(walker),
            RuleVerdict::Continue => Next::Rule,
            RuleVerdict::Jump(chain) => self.enter_chain(chain, false),
            RuleVerdict::Goto(chain) => self.enter_chain(chain, true),
        }
    }

    fn enter_chain(&mut self, name: &Name, goto: bool) -> Next {
        // The kernel rejects jumps to missing chains, loops and deep call stacks.
        let Some(chain) = self.base.table.chain(name) else {
            let reason = format!("effect of chain {name}, which does not exist");
            return Next::Chain(ChainVerdict::End(Verdict::Unknown { reason }));
        };
        self.stack.push(Frame { chain, next: 0, goto });
        Next::Rule
    }

    /// Returns to the chain of the last jump, or applies the policy.
    fn leave_chain(&mut self, walker: &mut Walker<'a>) -> Next {
        while let Some(frame) = self.stack.pop() {
            if self.stack.is_empty() {
                return Next::Chain(self.apply_policy(frame.chain, walker));
            }
            if !frame.goto {
                break;
            }
        }
        Next::Rule
    }

    fn apply_policy(&self, chain: &ChainWithRules, walker: &mut Walker<'a>) -> ChainVerdict {
        let policy = self.base.base.policy;
        walker.record(|| Event::Policy { chain: chain.chain.name.to_string(), policy: policy.name().into() });
        match policy {
            Policy::Accept => ChainVerdict::Continue,
            Policy::Drop => ChainVerdict::End(Verdict::Dropped),
        }
    }

    /// Records a rule and its effects.
    fn record_rule(&self, walker: &mut Walker<'a>, current: CurrentRule<'a>, mismatch: Option<String>) {
        let CurrentRule { rule, chance, effects, .. } = current;
        let (family, hook, stack) = (walker.packet.family(), walker.hook(), &self.stack);
        walker.record(|| Event::Rule {
            chain: stack.last().map(Frame::name).unwrap_or_default(),
            number: stack.last().map_or(0, |frame| frame.next),
            text: shown(&self.base.table.rule_text(rule, family)),
            depth: stack.len().saturating_sub(1),
            mismatch,
            chance,
        });
        for (effect, element) in effects {
            walker.record.step(|| {
                let path = stack.iter().map(Frame::name).chain(element).collect();
                Event::Effect { hook, table: self.base.table_name.clone(), path, effect }
            });
        }
    }
}

impl Frame<'_> {
    fn name(&self) -> String {
        self.chain.chain.name.to_string()
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

/// Looks up the element of a map. Where several are possible, the branches of the walk try each.
fn choose<'t>(
    walker: &Walker<'_>,
    table: &'t MemoryTable,
    key: &[Operand],
    map: &Name,
    random: RandomNumber,
) -> Result<&'t Element, StatementResult> {
    let possible = match walker.packet.look_up(table, map, key, random) {
        Lookup::Found(element) => return Ok(element),
        Lookup::NotFound(reason) | Lookup::Absent(reason) => return Err(StatementResult::Mismatch(reason)),
        Lookup::Possible(possible) => distinct_data(&possible),
        Lookup::Unknown => None,
    };
    let family = walker.packet.family();
    let Some(possible) = possible else {
        let reason = format!("element of @{map} for {}", key_text(key, family));
        return Err(StatementResult::End(Verdict::Unknown { reason }));
    };
    for (element, data) in possible {
        let condition = choice(key, map, &data, family);
        match walker.assumed(&condition) {
            Some(true) => return Ok(element),
            Some(false) => {}
            None => return Err(StatementResult::Ask(Unknown::new(condition))),
        }
    }
    Err(StatementResult::Mismatch("by assumption, no element of the map".to_owned()))
}

/// Returns the number in a statement that is the same whenever it is computed for a packet.
fn fixed_number(statement: &Statement) -> Option<Property> {
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

/// Translates the destination or the source. Without an address or port, it is kept.
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

/// Returns the address with the host part of another one, in the network from `first` to `last`.
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
    let element = Some(format!("@{map} {}", KeyText(&element.key)));
    effects.push((packet.dnat(after), element));
    StatementResult::Verdict(RuleVerdict::Accept)
}

fn class_of(element: &Element) -> Option<ClassId> {
    match &element.data {
        Some(Data::Values(fields)) => match fields.as_slice() {
            [Value::ClassId(class)] => Some(*class),
            _ => None,
        },
        _ => None,
    }
}

/// The result for an element of the wrong type. The kernel rejects rules that use a map in this way.
fn invalid_element(map: &Name) -> StatementResult {
    StatementResult::End(Verdict::Unknown { reason: format!("element of @{map}") })
}
