use std::{collections::HashMap, hash::Hash};

/// Counts how many want something, to make it for the first and remove it after the last.
#[derive(Clone, Debug)]
pub(super) struct Counts<T> {
    counts: HashMap<T, u32>,
}

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self { counts: HashMap::new() }
    }
}

impl<T: Eq + Hash> Counts<T> {
    /// One more wants it; true for the first.
    #[must_use = "the first one has to make it"]
    pub(super) fn acquire(&mut self, item: T) -> bool {
        let count = self.counts.entry(item).or_default();
        *count += 1;
        *count == 1
    }

    /// One less wants it; true for the last.
    #[must_use = "the last one has to remove it"]
    pub(super) fn release(&mut self, item: &T) -> bool {
        let Some(count) = self.counts.get_mut(item) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.counts.remove(item);
        }
        last
    }

    /// Somebody wants it.
    pub(super) fn contains(&self, item: &T) -> bool {
        self.counts.contains_key(item)
    }

    /// Everything that somebody wants.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.counts.keys()
    }
}
