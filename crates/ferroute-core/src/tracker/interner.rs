//! Values that many objects have in common, such as the names of ports.

use std::{borrow::Borrow, collections::HashSet, hash::Hash, sync::Arc};

/// Values in use, each of them once.
#[derive(Debug)]
pub(super) struct Interner<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// The number of values at which those that are no longer in use are dropped.
    limit: usize,
}

impl<T: Eq + Hash + ?Sized> Interner<T>
where
    Arc<T>: for<'a> From<&'a T> + Borrow<T>,
{
    /// Returns an equal value that shares its allocation with all others.
    pub(super) fn share(&mut self, value: &T) -> Arc<T> {
        if let Some(shared) = self.values.get(value) {
            return shared.clone();
        }
        if self.values.len() >= self.limit {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.limit = MIN_LIMIT.max(2 * self.values.len());
        }
        let shared: Arc<T> = value.into();
        self.values.insert(shared.clone());
        shared
    }
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), limit: MIN_LIMIT }
    }
}

const MIN_LIMIT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_an_allocation() {
        let mut shared = Interner::<str>::default();
        let (first, second) = (shared.share("http"), shared.share("http"));
        assert!(Arc::ptr_eq(&first, &second) && &*first == "http");
        assert!(!Arc::ptr_eq(&first, &shared.share("https")));
    }

    #[test]
    fn values_that_are_no_longer_in_use_are_dropped() {
        let mut shared = Interner::<str>::default();
        let kept = shared.share("http");
        (0..1000).for_each(|i| drop(shared.share(&i.to_string())));
        assert!(shared.values.len() <= MIN_LIMIT);
        assert!(Arc::ptr_eq(&kept, &shared.share("http")));
    }
}
