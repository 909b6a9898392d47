use std::net::SocketAddr;

use ferroute_core::IpFamily;
use ferroute_nftables::{
    Class, Value,
    kernel::MemoryTable,
    model::{BaseKind, ChainWithRules, Datum, Element, Field, Name, Rule, Statement, Verdict as RuleVerdict},
};

use super::{
    conditions::State,
    log::{Detail, Log},
};
use crate::{
    Effect, Ending, Event, Hook, Host, Packet, Verdict,
    way::{Notes, Transit},
};

/// Stands at one statement of one rule with the packet as it is there.
#[derive(Clone)]
pub(super) struct Walker<'a> {
    table: &'a MemoryTable,
    state: State<'a>,
    /// Where it is; `None` before the first hook.
    place: Option<Place>,
    /// Chains that led to each other, the hook's own first.
    stack: Vec<Frame<'a>>,
    /// The rule that it is in.
    turn: Option<Turn<'a>>,
    share: f64,
    log: Log,
}

/// A hook, and the priority of the base chain there.
#[derive(Clone, Copy)]
struct Place {
    hook: Hook,
    priority: i32,
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
    /// One of several priorities in a row.
    AnyOf { first: Class, count: u32 },
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

impl<'a> Walker<'a> {
    /// A walker before the packet's first hook.
    pub(super) fn new(table: &'a MemoryTable, host: &'a Host, packet: &'a Packet, detail: Detail) -> Self {
        let log = Log::new(detail);
        let state = State {
            packet: Transit::new(host, packet),
            mark: packet.mark,
            priority: Class(0),
            translated: false,
            explains: log.explains(),
        };
        Self { table, state, place: None, stack: Vec::new(), turn: None, share: 1.0, log }
    }

    /// Goes on to the end. Where the way splits, `others` gets the walkers for the other ways, the next one last.
    pub(super) fn run(&mut self, others: &mut Vec<Self>) -> Verdict {
        loop {
            let passed = match self.turn.take().or_else(|| self.next_turn()) {
                Some(turn) => match self.meet(turn, others) {
                    Next::GoOn => Ok(()),
                    Next::Passed => self.next_base(),
                    Next::End(verdict) => Err(verdict),
                },
                None if self.stack.is_empty() => self.next_base(),
                None => match self.leave_chain() {
                    Next::Passed => self.next_base(),
                    _ => Ok(()),
                },
            };
            if let Err(verdict) = passed {
                return verdict;
            }
        }
    }

    /// The walker's end, and its way there.
    pub(super) fn end(self, verdict: Verdict) -> (Ending, Log) {
        (Ending { verdict, share: self.share, assuming: Vec::new() }, self.log)
    }

    fn next_turn(&mut self) -> Option<Turn<'a>> {
        let frame = self.stack.last_mut()?;
        let rule = frame.chain.rules.get(frame.next)?;
        frame.next += 1;
        Some(Turn { rule, statement: 0, chance: None, done: Vec::new() })
    }

    fn meet(&mut self, mut turn: Turn<'a>, others: &mut Vec<Self>) -> Next {
        while let Some(statement) = turn.rule.statements.get(turn.statement) {
            turn.statement += 1;
            match self.carry_out(statement, &mut turn.done) {
                Then::GoOn => {}
                Then::AnyOf { first, count } => {
                    if count > 1 {
                        let chance = 1.0 / f64::from(count);
                        self.share *= chance;
                        turn.chance = Some(chance);
                    }
                    for n in (1..count).rev() {
                        let mut other = self.clone();
                        other.state.priority = Class(first.0.wrapping_add(n));
                        other.turn = Some(turn.clone());
                        others.push(other);
                    }
                    self.state.priority = first;
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

    fn carry_out(&mut self, statement: &Statement, done: &mut Vec<(Effect, Option<String>)>) -> Then {
        match statement {
            Statement::Match(condition) => match self.state.meets(condition, self.table) {
                Ok(()) => Then::GoOn,
                Err(why) => Then::Mismatch(why),
            },
            Statement::PriorityFromMap { key, map } => match self.state.find(self.table, map, key) {
                Ok(element) => match class_of(element) {
                    Some(class) => {
                        self.state.priority = class;
                        Then::GoOn
                    }
                    None => unreadable(map),
                },
                Err(why) => Then::Mismatch(why),
            },
            Statement::PriorityAtRandom { count, first } => Then::AnyOf { first: *first, count: *count },
            Statement::ClearPriority => {
                self.state.priority = Class(0);
                Then::GoOn
            }
            Statement::SetMark(bits) => self.mark(self.state.mark | bits, done),
            Statement::FlipMark(bits) => self.mark(self.state.mark ^ bits, done),
            // What is learned or forgotten concerns the client's next connection.
            Statement::Learn { .. } | Statement::Forget { .. } => Then::GoOn,
            Statement::Translate { key, map } => match self.state.find(self.table, map, key) {
                Ok(element) => self.translate(map, element, done),
                Err(why) => Then::Mismatch(why),
            },
            Statement::Masquerade => self.masquerade(done),
            Statement::Reject => {
                let with = match self.state.packet.sent.family() {
                    IpFamily::V4 => "icmp port-unreachable",
                    IpFamily::V6 => "icmpv6 port-unreachable",
                };
                done.push((Effect::Reject { with: with.to_owned() }, None));
                Then::End(Verdict::Rejected { with: with.to_owned() })
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
            Statement::Dispatch(map) => match self.state.find(self.table, map, &[Field::Priority]) {
                Ok(Element { datum: Some(Datum::Verdict(verdict)), .. }) => {
                    self.carry_out(&Statement::Verdict(verdict.clone()), done)
                }
                Ok(_) => unreadable(map),
                Err(why) => Then::Mismatch(why),
            },
        }
    }

    fn mark(&mut self, after: u32, done: &mut Vec<(Effect, Option<String>)>) -> Then {
        let before = std::mem::replace(&mut self.state.mark, after);
        done.push((Effect::Mark { before, after }, None));
        Then::GoOn
    }

    /// The kernel says that a connection is translated only if there is something to change.
    fn translate(&mut self, map: &Name, element: &Element, done: &mut Vec<(Effect, Option<String>)>) -> Then {
        let Some(Datum::Fields(fields)) = &element.datum else { return unreadable(map) };
        let &[Value::Address(address), Value::Port(port)] = fields.as_slice() else { return unreadable(map) };
        let after = SocketAddr::new(address, port);
        let effect = self.state.packet.translate(after);
        self.state.translated |= matches!(effect, Effect::Dnat { before, after } if before != after);
        let place = element.key.last().map(|last| format!("@{map} {last}"));
        done.push((effect, place));
        Then::Decided(RuleVerdict::Accept)
    }

    fn masquerade(&mut self, done: &mut Vec<(Effect, Option<String>)>) -> Then {
        match self.state.packet.masquerade(&mut self.log) {
            Ok(effect) => {
                done.push((effect, None));
                Then::Decided(RuleVerdict::Accept)
            }
            Err(verdict) => Then::End(verdict),
        }
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
        let Some(chain) = self.table.chain(name) else {
            return Next::End(Verdict::Unknown { why: format!("what chain {name} does, which is not there") });
        };
        self.stack.push(Frame { chain, next: 0, goto });
        Next::GoOn
    }

    /// Goes back to the chain of the last jump, or to the policy.
    fn leave_chain(&mut self) -> Next {
        while let Some(frame) = self.stack.pop() {
            if self.stack.is_empty() {
                let chain = &frame.chain.chain.name;
                self.log.note_detail(|| Event::Policy { chain: chain.to_string(), policy: "accept" });
                return Next::Passed;
            }
            if !frame.goto {
                break;
            }
        }
        Next::GoOn
    }

    /// Goes to the first rule of the next base chain, at this hook or a later one; the packet may end before it.
    fn next_base(&mut self) -> Result<(), Verdict> {
        self.stack.clear();
        loop {
            let (hook, above) = match self.place {
                Some(Place { hook, priority }) => (hook, Some(priority)),
                None => (self.state.packet.set_out(&mut self.log)?, None),
            };
            if let Some((chain, priority)) = self.base(hook, above) {
                self.place = Some(Place { hook, priority });
                let name = &chain.chain.name;
                let table = self.table_name();
                if !chain.rules.is_empty() {
                    self.log.note_detail(|| Event::Hook { hook, table, chain: name.to_string() });
                }
                self.stack.push(Frame { chain, next: 0, goto: false });
                return Ok(());
            }
            let next = self.state.packet.next_hook(hook, &mut self.log)?;
            self.place = Some(Place { hook: next, priority: i32::MIN });
        }
    }

    /// The base chain of a hook that is next in order, after the one of this priority.
    ///
    /// A connection's addresses are decided once: a packet that comes back through the loopback interface has been
    /// sent and has left.
    fn base(&self, hook: Hook, above: Option<i32>) -> Option<(&'a ChainWithRules, i32)> {
        let based = self.table.chains().filter_map(|chain| Some((chain, chain.chain.base?)));
        based
            .filter(|(_, base)| base.hook == hook.into() && above.is_none_or(|above| base.priority > above))
            .filter(|(_, base)| base.kind != BaseKind::Nat || !self.state.packet.looped)
            .min_by_key(|(_, base)| base.priority)
            .map(|(chain, base)| (chain, base.priority))
    }

    fn table_name(&self) -> &'static str {
        match self.state.packet.sent.family() {
            IpFamily::V4 => "ip ferroute",
            IpFamily::V6 => "ip6 ferroute",
        }
    }

    fn note(&mut self, turn: Turn<'a>, mismatch: Option<String>) {
        let Turn { rule, chance, done, .. } = turn;
        let (family, table, stack) = (self.state.packet.sent.family(), self.table_name(), &self.stack);
        let Some(hook) = self.place.map(|place| place.hook) else { return };
        self.log.note_detail(|| Event::Rule {
            chain: stack.last().map(Frame::name).unwrap_or_default(),
            number: stack.last().map_or(0, |frame| frame.next),
            text: rule.text(family).to_string(),
            depth: stack.len().saturating_sub(1),
            mismatch,
            chance,
        });
        for (effect, element) in done {
            let path = || stack.iter().map(Frame::name).chain(element).collect();
            self.log.note(|| Event::Effect { hook, table, path: path(), effect });
        }
    }
}

impl Frame<'_> {
    fn name(&self) -> String {
        self.chain.chain.name.to_string()
    }
}

impl From<Hook> for ferroute_nftables::model::Hook {
    fn from(hook: Hook) -> Self {
        match hook {
            Hook::Prerouting => Self::Prerouting,
            Hook::Input => Self::Input,
            Hook::Forward => Self::Forward,
            Hook::Output => Self::Output,
            Hook::Postrouting => Self::Postrouting,
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
