use std::net::SocketAddr;

use ferroute_iptables::{ChainName, Policy, Rule, Target};

use super::{conditions::Finding, stage::Base};
use crate::{
    Assumption, Effect, Event, Verdict,
    journey::{Journey, Passage},
    path::Path,
};

/// Stands at one rule of one chain with the packet as it is there.
#[derive(Clone)]
pub(crate) struct Walker<'a, P> {
    base: Base<'a>,
    pub(crate) journey: Journey<'a, P>,
    /// Chains that called each other, the hook's own first.
    stack: Vec<Frame<'a>>,
}

/// A chain that the packet is in, and the rule that it meets next there.
#[derive(Clone)]
struct Frame<'a> {
    name: ChainName,
    rules: &'a [Rule],
    next: usize,
    /// Entered by a goto: its end is the end of the chain that it was entered from, too.
    goto: bool,
}

/// What follows a rule.
enum Next {
    /// The next rule.
    GoOn,
    /// The table has let the packet pass.
    TablePassed,
    /// The end.
    End(Verdict),
}

impl<'a, P: Path> Walker<'a, P> {
    /// A walker at the first rule of a hook's chain.
    pub(crate) fn new(base: Base<'a>, mut journey: Journey<'a, P>) -> Self {
        let (name, rules) = (base.name(), base.chain_rules());
        if !rules.is_empty() {
            let (hook, table) = (base.hook, base.table.as_str().into());
            journey.path.note(|| Event::Hook { hook, table, chain: name.to_string() });
        }
        Self { base, journey, stack: vec![Frame { name, rules, next: 0, goto: false }] }
    }

    /// Goes on to the end of the hook's chain. Where the way splits, `split` gets the walker for the other way.
    pub(crate) fn run(&mut self, split: &mut dyn FnMut(Self)) -> Passage {
        loop {
            let next = match self.next_rule() {
                Some((rule, number)) => self.meet(rule, number, split),
                None => self.leave_chain(),
            };
            match next {
                Next::GoOn => {}
                Next::TablePassed => return Passage::Passed,
                Next::End(verdict) => return Passage::End(verdict),
            }
        }
    }

    fn next_rule(&mut self) -> Option<(&'a Rule, usize)> {
        let frame = self.stack.last_mut()?;
        let rule = frame.rules.get(frame.next)?;
        frame.next += 1;
        Some((rule, frame.next))
    }

    fn meet(&mut self, rule: &'a Rule, number: usize, split: &mut dyn FnMut(Self)) -> Next {
        let (chance, unknown) = match self.journey.state.meets_rule(rule) {
            Finding::Mismatch(why) => {
                self.note_rule(rule, number, Some(why), None);
                return Next::GoOn;
            }
            Finding::Match { chance, unknown } => (chance, unknown),
        };
        if rule.target.as_ref().is_none_or(is_harmless) {
            // Whether it matches or not, nothing happens.
            self.note_rule(rule, number, None, None);
            return Next::GoOn;
        }
        if let Some(condition) = unknown {
            let mut other = self.clone();
            other.note_rule(rule, number, Some(format!("assuming that not {condition}")), None);
            other.journey.assuming.push(Assumption { condition: condition.clone(), holds: false });
            split(other);
            self.journey.assuming.push(Assumption { condition, holds: true });
        }
        if chance < 1.0 {
            let mut other = self.clone();
            other.journey.share *= 1.0 - chance;
            other.note_rule(rule, number, Some("chance decides otherwise".to_owned()), Some(1.0 - chance));
            if chance <= 0.0 {
                *self = other;
                return Next::GoOn;
            }
            split(other);
            self.journey.share *= chance;
        }
        self.note_rule(rule, number, None, (chance < 1.0).then_some(chance));
        rule.target.as_ref().map_or(Next::GoOn, |target| self.apply(target))
    }

    fn apply(&mut self, target: &'a Target) -> Next {
        match target {
            Target::Jump(chain) => self.call(*chain, false),
            Target::Goto(chain) => self.call(*chain, true),
            Target::Return => self.leave_chain(),
            Target::Accept => {
                self.effect(|| Effect::Accept);
                Next::TablePassed
            }
            Target::Drop => {
                self.effect(|| Effect::Drop);
                Next::End(Verdict::Dropped)
            }
            Target::Reject(with) => {
                self.effect(|| Effect::Reject { with: with.as_str().to_owned() });
                Next::End(Verdict::Rejected { with: with.as_str().to_owned() })
            }
            Target::Mark { value, mask } => {
                let before = self.journey.state.mark;
                let after = (before & !mask) ^ value;
                self.journey.state.mark = after;
                self.effect(|| Effect::Mark { before, after });
                Next::GoOn
            }
            Target::Dnat { address, port } => {
                let state = &mut self.journey.state;
                let port = port.unwrap_or(state.packet.destination.port());
                let effect = state.translate(SocketAddr::new(*address, port));
                self.effect(|| effect);
                Next::TablePassed
            }
            Target::Snat { address, .. } => {
                let effect = self.journey.state.source_from(*address);
                self.effect(|| effect);
                Next::TablePassed
            }
            Target::Masquerade { random_fully } => self.masquerade(*random_fully),
            Target::Other(text) => self.apply_other(text),
        }
    }

    fn apply_other(&mut self, text: &str) -> Next {
        if !forgoes_tracking(text) {
            return Next::End(Verdict::Unknown { why: format!("what `-j {text}` does") });
        }
        self.journey.state.untrack();
        Next::GoOn
    }

    fn call(&mut self, chain: ChainName, goto: bool) -> Next {
        if self.stack.len() > MOST_CALLS {
            return Next::End(Verdict::Unknown { why: format!("where {chain} ends, which calls itself") });
        }
        let rules = self.base.rules.rules(self.base.table, chain);
        self.stack.push(Frame { name: chain, rules, next: 0, goto });
        Next::GoOn
    }

    /// Goes back to the calling chain, or to the policy.
    fn leave_chain(&mut self) -> Next {
        while let Some(frame) = self.stack.pop() {
            if self.stack.is_empty() {
                return self.policy(&frame);
            }
            if !frame.goto {
                break;
            }
        }
        Next::GoOn
    }

    fn policy(&mut self, frame: &Frame<'_>) -> Next {
        let chain = frame.name;
        let policy = self.base.policy();
        if !frame.rules.is_empty() || policy == Policy::Drop {
            self.journey.path.note(|| Event::Policy { chain: chain.to_string(), policy: policy.as_str() });
        }
        match policy {
            Policy::Accept => Next::TablePassed,
            Policy::Drop => Next::End(Verdict::Dropped),
        }
    }

    fn masquerade(&mut self, random_port: bool) -> Next {
        match self.journey.state.masquerade(random_port, &mut self.journey.path) {
            Ok(effect) => {
                self.effect(|| effect);
                Next::TablePassed
            }
            Err(verdict) => Next::End(verdict),
        }
    }

    fn note_rule(&mut self, rule: &Rule, number: usize, mismatch: Option<String>, chance: Option<f64>) {
        let depth = self.stack.len().saturating_sub(1);
        let chain = self.stack.last().map(|frame| frame.name);
        self.journey.path.note_detail(|| Event::Rule {
            chain: chain.map(|name| name.to_string()).unwrap_or_default(),
            number,
            text: rule.to_string(),
            depth,
            mismatch,
            chance,
        });
    }

    fn effect(&mut self, effect: impl FnOnce() -> Effect) {
        let (hook, table) = (self.base.hook, self.base.table.as_str().into());
        let stack = &self.stack;
        self.journey.path.note(|| Event::Effect {
            hook,
            table,
            path: stack.iter().map(|frame| frame.name.to_string()).collect(),
            effect: effect(),
        });
    }
}

/// The target only looks at a packet, or changes what no rule here asks about.
fn is_harmless(target: &Target) -> bool {
    const HARMLESS: [&str; 12] =
        ["LOG", "NFLOG", "ULOG", "AUDIT", "TRACE", "CONNMARK", "CT", "SET", "TCPMSS", "DSCP", "CHECKSUM", "CLASSIFY"];
    match target {
        Target::Other(text) => {
            let name = text.split(' ').next().unwrap_or_default();
            HARMLESS.contains(&name) && !forgoes_tracking(text)
        }
        _ => false,
    }
}

/// The target takes the packet out of connection tracking.
fn forgoes_tracking(text: &str) -> bool {
    let mut words = text.split(' ');
    match words.next() {
        Some("NOTRACK") => true,
        Some("CT") => words.any(|word| word == "--notrack"),
        _ => false,
    }
}

/// Chains that may call each other. The kernel refuses loops, but text may have them.
const MOST_CALLS: usize = 64;
