//! The rules of a chain while commands edit it.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
};

use ferroute_core::IpFamily;
use ferroute_iptables::Rule;

/// The rules of a chain. Scripts insert most rules at the start, and delete a hundred thousand by their text.
#[derive(Debug, Default)]
pub(super) struct RuleList {
    rules: VecDeque<EditedRule>,
    /// The number of rules with a digest.
    counts: HashMap<u64, usize>,
}

/// A rule after `-A CHAIN`.
#[derive(Debug)]
struct EditedRule {
    text: String,
    /// The same number for equal rules.
    digest: u64,
}

impl EditedRule {
    fn new(family: IpFamily, text: String) -> Self {
        let digest = BuildHasherDefault::<DefaultHasher>::default().hash_one(Rule::parse(family, &text));
        Self { text, digest }
    }
}

impl RuleList {
    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns the texts of the rules.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.text.as_str())
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Inserts a rule before the one at a position, which is at most the number of rules.
    pub(super) fn insert(&mut self, family: IpFamily, at: usize, text: String) {
        let rule = EditedRule::new(family, text);
        *self.counts.entry(rule.digest).or_default() += 1;
        self.rules.insert(at.min(self.rules.len()), rule);
    }

    /// Removes the rule at a position; returns `None` if there is none.
    pub(super) fn remove(&mut self, at: usize) -> Option<()> {
        let rule = self.rules.remove(at)?;
        *self.counts.entry(rule.digest).or_default() -= 1;
        Some(())
    }

    /// Returns the position of the first rule that is equal to another one.
    pub(super) fn position(&self, family: IpFamily, text: String) -> Option<usize> {
        let EditedRule { digest, .. } = EditedRule::new(family, text);
        let is_equal = |at: &usize| self.rules[*at].digest == digest;
        let mut all = 0..self.rules.len();
        match self.counts.get(&digest)? {
            0 => None,
            // Scripts delete rules in the order in which they added them, or in the reverse one.
            1 => all.find_map(|at| [at, self.rules.len() - 1 - at].into_iter().find(is_equal)),
            _ => all.find(is_equal),
        }
    }
}
