use std::{
    borrow::Cow,
    collections::{HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

use crate::{
    Assumption, Effect, Event, Hook, Verdict,
    walk::{Walker, too_many_branches, without_parts},
};

/// All possible results of a packet. Leaves that differ only in the randomly selected endpoint are merged into one
/// branch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The branches, in the order of the rules; never empty for the trace of a packet.
    pub branches: Vec<Branch>,
}

/// A branch of a [`Trace`]: all leaves with the same steps, except for the endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Branch {
    /// The probability of the branch; see [`Leaf::share`](crate::Leaf::share).
    pub share: f64,
    /// Assumptions about conditions that cannot be evaluated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<Assumption>,
    /// Other combinations of assumptions with the same result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Vec<Assumption>>,
    /// Changes and verdicts, in order.
    pub steps: Vec<Step>,
    /// New destinations after a DNAT: one, or those of [`Step::Choice`]; empty without DNAT.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choice>,
    /// Result; with several choices, the result of the first one.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// All events, in order; with several choices, the events of the first one. Empty in a summary, and
    /// in the last branches of a trace that would have too many events.
    pub events: Vec<Event>,
}

/// A step of a [`Branch`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "step")]
pub enum Step {
    /// A rule changes the packet or ends the walk.
    Effect {
        /// The hook.
        hook: Hook,
        /// The rule's table.
        table: Cow<'static, str>,
        /// The call stack, base chain first.
        path: Vec<String>,
        /// The effect.
        #[serde(flatten)]
        effect: Effect,
    },
    /// A DNAT, or a connection of a userspace proxy, to one of several endpoints.
    Choice {
        /// The hook.
        hook: Hook,
        /// The rules' table.
        table: Cow<'static, str>,
        /// Part of the call stack that all endpoints have in common, base chain first.
        path: Vec<String>,
        /// The old destination.
        before: SocketAddr,
        /// Whether a process accepts the connection and opens another one to the endpoint.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        relayed: bool,
    },
    /// A masquerade whose new source depends on the endpoint.
    Masquerade {
        /// The hook.
        hook: Hook,
        /// The rule's table.
        table: Cow<'static, str>,
        /// The call stack, base chain first.
        path: Vec<String>,
        /// The old source.
        before: IpAddr,
    },
    /// The kernel drops the packet without a rule.
    Discarded {
        /// The kernel's reason.
        reason: Cow<'static, str>,
    },
}

/// An endpoint that may be selected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The probability; see [`Leaf::share`](crate::Leaf::share).
    pub share: f64,
    /// Chain or map element of the endpoint; the first one if there are several.
    pub chain: String,
    /// The endpoint's address and port.
    pub to: SocketAddr,
    /// The source address that the endpoint sees.
    pub from: IpAddr,
    /// The output interface; `None` if the endpoint is on the host itself.
    pub interface: Option<String>,
}

/// The overall result of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The packet reaches an endpoint in all branches.
    Delivered,
    /// In some branch, the packet is rejected or dropped, has no route, or is not for a Service.
    NotDelivered,
    /// The result depends on conditions that cannot be evaluated.
    Unknown,
}

impl Trace {
    /// Reports whether two traces of a packet have the same results.
    pub fn ends_like(&self, other: &Self) -> bool {
        let are_equal = |one: &Branch, other: &Branch| {
            let ends =
                |branch: &Branch| branch.choices.iter().map(|choice| (choice.to, choice.from)).collect::<Vec<_>>();
            one.verdict == other.verdict && ends(one) == ends(other)
        };
        let is_within = |all: &Self, others: &Self| {
            all.branches.iter().all(|one| others.branches.iter().any(|other| are_equal(one, other)))
        };
        is_within(self, other) && is_within(other, self)
    }

    /// Returns the overall result.
    pub fn outcome(&self) -> Outcome {
        let is_unknown = |branch: &Branch| matches!(branch.verdict, Verdict::Unknown { .. });
        let is_delivered = |branch: &Branch| matches!(branch.verdict, Verdict::Delivered { translated: true, .. });
        let is_certain = self.branches.iter().all(|branch| branch.assumptions.is_empty());
        if self.branches.is_empty() || self.branches.iter().any(is_unknown) {
            Outcome::Unknown
        } else if self.branches.iter().all(is_delivered) {
            Outcome::Delivered
        } else if is_certain || !self.branches.iter().any(is_delivered) {
            Outcome::NotDelivered
        } else {
            Outcome::Unknown
        }
    }
}

/// The branches of a trace while its leaves are added, each with the number of its first leaf.
#[derive(Default)]
pub(crate) struct Branches {
    branches: Vec<(Branch, usize)>,
    /// Indices of the branches by the hash of what their leaves have in common.
    index: HashMap<u64, Vec<usize>>,
    leaves: usize,
    /// Number of steps of all branches.
    steps: usize,
}

impl Branches {
    /// Adds a leaf: merges it into a branch with the same steps, or adds a branch. Returns `false` if there are too many.
    pub(crate) fn add(&mut self, verdict: Verdict, walker: &Walker<'_>) -> bool {
        let mut new = Branch::new(verdict, walker);
        let leaf = self.leaves;
        self.leaves += 1;
        let known = self.index.entry(new.steps_hash()).or_default();
        let same = known.iter().copied().find(|n| self.branches[*n].0.has_same_steps(&new));
        if let Some((branch, _)) = same.and_then(|n| self.branches.get_mut(n)) {
            branch.merge(new);
            return true;
        }
        let is_excess = self.branches.len() + 1 == MAX_BRANCHES || self.steps + new.steps.len() > MAX_STEPS;
        if is_excess {
            new.verdict = too_many_branches();
        }
        self.steps += new.steps.len();
        known.push(self.branches.len());
        self.branches.push((new, leaf));
        !is_excess
    }

    /// Merges branches with the same result under all assumptions, and those with the same result under several
    /// assumptions. Returns the trace and the number of the first leaf of each branch.
    pub(crate) fn merge_equal_ends(mut self) -> (Trace, Vec<usize>) {
        self.branches.iter_mut().for_each(|(branch, _)| branch.merge_choices());
        self.drop_assumptions();
        let mut merged: Vec<(Branch, usize)> = Vec::new();
        let mut ends: HashMap<u64, Vec<usize>> = HashMap::new();
        for (branch, leaf) in self.branches {
            if !branch.assumptions.is_empty() {
                let known = ends.entry(branch.end_hash()).or_default();
                if let Some(n) = known.iter().copied().find(|n| merged[*n].0.ends_like(&branch)) {
                    merged[n].0.alternatives.push(branch.assumptions);
                    continue;
                }
                known.push(merged.len());
            }
            merged.push((branch, leaf));
        }
        for (branch, _) in &mut merged {
            for assumptions in branch.alternatives.iter_mut().chain([&mut branch.assumptions]) {
                *assumptions = without_parts(assumptions);
            }
        }
        let (branches, leaves) = merged.into_iter().unzip();
        (Trace { branches }, leaves)
    }

    /// Merges branches with the same result that differ in one assumption, which is irrelevant, as long as there are
    /// any.
    fn drop_assumptions(&mut self) {
        let mut branches: Vec<Option<(Branch, usize)>> =
            std::mem::take(&mut self.branches).into_iter().map(Some).collect();
        let ends: Vec<u64> = branches.iter().flatten().map(|(branch, _)| branch.end_hash()).collect();
        // A branch is found by its end and its assumptions in any order.
        let key = |n: usize, sum: u64| hash(&(ends[n], sum));
        let sum = |assumptions: &[Assumption]| assumptions.iter().map(hash).fold(0, u64::wrapping_add);
        let mut index: HashMap<u64, Vec<usize>> = HashMap::new();
        for (n, (branch, _)) in branches.iter().flatten().enumerate() {
            index.entry(key(n, sum(&branch.assumptions))).or_default().push(n);
        }
        let mut queue: VecDeque<usize> = (0..branches.len()).collect();
        while let Some(n) = queue.pop_front() {
            let Some((one, _)) = &branches[n] else { continue };
            let all = sum(&one.assumptions);
            let partner = |assumption: &Assumption| {
                let opposite = Assumption { holds: !assumption.holds, ..assumption.clone() };
                let wanted = all.wrapping_sub(hash(assumption)).wrapping_add(hash(&opposite));
                let candidates = index.get(&key(n, wanted))?.iter();
                let candidates = candidates.filter_map(|other| Some((*other, &branches[*other].as_ref()?.0)));
                let mut candidates = candidates.filter(|(_, other)| one.ends_like(other));
                candidates.find(|(_, other)| irrelevant_assumption(&one.assumptions, &other.assumptions).is_some())
            };
            let Some((other, _)) = one.assumptions.iter().find_map(partner) else { continue };
            // The first branch remains.
            let (first, last) = (n.min(other), n.max(other));
            let dropped = branches[last].take();
            if let (Some((branch, _)), Some((dropped, _))) = (&mut branches[first], dropped) {
                if let Some(irrelevant) = irrelevant_assumption(&branch.assumptions, &dropped.assumptions) {
                    branch.assumptions.remove(irrelevant);
                }
                index.entry(key(first, sum(&branch.assumptions))).or_default().push(first);
            }
            queue.push_front(first);
        }
        self.branches = branches.into_iter().flatten().collect();
    }
}

/// Returns the index in `one` of the only assumption that has the opposite value in `other`.
fn irrelevant_assumption(one: &[Assumption], other: &[Assumption]) -> Option<usize> {
    if one.len() != other.len() {
        return None;
    }
    let known: HashSet<&Assumption> = other.iter().collect();
    let mut differing = one.iter().enumerate().filter(|(_, assumption)| !known.contains(assumption));
    let (index, assumption) = differing.next()?;
    let opposite = Assumption { holds: !assumption.holds, ..assumption.clone() };
    (differing.next().is_none() && known.contains(&opposite)).then_some(index)
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Branch {
    /// Reports whether packets of two branches have the same result; marks and accepting rules are ignored. Each
    /// endpoint must have the same share.
    fn ends_like(&self, other: &Self) -> bool {
        (self.share - other.share).abs() < 1e-9
            && self.verdict == other.verdict
            && self.choices == other.choices
            && self.relevant_steps().eq(other.relevant_steps())
    }

    fn relevant_steps(&self) -> impl Iterator<Item = &Step> {
        use Effect::{Accept, Mark};
        self.steps.iter().filter(|step| !matches!(step, Step::Effect { effect: Accept | Mark { .. }, .. }))
    }

    /// Returns a hash that is equal for branches that [end alike](Self::ends_like).
    fn end_hash(&self) -> u64 {
        let endpoints: Vec<(SocketAddr, IpAddr)> = self.choices.iter().map(|choice| (choice.to, choice.from)).collect();
        let steps: Vec<u64> = self.relevant_steps().map(Step::similar_hash).collect();
        hash(&(&self.verdict, endpoints, steps))
    }

    /// Returns a hash that is equal for branches that have the [same steps](Self::has_same_steps).
    fn steps_hash(&self) -> u64 {
        let steps: Vec<u64> = self.steps.iter().map(Step::similar_hash).collect();
        let verdict = match &self.verdict {
            Verdict::Delivered { .. } => None,
            other => Some(other),
        };
        hash(&(verdict, &self.assumptions, steps))
    }

    /// A branch with one leaf, without its events.
    fn new(verdict: Verdict, walker: &Walker<'_>) -> Self {
        let share = walker.share;
        let mut choices = Vec::new();
        let mut steps = Vec::new();
        for event in walker.record.steps() {
            match event {
                Event::Effect { hook, table, path, effect } => {
                    if let (
                        Effect::Dnat { after, .. } | Effect::Connect { after, .. },
                        Verdict::Delivered { to, from, interface, .. },
                    ) = (&effect, &verdict)
                        && after == to
                    {
                        let chain = path.last().cloned().unwrap_or_default();
                        choices.push(Choice { share, chain, to: *to, from: *from, interface: interface.clone() });
                    }
                    steps.push(Step::Effect { hook, table, path, effect });
                }
                Event::Discarded { reason } => steps.push(Step::Discarded { reason: reason.clone() }),
                Event::Hook { .. } | Event::Rule { .. } | Event::Policy { .. } | Event::Routed { .. } => {}
            }
        }
        Self {
            share,
            assumptions: walker.assumptions.clone(),
            alternatives: Vec::new(),
            steps,
            choices,
            verdict,
            events: Vec::new(),
        }
    }

    /// Reports whether two branches differ only in the selected endpoint and its consequences.
    fn has_same_steps(&self, other: &Self) -> bool {
        let same_verdict = match (&self.verdict, &other.verdict) {
            (Verdict::Delivered { .. }, Verdict::Delivered { .. }) if !self.choices.is_empty() => {
                !other.choices.is_empty()
            }
            (one, another) => one == another,
        };
        same_verdict
            && self.assumptions == other.assumptions
            && self.steps.len() == other.steps.len()
            && self.steps.iter().zip(&other.steps).all(|(one, another)| one.is_similar(another))
    }

    /// Merges choices of the same endpoint, of which lists with weights and hash tables have several.
    fn merge_choices(&mut self) {
        let mut first: HashMap<(SocketAddr, IpAddr, Option<String>), usize> = HashMap::new();
        let mut merged: Vec<Choice> = Vec::new();
        for choice in std::mem::take(&mut self.choices) {
            let index = *first.entry((choice.to, choice.from, choice.interface.clone())).or_insert(merged.len());
            match merged.get_mut(index) {
                Some(known) => known.share += choice.share,
                None => merged.push(choice),
            }
        }
        self.choices = merged;
    }

    fn merge(&mut self, other: Self) {
        self.share += other.share;
        self.choices.extend(other.choices);
        for (step, new) in self.steps.iter_mut().zip(&other.steps) {
            step.generalize(new);
        }
    }
}

impl Step {
    /// Reports whether two steps can be [generalized](Self::generalize) to one step. `other` must not have been
    /// generalized yet.
    fn is_similar(&self, other: &Self) -> bool {
        use Effect::{Connect, Dnat, Masquerade};
        match (self, other) {
            // A listener serves all endpoints.
            (Self::Effect { .. }, Self::Effect { .. }) if self == other => true,
            (
                Self::Choice { hook, table, path, before, relayed: false },
                Self::Effect { hook: hook2, table: table2, path: path2, effect: Dnat { before: before2, .. } },
            )
            | (
                Self::Choice { hook, table, path, before, relayed: true },
                Self::Effect { hook: hook2, table: table2, path: path2, effect: Connect { before: before2, .. } },
            ) => (hook, table, before) == (hook2, table2, before2) && path == without_last(path2),
            (
                Self::Effect { hook, table, path, effect: Dnat { before, .. } },
                Self::Effect { hook: hook2, table: table2, path: path2, effect: Dnat { before: before2, .. } },
            )
            | (
                Self::Effect { hook, table, path, effect: Connect { before, .. } },
                Self::Effect { hook: hook2, table: table2, path: path2, effect: Connect { before: before2, .. } },
            ) => (hook, table, before) == (hook2, table2, before2) && without_last(path) == without_last(path2),
            (
                Self::Effect { hook, table, path, effect: Masquerade { before, .. } }
                | Self::Masquerade { hook, table, path, before },
                Self::Effect { hook: hook2, table: table2, path: path2, effect: Masquerade { before: before2, .. } },
            ) => (hook, table, path, before) == (hook2, table2, path2, before2),
            (one, another) => one == another,
        }
    }

    /// Returns a hash that is equal for [similar](Self::is_similar) steps.
    fn similar_hash(&self) -> u64 {
        use Effect::{Connect, Dnat, Masquerade};
        match self {
            Self::Choice { hook, table, path, before, relayed } => {
                hash(&(hook, table, path.as_slice(), before, relayed))
            }
            Self::Effect { hook, table, path, effect: Dnat { before, .. } } => {
                hash(&(hook, table, without_last(path), before, false))
            }
            Self::Effect { hook, table, path, effect: Connect { before, .. } } => {
                hash(&(hook, table, without_last(path), before, true))
            }
            Self::Effect { hook, table, path, effect: Masquerade { before, .. } }
            | Self::Masquerade { hook, table, path, before } => hash(&(hook, table, path, before)),
            Self::Effect { hook, table, path, effect } => hash(&(hook, table, path, effect)),
            Self::Discarded { reason } => hash(reason),
        }
    }

    /// Turns the step into one that describes both.
    fn generalize(&mut self, other: &Self) {
        let differs = self != other;
        match self {
            Self::Effect { hook, table, path, effect } if differs => {
                let (before, relayed) = match effect {
                    Effect::Dnat { before, .. } => (*before, false),
                    Effect::Connect { before, .. } => (*before, true),
                    Effect::Masquerade { before, .. } => {
                        let (path, before) = (std::mem::take(path), *before);
                        *self = Self::Masquerade { hook: *hook, table: table.clone(), path, before };
                        return;
                    }
                    _ => return,
                };
                let path = without_last(path).to_vec();
                *self = Self::Choice { hook: *hook, table: table.clone(), path, before, relayed };
            }
            _ => {}
        }
    }
}

fn without_last(path: &[String]) -> &[String] {
    path.split_last().map_or(&[], |(_, rest)| rest)
}

/// The maximum number of branches of a trace before they are merged by their ends.
const MAX_BRANCHES: usize = 1024;

/// The maximum number of steps of all these branches.
const MAX_STEPS: usize = 1 << 17;
