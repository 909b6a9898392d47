use std::collections::HashSet;

use ferroute_iptables::{ChainName, Policy, Rule, Target};

use super::{
    Base,
    conditions::{ExtensionResult, MatchResult},
    recent::changes,
    shown,
    targets::{TargetResult, changes_set, is_irrelevant},
};
use crate::{
    ChainVerdict, Effect, Event, Forks, Verdict, Walker,
    walk::{MAX_CALLS, too_many_calls},
};

/// The position in a built-in chain and the chains that it calls.
#[derive(Clone)]
pub(super) struct ChainWalker<'a> {
    base: Base<'a>,
    /// The call stack, the built-in chain first.
    stack: Vec<Frame<'a>>,
    /// Number of chains that were entered so far.
    calls: usize,
}

/// A chain on the call stack.
#[derive(Clone)]
struct Frame<'a> {
    name: ChainName,
    rules: &'a [Rule],
    /// The index of the next rule.
    next: usize,
    /// Whether the chain was entered by a goto: evaluation then leaves the chain with the goto at its end.
    goto: bool,
}

/// The continuation after a rule.
enum Next {
    Rule,
    Chain(ChainVerdict),
}

impl<'a> ChainWalker<'a> {
    /// Enters a built-in chain.
    pub(super) fn enter(base: Base<'a>, walker: &mut Walker<'a>) -> Self {
        let (name, rules) = (base.name(), base.chain_rules());
        let (hook, table) = (base.hook, base.table.as_str().into());
        walker.record(|| Event::Hook { hook, table, chain: name.to_string() });
        Self { base, stack: vec![Frame { name, rules, next: 0, goto: false }], calls: 0 }
    }

    /// Evaluates the rest of the built-in chain.
    pub(super) fn run(mut self, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> ChainVerdict {
        loop {
            if let Some(verdict) = forks.count_rule() {
                return ChainVerdict::End(verdict);
            }
            let next = match self.next_rule() {
                Some((rule, number)) => self.evaluate(rule, number, walker, forks),
                None => self.leave_chain(walker),
            };
            if let Next::Chain(verdict) = next {
                return verdict;
            }
        }
    }

    fn next_rule(&mut self) -> Option<(&'a Rule, usize)> {
        let frame = self.stack.last_mut()?;
        let rule = frame.rules.get(frame.next)?;
        frame.next += 1;
        Some((rule, frame.next))
    }

    fn evaluate(&mut self, rule: &'a Rule, number: usize, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> Next {
        if rule.matches.iter().any(changes) {
            if let Some(reason) = walker.packet.header_mismatch(rule) {
                self.record_rule(walker, rule, number, Some(reason), None);
                return Next::Rule;
            }
            return self.evaluate_in_order(rule, number, walker, forks);
        }
        let (chance, unknown) = match walker.packet.matches_rule(rule) {
            MatchResult::Mismatch(reason) => {
                self.record_rule(walker, rule, number, Some(reason), None);
                return Next::Rule;
            }
            MatchResult::Match { chance, unknown } => (chance, unknown),
        };
        let is_certain = unknown.is_empty() && chance >= 1.0;
        let has_effect = |target: &&Target| match is_certain {
            true => !is_irrelevant(target),
            false => self.has_effect(target, walker, &mut HashSet::new()),
        };
        let Some(target) = rule.target.as_ref().filter(has_effect) else {
            // The rule has no effect, whether it matches or not.
            let reason =
                unknown.first().map(|unknown| format!("unknown whether {unknown}, but the rule has no effect"));
            self.record_rule(walker, rule, number, reason, (chance < 1.0).then_some(chance));
            return Next::Rule;
        };
        if let Some(unknown) = unknown.iter().find(|unknown| walker.decide(unknown) == Some(false)) {
            self.record_rule(walker, rule, number, Some(format!("by assumption, {}", unknown.opposite())), None);
            return Next::Rule;
        }
        for unknown in unknown {
            if walker.decide(&unknown).is_some() {
                continue;
            }
            let mut other = walker.clone();
            self.record_rule(&mut other, rule, number, Some(format!("assuming that {}", unknown.opposite())), None);
            other.assume_match(&unknown, false);
            let rest = self.clone();
            forks.push(other, move |walker, forks| rest.run(walker, forks));
            walker.assume_match(&unknown, true);
        }
        if chance < 1.0 {
            const MISMATCH: &str = "chance decides otherwise";
            let no_match = 1.0 - chance;
            if chance <= 0.0 {
                walker.multiply_share(no_match);
                self.record_rule(walker, rule, number, Some(MISMATCH.to_owned()), Some(no_match));
                return Next::Rule;
            }
            let mut other = walker.clone();
            other.multiply_share(no_match);
            self.record_rule(&mut other, rule, number, Some(MISMATCH.to_owned()), Some(no_match));
            let rest = self.clone();
            forks.push(other, move |walker, forks| rest.run(walker, forks));
            walker.multiply_share(chance);
        }
        self.record_rule(walker, rule, number, None, (chance < 1.0).then_some(chance));
        self.apply(target, None, walker, forks)
    }

    /// Evaluates the modules of a rule in order: some of them change lists, even if a later module does not match.
    fn evaluate_in_order(
        &mut self,
        rule: &'a Rule,
        number: usize,
        walker: &mut Walker<'a>,
        forks: &mut Forks<'a>,
    ) -> Next {
        let mut chance = 1.0;
        for module in &rule.matches {
            match walker.packet.matches_extension(module) {
                ExtensionResult::Match => {}
                ExtensionResult::Mismatch(reason) => {
                    self.record_rule(walker, rule, number, Some(reason), None);
                    return Next::Rule;
                }
                ExtensionResult::Chance(probability) => {
                    let mut other = walker.clone();
                    other.multiply_share(1.0 - probability);
                    let reason = Some("chance decides otherwise".to_owned());
                    self.record_rule(&mut other, rule, number, reason, Some(1.0 - probability));
                    let rest = self.clone();
                    forks.push(other, move |walker, forks| rest.run(walker, forks));
                    walker.multiply_share(probability);
                    chance *= probability;
                }
                ExtensionResult::Unknown(unknown) => match walker.decide(&unknown.clone().of(module)) {
                    Some(true) => {}
                    Some(false) => {
                        let reason = format!("by assumption, {}", unknown.opposite());
                        self.record_rule(walker, rule, number, Some(reason), None);
                        return Next::Rule;
                    }
                    None => {
                        let (mut other, unknown) = (walker.clone(), unknown.of(module));
                        let reason = format!("assuming that {}", unknown.opposite());
                        self.record_rule(&mut other, rule, number, Some(reason), None);
                        other.assume_match(&unknown, false);
                        let rest = self.clone();
                        forks.push(other, move |walker, forks| rest.run(walker, forks));
                        walker.assume_match(&unknown, true);
                    }
                },
            }
            walker.packet.change_by_module(module);
        }
        self.record_rule(walker, rule, number, None, (chance < 1.0).then_some(chance));
        match &rule.target {
            Some(target) => self.apply(target, None, walker, forks),
            None => Next::Rule,
        }
    }

    /// Reports whether a target may affect the packet. A chain has an effect if one of its rules has one: `seen` are the
    /// chains whose rules are known.
    fn has_effect(&self, target: &Target, walker: &Walker<'a>, seen: &mut HashSet<ChainName>) -> bool {
        match target {
            Target::Jump(chain) => self.base.rules.chain(self.base.table, *chain).is_none_or(|called| {
                seen.insert(*chain) && called.rules.iter().any(|rule| self.rule_has_effect(rule, walker, seen))
            }),
            target => !is_irrelevant(target) && (!changes_set(target) || self.base.reads_sets()),
        }
    }

    /// Reports whether a rule of a chain that may be called may affect the packet.
    fn rule_has_effect(&self, rule: &Rule, walker: &Walker<'a>, seen: &mut HashSet<ChainName>) -> bool {
        if rule.matches.iter().any(changes) {
            return true;
        }
        let has_effect = match &rule.target {
            // The caller continues.
            None | Some(Target::Return) => false,
            Some(Target::Goto(chain)) => self.has_effect(&Target::Jump(*chain), walker, seen),
            Some(target) => self.has_effect(target, walker, seen),
        };
        has_effect && !matches!(walker.packet.matches_rule(rule), MatchResult::Mismatch(_))
    }

    /// Applies a target; `nth` selects one of its addresses.
    fn apply(&mut self, target: &'a Target, nth: Option<u32>, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> Next {
        match target {
            Target::Jump(chain) => self.call(*chain, false),
            Target::Goto(chain) => self.call(*chain, true),
            Target::Return => self.leave_chain(walker),
            other => match walker.packet.apply_target(other, self.base.hook, nth, &mut walker.record) {
                TargetResult::Continue(effect) => {
                    effect.into_iter().for_each(|effect| self.record_effect(walker, effect));
                    Next::Rule
                }
                TargetResult::Accept(effect) => {
                    self.record_effect(walker, effect);
                    Next::Chain(ChainVerdict::Continue)
                }
                TargetResult::AcceptIf(unknown, effect) => {
                    let assumed = walker.assumed(&unknown.condition);
                    if assumed == Some(false) {
                        return Next::Chain(self.drop(walker));
                    }
                    if assumed.is_none() {
                        let mut other = walker.clone();
                        other.assume(unknown.condition.clone(), false);
                        let rest = self.clone();
                        forks.push(other, move |walker, _| rest.drop(walker));
                        walker.assume(unknown.condition, true);
                    }
                    self.record_effect(walker, effect);
                    Next::Chain(ChainVerdict::Continue)
                }
                TargetResult::Choose(count) => {
                    let share = 1.0 / f64::from(count);
                    for nth in (1..count).rev() {
                        let (mut rest, mut other) = (self.clone(), walker.clone());
                        other.multiply_share(share);
                        forks.push(other, move |walker, forks| match rest.apply(target, Some(nth), walker, forks) {
                            Next::Chain(verdict) => verdict,
                            Next::Rule => rest.run(walker, forks),
                        });
                    }
                    walker.multiply_share(share);
                    self.apply(target, Some(0), walker, forks)
                }
                TargetResult::End(effect, verdict) => {
                    effect.into_iter().for_each(|effect| self.record_effect(walker, effect));
                    Next::Chain(ChainVerdict::End(verdict))
                }
            },
        }
    }

    fn drop(&self, walker: &mut Walker<'a>) -> ChainVerdict {
        self.record_effect(walker, Effect::Drop);
        ChainVerdict::End(Verdict::Dropped)
    }

    fn call(&mut self, chain: ChainName, goto: bool) -> Next {
        self.calls += 1;
        let reason = match self.base.rules.chain(self.base.table, chain) {
            Some(_) if self.calls > MAX_CALLS => too_many_calls(chain),
            Some(called) => {
                self.stack.push(Frame { name: chain, rules: &called.rules, next: 0, goto });
                return Next::Rule;
            }
            // A file may lack chains, and the name may be that of an unsupported target.
            None => format!("effect of `-j {chain}`, which is no chain of table {}", self.base.table),
        };
        Next::Chain(ChainVerdict::End(Verdict::Unknown { reason }))
    }

    /// Returns to the calling chain, or applies the policy.
    fn leave_chain(&mut self, walker: &mut Walker<'a>) -> Next {
        while let Some(frame) = self.stack.pop() {
            if self.stack.is_empty() {
                return Next::Chain(self.apply_policy(&frame, walker));
            }
            if !frame.goto {
                break;
            }
        }
        Next::Rule
    }

    fn apply_policy(&self, frame: &Frame<'_>, walker: &mut Walker<'a>) -> ChainVerdict {
        let chain = frame.name;
        let policy = self.base.policy();
        walker.record(|| Event::Policy { chain: chain.to_string(), policy: policy.as_str().into() });
        match policy {
            Policy::Accept => ChainVerdict::Continue,
            Policy::Drop => ChainVerdict::End(Verdict::Dropped),
        }
    }

    fn record_rule(
        &self,
        walker: &mut Walker<'a>,
        rule: &Rule,
        number: usize,
        mismatch: Option<String>,
        chance: Option<f64>,
    ) {
        if mismatch.is_some() && !walker.record.has_mismatches() {
            return;
        }
        walker.record(|| Event::Rule {
            chain: self.stack.last().map(|frame| frame.name.to_string()).unwrap_or_default(),
            number,
            text: shown(&rule.to_string()),
            depth: self.stack.len().saturating_sub(1),
            mismatch,
            chance,
        });
    }

    fn record_effect(&self, walker: &mut Walker<'a>, effect: Effect) {
        walker.record.step(|| Event::Effect {
            hook: self.base.hook,
            table: self.base.table.as_str().into(),
            path: self.stack.iter().map(|frame| frame.name.to_string()).collect(),
            effect,
        });
    }
}
