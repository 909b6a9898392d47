//! What is in force, and what differs between that and what is wanted. Objects themselves are not kept, only digests.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use crate::{ObjectName, Resource};

/// Tells whether two objects, or two texts, are the same. 128 bits, so that chance does not matter; whoever could make
/// two objects collide on purpose can write manifests anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Digest(u64, u64);

impl Digest {
    pub(super) fn of<T: Hash + ?Sized>(value: &T) -> Self {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(salt);
            value.hash(&mut hasher);
            hasher.finish()
        };
        Self(half(0), half(1))
    }
}

/// Which object it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) resource: Resource,
    pub(super) name: ObjectName,
}

/// All objects, by digest.
pub(super) type State = BTreeMap<Key, Digest>;

/// One step from one state to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The object is new or differs.
    Apply(Key),
    /// The object is gone.
    Delete(Key),
}

/// The steps that lead from `old` to `new`, in the order of the keys; none for what is the same in both.
pub(super) fn diff(old: &State, new: &State) -> Vec<Step> {
    let gone = old.keys().filter(|key| !new.contains_key(key)).map(|key| Step::Delete(key.clone()));
    let applied = new.iter().filter(|(key, digest)| old.get(key) != Some(digest));
    let mut steps: Vec<Step> = gone.chain(applied.map(|(key, _)| Step::Apply(key.clone()))).collect();
    steps.sort_by(|a, b| a.key().cmp(b.key()));
    steps
}

impl Step {
    fn key(&self) -> &Key {
        match self {
            Self::Apply(key) | Self::Delete(key) => key,
        }
    }
}

#[cfg(test)]
mod tests;
