use std::net::SocketAddr;

use ferroute_core::IpFamily;
use ferroute_nftables::{
    ClassId, Value,
    model::{
        ChainWithRules, Data, Element, Foreign, KeyText, Name, Opaque, Outcome, Policy, RejectWith, Rule, Statement,
        Verdict as RuleVerdict,
    },
};

use super::{
    Base,
    conditions::{LookupError, MatchResult, RandomNumber, Relevance, random_range},
};
use crate::{ChainVerdict, Effect, Event, Forks, Hook, PacketState, Verdict, Walker, walk::Unknown};

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
                    let mut choices = self.choices(&current, first, count, walker);
                    let Some((random, chance)) = choices.pop() else { continue };
                    for (random, chance) in choices {
                        let (mut rest, mut other) = (self.clone(), walker.clone());
                        other.multiply_share(chance);
                        rest.current =
                            Some(CurrentRule { random: Some(random), chance: Some(chance), ..current.clone() });
                        forks.push(other, move |walker, forks| rest.run(walker, forks));
                    }
                    if chance < 1.0 {
                        walker.multiply_share(chance);
                        current.chance = Some(chance);
                    }
                    current.random = Some(random);
                }
                StatementResult::Unknown(unknown) if walker.decide(&unknown) == Some(true) => {
                    current.random = None;
                    current.next += 1;
                }
                StatementResult::Unknown(unknown) if walker.decide(&unknown) == Some(false) => {
                    self.record_rule(walker, current, Some(format!("by assumption, not {unknown}")));
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
                    self.record_rule(&mut other, current.clone(), Some(format!("assuming that not {unknown}")));
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
        let (missing, found): (Vec<u32>, Vec<u32>) =
            numbers.partition(|number| walker.packet.misses(statement, self.base.table, *number));
        let next = self.stack.last().and_then(|frame| frame.chain.rules.get(frame.next));
        let draws_again = !found.is_empty() && next.is_some_and(|next| next.statements == current.rule.statements);
        let drawn = if draws_again { found.len() } else { found.len() + missing.len() };
        let chance = |numbers: usize| numbers as f64 / drawn as f64;
        let missing = missing.last().filter(|_| !draws_again).map(|number| (*number, chance(missing.len())));
        missing.into_iter().chain(found.into_iter().map(|number| (number, chance(1)))).collect()
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
            Statement::UpdateMap { .. }
            | Statement::DeleteFromMap { .. }
            | Statement::UpdateSet { .. }
            | Statement::FlowAdd(_) => StatementResult::Continue,
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
                let with = match (with, packet.family()) {
                    (RejectWith::PortUnreachable, IpFamily::V4) => "icmp port-unreachable".to_owned(),
                    (RejectWith::PortUnreachable, IpFamily::V6) => "icmpv6 port-unreachable".to_owned(),
                    (with, _) => with.to_string(),
                };
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
            Statement::Verdict(verdict) => StatementResult::Verdict(verdict.clone()),
            Statement::Vmap { key, map } => match packet.find(table, map, key, random) {
                Ok(Element { data: Some(Data::Verdict(verdict)), .. }) => {
                    self.execute(&Statement::Verdict(verdict.clone()), None, effects, walker)
                }
                Ok(_) => invalid_element(map),
                Err(error) => error.into_result(map),
            },
            Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) => match packet.compares(foreign) {
                Some(MatchResult::Match) => StatementResult::Continue,
                Some(MatchResult::Mismatch(reason)) => StatementResult::Mismatch(reason),
                Some(MatchResult::Unknown(unknown)) => StatementResult::Unknown(unknown),
                None => change(packet, *foreign, hook, effects),
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

    fn apply(&mut self, verdict: &RuleVerdict, walker: &mut Walker<'a>) -> Next {
        match verdict {
            RuleVerdict::Accept => Next::Chain(ChainVerdict::Continue),
            RuleVerdict::Drop => Next::Chain(ChainVerdict::End(Verdict::Dropped)),
            RuleVerdict::Return => self.leave_chain(walker),
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
            text: rule.text(family).to_string(),
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

/// Applies a change that only rules of other programs make.
fn change(
    packet: &mut PacketState<'_>,
    foreign: Foreign,
    hook: Hook,
    effects: &mut Vec<(Effect, Option<String>)>,
) -> StatementResult {
    let (destination, source) = (packet.destination, packet.source.ip());
    let effect = match foreign {
        Foreign::SetMark { to_connection, from_connection, mask, xor } => {
            let from = if from_connection { packet.connection_mark } else { packet.mark };
            let after = from & mask ^ xor;
            if !to_connection {
                return set_mark(packet, after, effects);
            }
            packet.connection_mark = after;
            return StatementResult::Continue;
        }
        Foreign::Redirect(port) => match packet.redirect_address(hook) {
            Some(address) => packet.dnat(SocketAddr::new(address, port.unwrap_or(destination.port()))),
            // The input interface has no address.
            None => {
                effects.push((Effect::Drop, None));
                return StatementResult::End(Verdict::Dropped);
            }
        },
        Foreign::DnatPort(port) => packet.dnat(SocketAddr::new(destination.ip(), port)),
        Foreign::Snat(address) => packet.snat(address.unwrap_or(source)),
        Foreign::Compare { .. } | Foreign::Interface { .. } | Foreign::OriginalSource { .. } => {
            return StatementResult::Continue;
        }
    };
    effects.push((effect, None));
    StatementResult::Verdict(RuleVerdict::Accept)
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
