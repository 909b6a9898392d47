use std::net::SocketAddr;

use ferroute_iptables::{ChainName, CtStates, Policy, Rule, RuleSet, Target};

use super::{
    conditions::{Finding, State},
    path::Path,
    stage::Stage,
};
use crate::{Assumption, Effect, Ending, Event, Hook, Host, Packet, Verdict, way::Transit};

/// Stands at one rule of one chain with the packet as it is there.
#[derive(Clone)]
pub(super) struct Walker<'a, P> {
    rules: &'a RuleSet,
    state: State<'a>,
    stage: Stage,
    /// Chains that called each other, the hook's own first.
    stack: Vec<Frame<'a>>,
    share: f64,
    assuming: Vec<Assumption>,
    path: P,
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
    /// A walker before the packet's first hook.
    pub(super) fn new(rules: &'a RuleSet, host: &'a Host, packet: &'a Packet) -> Self {
        let state = State {
            packet: Transit::new(host, packet),
            mark: packet.mark,
            connection: CtStates::NEW,
            remembered: &packet.remembered,
            explains: P::EXPLAINS,
        };
        Self {
            rules,
            state,
            stage: Stage::first(Hook::Prerouting),
            stack: Vec::new(),
            share: 1.0,
            assuming: Vec::new(),
            path: P::default(),
        }
    }

    /// Goes to the first rule; the packet may end before it.
    pub(super) fn start(&mut self) -> Result<(), Verdict> {
        self.stage = Stage::first(self.state.packet.set_out(&mut self.path)?);
        self.enter_table();
        Ok(())
    }

    /// Goes on to the end. Where the way splits, `others` gets the walker for the other way.
    pub(super) fn run(&mut self, others: &mut Vec<Self>) -> Verdict {
        loop {
            let next = match self.next_rule() {
                Some((rule, number)) => self.meet(rule, number, others),
                None => self.leave_chain(),
            };
            let passed = match next {
                Next::GoOn => Ok(()),
                Next::TablePassed => self.next_table(),
                Next::End(verdict) => Err(verdict),
            };
            if let Err(verdict) = passed {
                return verdict;
            }
        }
    }

    /// The walker's end, and its way there.
    pub(super) fn end(self, verdict: Verdict) -> (Ending, P) {
        (Ending { verdict, share: self.share, assuming: self.assuming }, self.path)
    }

    fn next_rule(&mut self) -> Option<(&'a Rule, usize)> {
        let frame = self.stack.last_mut()?;
        let rule = frame.rules.get(frame.next)?;
        frame.next += 1;
        Some((rule, frame.next))
    }

    fn meet(&mut self, rule: &'a Rule, number: usize, others: &mut Vec<Self>) -> Next {
        let (chance, unknown) = match self.state.meets(rule) {
            Finding::Mismatch(why) => {
                self.note_rule(rule, number, Some(why), None);
                return Next::GoOn;
            }
            Finding::Match { chance, unknown } => (chance, unknown),
        };
        if rule.target.is_none() {
            // Whether it matches or not, nothing happens.
            self.note_rule(rule, number, None, None);
            return Next::GoOn;
        }
        if let Some(condition) = unknown {
            let mut other = self.clone();
            other.note_rule(rule, number, Some(format!("assuming that not {condition}")), None);
            other.assuming.push(Assumption { condition: condition.clone(), holds: false });
            others.push(other);
            self.assuming.push(Assumption { condition, holds: true });
        }
        if chance < 1.0 {
            let mut other = self.clone();
            other.share *= 1.0 - chance;
            other.note_rule(rule, number, Some("chance decides otherwise".to_owned()), Some(1.0 - chance));
            if chance <= 0.0 {
                *self = other;
                return Next::GoOn;
            }
            others.push(other);
            self.share *= chance;
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
                let before = self.state.mark;
                let after = (before & !mask) ^ value;
                self.state.mark = after;
                self.effect(|| Effect::Mark { before, after });
                Next::GoOn
            }
            Target::Dnat { address, port } => {
                self.translate(SocketAddr::new(*address, port.unwrap_or(self.state.packet.destination.port())));
                Next::TablePassed
            }
            Target::Masquerade { random_fully } => self.masquerade(*random_fully),
            Target::Other(text) => self.apply_other(text),
        }
    }

    /// Targets that only look at a packet, or change what no rule here asks about, let it go on.
    fn apply_other(&mut self, text: &str) -> Next {
        const HARMLESS: [&str; 12] = [
            "LOG", "NFLOG", "ULOG", "AUDIT", "TRACE", "CONNMARK", "CT", "SET", "TCPMSS", "DSCP", "CHECKSUM", "CLASSIFY",
        ];
        let mut words = text.split(' ');
        let name = words.next().unwrap_or_default();
        if name == "NOTRACK" || (name == "CT" && words.any(|word| word == "--notrack")) {
            self.stage.untracked = true;
            self.state.connection = CtStates::UNTRACKED;
        } else if !HARMLESS.contains(&name) {
            return Next::End(Verdict::Unknown { why: format!("what `-j {text}` does") });
        }
        Next::GoOn
    }

    fn call(&mut self, chain: ChainName, goto: bool) -> Next {
        if self.stack.len() > MOST_CALLS {
            return Next::End(Verdict::Unknown { why: format!("where {chain} ends, which calls itself") });
        }
        let rules = self.rules.rules(self.stage.table(), chain);
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
        let head = self.rules.chain(self.stage.table(), chain).and_then(|chain| chain.head);
        let policy = head.and_then(|head| head.policy).unwrap_or(Policy::Accept);
        if !frame.rules.is_empty() || policy == Policy::Drop {
            self.path.note(|| Event::Policy { chain: chain.to_string(), policy: policy.as_str() });
        }
        match policy {
            Policy::Accept => Next::TablePassed,
            Policy::Drop => Next::End(Verdict::Dropped),
        }
    }

    fn next_table(&mut self) -> Result<(), Verdict> {
        self.stack.clear();
        if let Some(stage) = self.stage.next(self.state.packet.looped) {
            self.stage = stage;
        } else {
            let hook = self.state.packet.next_hook(self.stage.hook, &mut self.path)?;
            self.stage = self.stage.at(hook);
        }
        self.enter_table();
        Ok(())
    }

    fn enter_table(&mut self) {
        let (hook, table) = (self.stage.hook, self.stage.table());
        let name = hook.chain();
        let rules = self.rules.rules(table, name);
        if !rules.is_empty() {
            self.path.note(|| Event::Hook { hook, table: table.as_str(), chain: name.to_string() });
        }
        self.stack.push(Frame { name, rules, next: 0, goto: false });
    }

    /// The kernel says that a connection is translated only if there is something to change.
    fn translate(&mut self, after: SocketAddr) {
        let effect = self.state.packet.translate(after);
        if matches!(effect, Effect::Dnat { before, after } if before != after) {
            self.state.connection = self.state.connection.or(CtStates::DNAT);
        }
        self.effect(|| effect);
    }

    fn masquerade(&mut self, random_port: bool) -> Next {
        let effect = match self.state.packet.masquerade(&mut self.path) {
            Ok(effect) => effect,
            Err(verdict) => return Next::End(verdict),
        };
        if random_port || matches!(effect, Effect::Masquerade { before, after } if before != after) {
            self.state.connection = self.state.connection.or(CtStates::SNAT);
        }
        self.effect(|| effect);
        Next::TablePassed
    }

    fn note_rule(&mut self, rule: &Rule, number: usize, mismatch: Option<String>, chance: Option<f64>) {
        let depth = self.stack.len().saturating_sub(1);
        let chain = self.stack.last().map(|frame| frame.name);
        self.path.note_detail(|| Event::Rule {
            chain: chain.map(|name| name.to_string()).unwrap_or_default(),
            number,
            text: rule.to_string(),
            depth,
            mismatch,
            chance,
        });
    }

    fn effect(&mut self, effect: impl FnOnce() -> Effect) {
        let (hook, table) = (self.stage.hook, self.stage.table().as_str());
        let stack = &self.stack;
        self.path.note(|| Event::Effect {
            hook,
            table,
            path: stack.iter().map(|frame| frame.name.to_string()).collect(),
            effect: effect(),
        });
    }
}

/// Chains that may call each other. The kernel refuses loops, but text may have them.
const MOST_CALLS: usize = 64;
