use std::{borrow::Cow, fmt, net::SocketAddr};

use ferroute_nftables::model::Property;

use crate::{
    Assumption, Effect, Event, Hook, Host, Packet, Verdict,
    event::negation,
    iptables::{field_value, implied},
    record::{Detail, Record},
    ruleset::{BaseChain, Ruleset},
    state::PacketState,
};

/// A packet at some point of its walk, with the history of the branch.
#[derive(Clone)]
pub struct Walker<'a> {
    /// The packet.
    pub packet: PacketState<'a>,
    /// Current position; `None` before the first hook.
    position: Option<Position>,
    pub(crate) share: f64,
    pub(crate) assumptions: Vec<Assumption>,
    /// Source and destination of the packet at each assumption. The assumption holds until one of them changes.
    subjects: Vec<(SocketAddr, SocketAddr)>,
    /// The hashes of the packet so far, each with the source and destination that it holds for.
    numbers: Vec<(Property, (SocketAddr, SocketAddr), u32)>,
    pub(crate) record: Record,
}

/// A match that cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unknown {
    /// The condition, as a sentence.
    pub(crate) condition: String,
    /// The match succeeds if the condition is false.
    pub(crate) negated: bool,
    /// The part of a rule whose condition this is, if another one with the same text may have another result.
    part: Option<usize>,
}

impl Unknown {
    pub(crate) fn new(condition: String) -> Self {
        Self { condition, negated: false, part: None }
    }

    pub(crate) fn negated(self, negated: bool) -> Self {
        Self { negated, ..self }
    }

    /// Sets the part of a rule that has the condition.
    pub(crate) fn of<T>(self, part: &T) -> Self {
        let has = |words: &[&str]| words.iter().any(|word| self.condition.starts_with(word));
        let is_separate = has(&SEPARATE) && !has(&NAMED) || self.condition.contains(" …");
        Self { part: is_separate.then(|| std::ptr::from_ref(part).addr()), ..self }
    }

    /// Returns the condition, with the part of the rule if there is one.
    fn key(&self) -> Cow<'_, str> {
        match self.part {
            None => Cow::Borrowed(&self.condition),
            Some(part) => Cow::Owned(format!("{}{PART}{part:x}", self.condition)),
        }
    }

    /// Returns the condition under which the match fails.
    pub(crate) fn opposite(&self) -> String {
        Self { negated: !self.negated, ..self.clone() }.to_string()
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.negated { f.write_str(&negation(&self.condition)) } else { f.write_str(&self.condition) }
    }
}

/// Removes the parts of rules from the conditions of one branch.
pub(crate) fn without_parts(assumptions: &[Assumption]) -> Vec<Assumption> {
    let text = |assumption: &Assumption| assumption.condition.split(PART).next().unwrap_or_default().to_owned();
    let shown = |(n, assumption): (usize, &Assumption)| {
        let condition = text(assumption);
        let is_another = assumptions[..n].iter().any(|earlier| text(earlier) == condition);
        let condition = if is_another { format!("another {condition}") } else { condition };
        Assumption { condition, ..*assumption }
    };
    assumptions.iter().enumerate().map(shown).collect()
}

#[derive(Clone, Copy)]
struct Position {
    hook: Hook,
    /// The index of the next base chain at the hook.
    next: usize,
}

/// The verdict of a base chain.
pub enum ChainVerdict {
    /// The packet continues with the next chain of the hook (`NF_ACCEPT`).
    Continue,
    /// The walk ends.
    End(Verdict),
    /// The chain steals the packet (`NF_STOLEN`) and sends it to its current destination, from the output hook. The
    /// connection's destination is settled, so that NAT chains of the output hook are skipped. ipvs forwards packets in
    /// this way.
    Resend,
}

/// The branches of a walk that are still to be evaluated.
#[derive(Default)]
pub struct Forks<'a> {
    branches: Vec<Fork<'a>>,
    /// The weight of all leaves so far, and of these branches, of which each has at least one.
    weight: usize,
    /// Number of rules that were evaluated after the first fork.
    rules: usize,
    /// Number of rules that were evaluated.
    all_rules: usize,
}

struct Fork<'a> {
    walker: Walker<'a>,
    /// Rest of the base chain; `None` between two base chains.
    rest: Option<Box<Rest<'a>>>,
}

type Rest<'a> = dyn FnOnce(&mut Walker<'a>, &mut Forks<'a>) -> ChainVerdict + 'a;

/// An iterator over the leaves of a trace tree, depth first. Each branch is only evaluated on demand.
pub(crate) struct Walk<'a> {
    rules: &'a Ruleset<'a>,
    forks: Forks<'a>,
}

impl<'a> Walker<'a> {
    fn new(rules: &'a Ruleset<'a>, host: &'a Host, packet: &'a Packet, detail: Detail) -> Self {
        let packet = PacketState::new(host, rules, packet, detail == Detail::Events);
        Self {
            packet,
            position: None,
            share: 1.0,
            assumptions: Vec::new(),
            subjects: Vec::new(),
            numbers: Vec::new(),
            record: Record::new(detail),
        }
    }

    /// Returns the current hook.
    pub fn hook(&self) -> Hook {
        self.position.map_or(Hook::Prerouting, |position| position.hook)
    }

    /// Multiplies the probability of this branch by `chance`.
    pub fn multiply_share(&mut self, chance: f64) {
        self.share *= chance;
    }

    /// Adds an assumption about a condition that cannot be evaluated.
    pub fn assume(&mut self, condition: String, holds: bool) {
        self.assumptions.push(Assumption { condition, holds });
        self.subjects.push((self.packet.source, self.packet.destination));
    }

    /// Returns the existing assumption of this branch about a condition that cannot be evaluated: that it is true or
    /// false, or that the same field has another value.
    pub fn assumed(&self, condition: &str) -> Option<bool> {
        let subject = (self.packet.source, self.packet.destination);
        let known = self.assumptions.iter().zip(&self.subjects);
        let known = || known.clone().filter(|(_, about)| **about == subject).map(|(assumption, _)| assumption);
        let same = known().find(|assumption| assumption.condition == condition).map(|assumption| assumption.holds);
        let implied = || known().find_map(|other| implied(&other.condition, other.holds, condition));
        same.or_else(implied).or_else(|| {
            let (field, value) = field_value(condition)?;
            let values =
                known().filter(|assumption| assumption.holds).filter_map(|other| field_value(&other.condition));
            values.into_iter().any(|(other, known)| other == field && known != value).then_some(false)
        })
    }

    /// Remembers the value of a hash.
    pub(crate) fn remember_number(&mut self, property: Property, number: u32) {
        self.numbers.push((property, (self.packet.source, self.packet.destination), number));
    }

    /// Returns the value of a hash in this branch.
    pub(crate) fn number(&self, property: Property) -> Option<u32> {
        let subject = (self.packet.source, self.packet.destination);
        let known = self.numbers.iter().find(|(known, about, _)| *known == property && *about == subject);
        known.map(|(.., number)| *number)
    }

    /// Returns the existing assumption of this branch about a match.
    pub(crate) fn decide(&self, unknown: &Unknown) -> Option<bool> {
        self.assumed(&unknown.key()).map(|holds| holds != unknown.negated)
    }

    /// Assumes that a match that cannot be evaluated matches, or does not.
    pub(crate) fn assume_match(&mut self, unknown: &Unknown, matches: bool) {
        self.assume(unknown.key().into_owned(), matches != unknown.negated);
    }

    /// Records an event; see [`record_effect`](Self::record_effect) for effects. The event is built only if it is kept.
    pub fn record(&mut self, event: impl FnOnce() -> Event) {
        self.record.detail(event);
    }

    /// Records an effect of a rule, with the rule's table and the call stack from the base chain.
    pub fn record_effect(&mut self, table: &str, path: &[&str], effect: Effect) {
        let hook = self.hook();
        self.record.step(|| {
            let path = path.iter().map(|&chain| chain.to_owned()).collect();
            Event::Effect { hook, table: table.to_owned().into(), path, effect }
        });
    }

    /// Moves to the next base chain, through routing and to the next hook if necessary. If a route has several paths,
    /// each gets a branch.
    fn advance(&mut self, rules: &'a Ruleset<'a>, forks: &mut Forks<'a>) -> Result<&'a dyn BaseChain, Verdict> {
        loop {
            let Position { hook, next } = match self.position {
                Some(position) => {
                    if let Some(last) =
                        position.next.checked_sub(1).and_then(|last| rules.chains(position.hook).get(last))
                    {
                        self.packet.leave_chain(position.hook, last.as_ref());
                    }
                    position
                }
                None => {
                    let hook = self.on_each_path(forks, |walker| walker.packet.first_hook(&mut walker.record))?;
                    Position { hook, next: 0 }
                }
            };
            let mut chains = rules.chains(hook).iter().enumerate().skip(next);
            let tracks = matches!(hook, Hook::Prerouting | Hook::Output);
            let is_tracked = |chain: &dyn BaseChain| tracks && chain.priority() > CONNTRACK_PRIORITY;
            let next = chains.find(|(_, chain)| {
                if is_tracked(chain.as_ref()) {
                    self.packet.track();
                }
                !chain.is_nat() || self.packet.sees_nat()
            });
            if let Some((index, chain)) = next {
                self.position = Some(Position { hook, next: index + 1 });
                self.packet.enter_chain();
                return Ok(chain.as_ref());
            }
            self.packet.track();
            let hook = self.on_each_path(forks, |walker| walker.packet.next_hook(hook, &mut walker.record))?;
            self.position = Some(Position { hook, next: 0 });
        }
    }

    /// Takes a step that routes the packet, and adds branches for the other paths of the route.
    fn on_each_path<T>(
        &mut self,
        forks: &mut Forks<'a>,
        step: impl FnOnce(&mut Self) -> Result<T, Verdict>,
    ) -> Result<T, Verdict> {
        if !self.packet.host.router.as_ref().is_some_and(|router| router.has_several_paths()) {
            return step(self);
        }
        self.packet.paths.clear();
        let before = self.clone();
        let result = step(self);
        let weights = std::mem::take(&mut self.packet.paths);
        let all: u32 = weights.iter().sum();
        for (path, weight) in weights.iter().enumerate().rev() {
            let share = f64::from(*weight) / f64::from(all);
            if path == 0 {
                self.multiply_share(share);
            } else {
                let mut other = before.clone();
                other.packet.path = Some(path);
                other.multiply_share(share);
                forks.add(other, None);
            }
        }
        result
    }

    /// Returns the weight of a leaf of this branch.
    fn weight(&self) -> usize {
        if self.assumptions.is_empty() { 1 } else { ASSUMPTION_WEIGHT }
    }

    fn resend(&mut self) -> Result<(), Verdict> {
        let hook = self.packet.resend(&mut self.record)?;
        self.position = Some(Position { hook, next: 0 });
        Ok(())
    }
}

impl<'a> Forks<'a> {
    /// Adds a branch, which continues in the current base chain with `rest`. The branch that was added last is
    /// evaluated first, when the current one has ended.
    pub fn push<F>(&mut self, walker: Walker<'a>, rest: F)
    where
        F: FnOnce(&mut Walker<'a>, &mut Self) -> ChainVerdict + 'a,
    {
        self.add(walker, Some(Box::new(rest)));
    }

    fn add(&mut self, walker: Walker<'a>, rest: Option<Box<Rest<'a>>>) {
        self.weight += walker.weight();
        self.branches.push(Fork { walker, rest });
    }

    fn pop(&mut self) -> Option<Fork<'a>> {
        let fork = self.branches.pop()?;
        self.weight -= fork.walker.weight();
        Some(fork)
    }

    /// Returns the verdict that ends the walk, if there are too many branches to follow all.
    pub(crate) fn excess(&self) -> Option<Verdict> {
        (self.weight >= MAX_LEAVES || self.rules >= MAX_RULES).then(too_many_branches)
    }

    /// Counts a rule, and returns the verdict that ends the walk like [`excess`](Self::excess).
    pub(crate) fn count_rule(&mut self) -> Option<Verdict> {
        self.all_rules += 1;
        // However long the rules are, a single path through them is followed.
        self.rules += usize::from(self.weight > 0);
        self.excess()
    }
}

impl<'a> Walk<'a> {
    pub(crate) fn new(rules: &'a Ruleset<'a>, host: &'a Host, packet: &'a Packet, detail: Detail) -> Self {
        let mut forks = Forks::default();
        forks.add(Walker::new(rules, host, packet, detail), None);
        Self { rules, forks }
    }

    /// Returns the number of rules that were evaluated after the first fork.
    pub(crate) fn rules(&self) -> usize {
        self.forks.rules
    }

    /// Returns the number of rules that were evaluated.
    pub(crate) fn all_rules(&self) -> usize {
        self.forks.all_rules
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = (Verdict, Walker<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let excess = self.forks.excess();
            let Fork { mut walker, rest } = self.forks.pop()?;
            if let Some(verdict) = excess {
                self.forks.branches.clear();
                return Some((verdict, walker));
            }
            let verdict = match rest {
                Some(rest) => rest(&mut walker, &mut self.forks),
                None => match walker.advance(self.rules, &mut self.forks) {
                    Ok(chain) => chain.walk(&mut walker, &mut self.forks),
                    Err(verdict) => ChainVerdict::End(verdict),
                },
            };
            let end = match verdict {
                ChainVerdict::Continue => None,
                ChainVerdict::Resend => walker.resend().err(),
                ChainVerdict::End(verdict) => Some(verdict),
            };
            match end {
                None => self.forks.add(walker, None),
                Some(verdict) => {
                    self.forks.weight += walker.weight();
                    if matches!(verdict, Verdict::Unknown { .. }) && self.forks.excess().is_some() {
                        self.forks.branches.clear();
                    }
                    return Some((verdict, walker));
                }
            }
        }
    }
}

/// Returns the verdict of a walk that was not completed.
pub(crate) fn too_many_branches() -> Verdict {
    Verdict::Unknown { reason: "there are too many branches to follow all".to_owned() }
}

/// Returns the reason why the walk ends at the call of a chain.
pub(crate) fn too_many_calls(chain: impl fmt::Display) -> String {
    format!("result of chain {chain}, after {MAX_CALLS} calls of chains")
}

/// The priority at which packets get their connection (`NF_IP_PRI_CONNTRACK`).
const CONNTRACK_PRIORITY: i32 = -200;

/// The maximum number of leaves. Each endpoint needs one, and nftables mode has 16-bit endpoint numbers.
const MAX_LEAVES: usize = 1 << 17;

/// The weight of a leaf that depends on assumptions, each of which may double the number of branches.
const ASSUMPTION_WEIGHT: usize = 128;

/// The maximum number of rules that are evaluated in all branches but the first.
const MAX_RULES: usize = 1 << 23;

/// Maximum number of chains that a packet enters from one base chain. The kernel rejects loops, but a file may contain them,
/// and a few chains that call each other several times are entered millions of times.
pub(crate) const MAX_CALLS: usize = 1024;

/// Separates a condition from the part of a rule that has it.
const PART: char = '\0';
/// Beginnings of conditions that each rule has for itself: limits count separately, and `nft` omits the options of
/// modules of `iptables`.
const SEPARATE: [&str; 6] = ["`xt match ", "`limit ", "`quota ", "`-m limit ", "`-m hashlimit ", "`-m quota "];
/// Beginnings of conditions on named objects, which rules share.
const NAMED: [&str; 2] = ["`limit name ", "`quota name "];
