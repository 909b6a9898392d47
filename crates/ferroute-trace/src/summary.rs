use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;

use crate::{Assumption, Effect, Event, Hook, Story, Verdict};

/// All stories of a walk, told as few: those that differ only in the endpoint that chance chose are one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// What can happen, in the order of the rules.
    pub groups: Vec<Group>,
}

/// Stories that take the same way, except for the endpoint's own chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// How often chance takes this way, as [`crate::Ending::share`].
    pub share: f64,
    /// What cannot be known, and was taken to be so or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assuming: Vec<Assumption>,
    /// What happens on the way, in order.
    pub steps: Vec<Step>,
    /// Where a DNAT leads: one endpoint, or those that [`Step::Choice`] is about; empty if there was none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choice>,
    /// The end; of several choices, that of the first one.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Something that happens on the way.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "step")]
pub enum Step {
    /// A rule changes something or decides.
    Effect {
        /// Where.
        hook: Hook,
        /// In which table.
        table: Cow<'static, str>,
        /// The chains that lead there, the hook's own first.
        path: Vec<String>,
        /// What.
        #[serde(flatten)]
        effect: Effect,
    },
    /// One of several endpoints becomes the destination.
    Choice {
        /// Where.
        hook: Hook,
        /// In which table.
        table: Cow<'static, str>,
        /// The chains that lead to the choice, the hook's own first.
        path: Vec<String>,
        /// The destination before.
        before: SocketAddr,
    },
    /// The source becomes the host's address on the way to the chosen endpoint; not the same for all of them.
    Masquerade {
        /// Where.
        hook: Hook,
        /// In which table.
        table: Cow<'static, str>,
        /// The chains that lead there, the hook's own first.
        path: Vec<String>,
        /// The source before.
        before: IpAddr,
    },
    /// The kernel drops the packet without a rule.
    Discarded {
        /// Why.
        why: &'static str,
    },
}

/// An endpoint that can be chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// How often, as [`crate::Ending::share`].
    pub share: f64,
    /// The chain that leads to it.
    pub chain: String,
    /// The endpoint.
    pub to: SocketAddr,
    /// What it sees as the source.
    pub from: IpAddr,
    /// The interface on the way to it; `None` if it is on the host itself.
    pub through: Option<String>,
}

impl Summary {
    /// Puts together the stories of one walk.
    pub fn of(stories: impl IntoIterator<Item = Story>) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        for story in stories {
            let group = Group::of(story);
            match groups.iter_mut().find(|known| known.is_like(&group)) {
                Some(known) => known.take(group),
                None => groups.push(group),
            }
        }
        Self { groups }
    }
}

impl Group {
    /// One story's.
    pub(crate) fn of(story: Story) -> Self {
        let ending = story.ending;
        let mut choices = Vec::new();
        let step = |event| match event {
            Event::Effect { hook, table, path, effect } => {
                if let (Effect::Dnat { after, .. }, Verdict::Delivered { to, from, through, .. }) =
                    (&effect, &ending.verdict)
                    && after == to
                {
                    let chain = path.last().cloned().unwrap_or_default();
                    let (to, from, through) = (*to, *from, through.clone());
                    choices.push(Choice { share: ending.share, chain, to, from, through });
                }
                Some(Step::Effect { hook, table, path, effect })
            }
            Event::Discarded { why } => Some(Step::Discarded { why }),
            Event::Hook { .. } | Event::Rule { .. } | Event::Policy { .. } | Event::Routed { .. } => None,
        };
        let steps = story.events.into_iter().filter_map(step).collect();
        Self { share: ending.share, assuming: ending.assuming, steps, choices, verdict: ending.verdict }
    }

    /// The other one differs in no more than the chosen endpoint and what follows from that.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let same_end = match (&self.verdict, &other.verdict) {
            (Verdict::Delivered { .. }, Verdict::Delivered { .. }) if !self.choices.is_empty() => {
                !other.choices.is_empty()
            }
            (one, another) => one == another,
        };
        same_end
            && self.assuming == other.assuming
            && self.steps.len() == other.steps.len()
            && self.steps.iter().zip(&other.steps).all(|(one, another)| one.is_like(another))
    }

    /// Takes a like one in.
    pub(crate) fn take(&mut self, other: Self) {
        self.share += other.share;
        self.choices.extend(other.choices);
        for (known, new) in self.steps.iter_mut().zip(&other.steps) {
            known.generalize(new);
        }
    }
}

impl Step {
    fn is_like(&self, other: &Self) -> bool {
        use Effect::{Dnat, Masquerade};
        match (self, other) {
            (
                Self::Choice { hook, table, path, before },
                Self::Effect { hook: hook2, table: table2, path: path2, effect: Dnat { before: before2, .. } },
            ) => (hook, table, before) == (hook2, table2, before2) && path == without_last(path2),
            (
                Self::Effect { hook, table, path, effect: Dnat { before, .. } },
                Self::Effect { hook: hook2, table: table2, path: path2, effect: Dnat { before: before2, .. } },
            ) => (hook, table, before) == (hook2, table2, before2) && without_last(path) == without_last(path2),
            (
                Self::Effect { hook, table, path, effect: Masquerade { before, .. } }
                | Self::Masquerade { hook, table, path, before },
                Self::Effect { hook: hook2, table: table2, path: path2, effect: Masquerade { before: before2, .. } },
            ) => (hook, table, path, before) == (hook2, table2, path2, before2),
            (one, another) => one == another,
        }
    }

    /// Makes of two steps that are alike the one that says what both say.
    fn generalize(&mut self, other: &Self) {
        let differs = self != other;
        match self {
            Self::Effect { hook, table, path, effect: Effect::Dnat { before, .. } } => {
                let path = without_last(path).to_vec();
                *self = Self::Choice { hook: *hook, table: table.clone(), path, before: *before };
            }
            Self::Effect { hook, table, path, effect: Effect::Masquerade { before, .. } } if differs => {
                let path = std::mem::take(path);
                *self = Self::Masquerade { hook: *hook, table: table.clone(), path, before: *before };
            }
            _ => {}
        }
    }
}

fn without_last(path: &[String]) -> &[String] {
    path.split_last().map_or(&[], |(_, rest)| rest)
}
