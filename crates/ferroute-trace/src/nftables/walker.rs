use std::net::SocketAddr;

use ferroute_core::IpFamily;
use ferroute_nftables::{
    Class, Value,
    model::{
        ChainWithRules, Datum, Element, Name, Opaque, Outcome, Policy, RejectWith, Rule, Statement,
        Verdict as RuleVerdict,
    },
};

use super::{
    base::Base,
    conditions::{Chosen, Finding, Missing},
    prospect::{Prospect, foresee, range_of},
};
use crate::{
    Assumption, Effect, Event, Verdict,
    journey::{Journey, Passage},
    path::Path,
};

/// Stands at one statement of one rule with the packet as it is there.
#[derive(Clone)]
pub(crate) struct Walker<'a, P> {
    base: Base<'a>,
    pub(crate) journey: Journey<'a, P>,
    /// Chains that led to each other, the hook's own first.
    stack: Vec<Frame<'a>>,
    /// The rule that it is in.
    turn: Option<Turn<'a>>,
}

/// A chain that the packet is in, and the rule that it meets next there.
#[derive(Clone)]
struct Frame<'a> {
    chain: &'a ChainWithRules,
    next: usize,
    /// Entered by a goto: its end is the end of the chain that it was entered from, too.
    goto: bool,
}

/// A rule that is being carried out.
#[derive(Clone)]
struct Turn<'a> {
    rule: &'a Rule,
    statement: usize,
    /// What chance has chosen for the next statement.
    chosen: Chosen,
    /// The probability of what chance has decided in this rule.
    chance: Option<f64>,
    /// What it has done so far, each with the element of a map that said so.
    done: Vec<(Effect, Option<String>)>,
}

/// What follows a statement.
enum Then {
    /// The next one.
    GoOn,
    /// The next rule, as this one does not match.
    Mismatch(String),
    /// The next one if this holds, which cannot be told, else the next rule.
    Perhaps(String),
    /// The same with one of several numbers in a row.
    AnyOf { first: u32, count: u32 },
    /// The rule has decided.
    Decided(RuleVerdict),
    /// The end.
    End(Verdict),
}

/// What follows a rule.
enum Next {
    /// The next rule.
    GoOn,
    /// The base chain has let the packet pass.
    Passed,
    /// The end.
    End(Verdict),
}

impl<'a, P: Path> Walker<'a, P> {
    /// A walker at the first rule of a base chain.
    pub(crate) fn new(base: Base<'a>, mut journey: Journey<'a, P>) -> Self {
        if !base.chain.rules.is_empty() {
            let hook = journey.hook();
            let chain = || base.chain.chain.name.to_string();
            journey.path.note_detail(|| Event::Hook { hook, table: base.name.clone(), chain: chain() });
        }
        let first = Frame { chain: base.chain, next: 0, goto: false };
        Self { base, journey, stack: vec![first], turn: None }
    }

    /// Goes on to the end of the base chain. Where the way splits, `split` gets the walkers for the other ways, the next
    /// one last.
    pub(crate) fn run(&mut self, split: &mut dyn FnMut(Self)) -> Passage {
        loop {
            let next = match self.turn.take().or_else(|| self.next_turn()) {
                Some(turn) => self.meet(turn, split),
                None => self.leave_chain(),
            };
            match next {
                Next::GoOn => {}
                Next::Passed => return Passage::Passed,
                Next::End(verdict) => return Passage::End(verdict),
            }
        }
    }

    fn next_turn(&mut self) -> Option<Turn<'a>> {
        let frame = self.stack.last_mut()?;
        let rule = frame.chain.rules.get(frame.next)?;
        frame.next += 1;
        Some(Turn { rule, statement: 0, chosen: None, chance: None, done: Vec::new() })
    }

    fn meet(&mut self, mut turn: Turn<'a>, split: &mut dyn FnMut(Self)) -> Next {
        while let Some(statement) = turn.rule.statements.get(turn.statement) {
            match self.carry_out(statement, turn.chosen, &mut turn.done) {
                Then::GoOn => {
                    turn.chosen = None;
                    turn.statement += 1;
                }
                Then::AnyOf { first, count } => {
                    if count > 1 {
                        let chance = 1.0 / f64::from(count);
                        self.journey.share *= chance;
                        turn.chance = Some(chance);
                    }
                    for n in (1..count).rev() {
                        let mut other = self.clone();
                        other.turn = Some(Turn { chosen: Some(first.wrapping_add(n)), ..turn.clone() });
                        split(other);
                    }
                    turn.chosen = Some(first);
                }
                Then::Perhaps(condition) => {
                    let next = &turn.rule.statements[turn.statement + 1..];
                    match foresee(&self.journey.state, next, self.base.table) {
                        Prospect::Open => {}
                        Prospect::Mismatch(why) => {
                            self.note(turn, Some(why));
                            return Next::GoOn;
                        }
                        Prospect::Nothing => {
                            self.note(
                                turn,
                                Some(format!("it cannot be told whether {condition}, and nothing follows")),
                            );
                            return Next::GoOn;
                        }
                    }
                    let mut other = self.clone();
                    other.note(turn.clone(), Some(format!("assuming that not {condition}")));
                    other.journey.assuming.push(Assumption { condition: condition.clone(), holds: false });
                    split(other);
                    self.journey.assuming.push(Assumption { condition, holds: true });
                    turn.chosen = None;
                    turn.statement += 1;
                }
                Then::Mismatch(why) => {
                    self.note(turn, Some(why));
                    return Next::GoOn;
                }
                Then::Decided(verdict) => {
                    self.note(turn, None);
                    return self.obey(&verdict);
                }
                Then::End(verdict) => {
                    self.note(turn, None);
                    return Next::End(verdict);
                }
            }
        }
        self.note(turn, None);
        Next::GoOn
    }

    fn carry_out(&mut self, statement: &Statement, chosen: Chosen, done: &mut Vec<(Effect, Option<String>)>) -> Then {
        if let (Some((first, count)), None) = (range_of(statement), chosen) {
            return Then::AnyOf { first, count };
        }
        let table = self.base.table;
        let state = &mut self.journey.state;
        match statement {
            Statement::Match(condition) => match state.meets(condition, table, chosen) {
                Finding::Match => Then::GoOn,
                Finding::Mismatch(why) => Then::Mismatch(why),
                Finding::Unknown(condition) => Then::Perhaps(condition),
            },
            Statement::PriorityFromMap { key, map } => match state.find(table, map, key, chosen) {
                Ok(element) => match class_of(element) {
                    Some(class) => {
                        state.priority = class;
                        Then::GoOn
                    }
                    None => unreadable(map),
                },
                Err(missing) => missing.then(map),
            },
            Statement::PriorityAtRandom { first, .. } => {
                state.priority = Class(chosen.unwrap_or(first.0));
                Then::GoOn
            }
            Statement::ClearPriority => {
                state.priority = Class(0);
                Then::GoOn
            }
            Statement::SetMark(bits) => self.mark(self.journey.state.mark | bits, done),
            Statement::FlipMark(bits) => self.mark(self.journey.state.mark ^ bits, done),
            Statement::ChangeMark { keep, flip } => self.mark(self.journey.state.mark & keep ^ flip, done),
            // What is learned or forgotten concerns the client's next connection.
            Statement::Learn { .. } | Statement::Forget { .. } | Statement::Note { .. } => Then::GoOn,
            Statement::Translate { key, map } => match state.find(table, map, key, chosen) {
                Ok(element) => self.translate_as(map, element, done),
                Err(missing) => missing.then(map),
            },
            Statement::TranslateTo { address, port } => {
                let port = port.unwrap_or(state.packet.destination.port());
                done.push((state.translate(SocketAddr::new(*address, port)), None));
                Then::Decided(RuleVerdict::Accept)
            }
            Statement::SourceFrom(address) => {
                done.push((state.source_from(*address), None));
                Then::Decided(RuleVerdict::Accept)
            }
            Statement::Masquerade { fully_random } => match state.masquerade(*fully_random, &mut self.journey.path) {
                Ok(effect) => {
                    done.push((effect, None));
                    Then::Decided(RuleVerdict::Accept)
                }
                Err(verdict) => Then::End(verdict),
            },
            Statement::Reject(with) => {
                let with = match (with, state.packet.sent.family()) {
                    (RejectWith::PortUnreachable, IpFamily::V4) => "icmp port-unreachable".to_owned(),
                    (RejectWith::PortUnreachable, IpFamily::V6) => "icmpv6 port-unreachable".to_owned(),
                    (with, _) => with.to_string(),
                };
                done.push((Effect::Reject { with: with.clone() }, None));
                Then::End(Verdict::Rejected { with })
            }
            Statement::NoTrack => {
                state.untrack();
                Then::GoOn
            }
            Statement::Verdict(RuleVerdict::Drop) => {
                done.push((Effect::Drop, None));
                Then::End(Verdict::Dropped)
            }
            Statement::Verdict(RuleVerdict::Accept) => {
                done.push((Effect::Accept, None));
                Then::Decided(RuleVerdict::Accept)
            }
            Statement::Verdict(verdict) => Then::Decided(verdict.clone()),
            Statement::Dispatch { key, map } => match state.find(table, map, key, chosen) {
                Ok(Element { datum: Some(Datum::Verdict(verdict)), .. }) => {
                    self.carry_out(&Statement::Verdict(verdict.clone()), None, done)
                }
                Ok(_) => unreadable(map),
                Err(missing) => missing.then(map),
            },
            Statement::Opaque(Opaque { outcome: Outcome::Nothing, .. }) => Then::GoOn,
            Statement::Opaque(Opaque { outcome: Outcome::Condition, text, .. }) => {
                Then::Perhaps(format!("`{text}` holds"))
            }
            Statement::Opaque(Opaque { outcome: Outcome::Anything, text, .. }) => {
                Then::End(Verdict::Unknown { why: format!("what `{text}` does") })
            }
        }
    }

    fn mark(&mut self, after: u32, done: &mut Vec<(Effect, Option<String>)>) -> Then {
        let before = std::mem::replace(&mut self.journey.state.mark, after);
        done.push((Effect::Mark { before, after }, None));
        Then::GoOn
    }

    fn translate_as(&mut self, map: &Name, element: &Element, done: &mut Vec<(Effect, Option<String>)>) -> Then {
        let Some(Datum::Fields(fields)) = &element.datum else { return unreadable(map) };
        let state = &mut self.journey.state;
        let after = match *fields.as_slice() {
            [Value::Address(address), Value::Port(port)] => SocketAddr::new(address, port),
            [Value::Address(address)] => SocketAddr::new(address, state.packet.destination.port()),
            _ => return unreadable(map),
        };
        let place = element.key.last().map(|last| format!("@{map} {last}"));
        done.push((state.translate(after), place));
        Then::Decided(RuleVerdict::Accept)
    }

    fn obey(&mut self, verdict: &RuleVerdict) -> Next {
        match verdict {
            RuleVerdict::Accept => Next::Passed,
            RuleVerdict::Drop => Next::End(Verdict::Dropped),
            RuleVerdict::Return => self.leave_chain(),
            RuleVerdict::Jump(chain) => self.enter_chain(chain, false),
            RuleVerdict::Goto(chain) => self.enter_chain(chain, true),
        }
    }

    fn enter_chain(&mut self, name: &Name, goto: bool) -> Next {
        // The kernel takes no rules that lead nowhere, nor in circles, nor deep.
        let Some(chain) = self.base.table.chain(name) else {
            return Next::End(Verdict::Unknown { why: format!("what chain {name} does, which is not there") });
        };
        self.stack.push(Frame { chain, next: 0, goto });
        Next::GoOn
    }

    /// Goes back to the chain of the last jump, or to the policy.
    fn leave_chain(&mut self) -> Next {
        while let Some(frame) = self.stack.pop() {
            if self.stack.is_empty() {
                return self.policy(frame.chain);
            }
            if !frame.goto {
                break;
            }
        }
        Next::GoOn
    }

    fn policy(&mut self, chain: &ChainWithRules) -> Next {
        let policy = self.base.base.policy;
        let event = || Event::Policy { chain: chain.chain.name.to_string(), policy: policy.name() };
        match policy {
            Policy::Accept => {
                self.journey.path.note_detail(event);
                Next::Passed
            }
            Policy::Drop => {
                self.journey.path.note(event);
                Next::End(Verdict::Dropped)
            }
        }
    }

    fn note(&mut self, turn: Turn<'a>, mismatch: Option<String>) {
        let Turn { rule, chance, done, .. } = turn;
        let (family, stack) = (self.journey.state.packet.sent.family(), &self.stack);
        let hook = self.journey.hook();
        let table = &self.base.name;
        self.journey.path.note_detail(|| Event::Rule {
            chain: stack.last().map(Frame::name).unwrap_or_default(),
            number: stack.last().map_or(0, |frame| frame.next),
            text: rule.text(family).to_string(),
            depth: stack.len().saturating_sub(1),
            mismatch,
            chance,
        });
        for (effect, element) in done {
            let path = || stack.iter().map(Frame::name).chain(element).collect();
            self.journey.path.note(|| Event::Effect { hook, table: table.clone(), path: path(), effect });
        }
    }
}

impl Frame<'_> {
    fn name(&self) -> String {
        self.chain.chain.name.to_string()
    }
}

impl Missing {
    /// What follows a statement that needs the element.
    fn then(self, map: &Name) -> Then {
        match self {
            Self::Absent(why) => Then::Mismatch(why),
            Self::Unknown(_) => Then::End(Verdict::Unknown { why: format!("what @{map} says of the packet") }),
        }
    }
}

fn class_of(element: &Element) -> Option<Class> {
    match &element.datum {
        Some(Datum::Fields(fields)) => match fields.as_slice() {
            [Value::Class(class)] => Some(*class),
            _ => None,
        },
        _ => None,
    }
}

/// The kernel takes no rule that reads such a map in this way.
fn unreadable(map: &Name) -> Then {
    Then::End(Verdict::Unknown { why: format!("what an element of {map} says") })
}
