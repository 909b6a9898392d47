use std::hash::{DefaultHasher, Hash, Hasher};

use crate::Rule;

/// Stands for a chain's rules and their order. Chains with the same digest hold the same rules; that two different ones
/// meet by chance has odds of one in 2^64. Valid within one run of the program only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainDigest(u64);

impl ChainDigest {
    /// Of a chain without rules.
    pub const EMPTY: Self = Self(0);

    /// Of a chain with these rules.
    pub fn of<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        let mut digest = Self::EMPTY;
        for rule in rules {
            digest.append(rule);
        }
        digest
    }

    /// Of the chain with one more rule at its end.
    pub fn append(&mut self, rule: &Rule) {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        rule.hash(&mut hasher);
        self.0 = hasher.finish();
    }
}
