use std::net::{IpAddr, SocketAddr};

use ferroute_iptables::{ChainName, CtStates, Policy, Rule, RuleSet, TableName, Target};

use super::{
    conditions::{Finding, State},
    path::Path,
};
use crate::{Effect, Ending, Event, Hook, Host, Origin, Packet, Verdict};

/// Stands at one rule of one chain with the packet as it is there.
#[derive(Clone)]
pub(super) struct Walker<'a, P> {
    rules: &'a RuleSet,
    host: &'a Host,
    sent: &'a Packet,
    state: State<'a>,
    /// What is still ahead at this stage: tables of the hook, and then where the hook leads.
    stage: Stage,
    /// Chains that called each other, the hook's own first.
    stack: Vec<Frame<'a>>,
    /// The connection's source and destination are decided once each.
    source_decided: bool,
    destination_decided: bool,
    /// The address that masquerading gives, once the packet has been routed.
    route_source: Option<IpAddr>,
    share: f64,
    assuming: Vec<String>,
    path: P,
}

/// A hook, and which of its tables the packet is in.
#[derive(Clone, Copy)]
struct Stage {
    hook: Hook,
    table: usize,
    /// The packet comes back through the loopback interface after the host has sent it to itself.
    looped: bool,
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

impl Hook {
    /// The hook's tables in the kernel's order. `nat` looks at arriving connections before routing and at leaving ones
    /// after it; a packet that comes back through loopback has been looked at.
    fn tables(self, looped: bool) -> &'static [TableName] {
        use TableName::{Filter, Mangle, Nat, Raw};
        match (self, looped) {
            (Self::Prerouting, false) => &[Raw, Mangle, Nat],
            (Self::Prerouting, true) => &[Raw, Mangle],
            (Self::Input, _) => &[Mangle, Filter, Nat],
            (Self::Forward, _) => &[Mangle, Filter],
            (Self::Output, _) => &[Raw, Mangle, Nat, Filter],
            (Self::Postrouting, _) => &[Mangle, Nat],
        }
    }

    fn chain(self) -> ChainName {
        match self {
            Self::Prerouting => ChainName::PREROUTING,
            Self::Input => ChainName::INPUT,
            Self::Forward => ChainName::FORWARD,
            Self::Output => ChainName::OUTPUT,
            Self::Postrouting => ChainName::POSTROUTING,
        }
    }
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
        };
        let mut walker = Self {
            rules,
            host,
            sent: packet,
            state,
            stage: Stage { hook, table: 0, looped: false },
            stack: Vec::new(),
            source_decided: false,
            destination_decided: false,
            route_source: None,
            share: 1.0,
            assuming: Vec::new(),
            path: P::default(),
        };
        if hook == Hook::Output {
            walker.choose_route();
        }
        walker.enter_table();
        walker
    }

    /// Goes on to the end. Where the way splits, `split` gets the walker for the other way; it returns false when there
    /// are too many already.
    pub(super) fn run(&mut self, split: &mut dyn FnMut(Self) -> bool) -> (Verdict, P) {
        loop {
            let next = match self.next_rule() {
                Some((rule, number)) => self.meet(rule, number, split),
                None => self.end_of_chain(),
            };
            let verdict = match next {
                Next::GoOn => continue,
                Next::TablePassed => match self.next_table() {
                    None => continue,
                    Some(verdict) => verdict,
                },
                Next::End(verdict) => verdict,
            };
            return (verdict, std::mem::take(&mut self.path));
        }
    }

    /// The walker's end, once it has one.
    pub(super) fn ending(&mut self, verdict: Verdict) -> Ending {
        Ending { verdict, share: self.share, assuming: std::mem::take(&mut self.assuming) }
    }

    fn next_rule(&mut self) -> Option<(&'a Rule, usize)> {
        let frame = self.stack.last_mut()?;
        let rule = frame.rules.get(frame.next)?;
        frame.next += 1;
        Some((rule, frame.next))
    }

    fn meet(&mut self, rule: &'a Rule, number: usize, split: &mut dyn FnMut(Self) -> bool) -> Next {
        match self.state.meets(rule, self.host) {
            Finding::Mismatch(mismatch) => {
                self.note_rule(rule, number, Some(mismatch.to_string()), None);
                Next::GoOn
            }
            Finding::Match => {
                self.note_rule(rule, number, None, None);
                self.apply(rule)
            }
            Finding::Chance(probability) => {
                let mut other = self.clone();
                other.share *= 1.0 - probability;
                other.note_rule(rule, number, Some(format!("by chance of {:.4}", 1.0 - probability)), None);
                if other.share > 0.0 && !split(other) {
                    return Next::End(too_many_ways());
                }
                self.share *= probability;
                self.note_rule(rule, number, None, Some(probability));
                self.apply(rule)
            }
            // What we do not know cannot matter to a rule that does nothing.
            Finding::Unknown(_) if rule.target.is_none() => Next::GoOn,
            Finding::Unknown(what) => {
                let mut other = self.clone();
                other.assuming.push(format!("not: {what}"));
                other.note_rule(rule, number, Some(format!("assuming that it is not true that {what}")), None);
                if !split(other) {
                    return Next::End(too_many_ways());
                }
                self.note_rule(rule, number, None, None);
                self.assuming.push(what);
                self.apply(rule)
            }
        }
    }

    fn apply(&mut self, rule: &'a Rule) -> Next {
        match rule.target.as_ref() {
            None => Next::GoOn,
            Some(Target::Jump(chain)) => self.call(*chain, false),
            Some(Target::Goto(chain)) => self.call(*chain, true),
            Some(Target::Return) => self.leave_chain(),
            Some(Target::Accept) => {
                self.effect(|| Effect::Accept);
                Next::TablePassed
            }
            Some(Target::Drop) => {
                self.effect(|| Effect::Drop);
                Next::End(Verdict::Dropped)
            }
            Some(Target::Reject(with)) => {
                self.effect(|| Effect::Reject { with: with.as_str().to_owned() });
                Next::End(Verdict::Rejected { with: with.as_str().to_owned() })
            }
            Some(Target::Mark { value, mask }) => {
                let before = self.state.mark;
                let after = (before & !mask) ^ value;
                self.state.mark = after;
                self.effect(|| Effect::Mark { before, after });
                Next::GoOn
            }
            Some(Target::Dnat { address, port }) => {
                self.translate(SocketAddr::new(*address, port.unwrap_or(self.state.destination.port())));
                Next::TablePassed
            }
            Some(Target::Masquerade { .. }) => {
                self.masquerade();
                Next::TablePassed
            }
            Some(Target::Other(text)) => self.apply_unknown(text),
        }
    }

    /// Targets that only look at a packet, or change what no rule of a service proxy asks about, let it go on.
    fn apply_unknown(&self, text: &str) -> Next {
        const HARMLESS: [&str; 12] = [
            "LOG", "NFLOG", "ULOG", "AUDIT", "TRACE", "CONNMARK", "CT", "SET", "TCPMSS", "DSCP", "CHECKSUM", "CLASSIFY",
        ];
        if text.split(' ').next().is_some_and(|name| HARMLESS.contains(&name)) {
            return Next::GoOn;
        }
        Next::End(Verdict::Unknown { why: format!("what `-j {text}` does") })
    }

    fn call(&mut self, chain: ChainName, goto: bool) -> Next {
        let table = self.table();
        if self.stack.len() > MOST_CALLS {
            return Next::End(Verdict::Unknown { why: format!("where {chain} ends, it calls itself") });
        }
        let rules = self.rules.rules(table, chain);
        self.stack.push(Frame { name: chain, rules, next: 0, goto });
        Next::GoOn
    }

    fn leave_chain(&mut self) -> Next {
        while let Some(frame) = self.stack.pop() {
            if self.stack.is_empty() {
                return self.policy(frame.name);
            }
            if !frame.goto {
                break;
            }
        }
        Next::GoOn
    }

    fn end_of_chain(&mut self) -> Next {
        if self.stack.is_empty() { Next::TablePassed } else { self.leave_chain() }
    }

    fn policy(&mut self, chain: ChainName) -> Next {
        let head = self.rules.chain(self.table(), chain).and_then(|chain| chain.head);
        let policy = head.and_then(|head| head.policy).unwrap_or(Policy::Accept);
        self.path.note(|| Event::Policy { chain: chain.to_string(), policy: policy.as_str() });
        match policy {
            Policy::Accept => Next::TablePassed,
            Policy::Drop => Next::End(Verdict::Dropped),
        }
    }

    fn next_table(&mut self) -> Option<Verdict> {
        self.stack.clear();
        self.stage.table += 1;
        if self.stage.table < self.stage.hook.tables(self.stage.looped).len() {
            self.enter_table();
            return None;
        }
        let owned = self.host.owns(self.state.destination.ip());
        let hook = match self.stage.hook {
            Hook::Prerouting => {
                if self.is_martian() {
                    return Some(Verdict::Dropped);
                }
                if owned { Hook::Input } else { Hook::Forward }
            }
            Hook::Output => Hook::Postrouting,
            Hook::Forward => Hook::Postrouting,
            Hook::Postrouting if owned => {
                self.stage.looped = true;
                self.state.in_interface = Some(LOOPBACK);
                self.state.out_interface = None;
                Hook::Prerouting
            }
            Hook::Input | Hook::Postrouting => return Some(self.delivered()),
        };
        if matches!(self.stage.hook, Hook::Prerouting | Hook::Output) && !self.choose_route() {
            return Some(Verdict::NoRoute);
        }
        self.stage = Stage { hook, table: 0, ..self.stage };
        self.enter_table();
        None
    }

    fn enter_table(&mut self) {
        let (hook, table) = (self.stage.hook, self.table());
        let name = hook.chain();
        let rules = self.rules.rules(table, name);
        if !rules.is_empty() {
            self.path.note(|| Event::Hook { hook, table: table.as_str(), chain: name.to_string() });
        }
        self.stack.push(Frame { name, rules, next: 0, goto: false });
    }

    /// Decides where the packet leaves; false if nobody knows a way.
    fn choose_route(&mut self) -> bool {
        let destination = self.state.destination.ip();
        let owned = self.host.owns(destination);
        let route = self.host.route(destination);
        let (interface, source) = match route {
            _ if owned => (Some(LOOPBACK), Some(destination)),
            Some(route) => (Some(route.interface.as_str()), Some(route.source)),
            None => (None, None),
        };
        let arriving_here = owned && self.stage.hook == Hook::Prerouting;
        self.state.out_interface = interface.filter(|_| !arriving_here);
        self.route_source = source;
        let to = self.state.out_interface.map(str::to_owned);
        self.path.note(|| Event::Routed { to });
        interface.is_some()
    }

    /// Addresses of 127.0.0.0/8 belong to no network, so a packet that brings one is dropped, unless told otherwise.
    fn is_martian(&self) -> bool {
        let loopback = [self.state.source.ip(), self.state.destination.ip()].iter().any(IpAddr::is_loopback);
        loopback && !self.stage.looped && self.state.in_interface != Some(LOOPBACK) && !self.host.route_localnet
    }

    fn translate(&mut self, after: SocketAddr) {
        let before = self.state.destination;
        if std::mem::replace(&mut self.destination_decided, true) {
            return;
        }
        self.state.destination = after;
        self.state.connection = self.state.connection.or(CtStates::DNAT);
        self.effect(|| Effect::Dnat { before, after });
    }

    fn masquerade(&mut self) {
        let before = self.state.source.ip();
        let Some(after) = self.route_source.filter(|_| !self.source_decided) else { return };
        self.source_decided = true;
        self.state.source.set_ip(after);
        self.state.connection = self.state.connection.or(CtStates::SNAT);
        self.effect(|| Effect::Masquerade { before, after });
    }

    fn delivered(&self) -> Verdict {
        Verdict::Delivered {
            to: self.state.destination,
            from: self.state.source.ip(),
            translated: self.state.destination != self.sent.destination,
        }
    }

    fn table(&self) -> TableName {
        self.stage.hook.tables(self.stage.looped)[self.stage.table]
    }

    fn note_rule(&mut self, rule: &Rule, number: usize, mismatch: Option<String>, chance: Option<f64>) {
        let depth = self.stack.len().saturating_sub(1);
        let chain = self.stack.last().map(|frame| frame.name);
        self.path.note(|| Event::Rule {
            chain: chain.map(|name| name.to_string()).unwrap_or_default(),
            number,
            text: rule.to_string(),
            depth,
            mismatch,
            chance,
        });
    }

    fn effect(&mut self, effect: impl FnOnce() -> Effect) {
        let (hook, table) = (self.stage.hook, self.table().as_str());
        let stack = &self.stack;
        self.path.note(|| Event::Effect {
            hook,
            table,
            path: stack.iter().map(|frame| frame.name.to_string()).collect(),
            effect: effect(),
        });
    }
}

fn too_many_ways() -> Verdict {
    Verdict::Unknown { why: "too many ways are open".to_owned() }
}

/// The loopback interface.
const LOOPBACK: &str = "lo";

/// Chains that may call each other. The kernel refuses loops, but text may have them.
const MOST_CALLS: usize = 64;
