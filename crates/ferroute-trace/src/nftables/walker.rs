mod statements;

use ferroute_nftables::model::{
    ChainWithRules, Name, Opaque, Outcome, Policy, Rule, Statement, Verdict as RuleVerdict,
};

use self::statements::fixed_number;
use super::{
    Base,
    conditions::{RandomNumber, RandomResult, Relevance},
};
use crate::{
    ChainVerdict, Effect, Event, Forks, Verdict, Walker,
    iptables::shown,
    walk::{MAX_CALLS, Unknown, too_many_calls},
};

/// The position in a base chain and the chains that it calls.
#[derive(Clone)]
pub(super) struct ChainWalker<'a> {
    base: &'a Base<'a>,
    /// The call stack, the base chain first.
    stack: Vec<Frame<'a>>,
    /// Number of chains that were entered so far.
    calls: usize,
    /// The rule that is partly evaluated.
    current: Option<CurrentRule<'a>>,
}

/// A chain on the call stack.
#[derive(Clone)]
struct Frame<'a> {
    chain: &'a ChainWithRules,
    /// The index of the next rule.
    next: usize,
    /// Whether the chain was entered by a goto: evaluation then leaves the chain with the goto at its end.
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
        let hook = walker.hook();
        let chain = || base.chain.chain.name.to_string();
        walker.record(|| Event::Hook { hook, table: base.table_name.clone(), chain: chain() });
        Self { base, stack: vec![Frame { chain: base.chain, next: 0, goto: false }], calls: 0, current: None }
    }

    /// Evaluates the rest of the base chain.
    pub(super) fn run(mut self, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> ChainVerdict {
        loop {
            if let Some(verdict) = forks.count_rule() {
                return ChainVerdict::End(verdict);
            }
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
                // The statement is evaluated again, with the answer.
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
                    let relevance = match statement {
                        Statement::Opaque(Opaque { outcome: Outcome::Socket, .. }) => Relevance::Relevant,
                        _ => walker.packet.relevance(rest, self.base.table),
                    };
                    match relevance {
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
                    other.packet.assume_value(statement, false);
                    let rest = self.clone();
                    forks.push(other, move |walker, forks| rest.run(walker, forks));
                    walker.assume_match(&unknown, true);
                    walker.packet.assume_value(statement, true);
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

    /// Returns the random numbers to try for the next statement, each with its probability. One number represents all
    /// numbers whose lookup fails; it is omitted if the next rule is the same and draws again.
    fn choices(&self, current: &CurrentRule<'_>, first: u32, count: u32, walker: &Walker<'a>) -> Vec<(u32, f64)> {
        let numbers = (0..count).rev().map(|n| first.wrapping_add(n));
        let Some(statement) = current.rule.statements.get(current.next) else { return Vec::new() };
        let (mut missing, mut matching, mut unknown, mut others) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for number in numbers {
            match walker.packet.random_result(statement, self.base.table, number) {
                RandomResult::Mismatch => missing.push(number),
                RandomResult::Match => matching.push(number),
                RandomResult::Unknown => unknown.push(number),
                RandomResult::Other => others.push(number),
            }
        }
        let next = self.stack.last().and_then(|frame| frame.chain.rules.get(frame.next));
        let found = matching.len() + unknown.len() + others.len();
        let draws_again = found > 0 && next.is_some_and(|next| next.statements == current.rule.statements);
        let drawn = if draws_again { found } else { found + missing.len() };
        let chance = |numbers: usize| numbers as f64 / drawn as f64;
        let one_of = |numbers: &[u32]| numbers.last().map(|number| (*number, chance(numbers.len())));
        let missing = one_of(&missing).filter(|_| !draws_again);
        let found = [&matching, &unknown]
            .into_iter()
            .filter_map(|numbers| one_of(numbers))
            .chain(others.into_iter().map(|number| (number, chance(1))));
        missing.into_iter().chain(found).collect()
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
        self.calls += 1;
        // The kernel rejects jumps to missing chains and loops, but a file may contain them.
        let reason = match self.base.table.chain(name) {
            Some(_) if self.calls > MAX_CALLS => too_many_calls(name),
            Some(chain) => {
                self.stack.push(Frame { chain, next: 0, goto });
                return Next::Rule;
            }
            None => format!("effect of chain {name}, which does not exist"),
        };
        Next::Chain(ChainVerdict::End(Verdict::Unknown { reason }))
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
        if mismatch.is_none() || walker.record.has_mismatches() {
            walker.record(|| Event::Rule {
                chain: stack.last().map(Frame::name).unwrap_or_default(),
                number: stack.last().map_or(0, |frame| frame.next),
                text: shown(&self.base.table.rule_text(rule, family)),
                depth: stack.len().saturating_sub(1),
                mismatch,
                chance,
            });
        }
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
