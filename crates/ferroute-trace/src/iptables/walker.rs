use std::net::SocketAddr;

use ferroute_core::IpFamily;
use ferroute_iptables::{ChainName, CtStates, Policy, Rule, RuleSet, Target};

use super::{
    conditions::{Finding, State},
    path::Path,
    stage::Stage,
};
use crate::{Assumption, Effect, Ending, Event, Hook, Host, Origin, Packet, Verdict, host::Way};

/// Stands at one rule of one chain with the packet as it is there.
#[derive(Clone)]
pub(super) struct Walker<'a, P> {
    rules: &'a RuleSet,
    host: &'a Host,
    sent: &'a Packet,
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
        let (hook, in_interface) = match &packet.origin {
            Origin::Local => (Hook::Output, None),
            Origin::Interface(name) => (Hook::Prerouting, Some(name.as_str())),
        };
        let state = State {
            protocol: packet.protocol,
            source: packet.source,
            destination: packet.destination,
            in_interface,
            out_interface: None,
            mark: packet.mark,
            connection: CtStates::NEW,
            remembered: &packet.remembered,
            explains: P::EXPLAINS,
        };
        Self {
            rules,
            host,
            sent: packet,
            state,
            stage: Stage::first(hook),
            stack: Vec::new(),
            share: 1.0,
            assuming: Vec::new(),
            path: P::default(),
        }
    }

    /// Goes to the first rule; the packet may end before it.
    pub(super) fn start(&mut self) -> Result<(), Verdict> {
        match &self.sent.origin {
            // IPv6 looks before all rules whether an address says that the packet can only come from the host itself.
            Origin::Interface(name) if name != LOOPBACK && self.sent.family() == IpFamily::V6 => {
                let loopback = [self.state.source, self.state.destination].iter().any(|end| end.ip().is_loopback());
                if loopback {
                    return Err(self.discard("addresses of the loopback interface come from outside"));
                }
            }
            Origin::Interface(_) => {}
            // Without a way, the program's call fails.
            Origin::Local => self.route()?,
        }
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
        let (chance, unknown) = match self.state.meets(rule, self.host) {
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
                self.translate(SocketAddr::new(*address, port.unwrap_or(self.state.destination.port())));
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
        if let Some(stage) = self.stage.next() {
            self.stage = stage;
        } else {
            let hook = self.next_hook()?;
            self.stage = self.stage.at(hook);
        }
        self.enter_table();
        Ok(())
    }

    /// Where the packet is when all tables of a hook have let it pass; or its end.
    fn next_hook(&mut self) -> Result<Hook, Verdict> {
        let here = self.host.owns(self.state.destination.ip());
        match self.stage.hook {
            Hook::Prerouting => {
                if self.state.in_interface != Some(LOOPBACK) {
                    self.refuse_martian()?;
                }
                self.route()?;
                Ok(if here { Hook::Input } else { Hook::Forward })
            }
            Hook::Output => {
                // The rules may have changed the destination.
                self.route()?;
                Ok(Hook::Postrouting)
            }
            Hook::Forward => Ok(Hook::Postrouting),
            Hook::Postrouting if here => {
                self.stage.looped = true;
                self.state.in_interface = Some(LOOPBACK);
                self.state.out_interface = None;
                Ok(Hook::Prerouting)
            }
            Hook::Input | Hook::Postrouting => Err(Verdict::Delivered {
                to: self.state.destination,
                from: self.state.source.ip(),
                translated: self.state.destination != self.sent.destination,
                through: self.state.out_interface.map(str::to_owned),
            }),
        }
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

    /// Finds the packet's way; there may be none.
    fn route(&mut self) -> Result<(), Verdict> {
        let way = self.host.way(self.state.destination.ip());
        let sent_here = self.stage.hook == Hook::Output;
        self.state.out_interface = match way {
            None => return Err(Verdict::NoRoute),
            Some(Way::Here) => sent_here.then_some(LOOPBACK),
            Some(Way::Through(route)) => Some(route.interface.as_str()),
        };
        if !self.stage.looped {
            let to = self.state.out_interface.map(str::to_owned);
            self.path.note(|| Event::Routed { to });
        }
        let leaves = matches!(way, Some(Way::Through(_)));
        if sent_here && leaves && self.state.source.ip().is_loopback() && !self.routes_localnet() {
            return Err(self.discard("a loopback address must not leave the host without route_localnet"));
        }
        Ok(())
    }

    /// Drops IPv4 packets from outside that say that they are from or to the host's inside.
    fn refuse_martian(&mut self) -> Result<(), Verdict> {
        if self.sent.family() == IpFamily::V6 {
            return Ok(());
        }
        if self.state.destination.ip().is_loopback() && !self.host.route_localnet {
            return Err(self.discard("it is for a loopback address, without route_localnet"));
        }
        if self.host.is_forged(self.state.source.ip()) {
            return Err(self.discard("it comes from outside with an address of the host itself"));
        }
        Ok(())
    }

    fn routes_localnet(&self) -> bool {
        self.host.route_localnet && self.sent.family() == IpFamily::V4
    }

    fn discard(&mut self, why: &'static str) -> Verdict {
        self.path.note(|| Event::Discarded { why });
        Verdict::Dropped
    }

    /// The kernel says that a connection is translated only if there is something to change.
    fn translate(&mut self, after: SocketAddr) {
        let before = std::mem::replace(&mut self.state.destination, after);
        if before != after {
            self.state.connection = self.state.connection.or(CtStates::DNAT);
        }
        self.effect(|| Effect::Dnat { before, after });
    }

    fn masquerade(&mut self, random_port: bool) -> Next {
        let before = self.state.source.ip();
        let Some(after) = self.host.masquerade_source(self.state.destination.ip()) else {
            return Next::End(self.discard("there is no address to masquerade with"));
        };
        self.state.source.set_ip(after);
        if before != after || random_port {
            self.state.connection = self.state.connection.or(CtStates::SNAT);
        }
        self.effect(|| Effect::Masquerade { before, after });
        Next::TablePassed
    }

    fn note_rule(&mut self, rule: &Rule, number: usize, mismatch: Option<String>, chance: Option<f64>) {
        let depth = self.stack.len().saturating_sub(1);
        let chain = self.stack.last().map(|frame| frame.name);
        self.path.note_rule(|| Event::Rule {
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

/// The loopback interface.
const LOOPBACK: &str = "lo";

/// Chains that may call each other. The kernel refuses loops, but text may have them.
const MOST_CALLS: usize = 64;
